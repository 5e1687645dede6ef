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
    │   │   ├── Throttled         THROTTLED           429   a client asks more of a topic than its rate
    │   │   └── QuotaExceeded     QUOTA               429   an identity asks more than its quota
    │   ├── Unavailable           UNAVAILABLE         503
    │   ├── DiskFull              DISK_FULL           507   nothing was done; there may be room later
    │   ├── OutOfSequence         OUT_OF_SEQUENCE     503
    │   ├── TimedOut              TIMED_OUT           504   the outcome is unknown
    │   └── ConnectionLost        CONNECTION_LOST     503
    ├── StorageFailed             STORAGE_FAILED      507   the disk failed: the node stopped writing
    ├── ProtocolError             PROTOCOL            400   the connection is closed after it
    │   ├── WrongVersion          WRONG_VERSION       400
    │   └── FrameTooLarge         FRAME_TOO_LARGE     413
    ├── Unauthenticated           UNAUTHENTICATED     401   nobody knows who asks
    ├── Forbidden                 FORBIDDEN           403   who asks may not do this
    ├── ClosedError               CLOSED              500   you closed it (ConnectionLost: the world did)
    │   └── ForkedError           FORKED              500   a client is of one process, and this is another
    └── StartupError              STARTUP             500   a process that cannot start
        ├── ConfigError           CONFIG              500
        ├── Corruption            CORRUPTION          500   stored bytes are not what was written
        └── DataDirInUse          DATA_DIR_IN_USE     500

On the wire an error is `(code, message, retriable, details)`. The codes are part of the protocol: never
rename one. A code that this version does not know becomes a plain `SandqError` that carries the code and
`retriable` it came with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping


class SandqError(Exception):
    """The root. `message` is for people; `details` holds plain values (what msgpack carries) for programs."""

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


class InvalidRequest(SandqError):
    """The request is wrong in itself."""

    code = "INVALID"
    http_status = 400


class InvalidName(InvalidRequest):
    """A name breaks the rule for names."""

    code = "INVALID_NAME"


class InvalidTime(InvalidRequest):
    """A duration or an instant cannot be read, or may mean something else than it says."""

    code = "INVALID_TIME"


class TooLarge(InvalidRequest):
    """A named limit is exceeded; details say which, its value and the size."""

    code = "TOO_LARGE"
    http_status = 413


class InvalidSetting(InvalidRequest):
    """One or more settings are wrong; the message names every one."""

    code = "INVALID_SETTING"


class WrongPort(InvalidRequest):
    """The request speaks another protocol than this port does; the message names the right port."""

    code = "WRONG_PORT"


class NotFound(SandqError):
    """What the request names does not exist."""

    code = "NOT_FOUND"
    http_status = 404


class UnknownTopic(NotFound):
    """No topic has this name; details: `auto_create`, true where one would be made for who uses it."""

    code = "UNKNOWN_TOPIC"


class UnknownPartition(NotFound):
    """The topic has no partition of this number."""

    code = "UNKNOWN_PARTITION"


class UnknownGroup(NotFound):
    """No consumer group has this name, or no Raft group this number."""

    code = "UNKNOWN_GROUP"


class Conflict(SandqError):
    """The request is well-formed but does not fit the present state."""

    code = "CONFLICT"
    http_status = 409


class TopicExists(Conflict):
    """A topic of this name is there already."""

    code = "TOPIC_EXISTS"


class LeaseLost(Conflict):
    """The lease is not held any more: it expired, was given back, or was revoked."""

    code = "LEASE_LOST"


class DuplicateKey(Conflict):
    """A message has this unique key already; details: its `id` (text) and its `state`."""

    code = "DUPLICATE_KEY"


class TooLate(Conflict):
    """The message cannot be cancelled or moved any more; details: its `state`: leased, acked, dead or gone."""

    code = "TOO_LATE"


class VersionChanged(Conflict):
    """The key has another version than the write was conditioned on; details: the `version` (text; None: no value)."""

    code = "VERSION_CHANGED"
    http_status = 412


class HistoryGone(Conflict):
    """Changes that a watch was to go on with have been compacted away."""

    code = "HISTORY_GONE"
    http_status = 410


class AlreadyStored(Conflict):
    """A batch that was sent again is stored, once; where its messages are is not known any more."""

    code = "ALREADY_STORED"


class ProducerFenced(Conflict):
    """The producer has begun a newer epoch: this batch of an older one was given up, and nothing was stored now."""

    code = "PRODUCER_FENCED"


class ConsumerFenced(Conflict):
    """Another process has subscribed later with this consumer id, and holds what this one held."""

    code = "CONSUMER_FENCED"


class Retriable(SandqError):
    """The same request may succeed a little later, here or on another node."""

    code = "RETRIABLE"
    retriable = True
    http_status = 503


class NotLeader(Retriable):
    """This node does not lead the partition; details may hold a hint (`node_id`, `host`, `port`)."""

    code = "NOT_LEADER"
    http_status = 421


class Overloaded(Retriable):
    """The node refuses work instead of growing its memory."""

    code = "OVERLOADED"


class Throttled(Overloaded):
    """The client asks more of the topic in a second than it may; nothing was done. Details: `retry_after_ms`."""

    code = "THROTTLED"
    http_status = 429


class QuotaExceeded(Overloaded):
    """An identity has, or asks for, more than its quota; nothing was done. Details: `quota`, `maximum`, and
    `retry_after_ms` where waiting helps by itself."""

    code = "QUOTA"
    http_status = 429


class Unavailable(Retriable):
    """The partition has no leader or no quorum at present; nothing was done."""

    code = "UNAVAILABLE"


class DiskFull(Retriable):
    """The node's disk is nearly full: it stores no new messages until there is room; what makes room is still taken.
    Nothing was done."""

    code = "DISK_FULL"
    http_status = 507


class OutOfSequence(Retriable):
    """Batches of the producer before this one are missing; nothing was stored. Details: `expected`, the next number."""

    code = "OUT_OF_SEQUENCE"


class TimedOut(Retriable):
    """No answer in time. The outcome is unknown: it may have been done."""

    code = "TIMED_OUT"
    http_status = 504


class ConnectionLost(Retriable):
    """The connection broke before the answer. The outcome is unknown: it may have been done."""

    code = "CONNECTION_LOST"


class StorageFailed(SandqError):
    """The disk failed; the node stopped writing and acknowledges nothing more."""

    code = "STORAGE_FAILED"
    http_status = 507


class ProtocolError(SandqError):
    """The peer does not speak the protocol; its connection is closed."""

    code = "PROTOCOL"
    http_status = 400


class WrongVersion(ProtocolError):
    """The two sides have no protocol version in common."""

    code = "WRONG_VERSION"


class FrameTooLarge(ProtocolError):
    """A frame says it is longer than the limit."""

    code = "FRAME_TOO_LARGE"
    http_status = 413


class Unauthenticated(SandqError):
    """Nobody knows who asks: it shows nothing that says so, or what it shows is wrong, expired or revoked."""

    code = "UNAUTHENTICATED"
    http_status = 401


class Forbidden(SandqError):
    """Who asks may not do this."""

    code = "FORBIDDEN"
    http_status = 403


class ClosedError(SandqError):
    """You closed this client, producer or subscription before using it."""

    code = "CLOSED"


class ForkedError(ClosedError):
    """The process was forked after this client was made: a child makes clients of its own."""

    code = "FORKED"


class StartupError(SandqError):
    """The process cannot start, and says why."""

    code = "STARTUP"


class ConfigError(StartupError):
    """The configuration is wrong; the message lists every mistake with file, line and column."""

    code = "CONFIG"


class Corruption(StartupError):
    """Stored bytes are not what was written; the message names the file and the byte offset."""

    code = "CORRUPTION"


class DataDirInUse(StartupError):
    """Another process holds the data directory."""

    code = "DATA_DIR_IN_USE"


def _tree(root: type[SandqError]) -> Iterator[type[SandqError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


CREATABLE = "auto_create"
"""In the details of UnknownTopic: who produces to the topic, or subscribes to it, may have it made."""
BELONGS_TO = "belongs_to"
"""In the details of InvalidRequest: the partition that a key belongs to, where a node was asked for it in another one.
Who asks knows the topic as it was before it was made anew, or does not know how its keys are spread."""
_BY_CODE: dict[str, type[SandqError]] = {cls.code: cls for cls in _tree(SandqError)}
CODES = frozenset(_BY_CODE)
"""All codes that this version has."""


def from_wire(code: str, message: str, retriable: bool, details: Mapping[str, object] | None) -> SandqError:
    """The error that an error frame stands for; never raises because of what a peer put into it.

    `retriable` is what the peer said: it is kept on the instance when it differs from the class, so that a
    newer broker may call an error retriable that this version does not.
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
    """`(code, message, retriable, details)` for an error frame."""
    return error.code, error.message, error.retriable, dict(error.details)


def let_go(error: BaseException) -> None:
    """Of where an error that is answered was raised, and what caused it. A frame there may have the error itself: in
    that cycle what was refused, and what was made of it, would be left to the collector, which looks rarely."""
    left: list[BaseException | None] = [error]
    seen: set[int] = set()  # one that is raised again, alone, causes what it comes from
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += one.__cause__, one.__context__
