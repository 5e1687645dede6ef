"""Tests of the rights that each request needs, and of the requests that each built-in role allows."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from sandq.model.access import ROLES, Access
from sandq.model.errors import Forbidden, SandqError
from sandq.protocol.frames import Type
from sandq.server.handlers.rights import NAMES_AT_ONCE, RULES
from sandq.server.handlers.session import GUARDED, HANDLERS
from tests.support.documents import document
from tests.support.protocol_document import EXAMPLES, KINDS, decode

ANYBODY = {
    *(Type.HELLO, Type.PROVE, Type.ON_BEHALF, Type.PING, Type.UNSUBSCRIBE, Type.CREDIT),
    *(Type.TOPIC_NAMES, Type.CLUSTER_INFO, Type.CLUSTER_CLOCK, Type.SCHEDULE_PREVIEW),
    *(Type.AUDIT_NOTE, Type.SLO, Type.OVERVIEW),
}
READER = {
    *(Type.FETCH, Type.MEASURE, Type.GET, Type.LIST, Type.WHY, Type.FORECAST, Type.JOB_STATUS, Type.KV_GET),
    *(Type.KV_SCAN, Type.KV_WATCH, Type.SCHEDULE_GET, Type.SCHEDULE_LIST, Type.GROUP_LIST, Type.TOPIC_STATS),
    *(Type.PUSH_LIST, Type.DEAD_LIST, Type.TOPIC_HISTORY, Type.CONSUMER_LIST, Type.PAUSE_LIST),
    Type.LIMIT_LIST,
}
WRITER = {
    *(Type.PRODUCE, Type.SUBSCRIBE, Type.LEASE, Type.ACK, Type.NACK, Type.EXTEND, Type.ACK_THEN, Type.TOPIC_ENSURE),
    Type.LEASE_PAUSE,
    Type.HOLD,
}
MANAGER = {
    *(Type.MOVE, Type.CANCEL, Type.JOB_START, Type.JOB_STOP, Type.SCHEDULE_PUT, Type.SCHEDULE_CHANGE),
    *(Type.DEAD_REDRIVE, Type.DEAD_PURGE, Type.GROUP_SEEK, Type.GROUP_DELETE, Type.GROUP_UPDATE, Type.GROUP_PAUSE),
    *(Type.GROUP_LIMIT, Type.GROUP_PUSH, Type.TOPIC_CREATE, Type.TOPIC_UPDATE, Type.TOPIC_DELETE),
    *(Type.TOPIC_ENSURE, Type.HOLD),
}
OPERATOR = {
    *MANAGER,
    *(Type.CLUSTER_INIT, Type.NODE_CHANGE, Type.TRANSFER, Type.REBUILD, Type.CLOCK_RESET),
    *(Type.FINALIZE, Type.LOG_LEVEL, Type.DEBUG_DUMP, Type.ENTRY_SKIP),
    *(Type.BACKUP_TOPICS, Type.BACKUP_BEGIN, Type.BACKUP_READ, Type.BACKUP_END, Type.BACKUP_LOG),
}
OF_ROLES: dict[str, set[Type]] = {
    "reader": READER | {Type.METADATA},
    "writer": READER | WRITER | {Type.METADATA},
    "operator": READER | OPERATOR | {Type.METADATA},
    "admin": {*KINDS},
}


def context(topic: str | None = "orders") -> Any:
    """Return the context of a connection to a node that knows one topic for all leases."""
    catalog = SimpleNamespace(topic_of_group=lambda number: topic)
    return SimpleNamespace(lease_topics={}, broker=SimpleNamespace(catalog=catalog))


def is_let(access: Access, frame: list[Any], topic: str | None = "orders") -> bool:
    try:
        RULES[frame[0]].check(context(topic), access, frame)
    except Forbidden:
        return False
    return True


def test_every_request_has_a_rule() -> None:
    assert RULES.keys() == {*KINDS} == GUARDED.keys() == HANDLERS.keys()


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("name", EXAMPLES)
def test_role_allows_its_requests(role: str, name: str) -> None:
    frame = decode(name)
    access = Access.of("token:a", [role], {})
    allowed = frame[0] in OF_ROLES[role] | ANYBODY
    if frame[0] == Type.IDENTIFY:
        allowed = role == "admin" or frame[2:] == [None, None]
    assert is_let(access, frame) == allowed


@pytest.mark.parametrize("name", [name for name in EXAMPLES if decode(name)[0] not in ANYBODY])
def test_right_on_a_different_topic_does_not_apply(name: str) -> None:
    frame = decode(name)
    access = Access.of("token:a", ["produce:mine.*", "consume:mine.*", "read:mine.*", "manage:mine.*"], {})
    if frame[0] == Type.METADATA and frame[2] is None:
        return
    assert not is_let(access, frame)


def test_checks_of_many_named_topics_are_limited() -> None:
    class Counting(Access):
        asked = 0

        def sees(self, topic: str) -> bool:
            Counting.asked += 1
            return super().sees(topic)

    access = Counting("token:a", Access.of("token:a", ["read:a*"], {}).grants)
    assert is_let(access, [Type.METADATA, 1, 65_000 * ["a"]])
    assert Counting.asked <= NAMES_AT_ONCE, "the other names are checked in later turns"


def test_settling_needs_to_consume_of_the_topic_of_the_lease() -> None:
    access = Access.of("token:a", ["consume:billing.*/mail"], {})
    ack = [Type.ACK, 1, 7, 0, [[65536, None]]]
    assert is_let(access, ack, "billing.invoices")
    assert not is_let(access, ack, "orders")
    assert is_let(access, ack, None)  # no lease exists that could be settled


def test_an_ack_that_sends_needs_to_produce_where_it_sends_to() -> None:
    access = Access.of("token:a", ["consume:orders", "produce:receipts"], {})

    def ack(*topics: str | None) -> list[Any]:
        return [Type.ACK_THEN, 1, 7, 0, 65536, None, [[topic, None, False, {}] for topic in topics]]

    assert is_let(access, ack("receipts"))
    assert not is_let(access, ack("receipts", "orders"))
    assert not is_let(access, ack(None))


def test_dead_letters_go_only_where_one_may_produce() -> None:
    access = Access.of("token:a", ["manage:orders", "produce:orders.dead"], {})

    def create(target: str) -> list[Any]:
        return [Type.TOPIC_CREATE, 1, "orders", "timer", 1, 1, {"dead_letter_topic": target}]

    assert is_let(access, create("orders.dead"))
    assert not is_let(access, create("payments"))
    assert not is_let(access, [Type.TOPIC_UPDATE, 1, "orders", {"dead_letter_topic": "payments"}, None, None])


def test_a_group_of_its_own_is_all_that_is_consumed() -> None:
    access = Access.of("token:a", ["consume:orders/mail-*"], {})
    assert is_let(access, [Type.LEASE, 1, "orders", "mail-eu", "c", 1, 0, None, "earliest", False])
    assert not is_let(access, [Type.LEASE, 1, "orders", "billing", "c", 1, 0, None, "earliest", False])
    assert not is_let(access, [Type.PRODUCE, 1, "orders", 0, 0, 0, 0, 0, b""])


@pytest.mark.parametrize(
    "frame",
    [
        [Type.PRODUCE, 1],
        [Type.PRODUCE, 1, 5, 0, 0, 0, 0, 0, b""],
        [Type.GET, 1, None, 0, b""],
        [Type.ACK, 1, "orders", 0, []],
        [Type.GROUP_SEEK, 1, "orders"],
        [Type.GET, 1, "x" * 300, 0, b""],
    ],
)
def test_request_that_names_nothing_is_refused(frame: list[Any]) -> None:
    with pytest.raises(SandqError):
        RULES[frame[0]].check(context(), Access.of("token:a", ["read:a", "produce:a", "consume:a"], {}), frame)


def test_a_refusal_is_the_same_whether_there_is_such_a_topic_or_not() -> None:
    access = Access.of("token:a", ["produce:mine"], {})
    with pytest.raises(Forbidden) as refused:
        RULES[Type.PRODUCE].check(context(), access, [Type.PRODUCE, 1, "orders", 0, 0, 0, 0, 0, b""])
    assert refused.value.details == {"right": "produce", "principal": "token:a", "topic": "orders"}


def test_documented_rights_match_the_rules() -> None:
    page = document("security")
    rows = re.findall(r"^\| ([A-Z_, ]+) \| (.*) \|$", page, re.MULTILINE)
    told = {name: words for names, words in rows for name in names.split(", ")}
    assert told == {Type(kind).name: rule.summary for kind, rule in RULES.items()}
