"""Replies about stored messages: the fields after `[0, request id]`.

    GET         [message]
    LIST        [messages array, next bin16 | nil]
    DEAD_*      [outcomes array]                           for DEAD_REDRIVE and DEAD_PURGE: one per id
    MOVE        [outcomes array]                           one per item
    CANCEL      [outcomes array]                           one per target
    WHY         [message, without value, with "groups"]
    JOB_*       [job]
    FORECAST    [now_ms, buckets [[start_ms, messages]...], later]
    DEAD_LIST   [rows array, next bin16 | nil]

    piece    = five fields as in DELIVER
    outcome  = ["cancelled", id bin16] | ["moved", offset bin16] | ["updated", offset bin16]
               | ["too_late", state] | ["not_found", nil]
               for an update also ["not_yet", nil]
               for a dead letter ["redriven", id bin16] | ["purged", id bin16] | ["not_dead", state]
               | ["not_found", nil] | ["not_yet", nil]
    message  = {id, offset, state, created_ms, deliver_ms, due_ms, value, key, headers, ttl_ms, unique_key, moves,
                moved_ms, size}, and if it has them priority, tenant (a string), and its own max_attempts (0: none)
                and backoff (bin, as in a batch)
    job      = {job_id bin16, kind, state "running" | "done" | "stopped", matched, done, too_late, started_ms,
                finished_ms | nil}
    dead row = {id, offset, attempts, reason, error, dead_ms, created_ms, deliver_ms, key, headers, value,
                unique_key, size, history}, likewise; and lives if it was redriven before: [life, number of its rows
                of history, attempts, reason, error, dead_ms, redriven_ms] for each life that is over; and
                not_forwarded if the dead letter topic refused it: the reason

A page may have no rows and still a next one, because the number of rows examined is bounded, too. `from_map` and
`parse` are the client's side: a malformed reply is a ProtocolError, and unknown keys of a newer broker are ignored.
`to_map` and `encode_pieces` are the server's side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import msgpack

from sandq.model.errors import ProtocolError
from sandq.model.piece import Piece
from sandq.model.retries import is_backoff, is_cost, is_max_attempts
from sandq.protocol.fields import OFFSET_BYTES, U48_MAX, Field, Shape, check_offset, kind_name
from sandq.protocol.frames import JOINED_BYTES, Frame, frame_of, pack_large_bin
from sandq.protocol.replies import PIECE, check_piece

T = TypeVar("T")

CANCELLED: Final = "cancelled"
MOVED: Final = "moved"
UPDATED: Final = "updated"
TOO_LATE: Final = "too_late"
NOT_FOUND: Final = "not_found"
REDRIVEN: Final = "redriven"
PURGED: Final = "purged"
NOT_DEAD: Final = "not_dead"
NOT_YET: Final = "not_yet"

RUNNING: Final = "running"
DONE: Final = "done"
STOPPED: Final = "stopped"

Spec = Mapping[str, tuple[type, ...]]
"""By key of a map (or by verdict of an outcome): the types that its value may have."""

_OFFSETS = frozenset(("id", "offset", "job_id"))
_NIL = type(None)


def _shape(name: str, *fields: Field) -> Shape:
    return Shape(name, *fields, exact=False, error=ProtocolError)


_PIECE = _shape("reply, piece", *PIECE)


def parse_pieces(frame: Frame, place: int) -> list[Piece]:
    """Return the pieces of a reply, which begin at index `place` of its frame."""
    pieces = []
    for start in range(place, len(frame), len(PIECE)):
        fields = frame[start : start + len(PIECE)]
        _PIECE.check([0, 0, *fields])
        check_piece(_PIECE, 1, fields)
        pieces.append(Piece._make(fields))
    return pieces


def encode_pieces(request_id: int, head: Sequence[Any], pieces: Sequence[Piece]) -> list[bytes]:
    """Return a reply that ends with pieces, in parts like the result of `frame_of`. Large batches are separate parts,
    which are not copied."""
    packer = msgpack.Packer(autoreset=False)
    parts: list[bytes] = []
    packer.pack_array_header(2 + len(head) + len(PIECE) * len(pieces))
    for field in (0, request_id, *head):
        packer.pack(field)
    for *envelope, batch in pieces:
        for field in envelope:
            packer.pack(field)
        if len(batch) <= JOINED_BYTES:
            packer.pack(batch)
        else:
            parts += (packer.bytes() + pack_large_bin(len(batch)), batch)
            packer.reset()
    parts.append(packer.bytes())
    return frame_of(parts)


class Outcome(NamedTuple):
    """The result of a request for one message: a cancel, a move, or a redrive or purge of a dead letter.

    `detail` by verdict: CANCELLED has the id. MOVED has the new offset. UPDATED (a new value or headers) has the new
    offset, too. TOO_LATE has the state of the message, NOT_FOUND has None. For a dead letter, REDRIVEN and PURGED have
    the id, NOT_DEAD has the state, NOT_FOUND has None. NOT_YET: the preceding items were large, so the client must send
    this item again.
    """

    verdict: str
    detail: bytes | str | None


_OUTCOMES: Final[Spec] = {CANCELLED: (bytes,), MOVED: (bytes,), UPDATED: (bytes,), TOO_LATE: (str,), NOT_FOUND: (_NIL,)}
UPDATE_OUTCOMES: Final[Spec] = {**_OUTCOMES, NOT_YET: (_NIL,)}
DEAD_OUTCOMES: Final[Spec] = {
    **{REDRIVEN: (bytes,), PURGED: (bytes,)},
    **{NOT_DEAD: (str,), NOT_FOUND: (_NIL,), NOT_YET: (_NIL,)},
}


def outcomes(frame: Frame, count: int, spec: Spec = _OUTCOMES) -> list[Outcome]:
    """Return the outcomes in the reply to a request of `count` items. `spec`: the allowed outcomes; by default those of
    MOVE and CANCEL."""
    rows = frame[2] if len(frame) > 2 else None
    if type(rows) is not list or len(rows) != count:
        raise ProtocolError(f"expected an array of {count} outcomes, got {str(rows)[:100]}")
    for row in rows:
        if (
            type(row) is not list
            or [*map(type, row[:1])] != [str]
            or len(row) < 2
            or type(row[1]) not in spec.get(row[0], ())
            or (type(row[1]) is bytes and len(row[1]) != OFFSET_BYTES)
        ):
            raise ProtocolError(f"expected [verdict, detail], got {str(row)[:100]}")
    return [Outcome(row[0], row[1]) for row in rows]


class MessageRecord(NamedTuple):
    """A stored message. `deliver_ms`: its current time. `due_ms`: its original time. `headers`: packed."""

    id: bytes
    offset: bytes
    state: str
    created_ms: int
    deliver_ms: int
    due_ms: int
    value: bytes | None
    key: bytes | None
    headers: bytes | None
    ttl_ms: int | None
    unique_key: bytes | None
    moves: int
    moved_ms: int | None
    size: int
    priority: int = 0
    tenant: str | None = None
    max_attempts: int | None = None
    backoff: bytes | None = None
    cost: int | None = None

    @classmethod
    def from_map(cls, row: object) -> MessageRecord:
        """Read a message map. Raise ProtocolError if it is malformed."""
        return cls._make(_read("message map", row, _MESSAGE))

    def to_map(self) -> dict[str, Any]:
        """Return the map for the wire."""
        return _without_defaults(self._asdict())


class JobRecord(NamedTuple):
    """The progress of a job in one partition."""

    job_id: bytes
    kind: str
    state: str
    matched: int
    done: int
    too_late: int
    started_ms: int
    finished_ms: int | None

    @classmethod
    def parse(cls, frame: Frame) -> JobRecord:
        """Read the reply to a JOB_*."""
        return cls._make(_read("job map", frame[2] if len(frame) > 2 else None, _JOB))

    def to_map(self) -> dict[str, Any]:
        """Return the map for the wire."""
        return self._asdict()


class DeadRecord(NamedTuple):
    """A dead letter of one group.

    `history` as in WHY: [attempt, consumer, leased_ms, ended_ms, outcome, error] items, for all its lives. `lives`: the
    completed lives, [life, number of its items in `history`, attempts, reason, error, dead_ms, redriven_ms].
    `not_forwarded`: the reason why the dead letter topic refused it.
    """

    id: bytes
    offset: bytes
    attempts: int
    reason: str
    error: str | None
    dead_ms: int
    created_ms: int
    deliver_ms: int
    key: bytes | None
    headers: bytes | None
    value: bytes | None
    unique_key: bytes | None
    size: int
    history: Sequence[Sequence[Any]]
    priority: int = 0
    tenant: str | None = None
    lives: Sequence[Sequence[Any]] = ()
    not_forwarded: str | None = None
    max_attempts: int | None = None
    backoff: bytes | None = None
    cost: int | None = None

    @classmethod
    def from_map(cls, row: object) -> DeadRecord:
        """Read the row of a dead letter. Raise ProtocolError if it is malformed."""
        found = cls._make(_read("dead letter", row, _DEAD))
        _check_lives("dead letter", found.lives)
        return found

    def to_map(self) -> dict[str, Any]:
        """Return the map for the wire."""
        return _without_defaults(self._asdict())


_LIFE: Final[Sequence[tuple[type, ...]]] = ((int,), (int,), (int,), (str,), (str, type(None)), (int,), (int,))


def _check_lives(what: str, lives: object) -> None:
    """Raise ProtocolError unless `lives` is a list, possibly empty, of well-formed lives."""
    for life in lives if isinstance(lives, (list, tuple)) else [lives]:
        fields = life[: len(_LIFE)] if type(life) is list else ()
        if len(fields) < len(_LIFE) or not all(
            type(value) in kinds and (type(value) is not int or value >= 0)
            for value, kinds in zip(fields, _LIFE, strict=True)
        ):
            raise ProtocolError(f"a {what} with a life that is none: {str(life)[:60]}")


_SELDOM: Final[Mapping[str, Any]] = {
    **{"priority": 0, "tenant": None, "lives": (), "not_forwarded": None},
    **{"max_attempts": None, "backoff": None, "cost": None},
}
"""Optional keys of a map, with their defaults. A map omits a key that has its default."""


def _without_defaults(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in _SELDOM or value != _SELDOM[name]}


_BYTES, _INT = (bytes, _NIL), (int, _NIL)
_MESSAGE: Final[Spec] = {
    **{"id": (bytes,), "offset": (bytes,), "state": (str,)},
    **{"created_ms": (int,), "deliver_ms": (int,), "due_ms": (int,)},
    **{"value": _BYTES, "key": _BYTES, "headers": _BYTES, "ttl_ms": _INT, "unique_key": _BYTES},
    **{"moves": (int,), "moved_ms": _INT, "size": (int,)},
    **{"priority": (int,), "tenant": (str, _NIL), "max_attempts": _INT, "backoff": _BYTES, "cost": _INT},
}
_JOB: Final[Spec] = {
    **{"job_id": (bytes,), "kind": (str,), "state": (str,)},
    **{"matched": (int,), "done": (int,), "too_late": (int,)},
    **{"started_ms": (int,), "finished_ms": _INT},
}
_DEAD: Final[Spec] = {
    **{"id": (bytes,), "offset": (bytes,), "attempts": (int,), "reason": (str,), "error": (str, _NIL)},
    **{"dead_ms": (int,), "created_ms": (int,), "deliver_ms": (int,)},
    **{"key": _BYTES, "headers": _BYTES, "value": _BYTES, "unique_key": _BYTES},
    **{"size": (int,), "history": (list,)},
    **{"priority": (int,), "tenant": (str, _NIL), "lives": (list, tuple), "not_forwarded": (str, _NIL)},
    **{"max_attempts": _INT, "backoff": _BYTES, "cost": _INT},
}


def _read(what: str, row: object, spec: Spec) -> list[Any]:
    """Return the values of a map, in the order of `spec`."""
    if type(row) is not dict:
        raise ProtocolError(f"not a {what}: {str(row)[:200]}")
    try:
        values = [row.get(name, _SELDOM[name]) if name in _SELDOM else row[name] for name in spec]
    except KeyError as error:
        raise ProtocolError(f"a {what} without {error}") from None
    for (name, kinds), value in zip(spec.items(), values, strict=True):
        kind = type(value)
        if (
            kind not in kinds
            or (kind is int and value < 0 and name not in _SELDOM)
            or (kind is bytes and name in _OFFSETS and len(value) != OFFSET_BYTES)
            or (name == "max_attempts" and value is not None and not is_max_attempts(value))
            or (name == "cost" and value is not None and not is_cost(value))
            or (name == "backoff" and value is not None and not is_backoff(value))
        ):
            raise ProtocolError(f"a {what} whose {name} is a wrong {kind_name(value)}: {str(value)[:60]}")
    return values


_PAGE = _shape("page", Field("rows", list), Field("next", bytes, optional=True))


def page(frame: Frame, row: Callable[[object], T]) -> tuple[list[T], bytes | None]:
    """Return (rows of a LIST or DEAD_LIST, `after` of the next page). `row` parses one row."""
    _PAGE.check(frame)
    check_offset(_PAGE, 2, frame[3])
    return [row(one) for one in frame[2]], frame[3]


def why(frame: Frame) -> dict[str, Any]:
    """Return the map of a WHY: the message's values, and a list of maps under "groups"."""
    found = frame[2] if len(frame) > 2 else None
    if type(found) is dict:
        _read("message map", {"value": None, **found}, _MESSAGE)
        groups = found.get("groups")
        if type(groups) is list and all(type(group) is dict for group in groups):
            for group in groups:
                _check_lives("group of an answer to WHY", group.get("lives", ()))
            return found
    raise ProtocolError(f"not an answer to WHY: {str(found)[:200]}")


_FORECAST = _shape(
    "FORECAST reply",
    Field("now_ms", int, maximum=U48_MAX),
    Field("buckets", list),
    Field("later", int),
    Field("scheduled", list),
    Field("complete", bool),
)


class ForecastReply(NamedTuple):
    """Counts of messages by due time.

    `buckets`: `(start_ms, messages)` in ascending order; empty buckets are omitted. `later`: messages after the last
    bucket. `scheduled`: messages that schedules will send in these buckets. `is_complete`: whether `scheduled` has all
    of them."""

    now_ms: int
    buckets: Sequence[tuple[int, int]]
    later: int
    scheduled: Sequence[tuple[int, int]]
    is_complete: bool

    @classmethod
    def parse(cls, frame: Frame) -> ForecastReply:
        _FORECAST.check(frame)
        now_ms, buckets, later, scheduled, is_complete = frame[2:7]
        return cls(now_ms, list(_buckets(buckets)), later, list(_buckets(scheduled)), is_complete)

    def fields(self) -> tuple[Any, ...]:
        """Return the fields for `encode_reply`."""
        pending, scheduled = ([list(bucket) for bucket in part] for part in (self.buckets, self.scheduled))
        return self.now_ms, pending, self.later, scheduled, self.is_complete


def _buckets(rows: Sequence[object]) -> Iterable[tuple[int, int]]:
    for row in rows:
        if type(row) is not list or [*map(type, row[:2])] != [int, int] or row[0] < 0 or row[1] < 0:
            raise _FORECAST.wrong(2, "expected [start_ms, messages] items")
        yield row[0], row[1]
