"""Requests about stored messages: what a producer asks about its own, readers, and jobs over many.

    GET         12 [topic, partition, target]
    LIST        13 [topic, partition, state | nil, from_ms, until_ms, key_prefix bin | nil, limit 1..1000,
                    after bin16 | nil, values bool]
    MOVE        14 [topic, partition, [[target, at_ms, relative bool]...]]
    CANCEL      15 [topic, partition, [target...]]
    WHY         16 [topic, partition, target]
    JOB_START   18 [topic, partition, job_id bin16, kind, arguments map]
    JOB_STATUS  19 [topic, partition, job_id bin16]
    FORECAST    20 [topic, unit, count 1..3600]
    JOB_STOP    21 [topic, partition, job_id bin16]

    target    = [0, id bin16] | [1, unique key bin of 1..1,024 bytes]
    state     = "delayed" | "ready" | "leased" | "waiting" | "acked"
    unit      = "second" | "minute" | "hour"
    kind      = "cancel" | "move" | "redrive" | "purge_dead"

The arguments of a job, all with `from_ms` (inclusive), `until_ms` (exclusive) and `dry_run` (only count):

    cancel      key_prefix bin | nil
    move        key_prefix bin | nil, and one of to_ms, shift_ms (which may be negative)
    redrive     group, reason str | nil, rate int | nil
    purge_dead  group, reason str | nil
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from sandq.model.errors import SandqError
from sandq.model.limits import DEFAULT, FIXED
from sandq.protocol.fields import (
    OFFSET_BYTES,
    PARTITION_MAX,
    U32_MAX,
    U48_MAX,
    Field,
    Shape,
    check_choice,
    check_offset,
    kind_name,
    one_of,
)
from sandq.protocol.frames import Frame, Type, encode_frame

Target = Sequence[Any]
"""How a message is named: `[BY_ID, 16 bytes]` or `[BY_UNIQUE_KEY, bytes]`."""

BY_ID: Final = 0
BY_UNIQUE_KEY: Final = 1
PAGE_MAX: Final = 1000
"""Rows of one LIST or DEAD_LIST, items of one MOVE or CANCEL."""
BUCKETS_MAX: Final = 3600
JOB_ID_BYTES: Final = 16

LISTED_STATES: Final = ("delayed", "ready", "leased", "waiting", "acked")
DEAD_REASONS: Final = ("nacked", "lease_expired", "expired")
UNITS: Final = ("second", "minute", "hour")

_TOPIC: Final = Field("topic", str)
_PARTITION: Final = Field("partition", int, maximum=PARTITION_MAX)
_JOB_ID: Final = Field("job_id", bytes)

_GET = Shape("GET", _TOPIC, _PARTITION, Field("target", list))


class Get(NamedTuple):
    """One message, whatever its state."""

    topic: str
    partition: int
    target: Target

    @classmethod
    def parse(cls, frame: Frame) -> Get:
        _GET.check(frame)
        check_target(_GET, 3, frame[4])
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.GET, request_id, *self)


_LIST = Shape(
    "LIST",
    _TOPIC,
    _PARTITION,
    Field("state", str, optional=True),
    Field("from_ms", int, maximum=U48_MAX),
    Field("until_ms", int, maximum=U48_MAX),
    Field("key_prefix", bytes, optional=True),
    Field("limit", int, minimum=1, maximum=PAGE_MAX),
    Field("after", bytes, optional=True),
    Field("values", bool),
)


class List(NamedTuple):
    """A page of messages in the order of their offsets, those due from `from_ms` on and before `until_ms`.

    `after`: None for the first page, then what the page before gave as its next.
    """

    topic: str
    partition: int
    state: str | None
    from_ms: int
    until_ms: int
    key_prefix: bytes | None
    limit: int
    after: bytes | None
    values: bool

    @classmethod
    def parse(cls, frame: Frame) -> List:
        _LIST.check(frame)
        check_choice(_LIST, 3, frame[4], LISTED_STATES)
        check_prefix(_LIST, 6, frame[7])
        check_offset(_LIST, 8, frame[9])
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.LIST, request_id, *self)


_MOVE = Shape("MOVE", _TOPIC, _PARTITION, Field("items", list))


class Move(NamedTuple):
    """New delivery times of pending messages. Items: `[target, at_ms, relative]`; relative: a delay from now."""

    topic: str
    partition: int
    items: Sequence[Sequence[Any]]

    @classmethod
    def parse(cls, frame: Frame) -> Move:
        _MOVE.check(frame)
        _check_many(_MOVE, frame[4])
        for item, row in enumerate(frame[4], 1):
            if type(row) is not list or [*map(type, row)] != [list, int, bool]:
                raise _MOVE.wrong(3, f"item {item}: expected [target, at_ms, relative]")
            check_target(_MOVE, 3, row[0], item)
            if not 0 <= row[1] <= U48_MAX:
                raise _MOVE.wrong(3, f"item {item}: at_ms {row[1]} is not within 0..{U48_MAX}")
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.MOVE, request_id, *self)


_CANCEL = Shape("CANCEL", _TOPIC, _PARTITION, Field("targets", list))


class Cancel(NamedTuple):
    """Pending messages that are not wanted any more."""

    topic: str
    partition: int
    targets: Sequence[Target]

    @classmethod
    def parse(cls, frame: Frame) -> Cancel:
        _CANCEL.check(frame)
        _check_many(_CANCEL, frame[4])
        for item, target in enumerate(frame[4], 1):
            check_target(_CANCEL, 3, target, item)
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.CANCEL, request_id, *self)


_WHY = Shape("WHY", _TOPIC, _PARTITION, Field("target", list))


class Why(NamedTuple):
    """One message, and what it waits for in every group."""

    topic: str
    partition: int
    target: Target

    @classmethod
    def parse(cls, frame: Frame) -> Why:
        _WHY.check(frame)
        check_target(_WHY, 3, frame[4])
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.WHY, request_id, *self)


class Argument(NamedTuple):
    """One argument of a job; nil stands for one that may be left out."""

    kind: type
    optional: bool = False
    minimum: int = 0
    maximum: int = U48_MAX
    choices: Sequence[str] = ()


_RANGE: Final = {"from_ms": Argument(int), "until_ms": Argument(int), "dry_run": Argument(bool)}
_PENDING: Final = {**_RANGE, "key_prefix": Argument(bytes, True)}
_DEAD: Final = {**_RANGE, "group": Argument(str), "reason": Argument(str, True, choices=DEAD_REASONS)}
_TO, _SHIFT = "to_ms", "shift_ms"
JOBS: Final[Mapping[str, Mapping[str, Argument]]] = {
    "cancel": _PENDING,
    "move": {**_PENDING, _TO: Argument(int, True), _SHIFT: Argument(int, True, minimum=-U48_MAX)},
    "redrive": {**_DEAD, "rate": Argument(int, True, minimum=1, maximum=U32_MAX)},
    "purge_dead": _DEAD,
}
"""The arguments of each kind of job."""

_JOB_START = Shape("JOB_START", _TOPIC, _PARTITION, _JOB_ID, Field("kind", str), Field("arguments", dict))


class JobStart(NamedTuple):
    """Do something to many messages, in the background. A job that is known by its id is only answered."""

    topic: str
    partition: int
    job_id: bytes
    kind: str
    arguments: Mapping[str, Any]

    @classmethod
    def parse(cls, frame: Frame) -> JobStart:
        """Every argument of the kind is in `arguments`, as None when it was left out; but of a move's two times only
        the one that was given."""
        _JOB_START.check(frame)
        _check_job_id(_JOB_START, frame[4])
        check_choice(_JOB_START, 4, frame[5], [*JOBS])
        return cls(frame[2], frame[3], frame[4], frame[5], _arguments(frame[5], frame[6]))

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.JOB_START, request_id, *self)


def _arguments(kind: str, given: Mapping[Any, Any]) -> dict[str, Any]:
    def wrong(problem: str) -> SandqError:
        return _JOB_START.wrong(5, problem)

    known = JOBS[kind]
    for name in given:
        if name not in known:
            raise wrong(f"{str(name)[:40]!r} is no argument of {kind!r}")
    arguments: dict[str, Any] = {}
    for name, argument in known.items():
        value = given.get(name)
        if value is None and argument.optional:
            arguments[name] = None
            continue
        if name not in given:
            raise wrong(f"{name} is missing")
        if type(value) is not argument.kind:
            raise wrong(f"{name}: expected {kind_name(argument.kind())}, got {kind_name(value)}")
        if type(value) is int and not argument.minimum <= value <= argument.maximum:
            raise wrong(f"{name}: {value} is not within {argument.minimum}..{argument.maximum}")
        if argument.choices and value not in argument.choices:
            raise wrong(f"{name}: expected {one_of(argument.choices)}, got {str(value)[:40]!r}")
        arguments[name] = value
    if kind == "move":
        if (arguments[_TO] is None) is (arguments[_SHIFT] is None):
            raise wrong(f"one of {_TO} and {_SHIFT} is expected")
        del arguments[_TO if arguments[_TO] is None else _SHIFT]
    check_prefix(_JOB_START, 5, arguments.get("key_prefix"))
    return arguments


_JOB_STATUS = Shape("JOB_STATUS", _TOPIC, _PARTITION, _JOB_ID)


class JobStatus(NamedTuple):
    """How far a job has come."""

    topic: str
    partition: int
    job_id: bytes

    @classmethod
    def parse(cls, frame: Frame) -> JobStatus:
        _JOB_STATUS.check(frame)
        _check_job_id(_JOB_STATUS, frame[4])
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.JOB_STATUS, request_id, *self)


_JOB_STOP = Shape("JOB_STOP", _TOPIC, _PARTITION, _JOB_ID)


class JobStop(NamedTuple):
    """Let a job be as far as it has come."""

    topic: str
    partition: int
    job_id: bytes

    @classmethod
    def parse(cls, frame: Frame) -> JobStop:
        _JOB_STOP.check(frame)
        _check_job_id(_JOB_STOP, frame[4])
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.JOB_STOP, request_id, *self)


_FORECAST = Shape("FORECAST", _TOPIC, Field("unit", str), Field("count", int, minimum=1, maximum=BUCKETS_MAX))


class Forecast(NamedTuple):
    """How many messages come due in each of the next `count` units, over the partitions that this node leads."""

    topic: str
    unit: str
    count: int  # type: ignore[assignment]  # hides tuple.count, which nobody wants of a request

    @classmethod
    def parse(cls, frame: Frame) -> Forecast:
        _FORECAST.check(frame)
        check_choice(_FORECAST, 2, frame[3], UNITS)
        return cls._make(frame[2:])

    def frame(self, request_id: int) -> bytes:
        return encode_frame(Type.FORECAST, request_id, *self)


def check_target(shape: Shape, number: int, target: object, item: int | None = None) -> None:
    """Raise unless field `number` (or item `item` of it) names a message."""
    place = "" if item is None else f"item {item}: "
    if type(target) is not list or [*map(type, target)] != [int, bytes] or target[0] not in (BY_ID, BY_UNIQUE_KEY):
        raise shape.wrong(number, f"{place}expected [{BY_ID}, id] or [{BY_UNIQUE_KEY}, unique key]")
    size = len(target[1])
    if target[0] == BY_ID and size != OFFSET_BYTES:
        raise shape.wrong(number, f"{place}an id has {OFFSET_BYTES} bytes, not {size}")
    if target[0] == BY_UNIQUE_KEY and not 1 <= size <= FIXED.unique_key_bytes:
        raise shape.wrong(number, f"{place}a unique key has 1..{FIXED.unique_key_bytes} bytes, not {size}")


def check_prefix(shape: Shape, number: int, prefix: bytes | None) -> None:
    """Raise when no key can begin so, because it is too long."""
    if prefix is not None and len(prefix) > DEFAULT.key_bytes:
        raise shape.wrong(number, f"a key_prefix of {len(prefix)} bytes; {DEFAULT.key_bytes} is the limit")


def _check_many(shape: Shape, items: Sequence[Any]) -> None:
    if not 1 <= len(items) <= PAGE_MAX:
        raise shape.wrong(3, f"1..{PAGE_MAX} items are allowed, not {len(items)}")


def _check_job_id(shape: Shape, job_id: bytes) -> None:
    if len(job_id) != JOB_ID_BYTES:
        raise shape.wrong(3, f"expected {JOB_ID_BYTES} bytes, got {len(job_id)}")
