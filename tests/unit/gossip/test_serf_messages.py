"""Tests of the contents that Serf adds to memberlist's messages: tags, intents, states."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgpack
import pytest

from sandq.gossip.messages import META_BYTES
from sandq.gossip.serf_messages import (
    MEMBERS_MOST,
    JoinIntent,
    LeaveIntent,
    OtherSerf,
    SerfState,
    decode_serf,
    decode_tags,
    encode_serf,
    encode_tags,
)
from sandq.model.errors import InvalidRequest, ProtocolError, TooLarge

U64 = 2**64
STATE = SerfState(7, {"a": 1, "ä": U64 - 1}, ("b",), 5, 6)
FIELDS: dict[str, Any] = {
    **{"LTime": 7, "StatusLTimes": {"a": 1, "ä": U64 - 1}, "LeftMembers": ["b"]},
    **{"EventLTime": 5, "Events": [], "QueryLTime": 6},
}


def packed(value: object) -> bytes:
    found: bytes = msgpack.packb(value, use_bin_type=False)
    return found


# ------------------------------------------------------------------------------------------------------------- tags


@pytest.mark.parametrize("tags", [{}, {"role": "web"}, {"cluster": "t", "id": "n1", "ä": ""}, {"k": "v" * 500}])
def test_tags(tags: dict[str, str]) -> None:
    meta = encode_tags(tags)
    assert meta[0] == 0xFF and len(meta) <= META_BYTES
    assert msgpack.unpackb(meta[1:], raw=False) == tags
    assert decode_tags(meta) == tags


def test_equal_tags_give_equal_meta() -> None:
    assert encode_tags({"a": "1", "b": "2"}) == encode_tags({"b": "2", "a": "1"}) == b"\xff\x82\xa1a\xa11\xa1b\xa12"


def test_tags_of_others() -> None:
    assert decode_tags(b"") == {}
    assert decode_tags(b"\xff\xc0") == {}
    assert decode_tags(b"web server") == {"role": "web server"}


def test_tags_that_are_too_large_name_their_sizes() -> None:
    full = {"k": "v" * (META_BYTES - 7)}
    assert len(encode_tags(full)) == META_BYTES
    with pytest.raises(TooLarge, match=r"513 bytes, 512 are allowed; bytes of each: k 511") as caught:
        encode_tags({"k": full["k"] + "v"})
    assert caught.value.details["size"] == 513
    with pytest.raises(TooLarge, match=r"a 3, long 608, other 303"):
        encode_tags({"other": "x" * 294, "a": "", "long": "y" * 600})


def test_tags_that_are_no_text() -> None:
    with pytest.raises(InvalidRequest, match="no text"):
        encode_tags({"a": "\ud800"})


@pytest.mark.parametrize(
    "meta",
    [
        b"\xff",
        b"\xff\x01",
        b"\xff\x81\xa1a",
        b"\xff\x81\xa1a\x01",
        b"\xff\x81\xa1a\xc0",
        b"\xff\x81\xa1a\xa1\xff",
        b"\xff\x81\xa1\xff\xa1a",
        b"\xff\x81\xa1a\xa1b\x00",
        b"\xff\x81\x01\xa1a",
        b"\xff\xdf\xff\xff\xff\xff",
        b"\xff\x81\xa1a\xda\x02\x00" + b"x" * 512,
        b"\xfe",
    ],
)
def test_meta_that_is_wrong_is_refused(meta: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_tags(meta)


# --------------------------------------------------------------------------------------------------------- messages


@pytest.mark.parametrize(
    ("message", "kind", "fields"),
    [
        (LeaveIntent(7, "a", True), 0, {"LTime": 7, "Node": "a", "Prune": True}),
        (JoinIntent(U64 - 1, "ä"), 1, {"LTime": U64 - 1, "Node": "ä"}),
        (STATE, 2, FIELDS),
    ],
    ids=["leave", "join", "state"],
)
def test_message_bytes_round_trip(message: LeaveIntent | JoinIntent | SerfState, kind: int, fields: Any) -> None:
    body = encode_serf(message)
    assert body[0] == kind and msgpack.unpackb(body[1:], raw=False) == fields
    assert decode_serf(body) == message
    assert decode_serf(bytes((kind,)) + packed({**fields, "Newer": [[1, {"a": None}]]})) == message


def test_other_messages_are_decoded_with_their_kind() -> None:
    for kind in (3, 4, 5, 6, 7, 8, 9, 200):
        assert decode_serf(bytes((kind,)) + b"\xc1 anything") == OtherSerf(kind)


def test_missing_optional_fields_are_zero() -> None:
    assert decode_serf(b"\x00" + packed({"LTime": 1, "Node": "a"})) == LeaveIntent(1, "a", False)
    assert decode_serf(b"\x02" + packed({"LTime": 1})) == SerfState(1, {}, (), 0, 0)
    nil = dict.fromkeys(FIELDS)
    assert decode_serf(b"\x02" + packed({**nil, "LTime": 1})) == SerfState(1, {}, (), 0, 0)


def test_events_are_passed_over() -> None:
    event = {"LTime": 3, "Events": [{"Name": "deploy", "Payload": b"x" * 300}]}
    state = {**FIELDS, "Events": [None, event] * 2000}
    assert decode_serf(b"\x02" + packed(state)) == STATE


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\x00" + packed({"LTime": 1}),
        b"\x00" + packed({"Node": "a"}),
        *[b"\x01" + packed({"LTime": value, "Node": "a"}) for value in (-1, 1.0, True, "1", None)],
        b"\x01" + packed({"LTime": 1, "Node": ""}),
        b"\x00" + packed({"LTime": 1, "Node": "a", "Prune": 1}),
        b"\x02",
        b"\x02\xc0",
        b"\x02" + packed([]),
        b"\x02" + packed({**FIELDS, "LTime": None}),
        *[b"\x02" + packed({**FIELDS, "StatusLTimes": value}) for value in ([], 1, {"a": -1}, {"a": "x"}, {"": 1})],
        *[b"\x02" + packed({**FIELDS, "StatusLTimes": {"a": value}}) for value in ([], {}, [1], None)],
        *[b"\x02" + packed({**FIELDS, "LeftMembers": value}) for value in ({}, 1, [1], [""], ["x" * 256], [[]])],
        *[b"\x02" + packed({**FIELDS, "EventLTime": value}) for value in (-1, "x", [1])],
        b"\x02" + packed(FIELDS) + b"\x00",
        b"\x02" + packed(FIELDS)[:-1],
        b"\x02" + packed({"LTime": 1, "LeftMembers": ["a"] * (MEMBERS_MOST + 1)}),
        b"\x02" + packed({"LTime": 1, "StatusLTimes": {str(i): 1 for i in range(MEMBERS_MOST + 1)}}),
    ],
)
def test_invalid_input_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_serf(body)


def test_as_many_members_as_are_allowed() -> None:
    names = [f"node{number}" for number in range(MEMBERS_MOST)]
    state = SerfState(1, dict.fromkeys(names, 1), tuple(names), 0, 0)
    assert decode_serf(encode_serf(state)) == state


@pytest.mark.parametrize(
    "body",
    [
        b"\x02\xdf\xff\xff\xff\xff",
        b"\x02\x81\xa6Events" + b"\xdd\xff\xff\xff\xff" * 1000,
        b"\x02\x81\xaaEventLTime" + b"\xdc\x27\x10" * 1000,
        b"\x02\x81\xacStatusLTimes\xde\x27\x10",
        b"\x02\x81\xabLeftMembers\xdc\x27\x10",
    ],
    ids=range(5),
)
def test_announced_lengths_allocate_no_memory(body: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decode_serf(body)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
