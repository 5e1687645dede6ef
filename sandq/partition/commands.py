"""Commands of a partition and the Raft entry that carries them. PERSISTED: type numbers and field orders.

Entry: msgpack `[version=1, now_ms, clock_epoch, [command, ...]]`, command `[type, fields...]`. The leader stamps
`now_ms` from its guarded clock; replicas read no clock. Commands merged into one entry keep their order, and each
has a result of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar

import msgpack

from sandq.model.errors import Corruption

ENTRY_VERSION = 1


class CommandType(IntEnum):
    APPEND = 1
    LEASE = 2
    ACK = 3
    NACK = 4
    EXTEND = 5
    EXPIRE = 6
    RELEASE = 7
    OPEN_GROUP = 8
    TRIM = 9
    CLOCK = 10
    CONFIGURE = 11


What = list[list[Any]] | None
"""Messages of a lease: None (all), or `[[base offset, count | bitmap], ...]`."""


@dataclass(frozen=True, slots=True)
class Append:
    """A producer's batch (bytes, checked before it was proposed) of `count` messages."""

    type: ClassVar[int] = CommandType.APPEND
    batch: bytes
    producer_id: int = 0
    epoch: int = 0
    sequence: int = 0

    def fields(self) -> tuple[Any, ...]:
        return (self.producer_id, self.epoch, self.sequence, self.batch)

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Append:
        return cls(fields[3], fields[0], fields[1], fields[2])


@dataclass(frozen=True, slots=True)
class Grant:
    """Room at one consumer: at most `limit` messages, leased for `lease_ms`."""

    consumer: str
    limit: int
    lease_ms: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Lease to each grant in turn what is due at `horizon_ms` (at most `MAX_LEASE_AHEAD_MS` past the stamp)."""

    type: ClassVar[int] = CommandType.LEASE
    group: str
    horizon_ms: int
    grants: tuple[Grant, ...]

    def fields(self) -> tuple[Any, ...]:
        return (self.group, self.horizon_ms, [(g.consumer, g.limit, g.lease_ms) for g in self.grants])

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Lease:
        return cls(fields[0], fields[1], tuple(Grant(*grant) for grant in fields[2]))


@dataclass(frozen=True, slots=True)
class Ack:
    type: ClassVar[int] = CommandType.ACK
    items: Sequence[tuple[int, What]]
    """(token, what), ..."""

    def fields(self) -> tuple[Any, ...]:
        return (self.items,)

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Ack:
        return cls(fields[0])


@dataclass(frozen=True, slots=True)
class Nack:
    type: ClassVar[int] = CommandType.NACK
    items: Sequence[tuple[int, What, int | None, str | None]]
    """(token, what, delay_ms (None: the back-off), error), ..."""

    def fields(self) -> tuple[Any, ...]:
        return (self.items,)

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Nack:
        return cls(fields[0])


@dataclass(frozen=True, slots=True)
class Extend:
    type: ClassVar[int] = CommandType.EXTEND
    items: Sequence[tuple[int, int]]
    """(token, lease_ms from the stamp on), ..."""

    def fields(self) -> tuple[Any, ...]:
        return (self.items,)

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Extend:
        return cls(fields[0])


@dataclass(frozen=True, slots=True)
class Expire:
    """End leases whose deadline is at or before the stamp; one that was extended since is left alone."""

    type: ClassVar[int] = CommandType.EXPIRE

    def fields(self) -> tuple[Any, ...]:
        return ()

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Expire:
        return cls()


@dataclass(frozen=True, slots=True)
class Release:
    """A consumer leaves cleanly: what it holds is ready again, the attempt not counted."""

    type: ClassVar[int] = CommandType.RELEASE
    group: str
    consumer: str

    def fields(self) -> tuple[Any, ...]:
        return (self.group, self.consumer)

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Release:
        return cls(*fields)


@dataclass(frozen=True, slots=True)
class OpenGroup:
    """Make the group unless it exists. start: "earliest" or "latest"."""

    type: ClassVar[int] = CommandType.OPEN_GROUP
    group: str
    start: str

    def fields(self) -> tuple[Any, ...]:
        return (self.group, self.start)

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> OpenGroup:
        return cls(*fields)


@dataclass(frozen=True, slots=True)
class Trim:
    """Delete at most `limit` log rows that every group is done with."""

    type: ClassVar[int] = CommandType.TRIM
    limit: int

    def fields(self) -> tuple[Any, ...]:
        return (self.limit,)

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Trim:
        return cls(*fields)


@dataclass(frozen=True, slots=True)
class Clock:
    """Nothing but the entry's stamp: moves the closed time of an idle partition."""

    type: ClassVar[int] = CommandType.CLOCK

    def fields(self) -> tuple[Any, ...]:
        return ()

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Clock:
        return cls()


@dataclass(frozen=True, slots=True)
class Configure:
    """The topic's settings as a record (`TopicSettings.record()`)."""

    type: ClassVar[int] = CommandType.CONFIGURE
    settings: dict[str, Any]

    def fields(self) -> tuple[Any, ...]:
        return (self.settings,)

    @classmethod
    def parse(cls, fields: Sequence[Any]) -> Configure:
        return cls(*fields)


Command = Append | Lease | Ack | Nack | Extend | Expire | Release | OpenGroup | Trim | Clock | Configure

_CLASSES: dict[int, type[Any]] = {
    c.type: c for c in (Append, Lease, Ack, Nack, Extend, Expire, Release, OpenGroup, Trim, Clock, Configure)
}


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
        """Raises Corruption: an entry was checked before it was proposed and by the WAL's checksum."""
        try:
            version, now_ms, clock_epoch, commands = msgpack.unpackb(data, raw=False, strict_map_key=False)
            if version != ENTRY_VERSION:
                raise Corruption(f"a partition entry has version {version}, this program knows {ENTRY_VERSION}")
            return cls(now_ms, [_CLASSES[c[0]].parse(c[1:]) for c in commands], clock_epoch)
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
            raise Corruption(f"a partition entry cannot be read: {error!r}") from error
