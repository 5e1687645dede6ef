"""Commands of a partition and the Raft entry that carries them. PERSISTED: type numbers and field orders.

Entry: msgpack `[version=1, now_ms, clock_epoch, [command, ...]]`, command `[type, fields...]`. The leader stamps
`now_ms` from its guarded clock; replicas read no clock. Commands merged into one entry keep their order, and each
has a result of its own. A command's fields stand in the entry in the order in which its class names them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import sha256
from typing import Any, ClassVar, Final, NamedTuple, Self

import msgpack

from sandq.model.errors import Corruption, StartupError
from sandq.model.features import FIRST_LEVEL
from sandq.model.nack_ends import RETRY
from sandq.model.sequence import number_of

ENTRY_VERSION = 1
DIGEST_BYTES: Final = 16


class CommandType(IntEnum):
    APPEND = 1
    LEASE = 2
    ACK = 3
    NACK = 4
    EXTEND = 5
    EXPIRE = 6
    RELEASE = 7
    OPEN_GROUP = 8
    UPKEEP = 9
    CLOCK = 10
    CONFIGURE = 11
    CANCEL = 12
    MOVE = 13
    SEEK = 14
    DROP_GROUP = 15
    CONFIGURE_GROUP = 16
    TOUCH = 17
    START_JOB = 18
    STOP_JOB = 19
    HOLD = 20
    RAISE_LEVEL = 21
    TAKE_DIGEST = 22
    CLOCK_RESET = 23
    PAUSE_GROUP = 24
    SHARE_LIMIT = 25
    ALLOW_LIMIT = 26
    REDRIVE_DEAD = 28
    PURGE_DEAD = 29
    PUT_SCHEDULES = 30
    FIRE_SCHEDULES = 31
    PAUSE_SCHEDULES = 32
    DELETE_SCHEDULES = 33
    TRIGGER_SCHEDULES = 34
    PLAN_SCHEDULES = 35
    OUTBOX_SENT = 40
    OUTBOX_REFUSED = 41
    ACK_THEN = 42
    RECLAIM = 43
    RESTORE_BEGIN = 50
    RESTORE_ROWS = 51
    RESTORE_END = 52
    SKIPPED = 60


What = list[list[Any]] | None
"""Messages of a lease: None (all), or `[[base offset, count | bitmap], ...]`."""

Target = Sequence[Any]
"""A message by its id, `[TARGET_ID, 16 bytes]`, or by its unique key, `[TARGET_KEY, bytes]`; in a fair topic
with its tenant, unless that is `default`: `[TARGET_KEY, bytes, tenant]`; of a message with a key, elsewhere:
`[TARGET_KEY, bytes, None, key]`."""

TARGET_ID, TARGET_KEY = 0, 1


class MessageName(NamedTuple):
    """The fields of a `Target`."""

    kind: int
    """`TARGET_ID` or `TARGET_KEY`."""
    name: bytes
    """Id or unique key."""
    tenant: str | None = None
    key: bytes | None = None


DEAD_JOBS: Final = ("redrive", "purge_dead")
DEAD_FILTERS: Final = ("error", "key_prefix")
"""Arguments of these jobs that they have only where they are given."""
UNIQUE_KEY_PREFIX: Final = "unique_key_prefix"
"""Argument of a cancel and a move, only where it is given."""
REJECT, REPLACE, IGNORE, REPLACE_PENDING = 0, 1, 2, 3
"""What becomes of a message whose unique key is taken: itself refused, the other one cancelled, itself left out. The
last: the other one cancelled, or itself refused where a group has leased that."""


class Command:
    """What every command can do; its fields are its slots."""

    __slots__ = ()
    feature_level: ClassVar[int] = FIRST_LEVEL
    """The cluster's level from which on it may be proposed."""
    takes_space: ClassVar[bool] = False
    """It brings something new: refused while the disk is nearly full."""
    __match_args__: ClassVar[tuple[str, ...]] = ()
    type: ClassVar[int]

    @property
    def needed_level(self) -> int:
        """The cluster's level from which on this very command may be proposed: it may have fields of a later one."""
        return self.feature_level

    @property
    def needs_space(self) -> bool:
        """Whether this very command brings something new."""
        return self.takes_space

    def fields(self) -> tuple[Any, ...]:
        return tuple([getattr(self, name) for name in self.__match_args__])

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Self:
        return cls(*fields)

    def digest(self) -> bytes:
        """Return a hash that is the same whenever the same command is proposed again."""
        return _digest(self.type, *self.fields())


def _digest(*fields: Any) -> bytes:
    return sha256(msgpack.packb(fields)).digest()[:DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class Append(Command):
    """A producer's batch (bytes, checked before it was proposed). `split`: it has columns that the log keeps message
    by message (a unique key, a ttl, a key where keys have a limit). `on_conflict`: for messages with unique keys.
    Producer id 0: not idempotent; else see `model.sequence`."""

    type: ClassVar[int] = CommandType.APPEND
    takes_space: ClassVar[bool] = True
    batch: bytes
    producer_id: int = 0
    epoch: int = 0
    sequence: int = 0
    on_conflict: int = REJECT
    split: bool = False

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Producer id, epoch and number: they name the batch, however often it was sent."""
        return self.producer_id, self.epoch, number_of(self.sequence)

    def digest(self) -> bytes:
        """As of every command; a batch that is sent again, and says so, has the same one."""
        return _digest(self.type, *self.numbers, self.batch)


class Grant(NamedTuple):
    """Room at one consumer: at most `limit` messages, leased for `lease_ms`."""

    consumer: str
    limit: int
    lease_ms: int
    epoch: int = 0
    """Of the consumer; 0: it has none."""
    handlers: int = 0
    """Messages that the consumer works on at the same time at most; 0: it did not say."""

    @property
    def row(self) -> Sequence[Any]:
        """Return the fields that an entry has, without those at the end that say nothing."""
        return self if self.handlers else self[:4] if self.epoch else self[:3]


@dataclass(frozen=True, slots=True)
class Lease(Command):
    """Lease to each grant in turn what is due at `horizon_ms` (at most `MAX_LEASE_AHEAD_MS` past the stamp)."""

    type: ClassVar[int] = CommandType.LEASE
    group: str
    horizon_ms: int
    grants: Sequence[Grant]

    def fields(self) -> tuple[Any, ...]:
        return self.group, self.horizon_ms, [grant.row for grant in self.grants]

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Lease:
        return cls(fields[0], fields[1], [Grant(*grant) for grant in fields[2]])


@dataclass(frozen=True, slots=True)
class Ack(Command):
    type: ClassVar[int] = CommandType.ACK
    items: Sequence[tuple[int, What]]
    """(token, what), ..."""


class NackItem(NamedTuple):
    """One lease of a `Nack`. The entry may leave out fields at the end that have their defaults."""

    token: int
    what: What
    delay_ms: int | None
    """Time until the next attempt; None: the back-off decides."""
    error: str | None
    is_begun: bool = True
    """Whether the consumer has begun the messages: else the attempt is not counted."""
    changes: dict[int, Any] | None = None
    """`{column: value}` that the messages have in the group from then on: priority, headers."""
    end: int = RETRY
    """How the attempt ends (`model.nack_ends`)."""


@dataclass(frozen=True, slots=True)
class Nack(Command):
    type: ClassVar[int] = CommandType.NACK
    items: Sequence[Sequence[Any]]
    """Fields of a `NackItem` each."""


class ExtendItem(NamedTuple):
    """One lease of an `Extend`. The entry leaves out the last field if nothing was begun."""

    token: int
    lease_ms: int
    """The new deadline, counted from the stamp."""
    begun: What = None
    """Messages that the consumer has begun; None: it reports none."""


@dataclass(frozen=True, slots=True)
class Extend(Command):
    type: ClassVar[int] = CommandType.EXTEND
    items: Sequence[Sequence[Any]]
    """Fields of an `ExtendItem` each."""


@dataclass(frozen=True, slots=True)
class Expire(Command):
    """End leases whose deadline is at or before the stamp (one that was extended since is left alone), and bury what
    has outlived its ttl at the head of a group."""

    type: ClassVar[int] = CommandType.EXPIRE


@dataclass(frozen=True, slots=True)
class Release(Command):
    """A consumer leaves cleanly: what it holds is ready again, the attempt not counted. `epoch`: of that what was
    leased to it at this one; 0: all."""

    type: ClassVar[int] = CommandType.RELEASE
    group: str
    consumer: str
    epoch: int = 0

    def fields(self) -> tuple[Any, ...]:
        return (self.group, self.consumer, self.epoch) if self.epoch else (self.group, self.consumer)


@dataclass(frozen=True, slots=True)
class Reclaim(Command):
    """A consumer has come back after a restart: what it held under lower epochs is leased to it anew, under new tokens
    and for `lease_ms`, as the same attempt, but only so often (`FIXED.lease_reclaims`). A bounded number
    of leases."""

    type: ClassVar[int] = CommandType.RECLAIM
    group: str
    consumer: str
    epoch: int
    lease_ms: int


Position = str | int | bytes
"""Where a group begins: "earliest", "latest", an instant (epoch ms), or the offset that is delivered first."""


@dataclass(frozen=True, slots=True)
class OpenGroup(Command):
    """Make the group unless it exists; paused, if it is so elsewhere."""

    type: ClassVar[int] = CommandType.OPEN_GROUP
    group: str
    start: Position
    paused: bool = False

    def fields(self) -> tuple[Any, ...]:
        return (self.group, self.start, True) if self.paused else (self.group, self.start)


@dataclass(frozen=True, slots=True)
class Upkeep(Command):
    """A bounded step of everything that is unbounded: trimming, forgetting, jobs, groups nobody uses."""

    type: ClassVar[int] = CommandType.UPKEEP


@dataclass(frozen=True, slots=True)
class Clock(Command):
    """Nothing but the entry's stamp: moves the closed time of an idle partition."""

    type: ClassVar[int] = CommandType.CLOCK


@dataclass(frozen=True, slots=True)
class Configure(Command):
    """The topic's settings as a record (`TopicSettings.record()`)."""

    type: ClassVar[int] = CommandType.CONFIGURE
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cancel(Command):
    """Take messages that are their producer's out of the log and out of groups."""

    type: ClassVar[int] = CommandType.CANCEL
    targets: Sequence[Target]


class MoveItem(NamedTuple):
    """One message of a `Move`. The entry may leave out fields at the end that are None."""

    target: Target
    to_ms: int | None
    """The new delivery time, in ms, or (`is_delay`) a delay in ms, counted from the stamp; None: the time stays."""
    is_delay: bool
    priority: int | None = None
    """None: the priority stays."""
    changes: dict[int, Any] | None = None
    """`{column: value}` that the message gets: value, headers."""


@dataclass(frozen=True, slots=True)
class Move(Command):
    """Give messages that are their producer's another delivery time, priority, value or headers."""

    type: ClassVar[int] = CommandType.MOVE
    items: Sequence[Sequence[Any]]
    """Fields of a `MoveItem` each."""

    @property
    def needs_space(self) -> bool:
        return self.has_updates

    @property
    def has_updates(self) -> bool:
        """Whether messages get other values or headers."""
        return any([len(item) > 4 for item in self.items])


@dataclass(frozen=True, slots=True)
class Seek(Command):
    """Put a group's cursor elsewhere; its leases, retries and gaps are revoked."""

    type: ClassVar[int] = CommandType.SEEK
    group: str
    to: Position


@dataclass(frozen=True, slots=True)
class DropGroup(Command):
    """Delete a group. `unless_unfinished`: refuse if the group has yet to finish messages that it received."""

    type: ClassVar[int] = CommandType.DROP_GROUP
    group: str
    unless_unfinished: bool = False

    def fields(self) -> tuple[Any, ...]:
        return (self.group, True) if self.unless_unfinished else (self.group,)


@dataclass(frozen=True, slots=True)
class ConfigureGroup(Command):
    """Settings of a group that override the topic's; empty: none."""

    type: ClassVar[int] = CommandType.CONFIGURE_GROUP
    group: str
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Touch(Command):
    """These groups have consumers; names that are no groups (any more) are passed over."""

    type: ClassVar[int] = CommandType.TOUCH
    groups: Sequence[str]


@dataclass(frozen=True, slots=True)
class StartJob(Command):
    """Begin bulk work that `Upkeep` goes on with. `job_id`: 16 bytes; one that is known is left as it is."""

    type: ClassVar[int] = CommandType.START_JOB
    job_id: bytes
    kind: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StopJob(Command):
    type: ClassVar[int] = CommandType.STOP_JOB
    job_id: bytes


@dataclass(frozen=True, slots=True)
class RedriveDead(Command):
    """Make these dead letters of a group ready again."""

    type: ClassVar[int] = CommandType.REDRIVE_DEAD
    group: str
    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class PurgeDead(Command):
    """Delete these dead letters of a group."""

    type: ClassVar[int] = CommandType.PURGE_DEAD
    group: str
    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Hold(Command):
    """Keep what stands above an offset from being trimmed, for `ttl_ms` from the stamp on; None: no longer."""

    type: ClassVar[int] = CommandType.HOLD
    name: str
    offset: bytes | None
    ttl_ms: int = 0


@dataclass(frozen=True, slots=True)
class RaiseLevel(Command):
    """Go by the rules of a feature level from here on (`SharedState.level`); one that was reached changes nothing."""

    type: ClassVar[int] = CommandType.RAISE_LEVEL
    level: int


@dataclass(frozen=True, slots=True)
class TakeDigest(Command):
    """Have every replica digest what it has stored as of this entry. Changes nothing."""

    type: ClassVar[int] = CommandType.TAKE_DIGEST
    number: int
    """By which who asked knows the answers; below 2^63."""


@dataclass(frozen=True, slots=True)
class ClockReset(Command):
    """Set the partition's time, which is far ahead, back to this instant; `Upkeep` goes on with it in steps."""

    type: ClassVar[int] = CommandType.CLOCK_RESET
    new_ms: int


@dataclass(frozen=True, slots=True)
class PauseGroup(Command):
    """Give the group nothing from here on, or give it again what there is."""

    type: ClassVar[int] = CommandType.PAUSE_GROUP
    group: str
    paused: bool


@dataclass(frozen=True, slots=True)
class PutSchedules(Command):
    """Make schedules, or give them other settings."""

    type: ClassVar[int] = CommandType.PUT_SCHEDULES
    takes_space: ClassVar[bool] = True
    items: Sequence[Sequence[Any]]
    """(name, settings, {column: value} of the message, version and next occurrence (ms or None) that the leader saw (0,
    None: there was none), next occurrence (ms or None), when it fires, whether it is paused), ..."""


@dataclass(frozen=True, slots=True)
class FireSchedules(Command):
    """One occurrence of each of these is over, and the next is this one."""

    type: ClassVar[int] = CommandType.FIRE_SCHEDULES
    takes_space: ClassVar[bool] = True
    items: Sequence[Sequence[Any]]
    """(name, version and occurrence (ms) that the leader saw, next occurrence (ms or None), when it fires, how many
    between the two were missed), ..."""


@dataclass(frozen=True, slots=True)
class PauseSchedules(Command):
    """Let schedules fire no more, or again."""

    type: ClassVar[int] = CommandType.PAUSE_SCHEDULES
    items: Sequence[Sequence[Any]]
    """(name, version and next occurrence that the leader saw, paused, next occurrence (ms or None), when it fires)"""


@dataclass(frozen=True, slots=True)
class DeleteSchedules(Command):
    type: ClassVar[int] = CommandType.DELETE_SCHEDULES
    items: Sequence[Sequence[Any]]
    """(name), ..."""


@dataclass(frozen=True, slots=True)
class TriggerSchedules(Command):
    """Have schedules make a message at once."""

    type: ClassVar[int] = CommandType.TRIGGER_SCHEDULES
    takes_space: ClassVar[bool] = True
    items: Sequence[Sequence[Any]]
    """(name, token by which a repetition is known), ..."""


@dataclass(frozen=True, slots=True)
class PlanSchedules(Command):
    """Have schedules go by the time that the partition's clock was set back to."""

    type: ClassVar[int] = CommandType.PLAN_SCHEDULES
    items: Sequence[Sequence[Any]]
    """(name, version and next occurrence that the leader saw, next occurrence (ms), when it fires, the last one before
    it that is over, [first, last] of those behind it that are over), ..."""
    behind: str | None
    """Up to this name all are planned anew; None: that were all."""


@dataclass(frozen=True, slots=True)
class ShareLimit(Command):
    """Change who may have what of a group's limits, in the ledger of partition 0. `epoch`: of these limits."""

    type: ClassVar[int] = CommandType.SHARE_LIMIT
    group: str
    epoch: int
    told: Sequence[Sequence[int]]
    """What partitions say of themselves: (partition, version, messages in flight, returned_us), ..."""
    targets: Sequence[Sequence[int]]
    """What they are to have: (partition, messages in flight, units of the rate), ..."""


@dataclass(frozen=True, slots=True)
class AllowLimit(Command):
    """Have a partition go by what partition 0's ledger lets it have of limits."""

    type: ClassVar[int] = CommandType.ALLOW_LIMIT
    items: Sequence[Sequence[Any]]
    """(group, epoch, version, messages in flight, units of the rate, given_us), ..."""


@dataclass(frozen=True, slots=True)
class OutboxSent(Command):
    """Another partition has stored a batch of the outbox."""

    type: ClassVar[int] = CommandType.OUTBOX_SENT
    topic: int
    partition: int
    epoch: int
    """Of the batch; one that is no more changes nothing."""


@dataclass(frozen=True, slots=True)
class OutboxRefused(Command):
    """Another partition does not take a batch of the outbox. `error`: why it never will; None: it takes it under
    another epoch."""

    type: ClassVar[int] = CommandType.OUTBOX_REFUSED
    topic: int
    partition: int
    epoch: int
    error: str | None


class SentMessage(NamedTuple):
    """One message that an ack sends."""

    topic: int | None
    """Number of the topic; None, as the partition then: the partition of the lease itself."""
    partition: int | None
    at_ms: int | None
    """Delivery time in ms, or (`is_delay`) a delay in ms, counted from the stamp; None: at once."""
    is_delay: bool
    fields: dict[int, Any]
    """`{column: value}`."""


@dataclass(frozen=True, slots=True)
class AckThen(Command):
    """Ack messages of a lease and send others, all of it or nothing."""

    type: ClassVar[int] = CommandType.ACK_THEN
    takes_space: ClassVar[bool] = True
    token: int
    what: What
    messages: Sequence[Sequence[Any]]
    """Fields of a `SentMessage` each."""


@dataclass(frozen=True, slots=True)
class RestoreBegin(Command):
    """Bind an empty partition, whose topic is being restored, to a restore; one that is bound to it changes nothing."""

    type: ClassVar[int] = CommandType.RESTORE_BEGIN
    takes_space: ClassVar[bool] = True
    restore_id: str
    targets: Sequence[Sequence[int]]
    """(number that a topic had, number that it has here), ..."""


@dataclass(frozen=True, slots=True)
class RestoreRows(Command):
    """Put rows of a backup there (`restore.restoring.encode_chunk`); a chunk that is there changes nothing."""

    type: ClassVar[int] = CommandType.RESTORE_ROWS
    takes_space: ClassVar[bool] = True
    restore_id: str
    number: int
    """Of the chunk: from 0 on, each once."""
    data: bytes


@dataclass(frozen=True, slots=True)
class RestoreEnd(Command):
    """Let the rows of so many chunks be the state: what was leased is to be had again, and groups are paused."""

    type: ClassVar[int] = CommandType.RESTORE_END
    restore_id: str
    chunks: int


@dataclass(frozen=True, slots=True)
class Skipped(Command):
    """Stand where a command stood that no replica could apply and that an operator skipped (ADR 46)."""

    type: ClassVar[int] = CommandType.SKIPPED
    skip_id: bytes
    """Names the operator's decision, 16 bytes."""
    command_digest: bytes
    """`digest()` of the skipped command: the leader refuses it when it is sent again. Empty if it may come again."""
    producer_id: int = 0
    """Of a skipped `Append`: its producer, epoch and sequence, and the checksum of its batch. 0: there is none."""
    epoch: int = 0
    sequence: int = 0
    batch_crc: int = 0

    @classmethod
    def of(cls, skip_id: bytes, command: Command, *, is_refused: bool = True) -> Skipped:
        """Make what takes the place of a command. `is_refused`: the leader refuses it when it is sent again, unless it
        is one of the leader's own."""
        if isinstance(command, Skipped):
            return command
        digest = command.digest() if is_refused and not isinstance(command, OWN_COMMANDS) else b""
        if not isinstance(command, Append) or not command.producer_id:
            return cls(skip_id, digest)
        numbers = command.producer_id, command.epoch, command.sequence
        return cls(skip_id, digest, *numbers, int.from_bytes(command.batch[4:8], "little"))


ScheduleCommand = PutSchedules | FireSchedules | PauseSchedules | DeleteSchedules | TriggerSchedules | PlanSchedules
SCHEDULE_COMMANDS: Final = (
    PutSchedules,
    FireSchedules,
    PauseSchedules,
    DeleteSchedules,
    TriggerSchedules,
    PlanSchedules,
)
OWN_COMMANDS: Final = (
    Lease,
    Expire,
    Release,
    Upkeep,
    Clock,
    Configure,
    Touch,
    RaiseLevel,
    TakeDigest,
    ShareLimit,
    AllowLimit,
    FireSchedules,
    PlanSchedules,
    OutboxSent,
    OutboxRefused,
)
"""Commands that the leader proposes by itself, the same ones again and again: leases would not expire, and outboxes not
be sent, if a skip of one refused the next."""
_CLASSES: dict[int, type[Command]] = {cls.type: cls for cls in Command.__subclasses__()}


@dataclass(frozen=True, slots=True)
class Entry:
    now_ms: int
    commands: Sequence[Command]
    clock_epoch: int = 0

    def encode(self) -> bytes:
        body: bytes = msgpack.packb(
            (ENTRY_VERSION, self.now_ms, self.clock_epoch, [(c.type, *c.fields()) for c in self.commands])
        )
        return body

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """Raises Corruption, for an entry was checked before it was proposed and by the WAL's checksum; StartupError
        when a newer version has written it."""
        try:
            version, now_ms, clock_epoch, commands = msgpack.unpackb(data, raw=False, strict_map_key=False)
            if version != ENTRY_VERSION:
                raise Corruption(f"a partition entry has version {version}, this program knows {ENTRY_VERSION}")
            unknown = {command[0] for command in commands} - _CLASSES.keys()
            if unknown:
                raise StartupError(
                    f"a partition entry has commands of types {sorted(unknown)}, which this program does not know: "
                    "a newer version has written them"
                )
            return cls(now_ms, [_CLASSES[c[0]].parse(c[1:]) for c in commands], clock_epoch)
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
            raise Corruption(
                f"a partition entry cannot be read, it is damaged or a newer version has written it: {error!r}"
            ) from error


def targets_of(commands: Sequence[Command]) -> list[Target]:
    """Return the messages that the commands of an entry are to cancel or move."""
    targets: list[Target] = []
    for command in commands:
        if isinstance(command, Cancel):
            targets += command.targets
        elif isinstance(command, Move):
            targets += [item[0] for item in command.items]
    return targets
