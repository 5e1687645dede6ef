"""Generate requests of every type as their shapes declare them, and mutate them as an attacker could.

Equal seeds give equal requests."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgpack

from sandq.model.batch import Column, encode
from sandq.protocol.fields import Field
from sandq.protocol.request import REQUESTS
from tests.support.protocol_document import EXAMPLES, KINDS, decode

NAMES = ("t", "keys", "g", "nobody", "", "timer", "compacted", "earliest", "latest", "second", "x" * 300, "\0\n")
NUMBERS = (0, 1, 2, 7, 255, 4095, 4096, 65_536, 2**31, 2**32, 2**47, 2**48 - 1, 2**63, 2**64 - 1)
BATCH = encode({Column.VALUE: [b"x", b"y"], Column.KEY: [b"a", b"b"]})
DEEP = 400
MANY = 65_536


class Mutated(NamedTuple):
    """The bytes of a frame, and the name of the mutation.

    `is_short`: the frame is incomplete, so the node waits for more bytes."""

    what: str
    data: bytes
    is_short: bool = False


def mutated(seed: int) -> Iterator[Mutated]:
    """Yield frames of all types of requests; each has another request id."""
    rng, number = random.Random(seed), 0
    for kind in KINDS:
        examples = [decode(name)[2:] for name in EXAMPLES if decode(name)[0] == kind]
        for fields in [*examples, *[_declared(rng, kind) for _ in range(2)]]:
            for mutate in _OF_FIELDS:
                number += 1
                changed = mutate(rng, [*fields])
                what = f"{kind.name} {mutate.__name__}"
                body = msgpack.packb([int(kind), number, *changed])
                yield Mutated(what, _framed(body))
            number += 1
            body = msgpack.packb([int(kind), number, *fields])
            damage = rng.choice(_OF_BYTES)
            data, is_short = damage(rng, body)
            yield Mutated(f"{kind.name} {damage.__name__}", data, is_short)


def _framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def _declared(rng: random.Random, kind: int) -> list[Any]:
    """Return random values of the declared types."""
    return [_value(rng, field) for field in REQUESTS[kind].shape.fields]


def _value(rng: random.Random, field: Field) -> Any:
    if field.optional and rng.random() < 0.3:
        return None
    return _of_type(rng, rng.choice(field.kinds), field)


def _of_type(rng: random.Random, kind: type, field: Field | None = None) -> Any:
    if kind is int:
        within = [number for number in NUMBERS if field is None or field.minimum <= number <= field.maximum]
        return rng.choice(within or NUMBERS)
    if kind is str:
        return "t" if field is not None and field.name == "topic" and rng.random() < 0.7 else rng.choice(NAMES)
    if kind is bytes:
        return rng.choice([BATCH, bytes(16), b"", b"k", rng.randbytes(16), rng.randbytes(40)])
    if kind is bool:
        return rng.random() < 0.5
    if kind is dict:
        return rng.choice([{}, {"lease": "1s"}, {"max_attempts": 3}, {"nonsense": [1]}])
    row = [_of_type(rng, rng.choice((int, bytes, bool, str))) for _ in range(rng.randrange(5))]
    return rng.choice([[], row, [row, row], [[*row, [row]]]])


# -- mutations of the fields ----------------------------------------------------------------------------------------


def nothing(rng: random.Random, fields: list[Any]) -> list[Any]:
    return fields


def fewer(rng: random.Random, fields: list[Any]) -> list[Any]:
    return fields[: rng.randrange(len(fields) + 1)]


def more(rng: random.Random, fields: list[Any]) -> list[Any]:
    return [*fields, *[_of_type(rng, rng.choice((int, str, bytes, list, dict, bool)))] * rng.randrange(1, 4)]


def another_type(rng: random.Random, fields: list[Any]) -> list[Any]:
    return _with_one(rng, fields, _of_type(rng, rng.choice((int, str, bytes, bool, list, dict))))


def no_type_of_ours(rng: random.Random, fields: list[Any]) -> list[Any]:
    return _with_one(rng, fields, rng.choice([1.5, float("nan"), -1, -(2**63), msgpack.ExtType(5, b"x"), {1: 2}]))


def nil(rng: random.Random, fields: list[Any]) -> list[Any]:
    return _with_one(rng, fields, None)


def out_of_bounds(rng: random.Random, fields: list[Any]) -> list[Any]:
    numbers = [at for at, value in enumerate(fields) if type(value) is int]
    for at in numbers:
        fields[at] = rng.choice(NUMBERS)
    return fields


def swapped(rng: random.Random, fields: list[Any]) -> list[Any]:
    rng.shuffle(fields)
    return fields


def many_items(rng: random.Random, fields: list[Any]) -> list[Any]:
    arrays = [at for at, value in enumerate(fields) if isinstance(value, list)]
    if arrays:
        at = rng.choice(arrays)
        item = fields[at][0] if fields[at] else 0
        fields[at] = [item] * rng.choice((1000, 10_001, 40_000))
    return fields


def twice(rng: random.Random, fields: list[Any]) -> list[Any]:
    """Repeat all items of each array."""
    for at, value in enumerate(fields):
        if isinstance(value, list):
            fields[at] = value * 2
    return fields


def deep(rng: random.Random, fields: list[Any]) -> list[Any]:
    nested: Any = 0
    for _ in range(rng.choice((5, DEEP))):
        nested = rng.choice(([nested], {"a": nested}))
    return _with_one(rng, fields, nested)


def long(rng: random.Random, fields: list[Any]) -> list[Any]:
    return _with_one(rng, fields, rng.choice(["x" * 70_000, bytes(70_000), b"\xff" * 70_000]))


def _with_one(rng: random.Random, fields: list[Any], value: Any) -> list[Any]:
    if fields:
        fields[rng.randrange(len(fields))] = value
    return fields


_OF_FIELDS = (nothing, fewer, more, another_type, no_type_of_ours, nil, out_of_bounds, swapped, many_items, twice, deep,
              long)  # fmt: skip


# -- mutations of the bytes -----------------------------------------------------------------------------------------


def cut(rng: random.Random, body: bytes) -> tuple[bytes, bool]:
    """Send the first part of the frame only, so that the node waits for the rest."""
    return _framed(body)[: rng.randrange(1, len(body) + 4)], True


def cut_with_length(rng: random.Random, body: bytes) -> tuple[bytes, bool]:
    """Send the first part of the body, with a length that fits."""
    return _framed(body[: rng.randrange(len(body))]), False


def too_long(rng: random.Random, body: bytes) -> tuple[bytes, bool]:
    return _framed(body + rng.randbytes(rng.randrange(1, 9))), False


def of_another_length(rng: random.Random, body: bytes) -> tuple[bytes, bool]:
    length = rng.choice((2**31, 2**32 - 1, 33 << 20))
    return struct.pack(">I", length) + body, False


def flipped(rng: random.Random, body: bytes) -> tuple[bytes, bool]:
    changed = bytearray(body)
    for _ in range(rng.randrange(1, 4)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return _framed(bytes(changed)), False


def huge_count(rng: random.Random, body: bytes) -> tuple[bytes, bool]:
    """Insert the head of an array, map, text or bytes with more items than the frame can contain."""
    count = rng.choice((MANY + 1, 2**31, 2**32 - 1))
    head = rng.choice((b"\xdd", b"\xdf", b"\xdb", b"\xc6")) + struct.pack(">I", count)
    at = rng.randrange(1, len(body) + 1)
    return _framed(body[:at] + head + body[at:]), False


def nested_bytes(rng: random.Random, body: bytes) -> tuple[bytes, bool]:
    return _framed(rng.choice((b"\x91", b"\x81\xa1a")) * rng.choice((600, 50_000)) + body), False


_OF_BYTES = (cut, cut_with_length, too_long, of_another_length, flipped, huge_count, nested_bytes)
