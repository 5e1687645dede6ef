"""Every error that sandq raises on purpose.

    SandqError                    INTERNAL            500
    ├── InvalidRequest            INVALID             400   the request is wrong; sending it again cannot help
    │   ├── InvalidName           INVALID_NAME        400
    │   ├── InvalidTime           INVALID_TIME        400
    │   ├── TooLarge              TOO_LARGE           413
    │   ├── InvalidSetting        INVALID_SETTING     400
    │   └── WrongPort             WRONG_PORT          400
    ├── NotFound                  NOT_FOUND           404
    │   ├── UnknownTopic          UNKNOWN_TOPIC       404
    │   ├── UnknownPartition      UNKNOWN_PARTITION   404
    │   └── UnknownGroup          UNKNOWN_GROUP       404
    ├── Conflict                  CONFLICT            409
    │   ├── TopicExists           TOPIC_EXISTS        409
    │   ├── LeaseLost             LEASE_LOST          409
    │   ├── DuplicateKey          DUPLICATE_KEY       409
    │   ├── TooLate               TOO_LATE            409
    │   ├── VersionChanged        VERSION_CHANGED     412
    │   ├── HistoryGone           HISTORY_GONE        410
    │   ├── AlreadyStored         ALREADY_STORED      409
    │   ├── ProducerFenced        PRODUCER_FENCED     409
    │   └── ConsumerFenced        CONSUMER_FENCED     409
    ├── Retriable                 RETRIABLE           503   retriable = True, in all of these
    │   ├── NotLeader             NOT_LEADER          421
    │   ├── Overloaded            OVERLOADED          503
    │   │   ├── Throttled         THROTTLED           429   a client exceeds the request rate of a topic
    │   │   └── QuotaExceeded     QUOTA               429   an identity exceeds its quota
    │   ├── Unavailable           UNAVAILABLE         503
    │   ├── DiskFull              DISK_FULL           507   nothing was done; space may become free later
    │   ├── OutOfSequence         OUT_OF_SEQUENCE     503
    │   ├── TimedOut              TIMED_OUT           504   the outcome is unknown
    │   └── ConnectionLost        CONNECTION_LOST     503
    ├── StorageFailed             STORAGE_FAILED      507   the disk failed: the node stopped writing
    ├── ProtocolError             PROTOCOL            400   the connection is closed after it
    │   ├── WrongVersion          WRONG_VERSION       400
    │   └── FrameTooLarge         FRAME_TOO_LARGE     413
    ├── Unauthenticated           UNAUTHENTICATED     401   the caller is unknown
    ├── Forbidden                 FORBIDDEN           403   the caller may not do this
    ├── ClosedError               CLOSED              500   the caller closed it (otherwise: ConnectionLost)
    │   └── ForkedError           FORKED              500   the client belongs to another process
    └── StartupError              STARTUP             500   a process that cannot start
        ├── ConfigError           CONFIG              500
        ├── Corruption            CORRUPTION          500   stored bytes are not what was written
        └── DataDirInUse          DATA_DIR_IN_USE     500

On the wire an error is `(code, message, retriable, details)`. The codes are part of the protocol: never
rename one. A code that this version does not know becomes a plain `SandqError` with the received code and
`retriable`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Self


class SandqError(Exception):
    """The base class. `message` is for users; `details` holds plain values (that msgpack can carry) for programs."""

    code: str = "INTERNAL"
    retriable: bool = False
    http_status: int = 500

    message: str
    details: dict[str, object]

    def __init__(self, message: str, /, **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return self.message

    def again(self, message: str | None = None) -> Self:
        """Return a copy, with this message if there is one. Raise the copy: an exception that is raised twice collects
        both tracebacks."""
        copy = self.__class__.__new__(self.__class__)
        copy.__dict__ |= {name: value for name, value in self.__dict__.items() if name != "__notes__"}
        copy.message, copy.details = self.message if message is None else message, dict(self.details)
        copy.args = (copy.message,)
        return copy


class InvalidRequest(SandqError):
    """The request itself is wrong."""

    code = "INVALID"
    http_status = 400


class InvalidName(InvalidRequest):
    """A name breaks the rule for names."""

    code = "INVALID_NAME"


class InvalidTime(InvalidRequest):
    """A duration or an instant cannot be read, or is ambiguous."""

    code = "INVALID_TIME"


class TooLarge(InvalidRequest):
    """A limit is exceeded. Details: the name of the limit, its value, and the size that exceeds it."""

    code = "TOO_LARGE"
    http_status = 413


class InvalidSetting(InvalidRequest):
    """One or more settings are wrong; the message names every one."""

    code = "INVALID_SETTING"


class WrongPort(InvalidRequest):
    """The request does not use the protocol of this port. The message names the right port."""

    code = "WRONG_PORT"


class NotFound(SandqError):
    """Something that the request names does not exist."""

    code = "NOT_FOUND"
    http_status = 404


class UnknownTopic(NotFound):
    """No topic has this name. Details: `auto_create`, true if the topic would be created on first use."""

    code = "UNKNOWN_TOPIC"


class UnknownPartition(NotFound):
    """The topic has no partition with this number."""

    code = "UNKNOWN_PARTITION"


class UnknownGroup(NotFound):
    """No consumer group has this name, or no Raft group has this number."""

    code = "UNKNOWN_GROUP"


class Conflict(SandqError):
    """The request is well-formed but conflicts with the current state."""

    code = "CONFLICT"
    http_status = 409


class TopicExists(Conflict):
    """A topic of this name already exists."""

    code = "TOPIC_EXISTS"


class LeaseLost(Conflict):
    """The lease is no longer held: it expired, was given back, or was revoked."""

    code = "LEASE_LOST"


class DuplicateKey(Conflict):
    """Another message has this unique key. Details: its `id` (text) and its `state`."""

    code = "DUPLICATE_KEY"


class TooLate(Conflict):
    """The message can no longer be cancelled or moved. Details: its `state`: leased, acked, dead or gone."""

    code = "TOO_LATE"


class VersionChanged(Conflict):
    """The key has a different version than the write requires. Details: the `version` (text; None: no value)."""

    code = "VERSION_CHANGED"
    http_status = 412


class HistoryGone(Conflict):
    """The changes from which a watch was to continue have been compacted away."""

    code = "HISTORY_GONE"
    http_status = 410


class AlreadyStored(Conflict):
    """A batch was sent again. It is stored exactly once, but the ids of its messages are no longer known."""

    code = "ALREADY_STORED"


class ProducerFenced(Conflict):
    """The producer has begun a newer epoch. This request did not store the batch, which is of an older epoch."""

    code = "PRODUCER_FENCED"


class ConsumerFenced(Conflict):
    """Another process subscribed later with this consumer id, and took over the leases of this consumer."""

    code = "CONSUMER_FENCED"


class Retriable(SandqError):
    """The same request may succeed a little later, here or on another node."""

    code = "RETRIABLE"
    retriable = True
    http_status = 503


class NotLeader(Retriable):
    """This node does not lead the partition. Details may hold a hint (`node_id`, `host`, `port`)."""

    code = "NOT_LEADER"
    http_status = 421


class Overloaded(Retriable):
    """The node refuses work instead of growing its memory."""

    code = "OVERLOADED"


class Throttled(Overloaded):
    """The client sends more requests per second about the topic than the topic allows; nothing was done. Details:
    `retry_after_ms`."""

    code = "THROTTLED"
    http_status = 429


class QuotaExceeded(Overloaded):
    """An identity uses or requests more than its quota allows; nothing was done. Details: `quota`, `maximum`, and
    `retry_after_ms` if waiting helps."""

    code = "QUOTA"
    http_status = 429


class Unavailable(Retriable):
    """The partition currently has no leader or no quorum; nothing was done."""

    code = "UNAVAILABLE"


class DiskFull(Retriable):
    """The node's disk is nearly full. Until space is free, it stores no new messages, but accepts requests that free
    space. Nothing was done."""

    code = "DISK_FULL"
    http_status = 507


class OutOfSequence(Retriable):
    """Earlier batches of the producer are missing; nothing was stored. Details: `expected`, the next number."""

    code = "OUT_OF_SEQUENCE"


class TimedOut(Retriable):
    """No reply arrived in time. The outcome is unknown: the node may have executed the request."""

    code = "TIMED_OUT"
    http_status = 504


class ConnectionLost(Retriable):
    """The connection broke before the reply. The outcome is unknown: the node may have executed the request."""

    code = "CONNECTION_LOST"


class StorageFailed(SandqError):
    """The disk failed. The node has stopped writing and acknowledges nothing more."""

    code = "STORAGE_FAILED"
    http_status = 507


class ProtocolError(SandqError):
    """The peer violates the protocol; its connection is closed."""

    code = "PROTOCOL"
    http_status = 400


class WrongVersion(ProtocolError):
    """The two sides have no protocol version in common."""

    code = "WRONG_VERSION"


class FrameTooLarge(ProtocolError):
    """The length of a frame exceeds the limit."""

    code = "FRAME_TOO_LARGE"
    http_status = 413


class Unauthenticated(SandqError):
    """The caller is unknown: it sent no credentials, or they are wrong, expired or revoked."""

    code = "UNAUTHENTICATED"
    http_status = 401


class Forbidden(SandqError):
    """The caller may not do this."""

    code = "FORBIDDEN"
    http_status = 403


class ClosedError(SandqError):
    """The caller closed this client, producer or subscription before using it."""

    code = "CLOSED"


class ForkedError(ClosedError):
    """The process was forked after this client was made. A child process must make its own clients."""

    code = "FORKED"


class StartupError(SandqError):
    """The process cannot start; the message says why."""

    code = "STARTUP"


class ConfigError(StartupError):
    """The configuration is wrong; the message lists every mistake with file, line and column."""

    code = "CONFIG"


class Corruption(StartupError):
    """Stored bytes differ from those that were written; the message names the file and the byte offset."""

    code = "CORRUPTION"


class DataDirInUse(StartupError):
    """Another process holds the data directory."""

    code = "DATA_DIR_IN_USE"


def _tree(root: type[SandqError]) -> Iterator[type[SandqError]]:
    """Yield a class and all classes below it."""
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


CREATABLE = "auto_create"
"""Key in the details of UnknownTopic: the topic would be created on first use."""
BELONGS_TO = "belongs_to"
"""Key in the details of InvalidRequest: the partition to which a key belongs, if a request names a wrong partition.

The client knows an earlier topic of the same name, or does not know how the topic's keys are partitioned.
"""
_BY_CODE: dict[str, type[SandqError]] = {cls.code: cls for cls in _tree(SandqError)}
CODES = frozenset(_BY_CODE)
"""All codes that this version has."""


def from_wire(code: str, message: str, retriable: bool, details: Mapping[str, object] | None) -> SandqError:
    """Return the error that an error frame describes. Never raises, even if the frame is malformed.

    `retriable`: as the peer sent it. It takes precedence over the attribute of the error's class, because a newer
    broker may know better whether the error is retriable.
    """
    cls = _BY_CODE.get(code)
    known = {str(key): value for key, value in (details or {}).items()}
    if cls is None:
        error = SandqError(message, **known)
        error.code = code
        error.http_status = 503 if retriable else 500
    else:
        error = cls(message, **known)
    if error.retriable != retriable:
        error.retriable = retriable
    return error


def to_wire(error: SandqError) -> tuple[str, str, bool, dict[str, object]]:
    """Return `(code, message, retriable, details)` for an error frame."""
    return error.code, error.message, error.retriable, dict(error.details)


def clear_tracebacks(error: BaseException) -> None:
    """Clear the tracebacks of an error that was answered, and of its causes.

    A frame in a traceback may refer to the error. Such a cycle would keep the refused request, and everything made from
    it, alive until the garbage collector runs, which is rare.
    """
    left: list[BaseException | None] = [error]
    seen: set[int] = set()  # an exception that is raised again may be in its own chain
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += one.__cause__, one.__context__
