"""Tests that a request's annotations define all its checks, and that it is a normal small, frozen tuple."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import pytest

from sandq.model.errors import InvalidRequest
from sandq.protocol.fields import Field
from sandq.protocol.frames import Type
from sandq.protocol.request import REQUESTS, Bounds, Request, characters, choice, each, length, row_of


@pytest.fixture
def Example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a request class with fields of every kind. Its type number is free during the test."""
    monkeypatch.delitem(REQUESTS, Type.PING, raising=False)

    class Example(Request, type=Type.PING):
        name: Annotated[str, characters(1, 3)]
        mode: Annotated[str, choice("on", "off")] | None
        at: Annotated[int, Bounds(5, 9)] | Annotated[bytes, length(2)]
        rows: Annotated[Sequence[Any], each(row_of("[a, b]", int, str), 2)]
        settings: Mapping[str, Any] | None = None
        count: int = 7  # type: ignore[assignment]
        flag: bool = True

    yield Example
    REQUESTS.pop(Type.PING, None)


def test_shape_is_derived_from_annotations(Example: Any) -> None:
    plain = [field._replace(checks=()) for field in Example.shape.fields]
    assert plain == [
        Field("name", str),
        Field("mode", str, True),
        Field("at", (int, bytes), minimum=5, maximum=9),
        Field("rows", list),
        Field("settings", dict, True),
        Field("count", int),
        Field("flag", bool),
    ]
    assert Example.shape.name == "PING" and REQUESTS[Type.PING] is Example


def test_request_is_a_frozen_tuple_with_defaults(Example: Any) -> None:
    example = Example("a", None, 5, [])
    assert example == ("a", None, 5, [], None, 7, True) and example.count == 7
    assert example._replace(flag=False).flag is False and "name='a'" in repr(example)
    assert not hasattr(example, "__dict__")
    with pytest.raises(AttributeError):
        example.name = "b"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, r"PING field 1 \(name\): 0 characters; 1..3 are allowed"),
        ({"name": "four"}, r"PING field 1 \(name\): 4 characters; 1..3 are allowed"),
        ({"mode": "of"}, r"PING field 2 \(mode\): expected 'on' or 'off', got 'of'"),
        ({"at": 4}, r"PING field 3 \(at\): 4 is not within 5..9"),
        ({"at": b"abc"}, r"PING field 3 \(at\): expected 2 bytes, got 3"),
        ({"at": None}, r"PING field 3 \(at\): expected int or bin, got nil"),
        ({"rows": []}, r"PING field 4 \(rows\): 1..2 items are allowed, not 0"),
        ({"rows": [[1, "a"], [1]]}, r"PING field 4 \(rows\): item 2: expected \[a, b\]"),
        ({"rows": [[-1, "a"]]}, r"PING field 4 \(rows\): item 1: -1 is negative"),
        ({"count": True}, r"PING field 6 \(count\): expected int, got bool"),
        ({"count": -1}, r"PING field 6 \(count\): -1 is not within 0.."),
    ],
)
def test_mistakes_are_named(Example: Any, change: dict[str, Any], words: str) -> None:
    right = Example("abc", "on", b"ab", [[1, "a"]])
    assert Example.parse([17, 1, *right]) == right
    with pytest.raises(InvalidRequest, match=words):
        Example.parse([17, 1, *right._replace(**change)])


def test_a_type_has_one_request(Example: Any) -> None:
    with pytest.raises(AssertionError, match="two requests of type PING"):

        class Another(Request, type=Type.PING):
            pass
