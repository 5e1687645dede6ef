"""Named holds: a reader without a group uses one to prevent trimming of messages that it has yet to read.

A hold has an offset. Messages above this offset stay in the log until the hold expires, even if groups, retention and
size limits would allow trimming. The reader renews the hold by its name. If the reader is gone for good, the hold
expires.
"""

from __future__ import annotations

from typing import NamedTuple

from sandq.model import offsets
from sandq.model.errors import Conflict, InvalidRequest
from sandq.model.limits import FIXED
from sandq.model.names import check_name
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.step import Step
from sandq.partition.base.view import View

HOLDS_MOST = FIXED.holds
LEAST_TTL_MS = FIXED.hold_least_ms
MOST_TTL_MS = FIXED.hold_most_ms


class Hold(NamedTuple):
    name: str
    offset: bytes
    """Offset up to which, inclusive, everything was read."""
    until_ms: int

    def row(self) -> bytes:
        """Return the row of the hold."""
        return rows.pack(self.offset, self.until_ms)

    @classmethod
    def load(cls, key: bytes, row: bytes) -> Hold:
        """Read a hold from its row."""
        offset, until_ms = rows.unpack(row)
        return cls(key[1:].decode(), offset, until_ms)


class Holds:
    def __init__(self) -> None:
        self.all: tuple[Hold, ...] = ()
        """All holds, sorted by name."""
        self.lowest = offsets.LAST
        """The lowest offset of all holds: nothing above it is trimmed. `offsets.LAST` if there are no holds."""
        self.next_ms: int | None = None
        """Time at which the next hold expires, in ms."""

    def load(self, view: View) -> None:
        """Load all holds."""
        self._set([Hold.load(key, row) for key, row in rows.all_rows(view, rows.HOLD)])

    def change(self, step: Step, command: c.Hold) -> None:
        """Create, renew or release a hold. Releasing a hold that does not exist has no effect.

        Raise InvalidRequest for a bad name or ttl, and Conflict if there are too many holds.
        """
        now_ms = step.now_ms
        name = check_name("hold", command.name)
        if command.offset is None:
            self._without(step, [hold for hold in self.all if hold.name == name])
            return
        if not LEAST_TTL_MS <= command.ttl_ms <= MOST_TTL_MS:
            raise InvalidRequest(
                f"hold {name!r}: its time to live must be {LEAST_TTL_MS} to {MOST_TTL_MS} ms, not {command.ttl_ms}"
            )
        others = [hold for hold in self.all if hold.name != name and hold.until_ms > now_ms]
        if len(others) >= HOLDS_MOST:
            raise Conflict(
                f"hold {name!r}: the partition has {len(others)} holds, which is the limit; release one, or wait until "
                "the time of one is over",
                name=name,
            )
        self.drop(step)
        until_ms = min(now_ms + command.ttl_ms, offsets.U48_MAX)
        made = Hold(name, command.offset, until_ms)
        step.view.put(rows.hold_key(name), made.row())
        self._set([*others, made])

    def drop(self, step: Step) -> None:
        """Delete expired holds: at most `HOLDS_MOST`, because a partition has no more."""
        now_ms = step.now_ms
        if self.next_ms is not None and self.next_ms <= now_ms:
            self._without(step, [hold for hold in self.all if hold.until_ms <= now_ms])

    def set_back(self, step: Step, lowest: bytes) -> None:
        """Adjust holds to a clock reset, which sets the partition's time back to that of `step`.

        The ttl that the owner asked for is no longer known. So a hold lasts as long as before, but at most the maximum
        ttl from now on. Messages above `lowest` have moved to other offsets, so holds above it are lowered.
        """
        view = step.view
        most_ms = min(step.now_ms + MOST_TTL_MS, offsets.U48_MAX)
        holds = [Hold(name, min(offset, lowest), min(until_ms, most_ms)) for name, offset, until_ms in self.all]
        for hold in holds:
            view.put(rows.hold_key(hold.name), hold.row())
        self._set(holds)

    def _without(self, step: Step, gone: list[Hold]) -> None:
        """Delete holds and their rows."""
        view = step.view
        for hold in gone:
            view.delete(rows.hold_key(hold.name))
        self._set([hold for hold in self.all if hold not in gone])

    def _set(self, holds: list[Hold]) -> None:
        """Replace all holds."""
        self.all = tuple(sorted(holds))
        self.lowest = min([hold.offset for hold in holds], default=offsets.LAST)
        self.next_ms = min([hold.until_ms for hold in holds], default=None)
