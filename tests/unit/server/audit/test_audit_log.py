"""Tests of the audit log: a note never waits or fails, and lost notes are counted and reported in their position."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from sandq.model.access import Right
from sandq.model.caller import Caller
from sandq.model.errors import Conflict, Forbidden, InvalidRequest, QuotaExceeded, Unauthenticated
from sandq.protocol.frames import Type
from sandq.server.audit.acts import ACTS, about, is_act, name_of
from sandq.server.audit.audit_log import FREQUENT_PER_S, FREQUENT_SHARE, LINES_COLLAPSED, LINES_LOST, AuditLog
from sandq.server.audit.budgets import COLLAPSED_S, LEAST_BYTES, REFILL_S
from sandq.server.audit.files import AuditFiles
from sandq.server.audit.requests import RequestAudit
from sandq.server.handlers.rights import RULES
from tests.support.waiting import PATIENCE_S

CALLER = Caller("token:ada", "10.0.0.9:4000")


class HandFiles(AuditFiles):
    """A disk that a test can delay or let fail."""

    def __init__(self) -> None:
        super().__init__(Path("nowhere"), 1000, 1)
        self.data = b""
        self.is_full = False
        self.may_write = threading.Event()
        self.may_write.set()
        self.is_asked = threading.Event()

    def append(self, data: bytes) -> None:
        self.is_asked.set()
        self.may_write.wait()
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.data += data

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(text) for text in self.data.splitlines()]


def note(
    audit: AuditLog,
    request: str = "topic_create",
    *,
    principal: str = "token:ada",
    peer: str = "10.0.0.9:4000",
    about_more: dict[str, Any] | None = None,
    **more: Any,
) -> None:
    """Add a line with defaults for everything that is not given."""
    audit.note(
        principal=principal,
        peer=peer,
        gateway="",
        request=request,
        about={"topic": "t", **(about_more or {})},
        result="ok",
        request_id=7,
        **more,
    )


def log_of(files: AuditFiles | None, **more: Any) -> AuditLog:
    return AuditLog("node1", files, lambda: 1_900_000_000_000, **more)


async def test_line_has_time_caller_address_request_and_outcome() -> None:
    files = HandFiles()
    audit = log_of(files)
    note(audit)
    await audit.close()
    assert files.lines == [
        {
            "time": "2030-03-17T17:46:40.000Z",
            "node": "node1",
            "principal": "token:ada",
            "peer": "10.0.0.9:4000",
            "request": "topic_create",
            "about": {"topic": "t"},
            "result": "ok",
            "request_id": 7,
        }
    ]
    assert audit.written == 1


async def test_lines_lost_by_a_full_disk_are_counted_and_reported() -> None:
    files = HandFiles()
    files.is_full = True
    audit = log_of(files)
    for _ in range(3):
        note(audit)
    assert audit.until_written(PATIENCE_S)
    assert audit.lost == 3
    files.is_full = False
    note(audit, "topic_delete")
    await audit.close()
    assert [(line["request"], line.get("lost")) for line in files.lines] == [(LINES_LOST, 3), ("topic_delete", None)]


async def test_hung_disk_delays_no_caller_and_keeps_a_bounded_number() -> None:
    files = HandFiles()
    files.may_write.clear()
    audit = log_of(files, queued_bytes=2000)
    note(audit)
    files.is_asked.wait(PATIENCE_S)
    for _ in range(100):
        note(audit)
    assert 80 < audit.lost < 100
    files.may_write.set()
    assert audit.until_written(PATIENCE_S)
    note(audit, "last")
    await audit.close()
    told = [line["lost"] for line in files.lines if line["request"] == LINES_LOST]
    assert sum(told) == audit.lost
    assert files.lines[-1]["request"] == "last"


async def test_refusals_push_out_no_acts() -> None:
    files = HandFiles()
    audit = log_of(files, second=lambda: 1.0)
    for _ in range(FREQUENT_SHARE + 5):
        note(audit, "produce", is_frequent=True)
    note(audit, "topic_delete")
    await audit.close()
    requests = [line["request"] for line in files.lines]
    assert requests.count("produce") == FREQUENT_SHARE
    assert requests[-1] == "topic_delete"
    assert audit.lost == 5


async def test_refusals_of_one_principal_hide_none_of_another() -> None:
    files, seconds = HandFiles(), [1.0]
    audit = log_of(files, second=lambda: seconds[0])
    for _ in range(3 * FREQUENT_PER_S):
        note(audit, "flood", is_frequent=True)
    for number in range(FREQUENT_PER_S):
        note(audit, "attempt", principal=f"token:{number % 2}", is_frequent=True)
    seconds[0] = 2.0
    note(audit, "later", is_frequent=True)
    await audit.close()
    requests = [line["request"] for line in files.lines]
    assert (requests.count("flood"), requests.count("attempt")) == (FREQUENT_SHARE, FREQUENT_PER_S - FREQUENT_SHARE)
    assert requests[-1] == "later"


async def test_note_after_the_end_is_lost() -> None:
    audit = log_of(HandFiles())
    await audit.close()
    note(audit)
    assert audit.lost == 1


async def test_disabled_audit_log_keeps_nothing_and_refuses_reads() -> None:
    audit = log_of(None)
    note(audit)
    with pytest.raises(Conflict, match=r"audit\.enabled"):
        await audit.read(1, None)
    assert audit.lost == 0
    await audit.close()


async def test_long_texts_are_cut() -> None:
    files = HandFiles()
    audit = log_of(files)
    audit.note(
        principal="p" * 1000,
        peer="",
        gateway="g" * 1000,
        request="identity_put",
        about={"grants": ["x" * 600] * 50, "quota": {"topics": 1}},
        result="ok",
        request_id="r" * 1000,
    )
    await audit.close()
    assert len(files.data) < 8000
    (line,) = files.lines
    assert len(line["about"]["grants"]) == 21


def nested(depth: int) -> Any:
    found: Any = "x"
    for _ in range(depth):
        found = [found]
    return found


async def test_any_request_is_noted_in_a_short_line() -> None:
    files = HandFiles()
    audit = log_of(files)
    wide = [[["y" * 300] * 100] * 100] * 100
    for value in (nested(100_000), wide, {"a": wide}, {number: "z" * 1000 for number in range(100)}, [b"v" * 10**6]):
        for is_frequent in (False, True):
            audit.note(
                principal="token:ada",
                peer="",
                gateway="",
                request="topic_create",
                about={"topic": value, "kind": value},
                result="INVALID",
                request_id=1,
                is_frequent=is_frequent,
            )
    await audit.close()
    lines = files.data.splitlines()
    assert len(lines) == 10
    assert max(map(len, lines[::2])) < 10_000
    assert max(map(len, lines[1::2])) < 2500
    assert not any(b"v" * 10 in line for line in lines)


async def test_sent_text_cannot_forge_a_line() -> None:
    files = HandFiles()
    audit = log_of(files)
    name = 'Zürich\n\r\x85\u2028\u2029\x0b\x1b[2J\x9b\x7f\u202e\udc80\U000e0001"}'
    audit.note(
        principal=name,
        peer="",
        gateway="",
        request=name,
        about={name: name},
        result="FORBIDDEN",
        request_id=name,
    )
    await audit.close()
    text = files.data.decode()
    assert text[:-1].isprintable() and len(text.splitlines()) == 1 and "Zürich" in text
    (line,) = files.lines
    assert line["about"] == {name: name} and line["principal"] == line["request"] == line["request_id"] == name


async def test_failed_requests_do_not_displace_successful_ones() -> None:
    files = HandFiles()
    audit = log_of(files, second=lambda: 1.0)
    requests = RequestAudit(audit)
    for number in range(FREQUENT_SHARE + 5):
        requests.begin([Type.TOPIC_CREATE, number, 5], CALLER)
        requests.failed(number, "topic_create", CALLER, InvalidRequest("no") if number % 2 else QuotaExceeded("no"))
    requests.begin([Type.TOPIC_DELETE, 1000, "t"], CALLER)
    requests.answered(1000)
    await audit.close()
    told = [line["request"] for line in files.lines]
    assert (told.count("topic_create"), told[-1]) == (FREQUENT_SHARE, "topic_delete")
    assert audit.lost == 5


async def noted(*asked: Any) -> list[tuple[str, dict[str, Any], str]]:
    """Return the notes about the test's requests on a connection."""
    files = HandFiles()
    audit = log_of(files)
    requests = RequestAudit(audit)
    for do in asked:
        do(requests)
    await audit.close()
    return [(line["request"], line.get("about", {}), line["result"]) for line in files.lines]


async def test_an_act_is_noted_when_it_is_answered() -> None:
    create = [Type.TOPIC_CREATE, 3, "orders", "timer", 1, 1, {"lease": "1m"}]
    found = await noted(
        lambda requests: requests.begin(create, CALLER),
        lambda requests: requests.answered(3),
        lambda requests: requests.answered(3),
    )
    about = {"topic": "orders", "kind": "timer", "partitions": 1, "replicas": 1}
    assert found == [("topic_create", about, "ok")]


async def test_an_act_is_noted_with_its_error() -> None:
    seek = [Type.GROUP_SEEK, 4, "orders", "billing", "latest"]
    found = await noted(
        lambda requests: requests.begin(seek, CALLER),
        lambda requests: requests.failed(4, "group_seek", CALLER, InvalidRequest("no")),
    )
    assert found == [("group_seek", {"topic": "orders", "group": "billing"}, "INVALID")]


async def test_an_act_without_an_answer_is_noted_when_the_connection_ends() -> None:
    remove = [Type.NODE_CHANGE, 5, "node2", "remove"]
    found = await noted(lambda requests: requests.begin(remove, CALLER), lambda requests: requests.end())
    assert found == [("node_change", {"node": "node2", "action": "remove"}, "NO_ANSWER")]


async def test_every_refusal_and_failed_login_is_noted_and_no_other_error() -> None:
    refusal = Forbidden("no", right="produce", topic="t", principal="token:ada")
    found = await noted(
        lambda requests: requests.failed(6, "produce", CALLER, refusal),
        lambda requests: requests.failed(7, "hello", CALLER, Unauthenticated("wrong token")),
        lambda requests: requests.failed(8, "produce", CALLER, InvalidRequest("no")),
    )
    assert found == [
        ("produce", {"right": "produce", "topic": "t"}, "FORBIDDEN"),
        ("hello", {}, "UNAUTHENTICATED"),
    ]


async def test_secrets_and_messages_are_never_noted() -> None:
    push = [Type.GROUP_PUSH, 9, "orders", "shop", {"url": "https://x.example", "secrets": ["whsec_secret"]}]
    files = HandFiles()
    audit = log_of(files)
    requests = RequestAudit(audit)
    requests.begin(push, CALLER)
    requests.begin([Type.MOVE, 10, "orders", 0, [[b"key-secret", 1, False]], b"value-secret"], CALLER)
    requests.begin([Type.SCHEDULE_PUT, 11, "orders", 0, [["n", None, {"every": "1h"}, b"value-secret", None]]], CALLER)
    changes = {"secret_hash": b"secret_hash_of_a_token", "add": ["produce:a.*"], "quota": {"topics": 3}}
    requests.begin([Type.IDENTITY_PUT, 12, "token:app", False, changes], CALLER)
    for number in (9, 10, 11, 12):
        requests.answered(number)
    await audit.close()
    assert len(files.lines) == 4
    assert b"secret" not in files.data
    about = {"principal": "token:app", "is_new": False, "add": ["produce:a.*"], "quota": {"topics": 3}}
    assert files.lines[3]["about"] == about


def test_reading_the_clock_is_not_audited() -> None:
    assert not is_act([Type.CLUSTER_CLOCK, 1, "show"])
    assert is_act([Type.CLUSTER_CLOCK, 1, "accept"])
    assert not is_act([Type.PRODUCE, 1, "t"])


def test_group_deletion_check_is_not_recorded() -> None:
    assert not is_act([Type.GROUP_DELETE, 1, "t", "g", "check"])
    assert is_act([Type.GROUP_DELETE, 1, "t", "g"])
    assert is_act([Type.GROUP_DELETE, 1, "t", "g", "force"])
    assert about([Type.GROUP_DELETE, 1, "t", "g", "force"])["mode"] == "force"


def test_continued_log_read_is_not_recorded() -> None:
    assert is_act([Type.BACKUP_LOG, 1, "t", 0, "r", None, None, None, 0]), "it begins"
    assert not is_act([Type.BACKUP_LOG, 1, "t", 0, "r", 7, 9, 1, 100])


LOOKS = {
    *(Type.JOB_STATUS, Type.TOPIC_ENSURE, Type.IDENTIFY),
    *(Type.IDENTITY_LIST, Type.ROLE_LIST, Type.AUDIT_LIST),
    *(Type.BACKUP_TOPICS, Type.BACKUP_READ, Type.BACKUP_END),  # these requests continue a BACKUP_BEGIN
    Type.RESTORE_ROWS,  # and RESTORE_BEGIN
}
"""Requests that need or may need such a right, but make no change that interests an auditor."""


@pytest.mark.parametrize("kind", sorted(RULES), ids=name_of)
def test_request_that_needs_a_write_right_is_noted(kind: int) -> None:
    words = RULES[kind].summary
    if any(f"`{right}`" in words for right in (Right.MANAGE, Right.CLUSTER, Right.SECURITY)):
        assert kind in ACTS or kind in LOOKS
    else:
        assert kind not in ACTS


async def test_principal_that_floods_the_log_pushes_out_no_other() -> None:
    now_s = [1000.0]
    files = HandFiles()
    audit = log_of(files, second=lambda: now_s[0])
    for name in ("group_pause", "group_limit"):
        for number in range(3000):
            note(audit, name, about_more={"group": "g" * 200 + str(number)})
            if number % 500 == 0:
                assert audit.until_written(PATIENCE_S)
    note(audit, "topic_delete")
    note(audit, "topic_delete")
    note(audit, "group_pause", principal="token:bob")
    assert audit.until_written(PATIENCE_S)
    flooding = [line for line in files.lines if line.get("principal") == "token:ada"]
    assert sum(len(json.dumps(line, separators=(",", ":"))) for line in flooding) < LEAST_BYTES + 2000
    assert [line["request"] for line in flooding].count("topic_delete") == 1, "each kind of request is reported"
    assert files.lines[-1]["principal"] == "token:bob"
    now_s[0] += COLLAPSED_S
    note(audit, "topic_create", principal="token:bob")
    assert audit.until_written(PATIENCE_S)
    told = {line["about"]["request"]: line["about"] for line in files.lines if line["request"] == LINES_COLLAPSED}
    assert told["topic_delete"] == {"principal": "token:ada", "request": "topic_delete", "result": "ok", "count": 1}
    written = [line["request"] for line in flooding]
    for name in ("group_pause", "group_limit"):
        assert written.count(name) + told.get(name, {"count": 0})["count"] == 3000, "every dropped note is counted"
    now_s[0] += REFILL_S
    for _ in range(3):
        note(audit, "topic_delete")
    await audit.close()
    assert [line["request"] for line in files.lines[-3:]] == ["topic_delete"] * 3, "the share of the caller is refilled"


async def test_callers_without_a_name_have_their_shares_by_address() -> None:
    files = HandFiles()
    audit = log_of(files, second=lambda: 1000.0)
    for _ in range(1000):
        note(audit, principal="anonymous", peer="10.0.0.9:4000")
        assert audit.until_written(PATIENCE_S)
    for peer in ("10.0.0.9:4001", "10.0.0.8:4000", "[::1]:5", "[fe80::1]"):
        note(audit, "topic_delete", principal="anonymous", peer=peer)
        note(audit, "topic_delete", principal="anonymous", peer=peer)
    await audit.close()
    peers = [line["peer"] for line in files.lines if line["request"] == "topic_delete"]
    assert peers == ["10.0.0.9:4001", *["10.0.0.8:4000"] * 2, *["[::1]:5"] * 2, *["[fe80::1]"] * 2]
