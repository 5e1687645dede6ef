"""Provide hostile values, keys, errors and headers. Readers must return them unchanged; terminals show them escaped."""

from __future__ import annotations

import base64
from typing import Any, Final

import msgpack
import pytest

from sandq.partition import produce_validation

CELLS: Final[dict[str, bytes]] = {
    "nul": b"a\x00b",
    "no UTF-8": b"\xff\xfe\x00",
    "half a surrogate pair": b"\xed\xa0\x80",
    "terminal": b"\x1b]0;owned\x07\x1b[2J\x1b[31m\x08\r",
    "C1 controls": "\u009b31m\u0085\u0090x\u009c".encode(),
    "bidi": "abc\u202edef\u2066\u200e".encode(),
    "line separators": "a\u2028b\u2029c\x0b\x0c\r\n".encode(),
    "markup": b"<script>alert(1)</script>\"'`${x}",
    "format": b"%s {0} \\u0000 =cmd|' /C calc'!A0",
    "unassigned": "\ufeff\uffff\U0010ffff".encode(),
}
"""Cells of values, keys and unique keys."""

TEXTS: Final = [cell.decode() for cell in CELLS.values() if cell.decode("utf-8", "ignore").encode() == cell]
"""Cells that are valid text: errors of nacks, consumer ids."""

NO_HEADERS: Final[dict[str, bytes]] = {
    "no msgpack": b"\xc1",
    "cut": b"\x81",
    "empty": b"",
    "extra bytes": b"\x80\x00",
    "text": msgpack.packb("x"),
    "array": msgpack.packb(["x", 1]),
    "numbers as keys": msgpack.packb({5: 6}),
    "bytes as keys": msgpack.packb({b"a": 6}),
    "extension": b"\x81\xa1a\xd4\x05\x00",
    "timestamp": b"\x81\xa1a" + msgpack.packb(msgpack.Timestamp(5, 0)),
    "numbers as keys inside": msgpack.packb({"a": {5: 6}}),
    "extension inside": b"\x81\xa1a\x91\xd4\x05\x00",
    "deep": b"\x81\xa1a" + b"\x91" * 600 + b"\x90",
    "deeper": b"\x81\xa1a" + b"\x91" * 60_000 + b"\x90",
    "wide": msgpack.packb({"a": [[] for _ in range(1000)]}),
    "surrogate": b"\x81\xa1a\xa3\xed\xa0\x80",
    "a key that is no text": b"\x81\xa1\xff\x01",
}
"""Stored headers that a broker no longer accepts."""

HEADERS: Final[dict[str, bytes]] = {
    "nan": msgpack.packb({"a": float("nan"), "b": [float("inf")]}),
    "bytes": msgpack.packb({"a": b"\xff", "b": [b"\x00", {"c": b"\x1b"}]}),
    "nested": msgpack.packb({"a": {"b": [1, "2", None, {"c": True}]}}),
    "controls": msgpack.packb({text: text for text in TEXTS}),
    "numbers": msgpack.packb({"a": 2**64 - 1, "b": -(2**63), "c": 1.5}),
}
"""Headers that a broker accepts."""


def accept_any_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the nodes of this process store headers as earlier versions did."""
    monkeypatch.setattr(produce_validation, "_check_headers", lambda batch, own: None)


def shown(row: dict[str, Any], name: str) -> bytes | None:
    """Return a key from a JSON object, which holds the key as base64 or as text."""
    if f"{name}_base64" in row:
        return base64.b64decode(row[f"{name}_base64"])
    text = row.get(name)
    return None if text is None else text.encode()


def shown_value(row: dict[str, Any]) -> bytes:
    """Return the value from a JSON object."""
    if "text" in row:
        text: str = row["text"]
        return text.encode()
    return base64.b64decode(row["value"])
