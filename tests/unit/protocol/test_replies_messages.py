"""Tests of replies about stored messages: they round-trip, and malformed ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.model.errors import ProtocolError
from sandq.model.offsets import pack
from sandq.model.piece import Piece
from sandq.protocol.frames import JOINED_BYTES, FrameReader, encode_reply
from sandq.protocol.replies_messages import (
    DEAD_OUTCOMES,
    DeadRecord,
    ForecastReply,
    JobRecord,
    MessageRecord,
    Outcome,
    encode_pieces,
    outcomes,
    page,
    why,
)
from sandq.protocol.requests_log import FetchReply
from tests.support.examples import examples

BASE = pack(5, 6, 7, 1)
NEXT = pack(9, 6, 7, 1)
MESSAGE = MessageRecord(BASE, NEXT, "delayed", 1, 9, 5, b"v", b"k", None, 60_000, b"u", 2, 3, 1)
DEAD = DeadRecord(
    BASE, BASE, 3, "nacked", "no", 9, 1, 5, None, b"\x80", b"v", None, 1, [[1, "c", 1, 2, "nacked", "no"]]
)
JOB = JobRecord(bytes(16), "cancel", "running", 5, 3, 1, 1, None)


def reply(*fields: Any) -> Any:
    (frame,) = FrameReader().feed(encode_reply(3, *fields))
    return frame


def test_pieces_of_a_fetch() -> None:
    pieces = [Piece(BASE, None, 5, None, b"one"), Piece(BASE * 2, NEXT * 2, bytes(16), [[0, 1]], b"two" * 50_000)]
    for count in (0, 1, 2):
        for following in (None, NEXT):
            (frame,) = FrameReader().feed(b"".join(encode_pieces(7, (following, 99, BASE, 7), pieces[:count])))
            assert frame[:2] == [0, 7]
            assert FetchReply.parse(frame) == (following, 99, BASE, 7, pieces[:count])
    (frame,) = FrameReader().feed(b"".join(encode_pieces(7, (None, 99, BASE, 7), pieces[:1] * 5000)))
    assert len(FetchReply.parse(frame).pieces) == 5000


def test_large_batches_are_sent_as_they_are() -> None:
    sizes = [JOINED_BYTES, JOINED_BYTES + 1, 70_000, 10, 1 << 20]
    pieces = [Piece(BASE, None, 5, None, b"%d" % at + bytes(size)) for at, size in enumerate(sizes)]
    parts = encode_pieces(7, (None, 99, BASE, 7), pieces)
    large = [piece.batch for piece in pieces if len(piece.batch) > JOINED_BYTES]
    assert [part for part in parts if any(part is batch for batch in large)] == large
    assert len(parts) == 2 * len(large), "the bytes before each value, in one part"
    (frame,) = FrameReader().feed(b"".join(parts))
    assert FetchReply.parse(frame).pieces == pieces


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([], "next"),
        ([b"short", 5, BASE, 7], r"field 1 \(next\): expected 16 bytes, got 5"),
        ([None, -5, BASE, 7], "closed_ms"),
        ([None, 5], "trimmed"),
        ([None, 5, BASE], "number"),
        ([None, 5, b"t", 7], r"field 3 \(trimmed\): expected 16 bytes"),
        ([None, 5, NEXT, 7, BASE], r"piece field 2 \(ids\): missing"),
        ([None, 5, NEXT, 7, BASE, None, 5, None, "b"], r"piece field 5 \(batch\): expected bin, got str"),
        ([None, 5, NEXT, 7, b"", None, 5, None, b"b"], r"piece field 1 \(offsets\)"),
        ([None, 5, NEXT, 7, BASE, b"i", 5, None, b"b"], r"piece field 2 \(ids\)"),
        ([None, 5, NEXT, 7, BASE, None, b"i", None, b"b"], r"piece field 3 \(created_ms\)"),
        ([None, 5, NEXT, 7, BASE, None, None, None, b"b"], "expected int or bin, got nil"),
        ([None, 5, NEXT, 7, BASE, None, 5, [[0]], b"b"], r"piece field 4 \(live\)"),
        ([None, 5, NEXT, 7, BASE, None, 5, None, b"b", BASE], "missing"),
    ],
)
def test_a_malformed_fetch_reply(fields: list[Any], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        FetchReply.parse(reply(*fields))


def test_outcomes() -> None:
    rows = [
        Outcome("cancelled", BASE),
        Outcome("moved", NEXT),
        Outcome("too_late", "acked"),
        Outcome("not_found", None),
    ]
    assert outcomes(reply(rows), 4) == rows
    assert outcomes(reply([["too_late", "gone", "new"]]), 1) == [Outcome("too_late", "gone")]
    for broken in (None, [], [5], [[]], [["moved"]], [["moved", b"short"]], [["too_late", None]], [["not_found", "x"]],
                   [["lost", None]], [[None, None]], [["moved", "text"]]):  # fmt: skip
        with pytest.raises(ProtocolError):
            outcomes(reply(broken), 1)


@pytest.mark.parametrize(
    ("record", "read"),
    [
        (MESSAGE, MessageRecord.from_map),
        (MESSAGE._replace(value=None, key=None, ttl_ms=None, moved_ms=None, headers=b"\x80"), MessageRecord.from_map),
        (MESSAGE._replace(tenant="acme"), MessageRecord.from_map),
        (DEAD, DeadRecord.from_map),
        (DEAD._replace(tenant="acme"), DeadRecord.from_map),
        (DEAD._replace(error=None, value=None, history=[]), DeadRecord.from_map),
        (JOB, lambda row: JobRecord.parse([0, 3, row])),
        (JOB._replace(state="done", finished_ms=9), lambda row: JobRecord.parse([0, 3, row])),
    ],
)
def test_records(record: Any, read: Callable[[Any], Any]) -> None:
    (row,) = reply(record.to_map())[2:]
    assert read(row) == record
    assert read({**row, "new": 1}) == record
    assert ("priority" in row, "tenant" in row) == (False, getattr(record, "tenant", None) is not None)
    for name, value in row.items():
        if name == "tenant":  # there need be none
            continue
        with pytest.raises(ProtocolError, match=f"without '{name}'"):
            read({key: row[key] for key in row if key != name})
        wrong = "text" if type(value) is not str else 5
        with pytest.raises(ProtocolError, match=f"whose {name} is a wrong "):
            read({**row, name: wrong if name != "error" else 5})
        if type(value) is int:
            with pytest.raises(ProtocolError, match=f"whose {name} is a wrong int: -1"):
                read({**row, name: -1})
    for broken in (None, [], 5, {}):
        with pytest.raises(ProtocolError):
            read(broken)
    first = record._fields[0]
    with pytest.raises(ProtocolError, match=f"whose {first} is a wrong bin"):
        read({**row, first: b"short"})


@pytest.mark.parametrize("record", [MESSAGE, DEAD])
def test_a_priority_may_be_negative(record: Any) -> None:
    ranked = record._replace(priority=-(2**31), tenant="a.b")
    (row,) = reply(ranked.to_map())[2:]
    assert type(record).from_map(row) == ranked
    for name, wrong in (("priority", "5"), ("priority", None), ("tenant", b"a")):
        with pytest.raises(ProtocolError, match=f"whose {name} is a wrong"):
            type(record).from_map({**row, name: wrong})


LIVES = [[1, 1, 3, "nacked", "no", 5, 7], [2, 0, 0, "expired", None, 8, 9, "of a newer version"]]
NO_LIVES: list[Any] = [None, 5, [5], [[]], [[1, 1, 3, "nacked", "no", 5]], [[1, -1, 3, "nacked", "no", 5, 7]],
                       [[1, 1, 3, None, "no", 5, 7]], [[1, 1, 3, "nacked", 5, 5, 7]]]  # fmt: skip


def test_lives_that_are_over() -> None:
    (row,) = reply(DEAD._replace(lives=LIVES).to_map())[2:]
    assert DeadRecord.from_map(row).lives == LIVES
    assert "lives" not in DEAD.to_map() and DeadRecord.from_map(DEAD.to_map()).lives == ()
    for broken in NO_LIVES:
        with pytest.raises(ProtocolError, match=r"life|lives"):
            DeadRecord.from_map({**row, "lives": broken})
        told = {**MESSAGE.to_map(), "groups": [{"group": "g", "lives": broken}]}
        with pytest.raises(ProtocolError, match="life"):
            why(reply(told))


def test_outcomes_of_dead_letters() -> None:
    told = [["redriven", BASE], ["purged", BASE], ["not_dead", "leased"], ["not_found", None], ["not_yet", None]]
    assert [*map(list, outcomes(reply(told), 5, DEAD_OUTCOMES))] == told
    for broken in (["moved", BASE], ["too_late", "leased"], ["redriven", None], ["not_dead", None], ["not_yet", "x"]):
        with pytest.raises(ProtocolError):
            outcomes(reply([broken]), 1, DEAD_OUTCOMES)


def test_pages() -> None:
    assert page(reply([MESSAGE.to_map()], NEXT), MessageRecord.from_map) == ([MESSAGE], NEXT)
    assert page(reply([], NEXT), MessageRecord.from_map) == ([], NEXT)  # no message found so far
    assert page(reply([], None), MessageRecord.from_map) == ([], None)
    for broken in ([], [[]], [None, None], [[], b"short"], [[5], None]):
        with pytest.raises(ProtocolError):
            page(reply(*broken), MessageRecord.from_map)


def test_why_reply_is_parsed_and_malformed_ones_refused() -> None:
    row = MESSAGE.to_map()
    del row["value"]
    found = why(reply({**row, "groups": [{"group": "g", "reason": "it waits"}]}))
    assert found["groups"][0]["reason"] == "it waits" and found["state"] == "delayed"
    for broken in (None, {}, row, {**row, "groups": None}, {**row, "groups": [5]}, {**row, "groups": [], "id": b""}):
        with pytest.raises(ProtocolError):
            why(reply(broken))


def test_forecasts() -> None:
    forecast = ForecastReply(7, [(0, 5), (60_000, 1)], 3, [(60_000, 4)], False)
    assert ForecastReply.parse(reply(*forecast.fields())) == forecast
    of_schedules = ([5, [], 0, None, True], [5, [], 0, [[1]], True], [5, [], 0, [], 1])
    for broken in ([], [5, [], -1], [5, [[1]], 0], [5, [[1, -1]], 0], [5, [None], 0], [-1, [], 0], *of_schedules):
        with pytest.raises(ProtocolError):
            ForecastReply.parse(reply(*broken))


FUZZ = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.sampled_from(["moved", "id", "groups"])
    | st.binary(max_size=20)
    | st.just(BASE),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from([*MESSAGE._fields]), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=examples(300), deadline=None)
@given(fields=st.lists(FUZZ, max_size=12))
def test_any_reply_is_parsed_or_refused(fields: list[Any]) -> None:
    frame = [0, 1, *fields]
    readers: list[Callable[[Any], Any]] = [
        *(FetchReply.parse, JobRecord.parse, ForecastReply.parse, why),
        *(lambda frame: page(frame, MessageRecord.from_map), lambda frame: page(frame, DeadRecord.from_map)),
        lambda frame: outcomes(frame, 1),
    ]
    for read in readers:
        with suppress(ProtocolError):
            read(frame)
    for field in fields:
        with suppress(ProtocolError):
            MessageRecord.from_map({**MESSAGE.to_map(), **(field if isinstance(field, dict) else {"id": field})})
