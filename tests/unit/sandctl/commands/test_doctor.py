"""Tests of sandctl doctor with a client that reports problems."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandq.client import TopicRecord
from sandq.client.admin import ClusterOverview, GroupOverview, TopicOverview
from sandq.model.health import SITUATIONS
from sandq.protocol.replies import Partition
from tests.support.sandctl.fake_client import NOW_MS, Ctl, FakeClient, letter


@pytest.fixture
def sick(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """A cluster with a topic and without problems."""
    monkeypatch.setattr("sandctl.commands.doctor.now_ms", lambda: NOW_MS)
    settings = {"dead_letter_topic": "failed"}
    client.topics = [TopicRecord("t", 1, "timer", [Partition(0, 7, "n1"), Partition(1, 8, "n1")], 2, 1, settings)]
    client.stats = [{"partition": 0, "outbox": 3, "outbox_stuck": []}, {"partition": 1}]
    client.groups = [{"group": "g", "partition": 0, "ready": 5, "consumers": 1, "dead_reasons": {}, "reason": None}]
    client.pushes = [push()]
    return client


def push(**more: Any) -> dict[str, Any]:
    fields = {"group": "shop", "url": "https://shop.test/", "state": "pushing", "error": None, "error_ms": None}
    return fields | more


def findings(ctl: Ctl, *args: str) -> list[tuple[str, str, str, str]]:
    """Return the checks that did not succeed."""
    result = ctl("doctor", "-o", "json", *args)
    rows = json.loads(result.stdout)
    assert result.exit_code == any(row["state"] == "failed" for row in rows)
    assert all(
        row["situation"] in SITUATIONS or row["what"] in ("certificates", "outboxes") for row in rows if row["todo"]
    )
    return [(row["what"], row["state"], row["found"], row["todo"]) for row in rows if row["state"] != "ok"]


def test_healthy_cluster_has_only_ok_rows(offline: Ctl, sick: FakeClient) -> None:
    result = offline("doctor")
    assert result.exit_code == 0, result.output
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["ok", "nodes", "all", "are", "up"],
        ["ok", "replicas", "none", "is", "shut", "or", "differs"],
        ["ok", "partitions", "all", "have", "a", "leader", "(1", "topic)"],
        ["ok", "groups", "none", "is", "stopped"],
        ["ok", "pushes", "no", "receiver", "fails"],
        ["ok", "outboxes", "nothing", "is", "held", "up"],
        ["6", "ok"],
    ]
    assert findings(offline, "--topic", "t") == []
    assert offline("doctor", "--topic", "nowhere").exit_code == 1


@pytest.mark.parametrize(
    ("more", "state", "words", "todo"),
    [
        (
            {"state": "waiting", "error": "503 down"},
            "failed",
            "fails every request",
            "messages wait without using attempts",
        ),
        ({"state": "probing", "error": "503 down"}, "failed", "503 down", "repair the receiver"),
        ({"state": "looking", "error": "no such name"}, "failed", "cannot be reached: no such name", "push.allow"),
        (
            {"error": "500", "error_ms": NOW_MS - 1000},
            "warning",
            "failed in the last minutes: 500",
            "group push show t shop",
        ),
    ],
)
def test_receivers_that_fail(
    offline: Ctl, sick: FakeClient, more: dict[str, Any], state: str, words: str, todo: str
) -> None:
    sick.pushes = [
        push(**more),
        push(group="fine", error="500", error_ms=NOW_MS - 600_000),
        push(group="other", state="looking"),
        push(group="calls", url=None, targets="message", error="a.test: 500", error_ms=NOW_MS - 1000),
    ]
    ((what, is_, found, do),) = findings(offline)
    assert (what, is_) == ("pushes", state) and found.startswith("shop of t: its receiver ")
    assert words in found and todo in do
    assert f"-> {do}" in offline("doctor").stdout


def test_outboxes_that_do_not_move(offline: Ctl, sick: FakeClient) -> None:
    stuck = {"topic": "next", "partition": 2, "tries": 31, "error": "node n2 cannot be reached"}
    sick.stats = [{"partition": 0, "outbox": 1200, "outbox_stuck": [stuck, {**stuck, "partition": 1, "tries": 2}]}]
    ((what, state, found, todo),) = findings(offline)
    assert (what, state) == ("outboxes", "failed") and "continues by itself" in todo
    assert found == (
        "partition 0 of t: 1,200 messages to be sent, and partition 2 of next has taken none in 31 tries: node n2 "
        "cannot be reached"
    )


def test_undeliverable_messages_are_reported(offline: Ctl, sick: FakeClient) -> None:
    sick.groups = [
        {"group": "g", "partition": at, "ready": 0, "consumers": 1, "dead_reasons": {"undeliverable": 2, "nacked": at}}
        for at in (0, 1)
    ]
    sick.letters = [letter(1), letter(2, not_forwarded="there is no topic 'failed'")]
    (first, second) = findings(offline)
    assert first[:3] == ("outboxes", "failed", "g of t: 4 messages that acks sent could not be delivered")
    assert "sandctl dead redrive t -g g --reason undeliverable" in first[3]
    assert second[2] == "g of t: 1 dead letter that failed refused: there is no topic 'failed'"


def test_groups_nodes_and_partitions(offline: Ctl, sick: FakeClient) -> None:
    sick.groups = [
        {"group": "a", "partition": at, "ready": 3, "consumers": 0, "reason": "it is paused"} for at in (0, 1)
    ] + [{"group": name, "partition": at, "ready": 3, "consumers": 0} for name in ("b", "shop") for at in (0, 1)]
    sick.topics = [sick.topics[0]._replace(partitions=[Partition(0, 7, None), Partition(1, 8, "n1")])]
    sick.info = {
        "node": "n1",
        "nodes": [{"node": "n1", "up": True}, {"node": "n2", "up": False}, {"node": "n3", "up": True, "sick": "EIO"}],
        "no_room": True,
        "clock_alarm": False,
        "storage_failed": None,
        "different": [{"topic": "t", "partition": 1, "nodes": ["n2"]}],
        "exposed": ["listen.client on 10.0.0.1 without TLS (tls.client: require)"],
    }
    assert [(what, state, found) for what, state, found, _ in findings(offline)] == [
        ("nodes", "failed", "n2 cannot be reached by n1"),
        ("nodes", "failed", "n3 is sick: EIO"),
        ("nodes", "failed", "n1: its disk is nearly full"),
        ("security", "warning", "n1 is not protected: listen.client on 10.0.0.1 without TLS (tls.client: require)"),
        ("replicas", "failed", "the replica of partition 1 of t at n2 differs from the others"),
        ("partitions", "failed", "1 of 2 partitions of t have no leader"),
        ("groups", "warning", "a of t is paused: it gets no new messages"),
        ("groups", "warning", "b of t: 6 ready, and no consumer is connected"),
    ]


def test_expired_group_is_named_with_kept_messages(offline: Ctl, sick: FakeClient) -> None:
    sick.groups = [
        {"group": "a", "partition": at, "ready": 2, "consumers": 0, "expired": at > 0, "unfinished": 2}
        for at in (0, 1, 2)
    ]
    ((what, state, found, todo),) = findings(offline)
    assert (what, state) == ("groups", "warning")
    assert found == "a of t has expired (group_ttl): it keeps 4 messages to finish, and gets no others"
    assert "sandctl group delete t a --force" in todo


def test_groups_are_judged_by_the_age_and_leases_that_are_known(offline: Ctl, sick: FakeClient) -> None:
    sick.groups = [{"group": "young", "ready": 3, "consumers": 0}, {"group": "leasing", "ready": 3, "leased": 1}]
    groups = {"young": GroupOverview(group="young", ready=3, oldest_ms=NOW_MS - 1000)}
    sick.overview = ClusterOverview(
        NOW_MS, 10_000, {"t": TopicOverview(name="t", kind="timer", partitions=2, groups=groups)}, {}
    )
    assert findings(offline) == []
    groups["young"].oldest_ms = NOW_MS - 60_000
    ((_, _, found, _),) = findings(offline)
    assert found == "young of t: 3 ready, and no consumer is connected"


def test_certificates_that_end_soon(offline: Ctl, sick: FakeClient) -> None:
    day = 86_400
    sick.certificate_ends = {"n1": NOW_MS / 1000 + 40 * day, "n2": NOW_MS / 1000 + 29.5 * day, "n3": NOW_MS / 1000 - 5}
    found = findings(offline)
    assert [(what, state, text) for what, state, text, _ in found] == [
        ("certificates", "warning", "that of n2 ends in 29 days"),
        ("certificates", "warning", "that of n3 ends in -1 days"),
    ]
    assert all("section tls" in todo for *_, todo in found)
