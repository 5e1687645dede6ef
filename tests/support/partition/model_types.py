"""Define the types of the model of a timer partition. Times are ms after T."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sandq.model import offsets
from tests.support.partition.bench import T

CANCEL_MEMORY = 600_000
PIN = 60_000
AHEAD_MOST = 50
HISTORY = 5

Attempt = tuple[int, str, int, int, str, str | None]
History = tuple[Attempt, ...]
Life = tuple[int, int, str, str | None, int, int, History]
"""A life that has ended: number, attempts, reason, error, dead at, redriven at, history."""
Lives = tuple[Life, ...]
LIVES = 4
Entry = tuple[str, int, str, str | None, int, History, Lives]
"""Entry in a list of dead messages: name, attempts, reason, error, time, history, earlier lives."""


def offset_of(at: int, index: int, place: int) -> bytes:
    return offsets.pack(T + at, index, place, 0)


def name_of(value: bytes) -> str:
    """Return the name of the message that has, or had, this value."""
    return value.decode().partition("~")[0]


@dataclass
class Message:
    name: str
    id: bytes
    offset: bytes
    at: int
    """Delivery time."""
    key: str | None
    ttl: int | None
    unique: str | None
    created: int
    row: bytes
    """Key of the row in the log. Messages in the same row leave the log together."""
    moves: int = 0
    done_at: int | None = None
    """Time at which all groups were first done with the message. Retention counts from this time, even after a seek."""
    gone: str | None = None
    """"cancelled" (by its producer) or "removed" (by a job, or replaced)."""
    gone_at: int = 0
    suffix: str = ""
    """Suffix of the value, which an update sets."""
    headers: bytes | None = None
    rules: tuple[int | None, bytes | None] = (None, None)
    """Its own number of attempts (0: no limit), and its own back-off."""

    @property
    def value(self) -> str:
        """Return the current value, which begins with the name."""
        return self.name + self.suffix

    @property
    def index(self) -> int:
        return offsets.unpack(self.offset).index


@dataclass
class Held:
    """A message in a group: leased, waiting, blocked or dead."""

    state: str
    attempt: int = 0
    token: int = 0
    since: int = 0
    """Time of the first lease."""
    due: int = 0
    seq: int = 0
    error: str | None = None
    history: History = ()
    snoozes: int = 0
    crashes: int = 0
    """Number of consecutive leases that ended unsettled."""
    immortal: bool = False
    copied: bool = False
    """Whether the group has its own row with a copy of the message."""
    reason: str = ""
    dead_at: int = 0
    lives: Lives = ()
    """Lives before the last redrive."""
    made: tuple[int, ...] = ()
    """How the time at which it is due was chosen."""
    spilled: bool = False
    """Whether the message waits in rows only."""

    def with_this_life(self, now: int) -> Lives:
        """Return the lives of a dead message after a redrive at `now`."""
        number = self.lives[-1][0] + 1 if self.lives else 1
        ended = (number, self.attempt, self.reason, self.error, self.dead_at, now, self.history)
        return (*self.lives, ended)[-LIVES:]


@dataclass
class Group:
    name: str
    start: bytes
    """Next offset to read: the group has passed all offsets below it."""
    touched: int
    opened: int
    settings: dict[str, Any] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    paused: bool = False
    dropped: int = 0
    removed: int = 0
    removed_at: int | None = None
    """Time of the last removal of dead messages."""
    paused_until: int | None = None
    """End of the pause. None: until it is resumed."""
    seek_from: bytes | None = None
    """Start of the seek in progress: dead messages from this offset on are redelivered. None: no seek."""
    sought: bytes = b""
    """The seek has decided about the spilled messages up to this offset."""
    stale: dict[bytes, Entry] = field(default_factory=dict)
    """Entries of cancelled or moved messages, which stay in the list of dead messages until the seek passes them."""

    def holds_spilled(self, name: str) -> bool:
        """Return whether a message waits in rows only."""
        held = self.held.get(name)
        return held is not None and held.spilled

    def of(self, *states: str) -> dict[str, Held]:
        return {name: held for name, held in self.held.items() if held.state in states}


@dataclass
class Lease:
    group: str
    consumer: str
    token: int
    attempt: int
    names: list[str]
    offsets: dict[str, bytes]
    """Offset of each message when it was leased."""
    leased_at: int
    deadline: int
    acked: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)
    revoked: bool = False
    epoch: int = 0
    handlers: int = 0
    crashes: int = 0
    begun: set[str] = field(default_factory=set)

    @property
    def charged(self) -> set[str]:
        """Return the messages for which an attempt counts if the lease ends now."""
        live = self.live
        if not self.handlers or self.crashes >= 5:
            return set(live)
        reported = self.begun & set(live)
        return reported if self.crashes else reported | set(live[: self.handlers])

    @property
    def live(self) -> list[str]:
        return [name for name in self.names if name not in self.acked and name not in self.left]


@dataclass
class Key:
    """State of a unique key: held, attempted (by some groups, but not by all), delivered or cancelled."""

    state: str
    name: str
    until: int | None = None


@dataclass(frozen=True)
class Row:
    """A message as its producer sends it."""

    name: str
    due: int | None = None
    key: str | None = None
    ttl: int | None = None
    unique: str | None = None
    rules: tuple[int | None, bytes | None] = (None, None)


@dataclass(frozen=True)
class Taken:
    grant: int
    name: str
    attempt: int
