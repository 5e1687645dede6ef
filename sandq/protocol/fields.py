"""Check the fields of a frame: one table per frame type, one clear error per mistake.

    PRODUCE field 2 (partition): expected int, got str
    PRODUCE field 6 (batch): missing; the frame has 5 fields
    SUBSCRIBE field 8 (held) item 3: expected [group number, partition, token]

Fields are counted from 1, as in `docs/protocol.md`. The common case costs one comparison of types; error messages are
built only for mistakes. A request must have exactly its declared fields, so that no field of a client is silently
ignored. A reply or a push may have further fields of a newer broker, which are ignored.
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

Check = Callable[[Any], str | None]
"""Function that returns what is wrong with a value of the correct type. None if the value is valid."""

_NAMES = {int: "int", str: "str", bytes: "bin", list: "array", dict: "map", bool: "bool", type(None): "nil"}


class Field(NamedTuple):
    """One field: its name, its allowed types, whether nil is allowed, the bounds of an int, and further checks by
    type."""

    name: str
    kind: type | tuple[type, ...]
    optional: bool = False
    maximum: int = U64_MAX
    minimum: int = 0
    checks: tuple[tuple[type, Check], ...] = ()

    @property
    def kinds(self) -> tuple[type, ...]:
        """Types that are allowed, in addition to nil."""
        return self.kind if isinstance(self.kind, tuple) else (self.kind,)


class Shape:
    """The fields of one frame type, in order. `error`: the exception for a mistake (in a server: InvalidRequest)."""

    __slots__ = ("_bounds", "_checks", "_exact", "_types", "error", "fields", "name")

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
        # Compare with `type`, which distinguishes int and bool, unlike `isinstance`: True is not accepted as the number
        # 1.
        self._types = [int, int, *(field.kinds[0] for field in fields)]
        self._bounds = [
            (place, field.minimum, field.maximum) for place, field in enumerate(fields, 2) if int in field.kinds
        ]
        self._checks = [(place, *check) for place, field in enumerate(fields, 2) for check in field.checks]

    def check(self, frame: Sequence[Any]) -> None:
        """Raise `error` unless the frame's fields match the shape. Check types first, then bounds, then everything
        else."""
        if [*map(type, frame)] != self._types:
            self._check_each(frame)
        for place, minimum, maximum in self._bounds:
            value = frame[place]
            if type(value) is int and not minimum <= value <= maximum:
                raise self.wrong(place - 1, f"{value} is not within {minimum}..{maximum}")
        for place, kind, check in self._checks:
            value = frame[place]
            if type(value) is kind and (problem := check(value)) is not None:
                raise self.wrong(place - 1, problem)

    def wrong(self, number: int, problem: str) -> SandqError:
        """Return the error about field `number` (from 1)."""
        return self.error(f"{self.name} field {number} ({self.fields[number - 1].name}): {problem}")

    def _check_each(self, frame: Sequence[Any]) -> None:
        got = len(frame) - 2
        for number, field in enumerate(self.fields, 1):
            if number > got:
                raise self.wrong(number, f"missing; the frame has {got} fields")
            value = frame[number + 1]
            if type(value) not in field.kinds and not (field.optional and value is None):
                raise self.wrong(number, f"expected {_expected(field)}, got {kind_name(value)}")
        if self._exact and got > len(self.fields):
            raise self.error(f"{self.name} has {len(self.fields)} fields, and the frame has {got}")


def _expected(field: Field) -> str:
    *names, last = [*(_NAMES[kind] for kind in field.kinds), *(["nil"] if field.optional else [])]
    return f"{', '.join(names)} or {last}" if names else last


def kind_name(value: object) -> str:
    """Return the msgpack name of a value's type."""
    return _NAMES.get(type(value), type(value).__name__)


def check_offset(shape: Shape, number: int, value: bytes | None) -> None:
    """Raise unless the bin in field `number` is nil or an offset."""
    if value is not None and len(value) != OFFSET_BYTES:
        raise shape.wrong(number, f"expected {OFFSET_BYTES} bytes, got {len(value)}")


def one_of(choices: Sequence[str]) -> str:
    """Return these words as part of a message."""
    *words, last = [repr(choice) for choice in choices]
    return f"{', '.join(words)} or {last}"
