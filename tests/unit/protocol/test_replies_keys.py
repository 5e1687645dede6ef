"""Tests of replies about keys: accepted and refused replies."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.batch import Column, encode
from sandq.model.errors import ProtocolError
from sandq.model.piece import Piece
from sandq.partition.kv.key_table import Value
from sandq.protocol.frames import FrameReader, PackedArray, encode_packed, encode_reply
from sandq.protocol.replies_messages import encode_pieces
from sandq.protocol.requests_keys import KeyValue, KvChanges, KvPage, KvValues, pack_rows

VERSION, MARK = b"v" * 16, b"m" * 16
ROW = Value(VERSION, b"value", b"\x81\xa1a\x01", 5).row()


def frame_of(data: bytes) -> Any:
    (frame,) = FrameReader().feed(data)
    return frame


def test_a_value_is_read_as_the_broker_keeps_it() -> None:
    assert KeyValue.parse(ROW) == (VERSION, b"value", b"\x81\xa1a\x01", 5)
    assert KeyValue.parse(Value(VERSION, b"").row()) == (VERSION, b"", None, 0)


def test_answers() -> None:
    got = KvValues.parse(frame_of(encode_reply(7, 12, [None, ROW])), 3)
    assert (got.stale_ms, got.values) == (12, [None, KeyValue.parse(ROW)])
    page = KvPage.parse(frame_of(encode_reply(7, 0, [b"a", ROW], b"b")))
    assert page == (0, [(b"a", KeyValue.parse(ROW))], b"b")
    assert KvPage.parse(frame_of(encode_reply(7, 0, [], None))) == (0, [], None)
    parts = [pack_rows([(b"a", ROW), (b"b", ROW)]), pack_rows([]), pack_rows([(b"c", ROW + bytes(100_000))])]
    packed = encode_packed(7, b"\0", PackedArray(6, parts), b"\xc0")
    assert packed[1] is parts[2] and len(packed) == 3, "a large value is not copied"
    page = KvPage.parse(frame_of(b"".join(packed)))
    assert [key for key, _ in page.rows] == [b"a", b"b", b"c"] and page.rows[1][1] == KeyValue.parse(ROW)
    batch = encode({Column.VALUE: [b"x", None], Column.KEY: [b"k", b"l"]})
    piece = Piece(VERSION, None, 1, None, batch)
    found = KvChanges.parse(frame_of(b"".join(encode_pieces(7, (VERSION, MARK), [piece]))))
    assert found == (VERSION, MARK, [piece])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ((0, []), "0 values for 2 keys"),
        ((0, [None] * 3), "3 values for 2 keys"),
        ((0, [b"short"]), "a value of 32 bytes at least"),
        ((0, ["text"]), "a value of 32 bytes at least"),
        ((0, [b"\x01\0\0\0\xff\0\0\0" + bytes(24)]), "with headers of 255"),
        (("0", []), "expected int"),
        ((0,), "missing"),
    ],
)
def test_values_that_are_none(fields: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        KvValues.parse([0, 7, *fields], 2)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ((0, [b"a"], None), "in turn"),
        ((0, ["a", ROW], None), "in turn"),
        ((0, [b"a", b"row"], None), "a value of 32 bytes"),
        ((0, [], 5), "expected bin or nil"),
    ],
)
def test_pages_that_are_none(fields: tuple[Any, ...], words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        KvPage.parse([0, 7, *fields])


@pytest.mark.parametrize("fields", [(b"short", MARK), (VERSION, b"short"), (VERSION, None), (VERSION, MARK, 1, 2)])
def test_changes_that_are_none(fields: tuple[Any, ...]) -> None:
    with pytest.raises(ProtocolError):
        KvChanges.parse([0, 7, *fields])
