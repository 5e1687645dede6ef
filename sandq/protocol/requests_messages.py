"""Requests about stored messages: for their producer, for readers, and jobs over many messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Final, NamedTuple, Self

from sandq.model.batch_format import Column
from sandq.model.errors import InvalidRequest
from sandq.model.limits import DEFAULT, FIXED
from sandq.model.names import check_tenant
from sandq.protocol.fields import OFFSET_BYTES, U32_MAX, U48_MAX, kind_name, one_of
from sandq.protocol.frames import Frame, Type, encode_with_tail
from sandq.protocol.request import U48, Bounds, Offset, Partition, Request, choice, each, length
from sandq.protocol.requests import is_priority

BY_ID: Final = 0
BY_UNIQUE_KEY: Final = 1
PAGE_MAX: Final = 1000
"""Maximum number of rows of one LIST or DEAD_LIST, items of one MOVE or CANCEL, and ids of one DEAD_REDRIVE or
DEAD_PURGE."""
PREVIEW_BYTES_MAX: Final = 1 << 16
"""Maximum bytes of each value that a LIST may request, if it does not request whole values."""
NEWEST: Final = "newest"
"""Order of a page that begins with the highest offset."""
_TARGETS: Final = ([int, bytes], [int, bytes, str], [int, bytes, NoneType, bytes])
BUCKETS_MAX: Final = 3600
JOB_ID_BYTES: Final = 16

LISTED_STATES: Final = ("delayed", "ready", "leased", "waiting", "acked")
DEAD_ELSEWHERE: Final = (
    "dead messages are listed by group: client.dead(topic, group).list(), sandctl dead list TOPIC GROUP, or "
    "GET /topics/TOPIC/groups/GROUP/dead"
)
"""Error message for a listing of dead messages by their state."""
DEAD_REASONS: Final = ("nacked", "lease_expired", "expired", "rejected", "undeliverable")
UNITS: Final = ("second", "minute", "hour")


def check_target(target: Any) -> str | None:
    """Return what is wrong with a reference to a message. None if it is valid."""
    kinds = [*map(type, target)] if type(target) is list else []
    if kinds not in _TARGETS or target[0] not in (BY_ID, BY_UNIQUE_KEY) or target[0] == BY_ID < len(target) - 2:
        by = BY_UNIQUE_KEY
        return f"expected [{BY_ID}, id], [{by}, unique key], [{by}, unique key, tenant] or [{by}, unique key, nil, key]"
    if len(target) == 3:
        try:
            check_tenant(target[2])
        except InvalidRequest as error:
            return error.message
    size = len(target[1])
    if target[0] == BY_ID and size != OFFSET_BYTES:
        return f"an id has {OFFSET_BYTES} bytes, not {size}"
    if target[0] == BY_UNIQUE_KEY and not 1 <= size <= FIXED.unique_key_bytes:
        return f"a unique key has 1..{FIXED.unique_key_bytes} bytes, not {size}"
    if len(target) > 3 and len(target[3]) > DEFAULT.key_bytes:
        return f"a key of {len(target[3])} bytes; {DEFAULT.key_bytes} is the limit"
    return None


def check_prefix(prefix: bytes) -> str | None:
    """Return what is wrong with a prefix of keys. None if it is valid. A prefix may be at most as long as a key."""
    if len(prefix) > DEFAULT.key_bytes:
        return f"a key_prefix of {len(prefix)} bytes; {DEFAULT.key_bytes} is the limit"
    return None


def check_unique_prefix(prefix: bytes) -> str | None:
    """Return what is wrong with a prefix of unique keys. None if it is valid. A prefix may be at most as long as a
    unique key."""
    if len(prefix) > FIXED.unique_key_bytes:
        return f"a unique_key_prefix of {len(prefix)} bytes; {FIXED.unique_key_bytes} is the limit"
    return None


def check_error(part: str) -> str | None:
    """Return what is wrong with a part of errors. None if it is valid. A part may be at most as long as a NACK's
    error."""
    if not 1 <= len(part) <= FIXED.error_chars:
        return f"error: a part of 1..{FIXED.error_chars} characters is expected, not of {len(part)}"
    try:
        part.encode()
    except UnicodeEncodeError:
        return f"error: {part[:60]!a} is no text that UTF-8 can write"
    return None


UPDATED_COLUMNS: Final = {"value": Column.VALUE.value, "headers": Column.HEADERS.value}
"""Fields that an item of a MOVE may change in its message, in the order of its cells, and their columns."""


def _is_update(changes: Any) -> bool:
    """Return whether `changes` gives the length of a new value, of new headers, or both."""
    if type(changes) is not dict or not changes or not changes.keys() <= UPDATED_COLUMNS.keys():
        return False
    return all([type(size) is int and 0 <= size <= U32_MAX for size in changes.values()])


def _check_move(item: Any) -> str | None:
    if type(item) is not list or not 3 <= len(item) <= 5 or type(item[0]) is not list or type(item[2]) is not bool:
        return "expected [target, at_ms, relative], and perhaps a priority, and changes"
    if (problem := check_target(item[0])) is not None:
        return problem
    if len(item) > 4 and not _is_update(item[4]):
        return "changes must be {value: length, headers: length}, one of them at least"
    if len(item) > 3 and not is_priority(item[3]) and (len(item) == 4 or item[3] is not None):
        return f"priority {item[3]!r} is not within {FIXED.priority_least}..{FIXED.priority_most}"
    if item[1] is None and len(item) > 3:
        # The message keeps its time, so a delay makes no sense.
        return "relative must be false where at_ms is nil: the message keeps its time then" if item[2] else None
    return None if type(item[1]) is int and 0 <= item[1] <= U48_MAX else f"at_ms {item[1]} is not within 0..{U48_MAX}"


Target = Annotated[Sequence[Any], check_target]
"""Reference to a message: by its id, `[BY_ID, 16 bytes]`, or by its unique key, `[BY_UNIQUE_KEY, bytes]`. In a fair
topic `[BY_UNIQUE_KEY, bytes, tenant]` (default tenant: `default`). In other topics, for a message with a key,
`[BY_UNIQUE_KEY, bytes, nil, key]`."""
PageSize = Annotated[int, Bounds(1, PAGE_MAX)]
JobId = Annotated[bytes, length(JOB_ID_BYTES)]


class Get(Request, type=Type.GET):
    """Return one message in any state."""

    topic: str
    partition: Partition
    target: Target


class List(Request, type=Type.LIST):
    """Return a page of messages, ordered by offset, that are due from `from_ms` on and before `until_ms`.

    `after`: None for the first page, then the next offset of the previous page. `order`: None for ascending offsets,
    "newest" for descending offsets. `value_bytes`: maximum bytes of each value, None for whole values.
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
    order: Annotated[str, choice(NEWEST)] | None = None
    value_bytes: Annotated[int, Bounds(1, PREVIEW_BYTES_MAX)] | None = None


class MoveItem(NamedTuple):
    """An item of a MOVE, with named fields: `MoveItem(*item)`. On the wire and in the log, the last two fields may be
    missing."""

    target: Sequence[Any]
    at_ms: int | None
    """New time; None: the message keeps its time."""
    is_relative: bool
    priority: int | None = None
    """New priority; None: the message keeps its priority."""
    changes: Mapping[Any, Any] = MappingProxyType({})
    """Lengths of cells by name in a request; cells by column in a command."""


class Move(Request, type=Type.MOVE):
    """Change the delivery times of pending messages, and optionally their priorities, values and headers. Items:
    `[target, at_ms, relative]`, and up to two further fields. relative: `at_ms` is a delay from now.

    The fourth field is a new priority; `at_ms` may then be nil, to keep the time. The fifth field is a map with the
    lengths of a new `value`, of new `headers` (packed; empty: none), or of both; the priority may then be nil, to keep
    it. `cells` has their bytes in the order of the items, a value before headers, because only bin fields of the frame
    itself may be large.
    """

    topic: str
    partition: Partition
    items: Annotated[Sequence[Sequence[Any]], each(_check_move, PAGE_MAX)]
    cells: bytes = b""

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        request = cls.checked(frame)
        wanted = sum([sum(item.changes.values()) for item in request.read()])
        if wanted != len(request.cells):
            raise cls.wrong("cells", f"the items name {wanted} bytes, and there are {len(request.cells)}")
        return request

    def read(self) -> list[MoveItem]:
        """Return the items with named fields."""
        return [MoveItem(*item) for item in self.items]

    def frame(self, request_id: int) -> bytes:
        if not self.cells:
            return super().frame(request_id)
        return encode_with_tail((self.type, request_id, *self[:-1]), self.cells)

    @classmethod
    def of_updates(cls, topic: str, partition: int, items: Sequence[Sequence[Any]]) -> Self:
        """Build a request from items whose fifth fields contain the cells themselves, by name."""
        cells: list[bytes] = []
        named = []
        for item in items:
            given = MoveItem(*item).changes
            changes = {name: given[name] for name in UPDATED_COLUMNS if name in given}
            cells += changes.values()
            named.append([*item[:4], {name: len(cell) for name, cell in changes.items()}])
        return cls(topic, partition, named, b"".join(cells))

    def with_cells(self) -> list[Sequence[Any]]:
        """Return the items, with their fifth fields as `{column: cell}`."""
        items: list[Sequence[Any]] = []
        start = 0
        for item in self.items:
            if sizes := MoveItem(*item).changes:
                changes: dict[int, bytes] = {}
                for name, column in UPDATED_COLUMNS.items():
                    if name in sizes:
                        changes[column] = self.cells[start : start + sizes[name]]
                        start += sizes[name]
                item = [*item[:4], changes]
            items.append(item)
        return items


class Cancel(Request, type=Type.CANCEL):
    """Cancel pending messages."""

    topic: str
    partition: Partition
    targets: Annotated[Sequence[Target], each(check_target, PAGE_MAX)]


class Why(Request, type=Type.WHY):
    """Return one message, with the reason why it waits in each group."""

    topic: str
    partition: Partition
    target: Target


class Argument(NamedTuple):
    """One argument of a job. An optional argument that is not given is nil."""

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
BULK_PREFIXES: Final = ("key_prefix", "unique_key_prefix")
EMPTY_PREFIX: Final = "{name}: it is empty, which every key begins with; give some text, or leave it out"
"""Error message for a bulk job with an empty prefix. It is rejected so that an unset variable of a script does not
select all messages."""
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
    """Change many messages in the background. If a job with this id exists, only return its state."""

    topic: str
    partition: Partition
    job_id: JobId
    kind: Annotated[str, choice(*JOBS)]
    arguments: Mapping[str, Any]

    @classmethod
    def parse(cls, frame: Frame) -> Self:
        """Parse the request. `arguments` gets all arguments of the kind; arguments that are not given are None.
        Exception: the times and the priority of a move, and the error and key of dead letters, are included only if
        they are given."""
        request = cls.checked(frame)
        return request._replace(arguments=_arguments(request.kind, request.arguments))


def _arguments(kind: str, given: Mapping[Any, Any]) -> dict[str, Any]:
    """Return the checked arguments of a job (see `JobStart.parse`). Raise InvalidRequest if one is wrong."""
    wrong = partial(JobStart.wrong, "arguments")
    known = JOBS[kind]
    for name in given:
        if name not in known:
            raise wrong(f"{str(name)[:40]!r} is no argument of {kind!r}")
    arguments: dict[str, Any] = {}
    for name, argument in known.items():
        value = given.get(name)
        if value is not None or not argument.optional:
            _check_argument(name, argument, given)
        arguments[name] = value
    if kind == "move":
        # A move changes the time (by one of two arguments), the priority, or both.
        changes = [name for name in (_TO, _SHIFT, _PRIORITY) if arguments[name] is not None]
        if not changes or changes[:2] == [_TO, _SHIFT]:
            raise wrong(f"one of {_TO} and {_SHIFT} is expected, or {_PRIORITY}")
        for name in (_TO, _SHIFT, _PRIORITY):
            if name not in changes:
                del arguments[name]
    for name in _DEAD_FILTERS if kind in _DEAD_JOBS else ("unique_key_prefix",):
        if name in arguments and arguments[name] is None:
            del arguments[name]
    for name in BULK_PREFIXES:
        if arguments.get(name) == b"":
            raise wrong(EMPTY_PREFIX.format(name=name))
    for name, check in (
        ("error", check_error),
        ("key_prefix", check_prefix),
        ("unique_key_prefix", check_unique_prefix),
    ):
        value = arguments.get(name)
        if value is not None and (problem := check(value)) is not None:
            raise wrong(problem)
    return arguments


def _check_argument(name: str, argument: Argument, given: Mapping[Any, Any]) -> None:
    """Raise InvalidRequest if an argument is missing, or has a wrong type or value."""
    wrong, value = partial(JobStart.wrong, "arguments"), given.get(name)
    if name not in given:
        raise wrong(f"{name} is missing")
    if type(value) is not argument.kind:
        raise wrong(f"{name}: expected {kind_name(argument.kind())}, got {kind_name(value)}")
    if type(value) is int and not argument.minimum <= value <= argument.maximum:
        raise wrong(f"{name}: {value} is not within {argument.minimum}..{argument.maximum}")
    if argument.choices and value not in argument.choices:
        raise wrong(f"{name}: expected {one_of(argument.choices)}, got {str(value)[:40]!r}")


class JobStatus(Request, type=Type.JOB_STATUS):
    """Return the progress of a job."""

    topic: str
    partition: Partition
    job_id: JobId


class JobStop(Request, type=Type.JOB_STOP):
    """Stop a job. Its changes so far are kept."""

    topic: str
    partition: Partition
    job_id: JobId


class Forecast(Request, type=Type.FORECAST):
    """Return how many messages become due in each of the next `count` units, in the partitions that this node leads."""

    topic: str
    unit: Annotated[str, choice(*UNITS)]
    count: Annotated[int, Bounds(1, BUCKETS_MAX)]  # type: ignore[assignment]  # hides tuple.count
