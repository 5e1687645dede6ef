"""Requests about stored messages: what a producer asks about its own, readers, and jobs over many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, NamedTuple, Self

from sandq.model.errors import InvalidRequest
from sandq.model.limits import DEFAULT, FIXED
from sandq.model.names import check_tenant
from sandq.protocol.fields import OFFSET_BYTES, U32_MAX, U48_MAX, kind_name, one_of
from sandq.protocol.frames import Frame, Type, encode_frame
from sandq.protocol.request import U48, Bounds, Offset, Partition, Request, choice, each, length
from sandq.protocol.requests import is_priority

BY_ID: Final = 0
BY_UNIQUE_KEY: Final = 1
PAGE_MAX: Final = 1000
"""Rows of one LIST or DEAD_LIST, items of one MOVE or CANCEL, ids of one DEAD_REDRIVE or DEAD_PURGE."""
_TARGETS: Final = ([int, bytes], [int, bytes, str])
BUCKETS_MAX: Final = 3600
JOB_ID_BYTES: Final = 16

LISTED_STATES: Final = ("delayed", "ready", "leased", "waiting", "acked")
DEAD_REASONS: Final = ("nacked", "lease_expired", "expired", "rejected", "undeliverable")
UNITS: Final = ("second", "minute", "hour")


def check_target(target: Any) -> str | None:
    """What is wrong with the name of a message, if anything."""
    kinds = [*map(type, target)] if type(target) is list else []
    if kinds not in _TARGETS or target[0] not in (BY_ID, BY_UNIQUE_KEY) or target[0] == BY_ID < len(target) - 2:
        return f"expected [{BY_ID}, id], [{BY_UNIQUE_KEY}, unique key] or [{BY_UNIQUE_KEY}, unique key, tenant]"
    if len(target) > 2:
        try:
            check_tenant(target[2])
        except InvalidRequest as error:
            return error.message
    size = len(target[1])
    if target[0] == BY_ID and size != OFFSET_BYTES:
        return f"an id has {OFFSET_BYTES} bytes, not {size}"
    if target[0] == BY_UNIQUE_KEY and not 1 <= size <= FIXED.unique_key_bytes:
        return f"a unique key has 1..{FIXED.unique_key_bytes} bytes, not {size}"
    return None


def check_prefix(prefix: bytes) -> str | None:
    """What is wrong with the beginning of keys: no key can begin so when it is too long."""
    if len(prefix) > DEFAULT.key_bytes:
        return f"a key_prefix of {len(prefix)} bytes; {DEFAULT.key_bytes} is the limit"
    return None


def check_unique_prefix(prefix: bytes) -> str | None:
    """What is wrong with a prefix of unique keys, if anything: none is longer than a unique key."""
    if len(prefix) > FIXED.unique_key_bytes:
        return f"a unique_key_prefix of {len(prefix)} bytes; {FIXED.unique_key_bytes} is the limit"
    return None


def check_error(part: str) -> str | None:
    """What is wrong with a part of errors, if anything: none is longer than a NACK's."""
    if not 1 <= len(part) <= FIXED.error_chars:
        return f"error: a part of 1..{FIXED.error_chars} characters is expected, not of {len(part)}"
    try:
        part.encode()
    except UnicodeEncodeError:
        return f"error: {part[:60]!a} is no text that UTF-8 can write"
    return None


def _check_move(item: Any) -> str | None:
    if type(item) is not list or len(item) not in (3, 4) or type(item[0]) is not list or type(item[2]) is not bool:
        return "expected [target, at_ms, relative], and perhaps a priority"
    if (problem := check_target(item[0])) is not None:
        return problem
    if len(item) == 4 and not is_priority(item[3]):
        return f"priority {item[3]!r} is not within {FIXED.priority_least}..{FIXED.priority_most}"
    if item[1] is None and len(item) == 4:
        return None  # its time stays
    return None if type(item[1]) is int and 0 <= item[1] <= U48_MAX else f"at_ms {item[1]} is not within 0..{U48_MAX}"


Target = Annotated[Sequence[Any], check_target]
"""How a message is named: `[BY_ID, 16 bytes]`, `[BY_UNIQUE_KEY, bytes]` or, in a fair topic, `[BY_UNIQUE_KEY, bytes,
tenant]`: without one it is that of the tenant `default`."""
PageSize = Annotated[int, Bounds(1, PAGE_MAX)]
JobId = Annotated[bytes, length(JOB_ID_BYTES)]


class Get(Request, type=Type.GET):
    """One message, whatever its state."""

    topic: str
    partition: Partition
    target: Target


class List(Request, type=Type.LIST):
    """A page of messages in the order of their offsets, those due from `from_ms` on and before `until_ms`.

    `after`: None for the first page, then what the page before gave as its next. The last field may be missing.
    """

    topic: str
    partition: Partition
    state: Annotated[str, choice(*LISTED_STATES)] | None
    from_ms: U48
    until_ms: U48
    key_prefix: Annotated[bytes, check_prefix] | None
    limit: PageSize
    after: Offset | None
    values: bool
    unique_key_prefix: Annotated[bytes, check_unique_prefix] | None = None

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        return cls.checked([*frame, None] if len(frame) == _PLAIN_LIST else frame)

    def frame(self, request_id: int) -> bytes:
        """Without the last field, which a version of before does not know, where it says nothing."""
        fields = [*self]
        return encode_frame(self.type, request_id, *(fields[:-1] if self.unique_key_prefix is None else fields))


_PLAIN_LIST: Final = 2 + 9
"""Items of a frame without the last field."""


class Move(Request, type=Type.MOVE):
    """New delivery times of pending messages. Items: `[target, at_ms, relative]`; relative: a delay from now. With a
    fourth field they get that priority; `at_ms` may be nil then, and their times stay."""

    topic: str
    partition: Partition
    items: Annotated[Sequence[Sequence[Any]], each(_check_move, PAGE_MAX)]


class Cancel(Request, type=Type.CANCEL):
    """Pending messages that are not wanted any more."""

    topic: str
    partition: Partition
    targets: Annotated[Sequence[Target], each(check_target, PAGE_MAX)]


class Why(Request, type=Type.WHY):
    """One message, and what it waits for in every group."""

    topic: str
    partition: Partition
    target: Target


class Argument(NamedTuple):
    """One argument of a job; nil stands for one that may be left out."""

    kind: type
    optional: bool = False
    minimum: int = 0
    maximum: int = U48_MAX
    choices: Sequence[str] = ()


_RANGE: Final = {"from_ms": Argument(int), "until_ms": Argument(int), "dry_run": Argument(bool)}
_PENDING: Final = {**_RANGE, "key_prefix": Argument(bytes, True), "unique_key_prefix": Argument(bytes, True)}
_DEAD: Final = {
    **_RANGE,
    "group": Argument(str),
    "reason": Argument(str, True, choices=DEAD_REASONS),
    "error": Argument(str, True),
    "key_prefix": Argument(bytes, True),
}
_DEAD_JOBS: Final = ("redrive", "purge_dead")
_DEAD_FILTERS: Final = ("error", "key_prefix")
_TO, _SHIFT, _PRIORITY = "to_ms", "shift_ms", "priority"
JOBS: Final[Mapping[str, Mapping[str, Argument]]] = {
    "cancel": _PENDING,
    "move": {
        **_PENDING,
        _TO: Argument(int, True),
        _SHIFT: Argument(int, True, minimum=-U48_MAX),
        _PRIORITY: Argument(int, True, minimum=FIXED.priority_least, maximum=FIXED.priority_most),
    },
    "redrive": {**_DEAD, "rate": Argument(int, True, minimum=1, maximum=U32_MAX)},
    "purge_dead": _DEAD,
}
"""The arguments of each kind of job. `from_ms` is inclusive, `until_ms` exclusive; `dry_run`: only count."""


class JobStart(Request, type=Type.JOB_START):
    """Do something to many messages, in the background. A job that is known by its id is only answered."""

    topic: str
    partition: Partition
    job_id: JobId
    kind: Annotated[str, choice(*JOBS)]
    arguments: Mapping[str, Any]

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        """Every argument of the kind is in `arguments`, as None when it was left out; but of a move's two times and its
        priority, and of the error and key of dead letters, only those that were given."""
        request = cls.checked(frame)
        return request._replace(arguments=_arguments(request.kind, request.arguments))


def _arguments(kind: str, given: Mapping[Any, Any]) -> dict[str, Any]:
    wrong = partial(JobStart.wrong, "arguments")
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
        changes = [name for name in (_TO, _SHIFT, _PRIORITY) if arguments[name] is not None]
        if not changes or changes[:2] == [_TO, _SHIFT]:
            raise wrong(f"one of {_TO} and {_SHIFT} is expected, or {_PRIORITY}")
        for name in (_TO, _SHIFT, _PRIORITY):
            if name not in changes:
                del arguments[name]
    for name in _DEAD_FILTERS if kind in _DEAD_JOBS else ("unique_key_prefix",):
        if name in arguments and arguments[name] is None:
            del arguments[name]
    error = arguments.get("error")
    if error is not None and (problem := check_error(error)) is not None:
        raise wrong(problem)
    prefix = arguments.get("key_prefix")
    if prefix is not None and (problem := check_prefix(prefix)) is not None:
        raise wrong(problem)
    unique = arguments.get("unique_key_prefix")
    if unique is not None and (problem := check_unique_prefix(unique)) is not None:
        raise wrong(problem)
    return arguments


class JobStatus(Request, type=Type.JOB_STATUS):
    """How far a job has come."""

    topic: str
    partition: Partition
    job_id: JobId


class JobStop(Request, type=Type.JOB_STOP):
    """Let a job be as far as it has come."""

    topic: str
    partition: Partition
    job_id: JobId


class Forecast(Request, type=Type.FORECAST):
    """How many messages come due in each of the next `count` units, over the partitions that this node leads."""

    topic: str
    unit: Annotated[str, choice(*UNITS)]
    count: Annotated[int, Bounds(1, BUCKETS_MAX)]  # type: ignore[assignment]  # hides tuple.count: nobody wants it
