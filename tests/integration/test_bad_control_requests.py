"""Wrong requests about messages, jobs, groups and topics get replies that name the mistake."""

from __future__ import annotations

from typing import Any

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.raw_client import Frame, RawClient

ID = offsets.pack(1_900_000_000_000, 5, 0, 0)
KEY = [1, b"key"]
BY_ID = [0, ID]
JOB = b"j" * 16
MAX = 2**48 - 1
CANCEL: dict[str, Any] = {"from_ms": 0, "until_ms": MAX, "dry_run": False}
MOVE: dict[str, Any] = CANCEL | {"to_ms": 1_900_000_000_000}
REDRIVE: dict[str, Any] = CANCEL | {"group": "g"}


def error(frame: Frame) -> tuple[str, str]:
    assert frame[0] == Type.ERROR, frame
    return frame[2], frame[3]


def job(kind: str, arguments: dict[str, Any]) -> tuple[Any, ...]:
    return Type.JOB_START, "t", 0, JOB, kind, arguments


BATCH = encode({Column.VALUE: [b"x"]})
HOURLY: dict[str, Any] = {"every_ms": 3_600_000}


def schedule(settings: object = HOURLY, batch: bytes = BATCH, version: object = 0, name: str = "s") -> tuple[Any, ...]:
    return Type.SCHEDULE_PUT, "t", 0, [[name, version, settings, batch, False]]


PUSH = {"url": "https://x.example/", "secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]}

WRONG: list[tuple[str, tuple[Any, ...], str]] = [
    # -- types, lengths, bounds
    ("INVALID", (Type.GET, "t", 0, ID), "target"),
    ("INVALID", (Type.GET, "t", 0, [0, b"short"]), "16 bytes"),
    ("INVALID", (Type.GET, "t", 0, [1, b""]), "1..1024"),
    ("INVALID", (Type.GET, "t", 0, [1, b"k" * 1025]), "1..1024"),
    ("INVALID", (Type.GET, "t", 0, [2, ID]), "target"),
    ("INVALID", (Type.GET, "t", "0", BY_ID), "partition"),
    ("INVALID", (Type.GET, "t", 0), "missing"),
    ("INVALID", (Type.WHY, "t", 0, [0, 5]), "target"),
    ("INVALID", (Type.CANCEL, "t", 0, []), "1..1000"),
    ("INVALID", (Type.CANCEL, "t", 0, [BY_ID] * 1001), "1..1000"),
    ("INVALID", (Type.CANCEL, "t", 0, [BY_ID, [0]]), "item 2"),
    ("INVALID", (Type.MOVE, "t", 0, [BY_ID]), "item 1"),
    ("INVALID", (Type.MOVE, "t", 0, [[BY_ID, -1, False]]), "item 1"),
    ("INVALID", (Type.MOVE, "t", 0, [[BY_ID, 2**48, False]]), "item 1"),
    ("INVALID", (Type.MOVE, "t", 0, [[BY_ID, 5, 1]]), "item 1"),
    ("INVALID", (Type.MOVE, "t", 0, [[BY_ID, None, True, 5]]), "relative"),
    ("INVALID", (Type.MOVE, "t", 0, [[BY_ID, None, True, None, {"value": 1}]], b"x"), "relative"),
    ("INVALID_SETTING", (Type.RESTORE_TOPIC, "d", "timer", 1, 1, 1, {"lease_ms": "x"}, None, "r"), "lease_ms"),
    ("INVALID_SETTING", (Type.RESTORE_TOPIC, "d", "fair", 1, 1, 1, {"tenants": [1]}, None, "r"), "tenants.0"),
    ("INVALID_TIME", (Type.MOVE, "t", 0, [[KEY, 1_900_000_000_000, False], [BY_ID, 1_900_000_000, False]]), "item 1"),
    ("INVALID", (Type.LIST, "t", 0, "dead", 0, MAX, None, 10, None, False), "state"),
    ("INVALID", (Type.LIST, "t", 0, None, 0, MAX, None, 0, None, False), "limit"),
    ("INVALID", (Type.LIST, "t", 0, None, 0, MAX, None, 1001, None, False), "limit"),
    ("INVALID", (Type.LIST, "t", 0, None, 0, 2**48, None, 10, None, False), "until_ms"),
    ("INVALID", (Type.LIST, "t", 0, None, 0, MAX, b"k" * 65_537, 10, None, False), "key_prefix"),
    ("INVALID", (Type.LIST, "t", 0, None, 0, MAX, None, 10, b"after", False), "after"),
    ("INVALID", (Type.LIST, "t", 0, None, 0, MAX, None, 10, None, 1), "values"),
    ("INVALID", (Type.FETCH, "t", 0, b"start", None, 10, 10, False), "start"),
    ("INVALID", (Type.FETCH, "t", 0, ID, b"end", 10, 10, False), "end"),
    ("INVALID", (Type.FETCH, "t", 0, ID, None, 0, 10, False), "max_messages"),
    ("INVALID", (Type.FETCH, "t", 0, ID, None, 10, 0, False), "max_bytes"),
    ("INVALID", (Type.FORECAST, "t", "day", 10), "unit"),
    ("INVALID", (Type.FORECAST, "t", "hour", 0), "count"),
    ("INVALID", (Type.FORECAST, "t", "hour", 3601), "count"),
    ("INVALID", (Type.JOB_START, "t", 0, b"short", "cancel", CANCEL), "16 bytes"),
    ("INVALID", job("explode", CANCEL), "kind"),
    ("INVALID", job("seek", CANCEL), "kind"),
    ("INVALID", job("cancel", {}), "missing"),
    ("INVALID", job("cancel", CANCEL | {"from_ms": -1}), "from_ms"),
    ("INVALID", job("cancel", CANCEL | {"from_ms": "0"}), "from_ms"),
    ("INVALID", job("cancel", CANCEL | {"until_ms": 2**48}), "until_ms"),
    ("INVALID", job("cancel", CANCEL | {"dry_run": 1}), "dry_run"),
    ("INVALID", job("cancel", CANCEL | {"key_prefix": "text"}), "key_prefix"),
    ("INVALID", job("cancel", CANCEL | {"key_prefix": b"k" * 65_537}), "key_prefix"),
    ("INVALID", job("cancel", CANCEL | {"group": "g"}), "group"),
    ("INVALID", job("move", CANCEL), "to_ms"),
    ("INVALID", job("move", MOVE | {"shift_ms": 5}), "to_ms"),
    ("INVALID", job("move", CANCEL | {"shift_ms": -(2**48)}), "shift_ms"),
    ("INVALID_TIME", job("move", CANCEL | {"to_ms": 1_900_000_000}), "seconds"),
    ("INVALID", job("redrive", REDRIVE | {"reason": "boredom"}), "reason"),
    ("INVALID", job("redrive", REDRIVE | {"rate": 0}), "rate"),
    ("INVALID", job("redrive", CANCEL), "group"),
    ("INVALID", job("purge_dead", REDRIVE | {"rate": 1}), "rate"),
    ("INVALID", (Type.JOB_STATUS, "t", 0, b"short"), "16 bytes"),
    ("INVALID", (Type.JOB_STOP, "t", 0, 5), "job_id"),
    ("INVALID", (Type.DEAD_LIST, "t", 0, "g", "boredom", 10, None, True), "reason"),
    ("INVALID", (Type.DEAD_LIST, "t", 0, "g", None, 0, None, True), "limit"),
    ("INVALID", (Type.DEAD_LIST, "t", 0, "g", None, 10, b"after", True), "after"),
    ("INVALID", (Type.DEAD_LIST, "t", 0, "g", None, 10, None, True, 0, 9, "", None), "error"),
    ("INVALID", (Type.DEAD_REDRIVE, "t", 0, "g", [ID] * 1001), "1..1000"),
    ("INVALID", (Type.DEAD_PURGE, "t", 0, "g", [b"short"]), "16 bytes"),
    ("INVALID", job("redrive", REDRIVE | {"error": ""}), "error"),
    ("INVALID", (Type.HOLD, "t", 0, "h", b"offset", 1000), "16 bytes"),
    ("INVALID", (Type.HOLD, "t", 0, "h", ID, 999), "1000..31622400000"),
    ("INVALID", (Type.HOLD, "t", 0, "h", ID, 31_622_400_001), "1000..31622400000"),
    ("INVALID", (Type.HOLD, "t", 0, "h", ID, None), "with an offset"),
    ("INVALID", (Type.HOLD, "t", 0, "h", None, 1000), "without one"),
    ("INVALID_NAME", (Type.HOLD, "t", 0, "no hold", ID, 1000), "hold name"),
    ("INVALID", (Type.GROUP_SEEK, "t", "g", "yesterday"), "latest"),
    ("INVALID", (Type.GROUP_SEEK, "t", "g", b"offset"), "16 bytes"),
    ("INVALID", (Type.GROUP_SEEK, "t", "g", None), "to"),
    ("INVALID", (Type.GROUP_SEEK, "t", "g", 2**48), "to"),
    ("INVALID", (Type.GROUP_DELETE, "t"), "group"),
    ("INVALID", (Type.GROUP_UPDATE, "t", "g", []), "settings"),
    ("INVALID_SETTING", (Type.GROUP_UPDATE, "t", "g", {"lease": "1m"}), "lease"),
    ("INVALID", (Type.GROUP_PAUSE, "t", "g", 1), "paused"),
    ("INVALID", (Type.GROUP_LIMIT, "t", "g", 1), "limits"),
    ("INVALID_SETTING", (Type.GROUP_LIMIT, "t", "g", {"lease": 5}), "lease"),
    ("INVALID_SETTING", (Type.GROUP_LIMIT, "t", "g", {"rate": True}), "rate"),
    ("INVALID_SETTING", (Type.GROUP_LIMIT, "t", "g", {"max_in_flight": 1.5}), "max_in_flight"),
    ("INVALID_NAME", (Type.GROUP_LIMIT, "t", "no body", {}), "name"),
    ("INVALID", (Type.GROUP_PUSH, "t", "g", 1), "push"),
    ("INVALID_NAME", (Type.GROUP_PUSH, "t", "no body", None), "name"),
    ("INVALID_SETTING", (Type.GROUP_PUSH, "t", "g", {}), "url"),
    ("INVALID_SETTING", (Type.GROUP_PUSH, "t", "g", {"5": 6}), "5"),
    ("INVALID_SETTING", (Type.GROUP_PUSH, "t", "g", {"url": b"https://x.example/"}), "url"),
    ("INVALID_SETTING", (Type.GROUP_PUSH, "t", "g", {"url": "https://x.example/", "secrets": [b"s"]}), "secrets"),
    ("INVALID_SETTING", (Type.GROUP_PUSH, "t", "g", {"url": "https://x.example/", "secrets": {}}), "secrets"),
    ("INVALID_SETTING", (Type.GROUP_PUSH, "t", "g", {"timeout": 5}), "timeout"),
    ("INVALID_SETTING", (Type.GROUP_PUSH, "t", "g", PUSH | {"url": "https://127.0.0.1/"}), "push.allow"),
    ("INVALID_SETTING", (Type.GROUP_PUSH, "t", "g", PUSH | {"url": "http://x.example/"}), "push.allow_http"),
    ("INVALID_SETTING", (Type.GROUP_PUSH, "t", "g", PUSH | {"url": "https://x.example:22/"}), "push.ports"),
    ("INVALID", (Type.PUSH_LIST, 5), "topic"),
    ("INVALID", (Type.LIMIT_LIST, 5), "topic"),
    ("INVALID", (Type.LIMIT_LIST, "t", 5), "name"),
    ("INVALID_SETTING", (Type.GROUP_LIMIT, "t", "g", {"limit": 5}), "limit"),
    ("INVALID_SETTING", (Type.GROUP_LIMIT, "t", "g", {"limit": "a b"}), "limit"),
    ("INVALID_SETTING", (Type.GROUP_LIMIT, "t", "g", {"limit": "llm", "rate": 5}), "limit"),
    ("NOT_FOUND", (Type.GROUP_LIMIT, "t", "g", {"limit": "llm"}), "limit"),
    ("NOT_FOUND", (Type.GROUP_LIMIT, "sandq.limits", "llm", {}), "limit"),
    ("INVALID", (Type.GROUP_LIMIT, "sandq.limits", "llm", {"limit": "llm"}), "limit"),
    ("INVALID", (Type.CONSUMER_LIST, "t", 5), "group"),
    ("INVALID", (Type.PAUSE_LIST, "t", 5), "group"),
    ("INVALID", (Type.OVERVIEW, 5), "after"),
    ("INVALID", (Type.TOPIC_HISTORY, None), "topic"),
    ("INVALID_SETTING", (Type.GROUP_UPDATE, "t", "g", {"max_attempts": 0}), "max_attempts"),
    ("INVALID_SETTING", (Type.GROUP_UPDATE, "t", "g", {"backoff": {"first": "-1s"}}), "backoff.first"),
    ("INVALID", (Type.TOPIC_UPDATE, "t", None, None, None), "settings"),
    ("INVALID_SETTING", (Type.TOPIC_UPDATE, "t", {"ordering": "key"}, None, None), "ordering"),
    ("INVALID_SETTING", (Type.TOPIC_UPDATE, "t", {"retain": "1d"}, None, None), "delete_on_ack"),
    ("INVALID", (Type.TOPIC_UPDATE, "t", {}, 0, None), "1 to 4096"),
    ("INVALID", (Type.TOPIC_UPDATE, "t", {}, None, 2), "2 replicas, and 1 nodes"),
    ("INVALID", (Type.NODE_CHANGE, "node1", "stop"), "drain"),
    ("INVALID", (Type.NODE_CHANGE, "node1", "drain"), "add a node first"),
    ("CONFLICT", (Type.NODE_CHANGE, "node1", "remove"), "drain it first"),
    ("INVALID", (Type.TRANSFER, "t", 0, "node9"), "node9 does not hold"),
    ("INVALID", (Type.REBUILD, "t", 0, "node9"), "node9 does not hold"),
    ("INVALID", (Type.REBUILD, "t", 0, "node1"), "holds the only replica"),
    ("INVALID", (Type.SCHEDULE_PUT, "t", 0, []), "1..1000"),
    ("INVALID", (Type.SCHEDULE_PUT, "t", 0, [["s", 0, HOURLY, BATCH, False]] * 1001), "1..1000"),
    ("INVALID", (Type.SCHEDULE_PUT, "t", 0, [["s", 0, HOURLY, BATCH, False]] * 2), "twice"),
    ("INVALID", schedule({}), "either cron or every"),
    ("INVALID", schedule(HOURLY | {"every": "1h"}), "'every' is no setting"),
    ("INVALID", schedule(HOURLY | {"anchor_ms": 5}), "'anchor_ms' is no setting"),
    ("INVALID", schedule({"every_ms": 999}), "1s at least"),
    ("INVALID", schedule({"every_ms": "1h"}), "every_ms"),
    ("INVALID", schedule({"cron": "0 0 30 2 *"}), "never happens"),
    ("INVALID", schedule({"cron": "@daily", "zone": "Nowhere"}), "zone"),
    ("INVALID", schedule(HOURLY | {"count": 0}), "count"),
    ("INVALID", schedule(HOURLY | {"misfire": ["one"]}), "misfire"),
    ("INVALID", schedule(HOURLY | {"misfire_most": 5}), "misfire_most"),
    ("INVALID_NAME", schedule(HOURLY | {"overlap_group": "no group"}), "group name"),
    ("INVALID", schedule(batch=b"none"), "batch"),
    ("INVALID", schedule(batch=encode({Column.VALUE: [b"x"], Column.HEADERS: [b"\xc1"]})), "headers"),
    ("INVALID", schedule(batch=encode({Column.VALUE: [b"x", b"y"]})), "one message"),
    ("INVALID", schedule(batch=encode({Column.VALUE: [b"x"], Column.UNIQUE_KEY: [b"k"]})), "unique key"),
    ("INVALID", schedule(batch=encode({Column.VALUE: [b"x"], Column.DELIVER_MS: [MAX]})), "delivery time"),
    ("INVALID", schedule(batch=encode({Column.VALUE: [b"x"], Column.PRIORITY: [3]})), "priorit"),
    ("INVALID", schedule(name="s\0acme"), "tenant"),
    ("TOO_LARGE", schedule(batch=encode({Column.VALUE: [bytes(257 << 10)]})), "send a reference"),
    ("INVALID", (Type.SCHEDULE_CHANGE, "t", 0, "stop", ["s"], JOB), "action"),
    ("INVALID", (Type.SCHEDULE_GET, "t", 0, [5]), "text"),
    ("INVALID", (Type.SCHEDULE_LIST, "t", 0, "", 0, None), "limit"),
    ("INVALID", (Type.SCHEDULE_PREVIEW, "s", {}, None, 10), "either cron or every"),
    ("INVALID", (Type.SCHEDULE_PREVIEW, "s", HOURLY | {"anchor_ms": "x"}, None, 10), "anchor_ms"),
    # -- missing names
    ("NOT_FOUND", (Type.NODE_CHANGE, "node9", "drain"), "node9"),
    ("NOT_FOUND", (Type.NODE_CHANGE, "x" * 10_000, "undrain"), "no node"),
    ("UNKNOWN_TOPIC", (Type.TRANSFER, "u", 0, "node1"), "no topic"),
    ("UNKNOWN_PARTITION", (Type.TRANSFER, "t", 7, "node1"), "no partition 7"),
    ("NOT_FOUND", (Type.GET, "t", 0, BY_ID), "no such message"),
    ("NOT_FOUND", (Type.WHY, "t", 0, KEY), "no such message"),
    ("NOT_FOUND", (Type.JOB_STATUS, "t", 0, JOB), "job"),
    ("NOT_FOUND", (Type.JOB_STOP, "t", 0, JOB), "job"),
    ("UNKNOWN_GROUP", job("redrive", CANCEL | {"group": "nobody"}), "nobody"),
    ("UNKNOWN_GROUP", job("purge_dead", CANCEL | {"group": "nobody"}), "nobody"),
    ("UNKNOWN_GROUP", (Type.DEAD_LIST, "t", 0, "nobody", None, 10, None, True), "nobody"),
    ("UNKNOWN_GROUP", (Type.DEAD_REDRIVE, "t", 0, "nobody", [ID]), "nobody"),
    ("UNKNOWN_GROUP", (Type.DEAD_PURGE, "t", 0, "nobody", [ID]), "nobody"),
    ("UNKNOWN_GROUP", (Type.GROUP_SEEK, "t", "nobody", "latest"), "nobody"),
    ("UNKNOWN_GROUP", (Type.GROUP_DELETE, "t", "nobody"), "nobody"),
    ("UNKNOWN_GROUP", (Type.GROUP_UPDATE, "t", "nobody", {}), "nobody"),
    ("UNKNOWN_GROUP", (Type.GROUP_PAUSE, "t", "nobody", True), "nobody"),
    ("INVALID_NAME", (Type.GROUP_DELETE, "t", "no body"), "name"),
    ("UNKNOWN_PARTITION", (Type.GROUP_SEEK, "t", "g", offsets.pack(1_900_000_000_000, 5, 0, 9)), "partition 9"),
]

OF_A_PARTITION: list[tuple[Any, ...]] = [
    (Type.GET, BY_ID),
    (Type.WHY, KEY),
    (Type.CANCEL, [KEY]),
    (Type.MOVE, [[KEY, 5, True]]),
    (Type.LIST, None, 0, MAX, None, 10, None, False),
    (Type.FETCH, ID, None, 10, 10, False),
    (Type.JOB_START, JOB, "cancel", CANCEL),
    (Type.JOB_STATUS, JOB),
    (Type.JOB_STOP, JOB),
    (Type.DEAD_LIST, "g", None, 10, None, True),
    (Type.DEAD_REDRIVE, "g", [ID]),
    (Type.DEAD_PURGE, "g", [ID]),
    (Type.HOLD, "h", ID, 1000),
    (Type.CLOCK_RESET,),
    (Type.SCHEDULE_PUT, [["s", 0, HOURLY, BATCH, False]]),
    (Type.SCHEDULE_CHANGE, "pause", ["s"], JOB),
    (Type.SCHEDULE_GET, ["s"]),
    (Type.SCHEDULE_LIST, "", 10, None),
]
OF_A_TOPIC: list[tuple[Any, ...]] = [
    (Type.FORECAST, "hour", 1),
    (Type.GROUP_LIST,),
    (Type.CONSUMER_LIST, "g"),
    (Type.PAUSE_LIST, "g"),
    (Type.TOPIC_STATS,),
    (Type.GROUP_SEEK, "g", "latest"),
    (Type.GROUP_DELETE, "g"),
    (Type.GROUP_UPDATE, "g", {}),
    (Type.GROUP_PAUSE, "g", True),
    (Type.GROUP_LIMIT, "g", {"rate": 5}),
    (Type.GROUP_PUSH, "g", PUSH),
    (Type.GROUP_PUSH, "g", None),
    (Type.PUSH_LIST,),
    (Type.LIMIT_LIST,),
    (Type.TOPIC_HISTORY,),
    (Type.TOPIC_UPDATE, {}, None, None),
]


async def test_wrong_request_is_named_and_connection_continues(client: RawClient) -> None:
    await client.create()
    await client.subscribe()
    before = (await client.call(Type.GROUP_LIST, "t"))[2]
    for code, fields, part in WRONG:
        found, message = error(await client.call(*fields))
        assert (found, part in message) == (code, True), (fields, message)
        assert (await client.call(Type.PING))[0] == Type.REPLY
        assert (await client.call(Type.GROUP_LIST, "t"))[2] == before, f"{fields} must change nothing"


async def test_topics_and_partitions_that_are_not_there(client: RawClient) -> None:
    await client.create()
    for kind, *rest in OF_A_PARTITION:
        assert error(await client.call(kind, "nothing", 0, *rest)) == ("UNKNOWN_TOPIC", "there is no topic 'nothing'")
        assert error(await client.call(kind, "t", 1, *rest))[0] == "UNKNOWN_PARTITION"
        assert error(await client.call(kind, "t", 5000, *rest))[0] == "INVALID"
    for kind, *rest in OF_A_TOPIC:
        assert error(await client.call(kind, "nothing", *rest)) == ("UNKNOWN_TOPIC", "there is no topic 'nothing'")
    assert (await client.call(Type.PING))[0] == Type.REPLY


async def test_ids_of_other_partitions_are_not_found(client: RawClient) -> None:
    await client.call(Type.TOPIC_CREATE, "t", "timer", 2, 1, {})
    base, _ = (await client.produce(b"m", partition=1))[2]
    foreign = [0, base]
    assert error(await client.call(Type.GET, "t", 0, foreign))[0] == "NOT_FOUND"
    assert error(await client.call(Type.WHY, "t", 0, foreign))[0] == "NOT_FOUND"
    assert (await client.call(Type.CANCEL, "t", 0, [foreign]))[2] == [["not_found", None]]
    assert (await client.call(Type.MOVE, "t", 0, [[foreign, 5, True]]))[2] == [["not_found", None]]
    assert (await client.call(Type.GET, "t", 1, foreign))[2]["value"] == b"m"
    # A read may start at an offset of another partition. It returns the messages of this partition after it.
    assert (await client.call(Type.FETCH, "t", 0, base, None, 10, 1000, False))[0] == Type.REPLY
    assert (await client.call(Type.LIST, "t", 0, None, 0, MAX, None, 10, base, True))[2:] == [[], None]


async def test_each_item_has_its_own_outcome(timed: Serving, hand: HandClock, dial: Dial) -> None:
    hand.hold()
    client = await dial(timed)
    await client.create()
    now_ms = hand.now_ms()
    batch = encode(
        {
            Column.VALUE: [b"a", b"b", b"c"],
            Column.UNIQUE_KEY: [b"a", b"b", None],
            Column.DELIVER_MS: [now_ms + 3_600_000] * 3,
        }
    )
    column = (await client.call(Type.PRODUCE, "t", 0, 0, 0, 0, 0, batch))[2]
    ids = [column[at : at + 16] for at in range(0, 48, 16)]
    targets = [[1, b"a"], [1, b"nobody"], [0, ids[0]], [0, ID], [0, ids[2]]]
    outcomes = (await client.call(Type.CANCEL, "t", 0, targets))[2]
    assert outcomes == [
        ["cancelled", ids[0]],
        ["not_found", None],
        ["cancelled", ids[0]],
        ["not_found", None],
        ["cancelled", ids[2]],
    ]
    later_ms = now_ms + 7_200_000
    items = [[[1, b"b"], later_ms, False], [[1, b"b"], 60_000, True], [[1, b"a"], 5, True], [[0, ID], 5, True]]
    outcomes = (await client.call(Type.MOVE, "t", 0, items))[2]
    assert [outcome[0] for outcome in outcomes] == ["moved", "moved", "too_late", "not_found"]
    assert offsets.deliver_ms(outcomes[0][1]) == later_ms
    assert offsets.deliver_ms(outcomes[1][1]) == now_ms + 60_000
    found = (await client.call(Type.GET, "t", 0, [1, b"b"]))[2]
    assert (found["id"], found["offset"], found["moves"]) == (ids[1], outcomes[1][1], 2)


async def test_messages_that_cannot_have_their_unique_key(client: RawClient) -> None:
    await client.call(Type.TOPIC_CREATE, "t", "timer", 4, 1, {})
    refused = 0
    for partition in range(4):
        answer = await client.produce(b"m", partition=partition, unique_key=[b"somebody"])
        refused += answer[0] == Type.ERROR
        if answer[0] == Type.ERROR:
            assert answer[2] == "INVALID" and "partition" in answer[3]
    assert refused == 3, "the key must choose the partition"
    answers = [await client.produce(b"m", partition=at, unique_key=[b"u"], key=[b"somebody"]) for at in range(4)]
    told = [answer[3] for answer in answers if answer[0] == Type.ERROR]
    assert len(told) == 3 and all("its key belongs to partition" in text for text in told)
    for cells in ([b""], [b"k" * 1025]):
        assert error(await client.produce(b"m", unique_key=cells))[0] in ("INVALID", "TOO_LARGE")
    assert error(await client.produce(b"m", ttl_ms=[0]))[0] == "INVALID_TIME"
    mixed = await client.call(
        Type.PRODUCE, "t", 0, 0, 0, 0, 3, encode({Column.VALUE: [b"m"], Column.UNIQUE_KEY: [b"k"]})
    )
    assert error(mixed)[0] == "INVALID"


async def test_names_of_messages_with_a_key(client: RawClient) -> None:
    named = [1, b"u", None, b"k"]
    await client.call(Type.TOPIC_CREATE, "t", "timer", 1, 1, {})
    await client.call(Type.TOPIC_CREATE, "f", "fair", 1, 1, {})
    requests = [(Type.GET, named), (Type.WHY, named), (Type.CANCEL, [named]), (Type.MOVE, [[named, 5, True]])]
    for kind, field in requests:
        code, text = error(await client.call(kind, "f", 0, field))
        assert code == "INVALID" and "name the tenant and leave out the key" in text
        answer = await client.call(kind, "t", 0, field)
        assert answer[2] == "NOT_FOUND" if answer[0] == Type.ERROR else answer[2] == [["not_found", None]]
    assert error(await client.call(Type.GET, "t", 0, [1, b"u", "acme", b"k"]))[0] == "INVALID"


async def test_too_many_jobs_at_once(timed: Serving, hand: HandClock, dial: Dial) -> None:
    """The jobs do not end: they redrive one message per second, and the clock is stopped."""
    hand.hold()
    client = await dial(timed)
    await client.create(max_attempts=1)
    await client.subscribe(credit=100)
    await client.produce(*[b"%d" % number for number in range(50)])
    pushed = await client.push()
    await client.call(Type.NACK, pushed[2], pushed[3], [[pushed[4], None, None, "no"]])
    for number in range(64):
        job_id = number.to_bytes(16, "big")
        started = await client.call(Type.JOB_START, "t", 0, job_id, "redrive", REDRIVE | {"rate": 1})
        assert started[2]["state"] == "running"
    refused = error(await client.call(Type.JOB_START, "t", 0, JOB, "cancel", CANCEL))
    assert (refused[0], "64 jobs" in refused[1]) == ("CONFLICT", True)
    # A known job is still answered, and a stopped job frees its slot.
    assert (await client.call(Type.JOB_START, "t", 0, bytes(16), "redrive", REDRIVE | {"rate": 1}))[0] == Type.REPLY
    assert (await client.call(Type.JOB_STOP, "t", 0, bytes(16)))[2]["state"] == "stopped"
    assert (await client.call(Type.JOB_START, "t", 0, JOB, "cancel", CANCEL))[0] == Type.REPLY
