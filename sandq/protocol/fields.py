"""Checking the fields of a frame: one table a frame type, one clear error a mistake.

    PRODUCE field 2 (partition): expected int, got str
    PRODUCE field 6 (batch): missing; the frame has 5 fields
    SUBSCRIBE field 8 (held) item 3: expected [group number, partition, token]

Fields are counted from 1, as `docs/protocol.md` does. The common case costs one comparison of types; the
words are found only when something is wrong. A request must have exactly its fields: nothing a client asks
for is ignored. A reply or a push may have further fields (a newer broker's); those are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from sandq.model.errors import InvalidRequest, SandqError

U16_MAX: Final = 2**16 - 1
U32_MAX: Final = 2**32 - 1
U48_MAX: Final = 2**48 - 1
U64_MAX: Final = 2**64 - 1
PARTITION_MAX: Final = 4095
OFFSET_BYTES: Final = 16

_NAMES = {int: "int", str: "str", bytes: "bin", list: "array", dict: "map", bool: "bool", type(None): "nil"}


class Field(NamedTuple):
    """One field: its name, its type, whether nil may stand there, and the bound of an int (0..maximum)."""

    name: str
    kind: type
    optional: bool = False
    maximum: int = U64_MAX


class Shape:
    """The fields of one frame type, in order; `error` is what a mistake raises (a server: InvalidRequest)."""

    __slots__ = ("_bounds", "_count", "_exact", "_types", "error", "fields", "name")

    def __init__(
        self,
        name: str,
        *fields: Field,
        exact: bool = True,
        error: Callable[[str], SandqError] = InvalidRequest,
    ) -> None:
        self.name = name
        self.fields = fields
        self.error = error
        self._exact = exact
        self._count = len(fields) + 2
        # int and bool are told apart by `type`, not `isinstance`: True is not the number 1 here.
        self._types = [int, int, *(field.kind for field in fields)]
        self._bounds = [(place, field.maximum) for place, field in enumerate(fields, 2) if field.kind is int]

    def check(self, frame: Sequence[Any]) -> None:
        """Raise `error` unless the frame's fields have these types and bounds."""
        if [*map(type, frame)] != self._types:
            self._check_each(frame)
        for place, maximum in self._bounds:
            value = frame[place]
            if value is not None and not 0 <= value <= maximum:
                raise self.wrong(place - 1, f"{value} is not within 0..{maximum}")

    def wrong(self, number: int, problem: str) -> SandqError:
        """The error about field `number` (from 1)."""
        return self.error(f"{self.name} field {number} ({self.fields[number - 1].name}): {problem}")

    def _check_each(self, frame: Sequence[Any]) -> None:
        got = len(frame) - 2
        for number, field in enumerate(self.fields, 1):
            if number > got:
                raise self.wrong(number, f"missing; the frame has {got} fields")
            value = frame[number + 1]
            if type(value) is not field.kind and not (field.optional and value is None):
                expected = _NAMES[field.kind] + (" or nil" if field.optional else "")
                raise self.wrong(number, f"expected {expected}, got {kind_name(value)}")
        if self._exact and got > len(self.fields):
            raise self.error(f"{self.name} has {len(self.fields)} fields, and the frame has {got}")


def kind_name(value: object) -> str:
    """The msgpack name of a value's type."""
    return _NAMES.get(type(value), type(value).__name__)


def check_row(shape: Shape, number: int, row: object, item: int, kinds: Sequence[type], words: str) -> None:
    """Raise unless `row` (item `item`, from 1, of field `number`) is an array of these types, no int negative."""
    if type(row) is not list or [*map(type, row)] != kinds:
        raise shape.wrong(number, f"item {item}: expected {words}")
    for value in row:
        if type(value) is int and value < 0:
            raise shape.wrong(number, f"item {item}: {value} is negative")
