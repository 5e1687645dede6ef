"""Commands of a partition, and the Raft entry that contains them. PERSISTED: type numbers and field orders.

Entry: msgpack `[version=1, now_ms, clock_epoch, [command, ...]]`, command `[type, fields...]`. The leader sets `now_ms`
from its guarded clock; replicas read no clock. Commands of one entry keep their order, and each has its own result. The
fields of a command are stored in the order in which its class lists them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, ClassVar, Final, NamedTuple, Self, get_args

import msgpack

from sandq.model.errors import Corruption, StartupError
from sandq.model.features import FIRST_LEVEL
from sandq.model.nack_ends import RETRY
from sandq.model.sequence import number_of
from sandq.partition.command_types import CommandType

ENTRY_VERSION = 1
DIGEST_BYTES: Final = 16


What = list[list[Any]] | None
"""Messages of a lease: None (all), or `[[base offset, count | bitmap], ...]`."""


def is_one(what: What) -> bool:
    """Return whether this names a single message."""
    return what is not None and len(what) == 1 and what[0][1] == 1


Target = Sequence[Any]
"""The name of a message: its id, `[TARGET_ID, 16 bytes]`, or its unique key, `[TARGET_KEY, bytes]`.

In a fair topic, a unique key is followed by its tenant, unless the tenant is `default`: `[TARGET_KEY, bytes, tenant]`.
In other topics, the unique key of a message with a key is `[TARGET_KEY, bytes, None, key]`.
"""

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
"""Optional arguments of the jobs for dead messages. Absent if they are not set."""
UNIQUE_KEY_PREFIX: Final = "unique_key_prefix"
"""Optional argument of the jobs cancel and move. Absent if it is not set."""
REJECT, REPLACE, IGNORE, REPLACE_PENDING, DEBOUNCE, THROTTLE, THROTTLE_BOTH = range(7)
"""Rules for a new message whose unique key belongs to an older message. REJECT: reject the new message. REPLACE: cancel
the older message. IGNORE: do not store the new message. REPLACE_PENDING: cancel the older message; if a group has
leased it, reject the new message. DEBOUNCE: as REPLACE, but if the older message cannot be cancelled, store both.
THROTTLE: store only the first message of each window. THROTTLE_BOTH: as THROTTLE, and store the newest of the other
messages for the end of the window."""


class Command:
    """Base class of all commands. The slots of a command are its fields."""

    __slots__ = ()
    feature_level: ClassVar[int] = FIRST_LEVEL
    """Lowest feature level of the cluster at which the command may be proposed."""
    takes_space: ClassVar[bool] = False
    """Whether the command stores new data. If so, it is rejected while the disk is nearly full."""
    __match_args__: ClassVar[tuple[str, ...]] = ()
    type: ClassVar[int]

    @property
    def needed_level(self) -> int:
        """Lowest feature level at which this instance may be proposed. It may be above `feature_level`, because of
        newer fields."""
        return self.feature_level

    @property
    def needs_space(self) -> bool:
        """Whether this instance stores new data."""
        return self.takes_space

    def fields(self) -> tuple[Any, ...]:
        """Return the fields as they are stored in an entry."""
        return tuple([getattr(self, name) for name in self.__match_args__])

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Self:
        """Create a command from its stored fields."""
        return cls(*fields)

    def digest(self) -> bytes:
        """Return a hash that is the same whenever the same command is proposed again."""
        return _digest(self.type, *self.fields())


def _digest(*fields: Any) -> bytes:
    """Return the hash of these values, `DIGEST_BYTES` long."""
    return sha256(msgpack.packb(fields)).digest()[:DIGEST_BYTES]


@dataclass(frozen=True, slots=True)
class Append(Command):
    """A producer's batch, as bytes that were checked before it was proposed.

    `split`: the batch has columns that the log keeps per message (a unique key, a ttl, a key where keys have a limit).
    `on_conflict`: for messages with unique keys. Producer id 0: not idempotent; otherwise see `model.sequence`.
    `span_ms`: the maximum wait of DEBOUNCE (None for no maximum), or the window of THROTTLE and THROTTLE_BOTH.
    """

    type: ClassVar[int] = CommandType.APPEND
    takes_space: ClassVar[bool] = True
    batch: bytes
    producer_id: int = 0
    epoch: int = 0
    sequence: int = 0
    on_conflict: int = REJECT
    split: bool = False
    span_ms: int | None = None

    @property
    def window_ms(self) -> int | None:
        """The window of a rule that throttles. None for the other rules."""
        return self.span_ms if self.on_conflict in (THROTTLE, THROTTLE_BOTH) else None

    @property
    def numbers(self) -> tuple[int, int, int]:
        """Producer id, epoch and number. They identify the batch, even if it is sent several times."""
        return self.producer_id, self.epoch, number_of(self.sequence)

    def digest(self) -> bytes:
        """Return the hash of the command. A repeated batch that is marked as repeated has the same hash."""
        return _digest(self.type, *self.numbers, self.batch)


class Grant(NamedTuple):
    """The credit of one consumer: at most `limit` messages, leased for `lease_ms`."""

    consumer: str
    limit: int
    lease_ms: int
    epoch: int = 0
    """Epoch of the consumer. 0 if it has none."""
    handlers: int = 0
    """Maximum number of messages that the consumer processes at the same time. 0 if it gave no number."""

    @property
    def row(self) -> Sequence[Any]:
        """The fields in the entry, without trailing fields that have default values."""
        return self if self.handlers else self[:4] if self.epoch else self[:3]


@dataclass(frozen=True, slots=True)
class Lease(Command):
    """Lease messages that are due at `horizon_ms` (at most `MAX_LEASE_AHEAD_MS` after the stamp), grant by grant. If
    `recalls`, this includes spilled messages."""

    type: ClassVar[int] = CommandType.LEASE
    group: str
    horizon_ms: int
    grants: Sequence[Grant]
    recalls: bool = True

    def fields(self) -> tuple[Any, ...]:
        fields = self.group, self.horizon_ms, [grant.row for grant in self.grants]
        return fields if self.recalls else (*fields, False)

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Lease:
        return cls(fields[0], fields[1], [Grant(*grant) for grant in fields[2]], *fields[3:])


@dataclass(frozen=True, slots=True)
class Ack(Command):
    type: ClassVar[int] = CommandType.ACK
    items: Sequence[tuple[int, What]]
    """(token, messages) per lease."""


class NackItem(NamedTuple):
    """One lease of a `Nack`. The entry may omit trailing fields that have default values."""

    token: int
    what: What
    delay_ms: int | None
    """Time until the next attempt, in ms. None: according to the back-off, or 0 if the messages were not begun."""
    error: str | None
    is_begun: bool = True
    """Whether the consumer has begun the messages. If not, neither the attempt nor a snooze is counted."""
    changes: dict[int, Any] | None = None
    """`{column: value}` of the changed columns (priority, headers). The changes apply only in this group."""
    end: int = RETRY
    """How the attempt ends (`model.nack_ends`)."""


@dataclass(frozen=True, slots=True)
class Nack(Command):
    type: ClassVar[int] = CommandType.NACK
    items: Sequence[Sequence[Any]]
    """The fields of a `NackItem` per lease."""


class ExtendItem(NamedTuple):
    """One lease of an `Extend`. The entry omits `begun` if it is None."""

    token: int
    lease_ms: int
    """The new deadline, in ms after the stamp."""
    begun: What = None
    """Messages that the consumer has begun. None if it reports none."""


@dataclass(frozen=True, slots=True)
class Extend(Command):
    type: ClassVar[int] = CommandType.EXTEND
    items: Sequence[Sequence[Any]]
    """The fields of an `ExtendItem` per lease."""


@dataclass(frozen=True, slots=True)
class Expire(Command):
    """End leases whose deadline is at or before the stamp, unless they were extended. Make messages at the head of a
    group dead if their ttl has passed."""

    type: ClassVar[int] = CommandType.EXPIRE


@dataclass(frozen=True, slots=True)
class Release(Command):
    """Make the messages of a consumer that leaves ready again, without counting the attempt. `epoch`: only messages
    that were leased at this epoch; 0: all."""

    type: ClassVar[int] = CommandType.RELEASE
    group: str
    consumer: str
    epoch: int = 0

    def fields(self) -> tuple[Any, ...]:
        return (self.group, self.consumer, self.epoch) if self.epoch else (self.group, self.consumer)


@dataclass(frozen=True, slots=True)
class Reclaim(Command):
    """Lease the messages that a restarted consumer held under lower epochs to it again, with new tokens and for
    `lease_ms`. The attempt count stays the same. A lease is renewed at most `FIXED.lease_reclaims` times, and one
    command renews a bounded number of leases."""

    type: ClassVar[int] = CommandType.RECLAIM
    group: str
    consumer: str
    epoch: int
    lease_ms: int


Position = str | int | bytes
"""Start position of a group: "earliest", "latest", a time (ms since 1970), or the first offset to deliver."""


@dataclass(frozen=True, slots=True)
class OpenGroup(Command):
    """Create the group unless it exists. `paused`: create the group paused, because it is paused in other
    partitions. `until_ms`: end of this pause; None: until it is resumed."""

    type: ClassVar[int] = CommandType.OPEN_GROUP
    group: str
    start: Position
    paused: bool = False
    until_ms: int | None = None

    def fields(self) -> tuple[Any, ...]:
        if not self.paused:
            return self.group, self.start
        return (
            (self.group, self.start, True) if self.until_ms is None else (self.group, self.start, True, self.until_ms)
        )


@dataclass(frozen=True, slots=True)
class Upkeep(Command):
    """Do a bounded step of all background work: trimming, expiring rows, jobs, deleting unused groups."""

    type: ClassVar[int] = CommandType.UPKEEP


@dataclass(frozen=True, slots=True)
class Clock(Command):
    """Carry only the entry's stamp, which moves the closed time of an idle partition."""

    type: ClassVar[int] = CommandType.CLOCK


@dataclass(frozen=True, slots=True)
class Configure(Command):
    """Set the topic's settings, given as a record (`TopicSettings.record()`)."""

    type: ClassVar[int] = CommandType.CONFIGURE
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cancel(Command):
    """Cancel messages, unless any group has them leased, acked or dead: remove them from the log and from groups."""

    type: ClassVar[int] = CommandType.CANCEL
    targets: Sequence[Target]


class MoveItem(NamedTuple):
    """One message of a `Move`. The entry may omit trailing fields that are None."""

    target: Target
    to_ms: int | None
    """The new delivery time in ms, or (`is_delay`) a delay in ms after the stamp. None if the time stays the same."""
    is_delay: bool
    priority: int | None = None
    """None if the priority stays the same."""
    changes: dict[int, Any] | None = None
    """`{column: value}` that the message gets: value, headers."""


@dataclass(frozen=True, slots=True)
class Move(Command):
    """Change the delivery time, priority, value or headers of messages, unless any group has them leased, acked or
    dead."""

    type: ClassVar[int] = CommandType.MOVE
    items: Sequence[Sequence[Any]]
    """The fields of a `MoveItem` per message."""

    @property
    def needs_space(self) -> bool:
        return self.has_updates

    @property
    def has_updates(self) -> bool:
        """Whether the command changes the value or the headers of any message."""
        return any([len(item) > 4 for item in self.items])


@dataclass(frozen=True, slots=True)
class Seek(Command):
    """Move a group's cursor. Its leases are revoked; its waiting messages and gaps are deleted."""

    type: ClassVar[int] = CommandType.SEEK
    group: str
    to: Position


@dataclass(frozen=True, slots=True)
class DropGroup(Command):
    """Delete a group. `unless_unfinished`: fail if the group has received messages that it has not finished."""

    type: ClassVar[int] = CommandType.DROP_GROUP
    group: str
    unless_unfinished: bool = False

    def fields(self) -> tuple[Any, ...]:
        return (self.group, True) if self.unless_unfinished else (self.group,)


@dataclass(frozen=True, slots=True)
class ConfigureGroup(Command):
    """Set the settings of a group that override the topic's. Empty: none."""

    type: ClassVar[int] = CommandType.CONFIGURE_GROUP
    group: str
    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Touch(Command):
    """Record that these groups have consumers. Names of groups that do not exist are ignored."""

    type: ClassVar[int] = CommandType.TOUCH
    groups: Sequence[str]


@dataclass(frozen=True, slots=True)
class StartJob(Command):
    """Start a job, which `Upkeep` continues. `job_id`: 16 bytes. If the job exists, nothing changes."""

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
    """Make these dead messages of a group ready again."""

    type: ClassVar[int] = CommandType.REDRIVE_DEAD
    group: str
    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class PurgeDead(Command):
    """Delete these dead messages of a group."""

    type: ClassVar[int] = CommandType.PURGE_DEAD
    group: str
    ids: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Hold(Command):
    """Prevent trimming above an offset, until `ttl_ms` after the stamp. If `offset` is None, end the hold."""

    type: ClassVar[int] = CommandType.HOLD
    name: str
    offset: bytes | None
    ttl_ms: int = 0


@dataclass(frozen=True, slots=True)
class RaiseLevel(Command):
    """Apply the rules of a feature level from now on (`SharedState.level`). A level at or below the current level has
    no effect."""

    type: ClassVar[int] = CommandType.RAISE_LEVEL
    level: int


@dataclass(frozen=True, slots=True)
class TakeDigest(Command):
    """Make every replica compute the digest of its stored rows as of this entry. The command changes nothing."""

    type: ClassVar[int] = CommandType.TAKE_DIGEST
    number: int
    """A number by which the caller recognizes the replies. Below 2^63."""


@dataclass(frozen=True, slots=True)
class ClockReset(Command):
    """Set the partition's time, which is far ahead, back to `new_ms`. `Upkeep` continues the reset in steps."""

    type: ClassVar[int] = CommandType.CLOCK_RESET
    new_ms: int


@dataclass(frozen=True, slots=True)
class PauseGroup(Command):
    """Pause or resume a group. A paused group leases nothing. `until_ms`: end of the pause; None: until it is
    resumed."""

    type: ClassVar[int] = CommandType.PAUSE_GROUP
    group: str
    paused: bool
    until_ms: int | None = None

    def fields(self) -> tuple[Any, ...]:
        return (self.group, self.paused) if self.until_ms is None else (self.group, self.paused, self.until_ms)


@dataclass(frozen=True, slots=True)
class PausePart(Command):
    """Pause a part of a group, so that its messages are not leased: a tenant (by name) and the tenants below it, or a
    key (a long key by its ordering hash). `until_ms`: end of the pause; U48_MAX: until it is resumed; None: now."""

    type: ClassVar[int] = CommandType.PAUSE_PART
    group: str
    part: str | bytes | int
    until_ms: int | None


@dataclass(frozen=True, slots=True)
class PauseByLease(Command):
    """Pause the tenant, the key or the group of leased messages (`model.pauses.PARTS`). A pause that ends later stays
    as it is."""

    type: ClassVar[int] = CommandType.PAUSE_BY_LEASE
    items: Sequence[Sequence[Any]]
    """(token, offset, part, until_ms, group) of each pause. `group`: name of the group that holds the lease."""


@dataclass(frozen=True, slots=True)
class PauseLonger(Command):
    """Pause a group, or one tenant of it, unless it is paused for longer already. Do nothing if there is no such
    group. The leader of another partition has verified the lease."""

    type: ClassVar[int] = CommandType.PAUSE_LONGER
    group: str
    tenant: str | None
    """The tenant to pause. None: the group."""
    until_ms: int


@dataclass(frozen=True, slots=True)
class PauseLimit(Command):
    """Pause a named limit for all groups that use it, or resume it. In the partition of `sandq.limits`."""

    type: ClassVar[int] = CommandType.PAUSE_LIMIT
    limit: str
    until_ms: int
    """End of the pause in ms. 0: resume the limit. `FOREVER`: the pause stays until the limit is resumed."""
    by: str
    """The operator, or the group of the lease, as a text for people."""
    is_longer: bool
    """Whether a pause that ends later stays as it is. The leader of another partition has verified a lease."""


@dataclass(frozen=True, slots=True)
class PutSchedules(Command):
    """Create schedules, or change their settings."""

    type: ClassVar[int] = CommandType.PUT_SCHEDULES
    takes_space: ClassVar[bool] = True
    items: Sequence[Sequence[Any]]
    """Per schedule: (name, settings, {column: value} of the message, version and next occurrence that the leader saw,
    new next occurrence or None, fire time, whether the schedule is paused). All times are in ms. If there was no
    schedule, the version that the leader saw is 0, and the occurrence None."""


@dataclass(frozen=True, slots=True)
class FireSchedules(Command):
    """Complete one occurrence of each schedule, and set the next occurrence."""

    type: ClassVar[int] = CommandType.FIRE_SCHEDULES
    takes_space: ClassVar[bool] = True
    items: Sequence[Sequence[Any]]
    """Per schedule: (name, version and occurrence that the leader saw, next occurrence or None, fire time, number of
    missed occurrences between these two occurrences). All times are in ms."""


@dataclass(frozen=True, slots=True)
class PauseSchedules(Command):
    """Pause or resume schedules."""

    type: ClassVar[int] = CommandType.PAUSE_SCHEDULES
    items: Sequence[Sequence[Any]]
    """Per schedule: (name, version and next occurrence that the leader saw, whether to pause the schedule, new next
    occurrence or None, fire time). All times are in ms."""


@dataclass(frozen=True, slots=True)
class DeleteSchedules(Command):
    type: ClassVar[int] = CommandType.DELETE_SCHEDULES
    items: Sequence[Sequence[Any]]
    """(name,) per schedule."""


@dataclass(frozen=True, slots=True)
class TriggerSchedules(Command):
    """Make schedules send a message immediately."""

    type: ClassVar[int] = CommandType.TRIGGER_SCHEDULES
    takes_space: ClassVar[bool] = True
    items: Sequence[Sequence[Any]]
    """(name, token that identifies repetitions) per schedule."""


@dataclass(frozen=True, slots=True)
class PlanSchedules(Command):
    """Adjust schedules to the partition's time after a clock reset."""

    type: ClassVar[int] = CommandType.PLAN_SCHEDULES
    items: Sequence[Sequence[Any]]
    """Per schedule: (name, version and next occurrence that the leader saw, new next occurrence, fire time, last
    completed occurrence before that, [first, last] of the completed occurrences after that). All times are in ms."""
    behind: str | None
    """Once this command is applied, schedules up to this name are adjusted, and the next command continues after it.

    None: all schedules are adjusted."""


@dataclass(frozen=True, slots=True)
class ShareLimit(Command):
    """Change the shares of a group's limits, in the ledger of partition 0, or of a named limit in its home. `epoch`:
    epoch of the limits."""

    type: ClassVar[int] = CommandType.SHARE_LIMIT
    group: str
    epoch: int
    reports: Sequence[Sequence[int]]
    """Reports of partitions: (partition, version, messages in flight, returned_us) each."""
    targets: Sequence[Sequence[int]]
    """New target shares of partitions: (partition, maximum number of messages in flight, units of the rate) each."""
    joined: Sequence[Sequence[Any]] = ()
    """New members of a named limit: (Raft group, epoch in the settings of the topic, group, messages in flight) each.
    Messages in flight are nil if the member may hold a share of an earlier definition."""
    gone: Sequence[int] = ()
    """Numbers of members of a named limit that no longer use it."""


@dataclass(frozen=True, slots=True)
class AllowLimit(Command):
    """Set the allowances of a partition to the shares in the ledger of partition 0."""

    type: ClassVar[int] = CommandType.ALLOW_LIMIT
    items: Sequence[Sequence[Any]]
    """(group, epoch in the settings of the topic, epoch of the limits, version, messages in flight, units of the rate,
    given_us, definition of a named limit, its pause) each. Both epochs are equal, and the definition and the pause are
    nil, if the limits are the group's own. The pause is nil if the limit was never paused."""


@dataclass(frozen=True, slots=True)
class OutboxSent(Command):
    """Record that another partition has stored a batch of the outbox."""

    type: ClassVar[int] = CommandType.OUTBOX_SENT
    topic: int
    partition: int
    epoch: int
    """Epoch of the batch. If that batch no longer exists, nothing changes."""


@dataclass(frozen=True, slots=True)
class OutboxRefused(Command):
    """Record that another partition rejected a batch of the outbox. `error`: why the batch can never be accepted. None:
    the partition will accept the batch under another epoch."""

    type: ClassVar[int] = CommandType.OUTBOX_REFUSED
    topic: int
    partition: int
    epoch: int
    error: str | None


class SentMessage(NamedTuple):
    """One message that an ack sends."""

    topic: int | None
    """Number of the topic. If `topic` is None, `partition` is None too, and the message goes to the partition of the
    lease."""
    partition: int | None
    at_ms: int | None
    """Delivery time in ms, or (`is_delay`) a delay in ms after the stamp. None: immediately."""
    is_delay: bool
    fields: dict[int, Any]
    """`{column: value}`."""


@dataclass(frozen=True, slots=True)
class AckThen(Command):
    """Ack messages of a lease and send others, atomically. With an `end`, one message is nacked instead, and the others
    are sent only if it is dead."""

    type: ClassVar[int] = CommandType.ACK_THEN
    takes_space: ClassVar[bool] = True
    token: int
    what: What
    messages: Sequence[Sequence[Any]]
    """The fields of a `SentMessage` per message."""
    end: int | None = None
    """How the attempt ends (`model.nack_ends`), of one message. None: the messages are acked."""
    delay_ms: int | None = None
    """As in a `NackItem`."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RestoreBegin(Command):
    """Bind an empty partition, whose topic is being restored, to a restore. Has no effect if it is bound to this
    restore already."""

    type: ClassVar[int] = CommandType.RESTORE_BEGIN
    takes_space: ClassVar[bool] = True
    restore_id: str
    targets: Sequence[Sequence[int]]
    """(number of a topic in the backup, number of the topic in this cluster) each."""


@dataclass(frozen=True, slots=True)
class RestoreRows(Command):
    """Store rows of a backup (`restore.restoring.encode_chunk`). Has no effect if the chunk is stored already."""

    type: ClassVar[int] = CommandType.RESTORE_ROWS
    takes_space: ClassVar[bool] = True
    restore_id: str
    number: int
    """Number of the chunk. Chunks are numbered from 0 on."""
    data: bytes


@dataclass(frozen=True, slots=True)
class RestoreEnd(Command):
    """Make the rows of `chunks` chunks the state of the partition. Leased messages become ready again, and groups are
    paused."""

    type: ClassVar[int] = CommandType.RESTORE_END
    restore_id: str
    chunks: int


@dataclass(frozen=True, slots=True)
class Skipped(Command):
    """Replaces a command that no replica could apply, and that an operator skipped (ADR 46)."""

    type: ClassVar[int] = CommandType.SKIPPED
    skip_id: bytes
    """Identifies the operator's decision, 16 bytes."""
    command_digest: bytes
    """`digest()` of the skipped command. The leader rejects the same command if it is sent again. Empty: the command
    may be sent again."""
    producer_id: int = 0
    """Producer of a skipped `Append`. The next fields are its epoch and sequence, and the checksum of its batch. 0: no
    producer."""
    epoch: int = 0
    sequence: int = 0
    batch_crc: int = 0

    @classmethod
    def of(cls, skip_id: bytes, command: Command, *, is_refused: bool = True) -> Skipped:
        """Return the replacement of a command. `is_refused`: the leader rejects the command if it is sent again, unless
        it is one of the leader's own."""
        if isinstance(command, Skipped):
            return command
        digest = command.digest() if is_refused and not isinstance(command, OWN_COMMANDS) else b""
        if not isinstance(command, Append) or not command.producer_id:
            return cls(skip_id, digest)
        numbers = command.producer_id, command.epoch, command.sequence
        return cls(skip_id, digest, *numbers, int.from_bytes(command.batch[4:8], "little"))


ScheduleCommand = PutSchedules | FireSchedules | PauseSchedules | DeleteSchedules | TriggerSchedules | PlanSchedules
SCHEDULE_COMMANDS: Final = get_args(ScheduleCommand)
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
"""Commands that the leader itself proposes repeatedly with the same content. They are never rejected after a skip.
Otherwise leases would no longer expire, and outboxes would no longer be sent."""
_CLASSES: dict[int, type[Command]] = {cls.type: cls for cls in Command.__subclasses__()}


@dataclass(frozen=True, slots=True)
class Entry:
    now_ms: int
    commands: Sequence[Command]
    clock_epoch: int = 0

    def encode(self) -> bytes:
        """Return the entry as it is stored in the Raft log."""
        body: bytes = msgpack.packb(
            (ENTRY_VERSION, self.now_ms, self.clock_epoch, [(c.type, *c.fields()) for c in self.commands])
        )
        return body

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        """Decode an entry. Raise StartupError if it has commands of a newer version.

        Raise Corruption if it is damaged: entries are checked before they are proposed, and the WAL has checksums.
        """
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
    """Return the names of the messages that the commands of an entry cancel or move."""
    targets: list[Target] = []
    for command in commands:
        if isinstance(command, Cancel):
            targets += command.targets
        elif isinstance(command, Move):
            targets += [item[0] for item in command.items]
    return targets
