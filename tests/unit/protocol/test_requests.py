"""Tests of requests and replies: they round-trip, and every error is named."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.model.errors import InvalidRequest, ProtocolError, SandqError, WrongVersion
from sandq.model.offsets import PLACE_MAX, pack
from sandq.model.piece import LeasedPieces, Piece
from sandq.protocol import requests, requests_access, requests_admin, requests_debug, requests_keys, requests_overview
from sandq.protocol import requests_log as log
from sandq.protocol import requests_messages as messages
from sandq.protocol import requests_schedules as schedules
from sandq.protocol.frames import FrameReader, Type, encode_reply
from sandq.protocol.replies import (
    Deliver,
    HelloReply,
    MetadataReply,
    Node,
    Offsets,
    Partition,
    TopicRecord,
    encode_deliver,
    lost_ranges,
    results,
)
from tests.support.examples import examples

BASE = pack(5, 6, 7, 1)
NEAR_END = pack(1, 1, PLACE_MAX - 3, 0)
"""Only four places are left from there on."""
JOB = bytes(range(16))
RANGE = {"from_ms": 5, "until_ms": 2**48 - 1, "dry_run": True}
DEAD_PAGE = [45, 1, "t", 0, "g", None, 1, None, True]
PAGE: list[Any] = [13, 1, "t", 0, None, 0, 9, None, 1, None, True]
DEAD = requests_admin.DeadList("t", 0, "g", None, 1, None, True)

EVERY: list[tuple[int, Any]] = [
    (Type.HELLO, requests.Hello(2, "me", {"a": 1})),
    (Type.METADATA, requests.Metadata(["a", "b"])),
    (Type.METADATA, requests.Metadata(None)),
    (Type.PRODUCE, requests.Produce("t", 3, 2**64 - 1, 2**32 - 1, 9, 2, b"batch")),
    (Type.TOPIC_ENSURE, requests_admin.TopicEnsure("orders.eu")),
    (Type.TOPIC_NAMES, requests.TopicNames(["orders.*", "[ab]?"], 1000)),
    (Type.SUBSCRIBE, requests.Subscribe(4, "t", "g", "me-1", 10, None, "earliest", [[1, 2, 3]])),
    (Type.SUBSCRIBE, requests.Subscribe(4, "t", "g", "me-1", 0, 30_000, "latest", [])),
    (Type.SUBSCRIBE, requests.Subscribe(4, "t", "g", "me-1", 0, None, 1_700_000_000_000, [])),
    (Type.SUBSCRIBE, requests.Subscribe(4, "t", "g", "me-1", 0, None, BASE, [])),
    (Type.UNSUBSCRIBE, requests.Unsubscribe(4)),
    (Type.LEASE, requests.Lease("t", "g", "me-1", 1000, 60_000, None, BASE, True)),
    (Type.LEASE, requests.Lease("t", "g", "me-1", 1, 0, 30_000, "earliest", False)),
    (Type.ACK, requests.Ack(7, 3, [[1, None], [2, [[BASE, 5], [BASE, b"\x05"]]]])),
    (Type.NACK, requests.Nack(7, 3, [[1, None, None, None], [2, [[BASE, 1]], 5000, "why"]])),
    (Type.NACK, requests.Nack(7, 3, [[1, None, None, None, False], [2, None, None, None, True]])),
    (Type.NACK, requests.Nack(7, 3, [[1, None, None, "no", True, None, 1], [2, None, 5, None, True, None, 2]])),
    (
        Type.NACK,
        requests.Nack(7, 3, [[1, None, None, None, True, {"priority": 1}, 2], [2, *3 * [None], True, None, 0]]),
    ),
    (Type.EXTEND, requests.Extend(7, 3, [[1, 60_000], [2, 60_000, [[BASE, 5], [BASE, b"\x05"]]]])),
    (Type.LEASE_PAUSE, requests.LeasePause(7, 3, [[1, BASE, "tenant", 60_000, "g"]])),
    (Type.ACK_THEN, requests.AckThen(7, 3, 1, [[BASE, 1]], [[None, None, False, {}], ["t", 5, True, {"value": b"v"}]])),
    (Type.ACK_THEN, requests.AckThen(7, 3, 1, [[BASE, 1]], [[None, None, False, {}]], 1, None, "no")),
    (Type.ACK_THEN, requests.AckThen(7, 3, 1, [[BASE, 1]], [[None, None, False, {}]], 0, 5000)),
    (
        Type.ACK_THEN,
        requests.AckThen(
            *(7, 3, 1, None),
            [["t", 0, False, {"key": b"k", "headers": b"h", "ttl_ms": 1, "priority": -1, "tenant": "acme"}]],
        ),
    ),
    (Type.PING, requests.Ping()),
    (Type.PROVE, requests.Prove(bytes(32))),
    (Type.ON_BEHALF, requests.OnBehalf("ada", "192.0.2.7")),
    (Type.ON_BEHALF, requests.OnBehalf(None, None)),
    (Type.FETCH, log.Fetch("t", 0, BASE, None, 1, 2**32 - 1)),
    (Type.MEASURE, log.Measure("t", 0, BASE)),
    (Type.MEASURE, log.Measure("t", 4095, BASE, BASE, 1, True)),
    (Type.FETCH, log.Fetch("t", 4095, BASE, BASE, 1000, 1, True)),
    (Type.GET, messages.Get("t", 0, [0, BASE])),
    (Type.LIST, messages.List("t", 0, None, 0, 2**48 - 1, None, 1000, None, False)),
    (Type.LIST, messages.List("t", 0, "waiting", 5, 6, b"customer-", 1, BASE, True)),
    (Type.LIST, messages.List("t", 0, None, 5, 6, None, 1, BASE, True, None, "newest")),
    (Type.LIST, messages.List("t", 0, None, 5, 6, None, 1, BASE, True, None, None, 1 << 16)),
    (Type.MOVE, messages.Move("t", 0, [[[0, BASE], 5, False], [[1, b"u"], 2**48 - 1, True]])),
    (Type.MOVE, messages.Move.of_updates("t", 0, [[[0, BASE], None, False, None, {"headers": b"h", "value": b"va"}]])),
    (Type.CANCEL, messages.Cancel("t", 0, [[0, BASE], [1, b"x" * 1024]])),
    (Type.WHY, messages.Why("t", 0, [1, b"u"])),
    (Type.JOB_START, messages.JobStart("t", 0, JOB, "cancel", {**RANGE, "key_prefix": None})),
    (Type.JOB_START, messages.JobStart("t", 0, JOB, "move", {**RANGE, "key_prefix": b"a", "to_ms": 9})),
    (Type.JOB_START, messages.JobStart("t", 0, JOB, "move", {**RANGE, "key_prefix": b"a", "priority": -9})),
    (Type.JOB_START, messages.JobStart("t", 0, JOB, "move", {**RANGE, "key_prefix": b"z", "shift_ms": 1 - 2**48})),
    (Type.JOB_START, messages.JobStart("t", 0, JOB, "redrive", {**RANGE, "group": "g", "reason": None, "rate": 5})),
    (Type.JOB_START, messages.JobStart("t", 0, JOB, "purge_dead", {**RANGE, "group": "g", "reason": "expired"})),
    (Type.JOB_STATUS, messages.JobStatus("t", 0, JOB)),
    (Type.JOB_STOP, messages.JobStop("t", 0, JOB)),
    (Type.FORECAST, messages.Forecast("t", "hour", 3600)),
    (Type.KV_GET, requests_keys.KvGet("t", 4095, True, [b"a", b"\xff"])),
    (Type.KV_SCAN, requests_keys.KvScan("t", 0, True, b"", None, 10_000, 8 << 20)),
    (Type.KV_SCAN, requests_keys.KvScan("t", 0, False, b"a", b"b", 1, 1)),
    (Type.KV_WATCH, requests_keys.KvWatch("t", 7, None, None, True, b"", None, 65_536, 8 << 20, 30_000)),
    (Type.KV_WATCH, requests_keys.KvWatch("t", 7, b"a" * 16, b"m" * 16, False, b"a", b"b", 1, 1, 0)),
    (Type.SCHEDULE_PUT, schedules.SchedulePut("t", 0, [["s", None, {"every_ms": 1000}, b"batch", False]])),
    (Type.SCHEDULE_PUT, schedules.SchedulePut("t", 7, [["s\0acme", 0, {}, b"", True], ["a/b", 9, {}, b"", False]])),
    (Type.SCHEDULE_CHANGE, schedules.ScheduleChange("t", 0, "trigger", ["s", "ü" * 127], JOB)),
    (Type.SCHEDULE_GET, schedules.ScheduleGet("t", 4095, ["s"] * 1000)),
    (Type.SCHEDULE_LIST, schedules.ScheduleList("t", 0, "", 1000, None)),
    (Type.SCHEDULE_LIST, schedules.ScheduleList("t", 0, "daily", 1, "daily\0acme.mail")),
    (Type.SCHEDULE_PREVIEW, schedules.SchedulePreview("s", {"cron": "@daily"}, None, 1000)),
    (Type.SCHEDULE_PREVIEW, schedules.SchedulePreview("s", {}, 2**48 - 1, 1)),
    (Type.TOPIC_CREATE, requests_admin.TopicCreate("t", "timer", 4, 3, {"lease": "30s"})),
    (Type.TOPIC_DELETE, requests_admin.TopicDelete("t")),
    (Type.TOPIC_UPDATE, requests_admin.TopicUpdate("t", {"ttl": None, "backoff": {"kind": "fixed"}})),
    (Type.TOPIC_UPDATE, requests_admin.TopicUpdate("t", {}, 12, 3)),
    (Type.CONSUMER_LIST, requests_admin.ConsumerList("t", "g")),
    (Type.PAUSE_LIST, requests_admin.PauseList("t", "g")),
    (Type.GROUP_LIST, requests_admin.GroupList("t")),
    (Type.GROUP_SEEK, requests_admin.GroupSeek("t", "g", "latest")),
    (Type.GROUP_SEEK, requests_admin.GroupSeek("t", "g", 5)),
    (Type.GROUP_SEEK, requests_admin.GroupSeek("t", "g", BASE)),
    (Type.GROUP_DELETE, requests_admin.GroupDelete("t", "g")),
    (Type.GROUP_UPDATE, requests_admin.GroupUpdate("t", "g", {})),
    (Type.GROUP_PAUSE, requests_admin.GroupPause("t", "g", True)),
    (Type.GROUP_LIMIT, requests_admin.GroupLimit("t", "g", {"rate": 1.5, "burst": 3})),
    (Type.GROUP_PUSH, requests_admin.GroupPush("t", "g", {"url": "https://x/", "secrets": ["s"]})),
    (Type.GROUP_PUSH, requests_admin.GroupPush("t", "g", None)),
    (Type.PUSH_LIST, requests_admin.PushList("t")),
    (Type.LIMIT_LIST, requests_admin.LimitList("t")),
    (Type.LIMIT_LIST, requests_admin.LimitList("t", "llm")),
    (Type.OVERVIEW, requests_overview.Overview(None)),
    (Type.OVERVIEW, requests_overview.Overview("orders")),
    (Type.TOPIC_HISTORY, requests_overview.TopicHistory("t")),
    (Type.IDENTIFY, requests_access.Identify("sandq_x", None)),
    (Type.IDENTIFY, requests_access.Identify(None, "app")),
    (Type.IDENTITY_PUT, requests_access.IdentityPut("token:a", True, {"grants": ["read"], "secret_hash": BASE * 2})),
    (Type.IDENTITY_DELETE, requests_access.IdentityDelete("token:a")),
    (Type.IDENTITY_LIST, requests_access.IdentityList(None, 100)),
    (Type.ROLE_PUT, requests_access.RolePut("r", ["read:a.*"])),
    (Type.ROLE_DELETE, requests_access.RoleDelete("r")),
    (Type.ROLE_LIST, requests_access.RoleList("a", 1)),
    (Type.DEAD_LIST, requests_admin.DeadList("t", 0, "g", None, 1000, None, False)),
    (Type.DEAD_LIST, requests_admin.DeadList("t", 0, "g", "lease_expired", 1, BASE, True)),
    (Type.DEAD_LIST, requests_admin.DeadList("t", 0, "g", None, 1, None, True, 5, 2**48 - 1, "e" * 1024, b"")),
    (Type.DEAD_LIST, requests_admin.DeadList("t", 0, "g", None, 1, None, True, 0, 6, None, None)),
    (Type.DEAD_REDRIVE, requests_admin.DeadRedrive("t", 0, "g", [BASE] * 1000)),
    (Type.DEAD_PURGE, requests_admin.DeadPurge("t", 4095, "g", [BASE])),
    (Type.HOLD, requests_admin.Hold("t", 4095, "h", BASE, 1000)),
    (Type.HOLD, requests_admin.Hold("t", 0, "h", BASE, 366 * 86_400_000)),
    (Type.HOLD, requests_admin.Hold("t", 0, "h", None, None)),
    (Type.TOPIC_STATS, requests_admin.TopicStats("t")),
    (Type.CLUSTER_INFO, requests_admin.ClusterInfo()),
    (Type.CLUSTER_CLOCK, requests_admin.ClusterClock("accept")),
    (Type.CLUSTER_INIT, requests_admin.ClusterInit()),
    (Type.NODE_CHANGE, requests_admin.NodeChange("node4", "undrain")),
    (Type.TRANSFER, requests_admin.Transfer("t", 4095, "node4")),
    (Type.REBUILD, requests_admin.Rebuild("t", 0, "node4")),
    (Type.FINALIZE, requests_admin.Finalize(True)),
    (Type.ENTRY_SKIP, requests_admin.EntrySkip(None, 0, None, None, True, False)),
    (Type.ENTRY_SKIP, requests_admin.EntrySkip("t", 4095, 7, [0, 3], False, True)),
    (Type.LOG_LEVEL, requests_debug.LogLevel(None, None)),
    (Type.LOG_LEVEL, requests_debug.LogLevel("debug", 86_400_000)),
    (Type.DEBUG_DUMP, requests_debug.DebugDump()),
    (Type.CLOCK_RESET, requests_admin.ClockReset("t", 4095)),
]


@pytest.mark.parametrize(("kind", "request_"), EVERY, ids=lambda value: type(value).__name__)
def test_written_data_is_read_back(kind: int, request_: Any) -> None:
    (frame,) = FrameReader().feed(request_.frame(77))
    assert frame[:2] == [kind, 77]
    assert type(request_).parse(frame) == request_
    # A request with one field too many or too few is refused, so that no wish of a client is ignored.
    with pytest.raises(InvalidRequest, match=Type(kind).name):
        type(request_).parse([*frame[:2], *request_, 1])
    needed = len(request_) - len(request_.defaults)
    if needed:
        with pytest.raises(InvalidRequest, match=rf"{Type(kind).name} field {needed} \(\w+\): missing"):
            type(request_).parse(frame[: 1 + needed])


@pytest.mark.parametrize(
    ("request_", "items"),
    [
        (requests.Lease("t", "g", "me-1", 10, 0, None, BASE, False), 10),
        (requests.Lease("t", "g", "me-1", 10, 0, None, BASE, False, [3]), 11),
        (requests.Subscribe(4, "t", "g", "me-1", 0, None, BASE, []), 10),
        (requests.Subscribe(4, "t", "g", "me-1", 0, None, BASE, [], 7), 11),
        (requests.Subscribe(4, "t", "g", "me-1", 0, None, BASE, [], None, [0, 4095]), 12),
        (requests.Subscribe(4, "t", "g", "me-1", 0, None, BASE, [], None, None, 10_000), 13),
        (messages.List("t", 0, None, 0, 9, None, 1, None, False), 11),
        (messages.List("t", 0, None, 0, 9, None, 1, None, False, b"u"), 12),
        (messages.List("t", 0, None, 0, 9, None, 1, None, False, None, "newest"), 13),
        (messages.List("t", 0, None, 0, 9, None, 1, None, False, None, None, 9), 14),
        (DEAD, 9),
        (DEAD._replace(until_ms=6), 11),
        (DEAD._replace(order="newest"), 14),
    ],
)
def test_fields_at_the_end_with_their_defaults_are_left_out(request_: Any, items: int) -> None:
    (frame,) = FrameReader(1 << 20).feed(request_.frame(77))
    assert len(frame) == items and type(request_).parse(frame) == request_
    assert type(request_).parse([*frame, *[*request_][items - 2 :]]) == request_, "a client may still send these fields"


def test_handlers_out_of_range_are_refused() -> None:
    plain = requests.Subscribe(4, "t", "g", "me-1", 0, None, BASE, [])
    for handlers in (0, 10_001, True, "1"):
        with pytest.raises(InvalidRequest, match=r"field 11 \(handlers\)"):
            requests.Subscribe.parse([Type.SUBSCRIBE, 77, *plain[:-1], handlers])
    with pytest.raises(InvalidRequest, match="SUBSCRIBE"):
        requests.Subscribe.parse([Type.SUBSCRIBE, 77, *plain, 1])


def test_group_delete_without_mode_is_encoded_as_before() -> None:
    plain = requests_admin.GroupDelete("t", "g")
    for request, items in ((plain, 4), (plain._replace(mode="force"), 5)):
        (frame,) = FrameReader().feed(request.frame(77))
        assert len(frame) == items and requests_admin.GroupDelete.parse(frame) == request
    with pytest.raises(InvalidRequest, match="mode"):
        requests_admin.GroupDelete.parse([Type.GROUP_DELETE, 77, "t", "g", "now"])


def test_on_behalf_may_have_grants() -> None:
    plain = requests.OnBehalf("ada", "192.0.2.7")
    for request, items in ((plain, 4), (plain._replace(grants=["consume:t/mail-*"]), 5)):
        (frame,) = FrameReader().feed(request.frame())
        assert len(frame) == items and requests.OnBehalf.parse(frame) == request
    with pytest.raises(InvalidRequest, match="grants"):
        requests.OnBehalf.parse([Type.ON_BEHALF, 0, "ada", "192.0.2.7", ["fly:"]])


@pytest.mark.parametrize("partitions", [[], [1, 1], [4096], [-1], ["1"], [True], "1", [*range(4096), 0]])
def test_partitions_are_some_of_a_topic_each_once(partitions: Any) -> None:
    frame = [Type.SUBSCRIBE, 1, 4, "t", "g", "me-1", 10, None, "earliest", [], None, partitions]
    with pytest.raises(InvalidRequest, match=r"field 10 \(partitions\)"):
        requests.Subscribe.parse(frame)


_CHANGED: dict[str, int] = {"value": 1}


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("at_ms", [None, 0, 5, 2**48 - 1, 2**48, -1, True, 1.5, "5"])
@pytest.mark.parametrize("rest", [[], [5], [None], [None, _CHANGED], [5, _CHANGED]], ids=str)
def test_move_takes_every_combination_that_apply_can_compute(relative: bool, at_ms: Any, rest: list[Any]) -> None:
    cells = b"x" if len(rest) > 1 else b""
    frame = [Type.MOVE, 1, "t", 0, [[[0, BASE], at_ms, relative, *rest]], cells]
    has_change = rest not in ([], [None])
    is_time = type(at_ms) is int and 0 <= at_ms < 2**48
    if rest != [None] and (is_time or (at_ms is None and not relative and has_change)):
        assert messages.Move.parse(frame).items == frame[4]
        return
    with pytest.raises(InvalidRequest, match=r"MOVE field 3 \(items\): item 1: "):
        messages.Move.parse(frame)


def test_credit_has_no_request_id() -> None:
    (frame,) = FrameReader().feed(requests.Credit(4, 10).frame())
    assert frame == [Type.CREDIT, 0, 4, 10]
    assert requests.Credit.parse(frame) == (4, 10)


@pytest.mark.parametrize(
    ("cls", "frame", "words"),
    [
        (requests.Produce, [3, 1, "t", "0", 0, 0, 0, 0, b""], r"PRODUCE field 2 \(partition\): expected int, got str"),
        (requests.Produce, [3, 1, "t", True, 0, 0, 0, 0, b""], r"field 2 \(partition\): expected int, got bool"),
        (requests.Produce, [3, 1, b"t", 0, 0, 0, 0, 0, b""], r"field 1 \(topic\): expected str, got bin"),
        (requests.Produce, [3, 1, "t", 0, 0, 0, 0, 0, "b"], r"field 7 \(batch\): expected bin, got str"),
        (requests.Produce, [3, 1, "t", 0, 0, 0, 0, 5, b""], r"field 6 \(on_conflict\): 5 is not within 0..4"),
        (requests.Produce, [3, 1, "t", 0, 0, 0, 0, b""], r"field 6 \(on_conflict\): expected int or array, got bin"),
        *[
            (requests.Produce, [3, 1, "t", 0, 0, 0, 0, wrong, b""], rf"field 6 \(on_conflict\): {problem}")
            for wrong, problem in (
                ([], r"expected \[4, max wait ms\] or \[5, window ms\] or \[6, window ms\]"),
                *[(wrong, r"expected \[4, max wait ms\]") for wrong in ([4], [4, True], [3, 1000], [7, 1], [4, 1, 1])],
                *[(wrong, r"expected \[4, max wait ms\]") for wrong in ([[5], 1], [5, None], [True, 1], [6, 1.0])],
                ([4, 0], r"a max wait of 1..316224000000 ms is allowed"),
                ([4, requests.MAX_WAIT_MS + 1], r"a max wait of 1..316224000000 ms is allowed"),
                *[([rule, 0], r"a window of 1..604800000 ms is allowed") for rule in (5, 6)],
                *[([rule, 604_800_001], r"a window of 1..604800000 ms is allowed") for rule in (5, 6)],
            )
        ],
        (requests.Produce, [3, 1, "t", 4096, 0, 0, 0, 0, b""], r"field 2 \(partition\): 4096 is not within 0..4095"),
        (requests.Produce, [3, 1, "t", 0, -1, 0, 0, 0, b""], r"field 3 \(producer_id\): -1 is not within"),
        (requests.Produce, [3, 1, "t", 0, 0, 2**32, 0, 0, b""], r"field 4 \(epoch\)"),
        (requests.Metadata, [2, 1, "t"], "expected array or nil, got str"),
        (requests_keys.KvGet, [64, 1, "t", 0, False, []], "1 to 10000 keys are asked for"),
        (requests_keys.KvGet, [64, 1, "t", 0, False, ["a"]], "1 to 10000 keys are asked for, as bytes"),
        (requests_keys.KvGet, [64, 1, "t", 0, 0, [b"a"]], r"field 3 \(stale\): expected bool, got int"),
        (requests_keys.KvWatch, [66, 1, "t", 0, b"a", None, True, b"", None, 1, 1, 0], r"\(after\): expected 16"),
        (requests_keys.KvWatch, [66, 1, "t", 0, None, b"m", True, b"", None, 1, 1, 0], r"\(mark\): expected 16"),
        (schedules.SchedulePut, [80, 1, "t", 0, []], "1"),
        (schedules.SchedulePut, [80, 1, "t", 0, [["s", 0, {}, b""]]], r"expected \[name, version, settings, batch"),
        (schedules.SchedulePut, [80, 1, "t", 0, [["s", 0, {}, "b", False]]], r"expected \[name, version, settings"),
        (schedules.SchedulePut, [80, 1, "t", 0, [["s", -1, {}, b"", False]]], "version is a whole number"),
        (schedules.SchedulePut, [80, 1, "t", 0, [["", 0, {}, b"", False]]], "1..255 bytes, not 0"),
        (schedules.ScheduleChange, [81, 1, "t", 0, "stop", ["s"], JOB], r"\(action\)"),
        (schedules.ScheduleChange, [81, 1, "t", 0, "pause", ["s\n"], JOB], "printable characters only"),
        (schedules.ScheduleChange, [81, 1, "t", 0, "pause", ["s\0a b"], JOB], "tenant: 'a b' is not allowed"),
        (schedules.ScheduleChange, [81, 1, "t", 0, "pause", ["s"], b"short"], r"\(token\)"),
        (schedules.ScheduleGet, [82, 1, "t", 0, ["ü" * 128]], "1..255 bytes, not 256"),
        (schedules.ScheduleList, [83, 1, "t", 0, "", 1001, None], r"\(limit\): 1001 is not within 1..1000"),
        (schedules.SchedulePreview, [84, 1, "s", {}, 2**48, 1], r"\(after_ms\)"),
        (requests_keys.KvScan, [65, 1, "t", 0, False, b"", None, 0, 1], r"\(limit\): 0 is not within 1..10000"),
        (requests.Metadata, [2, 1, ["a", 1]], "item 2: expected str"),
        (requests.Subscribe, [4, 1, 1, "t", "g", "", 1, None, "earliest", []], r"field 4 \(consumer_id\)"),
        (requests.Subscribe, [4, 1, 1, "t", "g", "x" * 256, 1, None, "earliest", []], "256 characters"),
        (
            requests.Subscribe,
            [4, 1, 1, "t", "g", "c", 1, None, "now", []],
            "expected 'earliest' or 'latest', got 'now'",
        ),
        (requests.Subscribe, [4, 1, 1, "t", "g", "c", 1, None, b"now", []], r"\(start\): expected 16 bytes, got 3"),
        (requests.Subscribe, [4, 1, 1, "t", "g", "c", 1, None, -1, []], r"\(start\): -1 is not within 0..281"),
        (requests.Subscribe, [4, 1, 1, "t", "g", "c", 1, None, None, []], "expected str, int or bin, got nil"),
        (requests.Subscribe, [4, 1, 1, "t", "g", "c", 1_000_001, None, "latest", []], r"field 5 \(credit\)"),
        (requests.Subscribe, [4, 1, 1, "t", "g", "c", 1, "1", "latest", []], r"lease_ms\): expected int or nil"),
        (requests.Subscribe, [4, 1, 1, "t", "g", "c", 1, None, "latest", [[1, 2, 3], [1, 2]]], "item 2: expected"),
        (requests.Subscribe, [4, 1, 1, "t", "g", "c", 1, None, "latest", [[1, 2, -3]]], "item 1: -3 is negative"),
        (requests.Credit, [6, 0, 1, 1_000_001], r"CREDIT field 2 \(more\)"),
        (requests.Ack, [9, 1, 7, 0, [5]], r"ACK field 3 \(items\): item 1: expected \[token, what\]"),
        (requests.Ack, [9, 1, 7, 0, [[-5, None]]], "item 1"),
        (requests.Ack, [9, 1, 7, 0, [[5, []]]], "1 to 1000 ranges"),
        (requests.Ack, [9, 1, 7, 0, [[5, [[b"short", 1]]]]], "offset of 16 bytes"),
        (requests.Ack, [9, 1, 7, 0, [[5, [[BASE, 0]]]]], "count 1..65536"),
        (requests.Ack, [9, 1, 7, 0, [[5, [[BASE, 65_537]]]]], "count 1..65536"),
        (requests.Ack, [9, 1, 7, 0, [[5, [[BASE, b""]]]]], "bitmap"),
        (requests.Ack, [9, 1, 7, 0, [[5, [[BASE, bytes(8193)]]]]], "bitmap"),
        (requests.Ack, [9, 1, 7, 0, [[5, [[BASE, True]]]]], "range"),
        (
            requests.Ack,
            [9, 1, 7, 0, [[5, [[BASE, 1]]], [6, [[NEAR_END, 5]]]]],
            "item 2: a range of 5 places ends",
        ),
        (requests.Ack, [9, 1, 7, 0, [[5, [[NEAR_END, b"\x11"]]]]], "item 1: a range of 5 places ends"),
        (
            requests.Nack,
            [10, 1, 7, 0, [[5, [[NEAR_END, b"\x10"]], None, None]]],
            "item 1: a range of 5 places ends",
        ),
        (
            requests.Nack,
            [10, 1, 7, 0, [[5, None, None]]],
            r"expected \[token, what, delay_ms, error, begun, changes, end\]",
        ),
        *[
            (requests.Nack, [10, 1, 7, 0, [[5, None, None, None, begun, changes]]], "changes must be")
            for begun, changes in (
                (True, {}),
                (True, {"value": b"x"}),
                (True, {"priority": None}),
                (True, {"priority": 2**31}),
                (True, {"headers": {}}),
                (True, ["priority"]),
                (False, {"priority": 1}),
            )
        ],
        (requests.Nack, [10, 1, 7, 0, [[5, None, -1, None]]], "delay_ms"),
        (requests.Nack, [10, 1, 7, 0, [[5, None, 2**48, None]]], "delay_ms"),
        (requests.Nack, [10, 1, 7, 0, [[5, None, None, "x" * 1025]]], "error must be"),
        *[
            (requests.AckThen, [26, 1, 7, 0, 5, None, messages], what)
            for messages, what in (
                ([], "1..100 items are allowed, not 0"),
                ([[None, None, False, {}]] * 101, "1..100 items are allowed, not 101"),
                ([["t", None, False]], "expected .topic | nil"),
                ([["t", None, False, []]], "expected .topic | nil"),
                ([[5, None, False, {}]], "topic must be str or nil"),
                ([[None, None, True, {}]], "a delay without a time"),
                ([[None, 2**48, True, {}]], "time must be nil or an int"),
                ([[None, None, False, {"unique_key": b"u"}]], "'unique_key' is no field of a message"),
                ([[None, None, False, {"value": "text"}]], "'value' is no field of a message, or has a wrong value"),
                ([[None, None, False, {"ttl_ms": 0}]], "ttl_ms is out of range"),
                ([[None, None, False, {"priority": 2**31}]], "priority is out of range"),
            )
        ],
        (requests.AckThen, [26, 1, 7, 0, 5, [], [[None, None, False, {}]]], r"ACK_THEN field 4 \(what\)"),
        *[
            (requests.AckThen, [26, 1, 7, 0, 5, what, [[None, None, False, {}]], *end], problem)
            for what, end, problem in (
                ([[BASE, 1]], [3], r"field 6 \(end\)"),
                ([[BASE, 1]], [True], r"field 6 \(end\)"),
                ([[BASE, 1]], [None, 5], "only messages that are retried have a delay"),
                ([[BASE, 1]], [1, 5], "only messages that are retried have a delay"),
                ([[BASE, 1]], [0, 2**48], "delay_ms"),
                ([[BASE, 1]], [None, None, "no"], r"field 8 \(error\): nil is expected"),
                ([[BASE, 1]], [1, None, "x" * 1025], r"field 8 \(error\)"),
                (None, [1], "names one message"),
                ([[BASE, 2]], [1], "names one message"),
                ([[BASE, b"\1"]], [1], "names one message"),
                ([[BASE, 1], [BASE, 1]], [1], "names one message"),
            )
        ],
        (requests.Extend, [11, 1, 7, 0, [[5, "1"]]], r"expected \[token, lease_ms\]"),
        (requests.Extend, [11, 1, 7, 0, [[5, 2**48]]], "lease_ms"),
        (requests.Extend, [11, 1, 7, 0, [[5, 1, None]]], "item 1: begun must be an array of 1 to 1000 ranges"),
        (requests.Extend, [11, 1, 7, 0, [[5, 1, []]]], "item 1: begun must be an array of 1 to 1000 ranges"),
        (requests.Extend, [11, 1, 7, 0, [[5, 1], [5, 1, [[b"short", 1]]]]], "item 2: a range must be .*of 16 bytes"),
        (requests.Extend, [11, 1, 7, 0, [[5, 1, [[BASE, 1]], 1]]], r"expected \[token, lease_ms\]"),
        (requests.Hello, [1, 1, 2, "x" * 256, {}], r"HELLO field 2 \(client_name\)"),
        (requests_admin.ClusterClock, [49, 1, "set"], "expected 'show' or 'accept'"),
        (requests_admin.TopicCreate, [32, 1, "t", "timer", 1, 1, []], r"field 5 \(settings\): expected map, got array"),
        (
            log.Fetch,
            [8, 1, "t", 0, b"short", None, 1, 1, False],
            r"FETCH field 3 \(start\): expected 16 bytes, got 5",
        ),
        (log.Fetch, [8, 1, "t", 0, BASE, b"", 1, 1, True], r"field 4 \(end\): expected 16 bytes, got 0"),
        (log.Fetch, [8, 1, "t", 0, None, None, 1, 1, True], r"field 3 \(start\): expected bin, got nil"),
        (log.Fetch, [8, 1, "t", 0, BASE, None, 0, 1, True], r"field 5 \(max_messages\): 0 is not within 1..42949"),
        (log.Fetch, [8, 1, "t", 0, BASE, None, 1, 2**32, True], r"field 6 \(max_bytes\)"),
        (
            messages.Get,
            [12, 1, "t", 0, [2, BASE]],
            r"GET field 3 \(target\): expected \[0, id\], \[1, unique key\], \[",
        ),
        (messages.Get, [12, 1, "t", 0, [True, BASE]], r"expected \[0, id\]"),
        (messages.Get, [12, 1, "t", 0, [0, b"short"]], "an id has 16 bytes, not 5"),
        (messages.Get, [12, 1, "t", 0, [1, b""]], "a unique key has 1..1024 bytes, not 0"),
        (messages.Get, [12, 1, "t", 0, [1, b"k", "a..b"]], "tenant"),
        (messages.Get, [12, 1, "t", 0, [1, b"k", b"a"]], r"or \[1, unique key, nil, key\]"),
        (messages.Get, [12, 1, "t", 0, [1, b"k", "a", b"key"]], r"or \[1, unique key, nil, key\]"),
        (messages.Get, [12, 1, "t", 0, [1, b"k", None]], r"or \[1, unique key, nil, key\]"),
        (messages.Get, [12, 1, "t", 0, [1, b"k", None, "key"]], r"or \[1, unique key, nil, key\]"),
        (messages.Get, [12, 1, "t", 0, [1, b"k", None, b"key", 1]], r"or \[1, unique key, nil, key\]"),
        (messages.Get, [12, 1, "t", 0, [0, BASE, None, b"key"]], r"or \[1, unique key, nil, key\]"),
        (messages.Get, [12, 1, "t", 0, [1, b"k", None, bytes(65_537)]], "a key of 65537 bytes; 65536 is the limit"),
        (messages.Get, [12, 1, "t", 0, [0, BASE, "a"]], r"or \[1, unique key, nil, key\]"),
        (messages.Why, [16, 1, "t", 0, [1, b"x" * 1025]], "not 1025"),
        (messages.Why, [16, 1, "t", 0, BASE], r"\(target\): expected array, got bin"),
        (
            messages.List,
            [13, 1, "t", 0, "dead", 0, 1, None, 1, None, True],
            r"field 3 \(state\): .* or 'acked', got 'dead'",
        ),
        (messages.List, [13, 1, "t", 0, None, 0, 2**48, None, 1, None, True], r"field 5 \(until_ms\)"),
        (messages.List, [13, 1, "t", 0, None, 0, 1, "a", 1, None, True], r"\(key_prefix\): expected bin or nil"),
        (messages.List, [13, 1, "t", 0, None, 0, 1, bytes(65_537), 1, None, True], "a key_prefix of 65537 bytes"),
        (
            messages.List,
            [13, 1, "t", 0, None, 0, 1, None, 1, None, True, bytes(1025)],
            "unique_key_prefix of 1025 bytes",
        ),
        (messages.List, [13, 1, "t", 0, None, 0, 1, None, 0, None, True], r"\(limit\): 0 is not within 1..1000"),
        (messages.List, [13, 1, "t", 0, None, 0, 1, None, 1001, None, True], "1001 is not within 1..1000"),
        (messages.List, [13, 1, "t", 0, None, 0, 1, None, 1, b"", True], r"\(after\): expected 16 bytes"),
        (messages.List, [13, 1, "t", 0, None, 0, 1, None, 1, None, 1], r"\(values\): expected bool, got int"),
        (messages.Move, [14, 1, "t", 0, []], r"MOVE field 3 \(items\): 1..1000 items are allowed, not 0"),
        (messages.Move, [14, 1, "t", 0, [[[0, BASE], 5, 0]]], r"item 1: expected \[target, at_ms, relative\]"),
        (messages.Move, [14, 1, "t", 0, [[[0, BASE], -5, True]]], "item 1: at_ms -5 is not within"),
        (messages.Move, [14, 1, "t", 0, [[[0, BASE], None, True]]], "item 1: at_ms None is not within"),
        (messages.Move, [14, 1, "t", 0, [[[0, BASE], 5, True, None]]], "item 1: priority None is not within"),
        (messages.Move, [14, 1, "t", 0, [[[0, BASE], 5, True, None, {}]], b""], "item 1: changes must be"),
        (messages.Move, [14, 1, "t", 0, [[[0, BASE], 5, True, None, {"value": b"v"}]], b"v"], "changes must be"),
        (
            messages.Move,
            [14, 1, "t", 0, [[[0, BASE], None, False, None, {"value": 3}]], b"v"],
            r"field 4 \(cells\): the items name 3 bytes, and there are 1",
        ),
        (messages.Move, [14, 1, "t", 0, [[[0, BASE], 5, True], [[9, BASE], 5, True]]], "item 2: expected"),
        (messages.Cancel, [15, 1, "t", 0, [[0, BASE]] * 1001], "1..1000 items are allowed, not 1001"),
        (messages.Cancel, [15, 1, "t", 0, [[0, BASE], [0, b""]]], "item 2: an id has 16 bytes, not 0"),
        (messages.JobStatus, [19, 1, "t", 0, b""], r"JOB_STATUS field 3 \(job_id\): expected 16 bytes, got 0"),
        (messages.JobStop, [21, 1, "t", 0, b""], r"JOB_STOP field 3 \(job_id\): expected 16 bytes, got 0"),
        (
            messages.Forecast,
            [20, 1, "t", "day", 5],
            r"field 2 \(unit\): expected 'second', 'minute' or 'hour', got 'day'",
        ),
        (messages.Forecast, [20, 1, "t", "hour", 3601], r"FORECAST field 3 \(count\): 3601 is not within 1..3600"),
        (requests_admin.TopicUpdate, [34, 1, "t", None, 1, 1], r"field 2 \(settings\): expected map, got nil"),
        (requests_admin.TopicUpdate, [34, 1, "t", {}, "1", 1], r"\(partitions\): expected int or nil, got str"),
        (requests_admin.TopicUpdate, [34, 1, "t", {}, None, 2**32], r"\(replicas\): 4294967296 is not within"),
        (requests_admin.NodeChange, [51, 1, "n1", "stop"], r"\(action\): expected 'drain', 'undrain' or 'remove'"),
        (requests_admin.Transfer, [52, 1, "t", 4096, "n1"], r"\(partition\): 4096 is not within 0..4095"),
        (requests_admin.Transfer, [52, 1, "t", 0, None], r"\(node\): expected str, got nil"),
        (requests_admin.GroupSeek, [42, 1, "t", "g", "first"], r"field 3 \(to\): expected 'earliest' or 'latest'"),
        (requests_admin.GroupSeek, [42, 1, "t", "g", b""], r"field 3 \(to\): expected 16 bytes"),
        (requests_admin.GroupUpdate, [44, 1, "t", "g", []], "expected map"),
        (requests_admin.DeadList, [45, 1, "t", 0, "g", "old", 1, None, True], r"field 4 \(reason\): .* got 'old'"),
        (requests_admin.DeadList, [45, 1, "t", 0, "g", None, 0, None, True], r"field 5 \(limit\)"),
        (requests_admin.DeadList, [45, 1, "t", 0, "g", None, 1, b"", True], r"field 6 \(after\)"),
        (requests_admin.DeadList, [*DEAD_PAGE, 0, 2**48, None, None], r"field 9 \(until_ms\): .* not within"),
        (requests_admin.DeadList, [*DEAD_PAGE, 0, 9, "", None], r"field 10 \(error\): .* 1..1024 characters"),
        (requests_admin.DeadList, [*DEAD_PAGE, 0, 9, "e" * 1025, None], r"field 10 \(error\): .* not of 1025"),
        (requests_admin.DeadList, [*DEAD_PAGE, 0, 9, None, bytes(65_537)], r"field 11 \(key_prefix\)"),
        (requests_admin.DeadList, [*DEAD_PAGE, 0, 9, None, None, "oldest"], r"field 12 \(order\): .* got 'oldest'"),
        (messages.List, [*PAGE, None, "up", None], r"field 11 \(order\): .* got 'up'"),
        (messages.List, [*PAGE, None, None, 0], r"field 12 \(value_bytes\)"),
        (messages.List, [*PAGE, None, None, (1 << 16) + 1], r"field 12 \(value_bytes\)"),
        (requests_admin.DeadRedrive, [56, 1, "t", 0, "g", []], r"field 4 \(ids\): 1..1000 items"),
        (requests_admin.DeadPurge, [57, 1, "t", 0, "g", [BASE] * 1001], r"field 4 \(ids\): 1..1000 items"),
        (requests_admin.DeadPurge, [57, 1, "t", 0, "g", [BASE, b"short"]], "item 2: an id of 16 bytes is expected"),
        (requests_admin.DeadRedrive, [56, 1, "t", 0, "g", [5]], "item 1: an id of 16 bytes is expected"),
    ],
)
def test_mistakes_are_named(cls: Any, frame: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        cls.parse(frame)


@pytest.mark.parametrize(
    ("kind", "arguments", "words"),
    [
        ("drop", {}, r"field 4 \(kind\): expected 'cancel', 'move', 'redrive' or 'purge_dead', got 'drop'"),
        ("cancel", {}, r"JOB_START field 5 \(arguments\): from_ms is missing"),
        ("cancel", {**RANGE, "group": "g"}, "'group' is no argument of 'cancel'"),
        ("cancel", {**RANGE, "dry_run": 1}, "dry_run: expected bool, got int"),
        ("cancel", {**RANGE, "dry_run": None}, "dry_run: expected bool, got nil"),
        ("cancel", {**RANGE, "from_ms": -1}, "from_ms: -1 is not within 0.."),
        ("cancel", {**RANGE, "key_prefix": "a"}, "key_prefix: expected bin, got str"),
        ("cancel", {**RANGE, "key_prefix": bytes(65_537)}, "a key_prefix of 65537 bytes"),
        ("move", {**RANGE, "unique_key_prefix": bytes(1025), "to_ms": 9}, "a unique_key_prefix of 1025 bytes"),
        ("move", RANGE, "one of to_ms and shift_ms is expected, or priority"),
        ("move", {**RANGE, "to_ms": 5, "shift_ms": 5, "priority": 1}, "one of to_ms and shift_ms is expected"),
        ("move", {**RANGE, "priority": 2**31}, "priority: 2147483648 is not within -2147483648..2147483647"),
        ("cancel", {**RANGE, "priority": 1}, "'priority' is no argument of 'cancel'"),
        ("move", {**RANGE, "to_ms": 5, "shift_ms": 5}, "one of to_ms and shift_ms is expected"),
        ("move", {**RANGE, "to_ms": -5}, "to_ms: -5 is not within 0.."),
        ("move", {**RANGE, "shift_ms": -(2**48)}, "shift_ms: -281474976710656 is not within -281474976710655.."),
        ("redrive", RANGE, "group is missing"),
        ("redrive", {**RANGE, "group": "g", "rate": 0}, "rate: 0 is not within 1.."),
        ("purge_dead", {**RANGE, "group": "g", "reason": "old"}, "reason: expected 'nacked', .* got 'old'"),
        ("purge_dead", {**RANGE, "group": "g", "rate": 5}, "'rate' is no argument"),
        ("purge_dead", {**RANGE, "group": "g", "error": ""}, "error: a part of 1..1024 characters is expected"),
        ("redrive", {**RANGE, "group": "g", "error": b"no"}, "error: expected str, got bin"),
        ("redrive", {**RANGE, "group": "g", "key_prefix": bytes(65_537)}, "a key_prefix of 65537 bytes"),
        ("cancel", {**RANGE, "error": "no"}, "'error' is no argument of 'cancel'"),
        ("cancel", {**RANGE, "key_prefix": b""}, "key_prefix: it is empty"),
        ("move", {**RANGE, "unique_key_prefix": b"", "to_ms": 9}, "unique_key_prefix: it is empty"),
        ("redrive", {**RANGE, "group": "g", "key_prefix": b""}, "key_prefix: it is empty"),
        ("purge_dead", {**RANGE, "group": "g", "key_prefix": b""}, "key_prefix: it is empty"),
    ],
)
def test_mistakes_in_a_jobs_arguments_are_named(kind: str, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        messages.JobStart.parse([18, 1, "t", 0, JOB, kind, arguments])


def test_missing_job_arguments_are_none() -> None:
    started = messages.JobStart.parse([18, 1, "t", 0, JOB, "move", {**RANGE, "shift_ms": -5}])
    assert started.arguments == {**RANGE, "key_prefix": None, "shift_ms": -5}
    started = messages.JobStart.parse([18, 1, "t", 0, JOB, "move", {**RANGE, "priority": -5}])
    assert started.arguments == {**RANGE, "key_prefix": None, "priority": -5}
    started = messages.JobStart.parse([18, 1, "t", 0, JOB, "redrive", {**RANGE, "group": "g"}])
    assert started.arguments == {**RANGE, "group": "g", "reason": None, "rate": None}, (
        "the old form, without the newer fields"
    )
    some = {**RANGE, "group": "g", "error": "no", "key_prefix": b"k"}
    started = messages.JobStart.parse([18, 1, "t", 0, JOB, "purge_dead", some])
    assert started.arguments == {**some, "reason": None}


def test_dead_list_without_filters_has_the_old_form() -> None:
    (frame,) = FrameReader(1 << 20).feed(requests_admin.DeadList("t", 0, "g", None, 1, None, True).frame(1))
    assert frame == [45, 1, "t", 0, "g", None, 1, None, True]
    assert requests_admin.DeadList.parse(frame) == requests_admin.DeadList("t", 0, "g", None, 1, None, True)


def test_changes_of_a_nack_are_sent_by_name() -> None:
    changes = {"priority": -7, "headers": b"\x80"}
    body = requests.Nack(7, 0, [[5, None, None, None, True, changes]]).frame(1)
    (frame,) = FrameReader(1 << 20).feed(body)
    (item,) = requests.Nack.parse(frame).items
    assert item[5] == changes


def test_other_version_is_rejected_before_anything_else() -> None:
    for version in (1, 3):
        with pytest.raises(WrongVersion, match="version 2") as caught:
            requests.Hello.parse([1, 1, version, {"what": "ever"}, 5, 6])
        assert caught.value.details == {"version": 2}


FUZZ = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=5) | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=12,
)


@settings(max_examples=examples(300), deadline=None)
@given(fields=st.lists(FUZZ, max_size=11))
def test_any_frame_is_parsed_or_refused(fields: list[Any]) -> None:
    for kind, request in EVERY:
        with suppress(SandqError):
            type(request).parse([kind, 1, *fields])


@settings(max_examples=examples(300), deadline=None)
@given(fields=st.lists(FUZZ, max_size=12))
def test_any_reply_is_parsed_or_refused(fields: list[Any]) -> None:
    for parse in (HelloReply.parse, MetadataReply.parse, Offsets.parse, Deliver.parse):
        with suppress(ProtocolError):
            parse([7, 1, *fields])
    for field in fields:
        with suppress(ProtocolError):
            TopicRecord.from_map(field)
        with suppress(ProtocolError):
            lost_ranges(field)


def test_replies() -> None:
    rows = [Partition(0, 7, "n1", ("n1", "n2"), True), Partition(1, 8, None, ("n2",))]
    record = TopicRecord("t", 1, "timer", rows, 2, 1, {"lease_ms": 30_000})
    reply = MetadataReply([Node("n1", "localhost", 7170)], [record])
    (frame,) = FrameReader().feed(encode_reply(3, *reply.fields()))
    assert MetadataReply.parse(frame) == reply
    # Further fields of a newer broker are ignored.
    assert TopicRecord.from_map({**record.to_map(), "new": 1}) == record
    assert MetadataReply.parse([*frame, "new"]) == reply
    assert HelloReply.parse([0, 1, "0.1.0", "n1", "uuid", {}, 5, "new"]) == ("0.1.0", "n1", "uuid", {}, 5, None)
    # A node of an older version sends no challenge.
    assert HelloReply.parse([0, 1, "0.1.0", "n1", "uuid", {}, 5]).challenge is None
    assert HelloReply.parse([0, 1, "0.1.0", "n1", "uuid", {}, 5, b"dare", "new"]).challenge == b"dare"
    assert (
        TopicRecord.from_map({**record.to_map(), "partitions": [[0, 7, "n1", [], False, "new"]]}).partitions[0].nodes
        == ()
    )
    broken_rows = (
        [0, 7, None],
        [1, 7, None, [], False],
        [0, 7, 5, [], False],
        [0, 7, None, [5], False],
        [0, 7, None, [], 0],
    )
    for row in broken_rows:
        with pytest.raises(ProtocolError):
            TopicRecord.from_map({**record.to_map(), "partitions": [row]})
    for broken in ({}, {**record.to_map(), "name": 5}, {**record.to_map(), "partitions": 5}, None):
        with pytest.raises(ProtocolError):
            TopicRecord.from_map(broken)
    assert Offsets.parse([0, 1, [BASE, 5], None]) == (BASE, 5, None, {}, None)
    assert Offsets.parse([0, 1, BASE * 2, [[1, "leased"]]]) == (BASE, 2, BASE * 2, {1: "leased"}, None)
    for offsets in (Offsets(BASE, 5, None), Offsets(BASE, 3, BASE * 3, {2: "ready", 0: "acked"})):
        (frame,) = FrameReader().feed(encode_reply(3, *offsets.fields()))
        assert Offsets.parse(frame) == offsets
    told = Offsets(BASE, 3, BASE * 3, {0: "acked"}, {1: ("replaced", BASE), 2: ("ignored", "leased")})
    (frame,) = FrameReader().feed(encode_reply(3, *told.fields()))
    assert Offsets.parse(frame) == told
    assert Offsets.parse([0, 1, BASE, None, None]).outcomes is None, "the outcomes are not reported"
    assert Offsets.parse([0, 1, BASE, None, []]).outcomes == {}
    for outcomes in (5, [5], [[0]], [[0, "replaced"]], [[0, "replaced", "leased"]], [[0, "replaced", b"short"]],
                     [[0, "stored", BASE]], [[1, "stored", "acked"]], [[-1, "stored", "acked"]]):  # fmt: skip
        with pytest.raises(ProtocolError):
            Offsets.parse([0, 1, BASE, None, outcomes])
    for broken in ([0, 1], [0, 1, [BASE, 5]], [0, 1, b"", None], [0, 1, b"short", None], [0, 1, [BASE], None],
                   [0, 1, None, None], [0, 1, BASE, 5], [0, 1, BASE, [[1, "ready"]]], [0, 1, BASE, [[-1, "ready"]]],
                   [0, 1, BASE, [[0, None]]], [0, 1, BASE, [0]]):  # fmt: skip
        with pytest.raises(ProtocolError):
            Offsets.parse(broken)
    assert results([0, 1, [None, 5]], 2) == [None, 5]
    with pytest.raises(ProtocolError):
        results([0, 1, [None]], 2)
    assert lost_ranges(None) is None
    assert lost_ranges([]) == []
    assert lost_ranges([[BASE, 2]]) == [(BASE, 2)]


@pytest.mark.parametrize("last", [True, False])
def test_deliver(last: bool) -> None:
    lease = LeasedPieces(7, 1, 5 << 16, 2, 99, [Piece(BASE, None, 1234, [[0, 1]], b"batch")])
    (data,) = encode_deliver(4, lease, last=last)
    (frame,) = FrameReader().feed(data)
    deliver = Deliver.parse(frame)
    assert [*encode_deliver(4, replace(lease, begin_first=True), last=last, reports=False)] == [data]
    (careful,) = FrameReader().feed(b"".join(encode_deliver(4, replace(lease, begin_first=True), last=last)))
    assert Deliver.parse(careful) == deliver._replace(begin_first=True)
    assert deliver == (4, 7, 1, 5 << 16, 2, 99, BASE, None, 1234, [[0, 1]], last, b"batch", False)
    created = bytes(16)
    pieces = [Piece(BASE, None, 1234, None, b"first"), Piece(BASE * 2, BASE * 2, created, None, b"batch")]
    frames = FrameReader().feed(b"".join(encode_deliver(4, replace(lease, pieces=pieces), last=last)))
    assert [Deliver.parse(one).last for one in frames] == [False, last]
    frame = frames[1]
    assert Deliver.parse(frame).created_ms == created
    for place, value, words in (
        (7, b"short", "offsets"),
        (7, b"", "offsets"),
        (8, b"short", "ids"),
        (9, b"short", "created_ms"),
        (9, "x", "created_ms"),
        (10, [[0]], "live"),
        (10, [[0, 0]], "live"),
        (11, None, "last"),
        (12, "x", "batch"),
    ):
        with pytest.raises(ProtocolError, match=words):
            Deliver.parse([*frame[:place], value, *frame[place + 1 :]])


def test_repr_of_requests_hides_secrets() -> None:
    shown = repr(requests.Hello(2, "app", {"token": "sandq_secret"})) + repr(
        requests_access.Identify("sandq_secret", None)
    )
    assert "sandq_secret" not in shown and "token" in shown and "app" in shown
    assert "ada" in repr(requests_access.Identify(None, "ada"))
