"""Named holds: somebody who reads without a group, and comes back, keeps what it has yet to read from being trimmed.

A hold names an offset: what stands above it in the log stays, whatever groups, retention and size say, until the time
of the hold is over. It is renewed by its name, so that who is gone for good pins nothing for ever.
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
    """Everything at or below it was read."""
    until_ms: int

    def row(self) -> bytes:
        return rows.pack(self.offset, self.until_ms)

    @classmethod
    def load(cls, key: bytes, row: bytes) -> Hold:
        offset, until_ms = rows.unpack(row)
        return cls(key[1:].decode(), offset, until_ms)


class Holds:
    def __init__(self) -> None:
        self.all: tuple[Hold, ...] = ()
        """By name."""
        self.lowest = offsets.LAST
        """Nothing above it is trimmed; the last offset there can be, without holds."""
        self.next_ms: int | None = None
        """When the time of the next one is over."""

    def load(self, view: View) -> None:
        self._set([Hold.load(key, row) for key, row in rows.all_rows(view, rows.HOLD)])

    def change(self, step: Step, command: c.Hold) -> None:
        """Make a hold, renew it or release it (one that is not there is released already). Raises InvalidRequest, and
        Conflict when there are too many."""
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
        """Drop those whose time is over: `HOLDS_MOST` of them at most."""
        now_ms = step.now_ms
        if self.next_ms is not None and self.next_ms <= now_ms:
            self._without(step, [hold for hold in self.all if hold.until_ms <= now_ms])

    def set_back(self, step: Step, lowest: bytes) -> None:
        """The partition's time goes back to this instant: a hold lasts at least as long as its owner asked for, which
        is not known any more, and no longer than any may. What it named above `lowest` has come to other places."""
        view = step.view
        most_ms = min(step.now_ms + MOST_TTL_MS, offsets.U48_MAX)
        holds = [Hold(name, min(offset, lowest), min(until_ms, most_ms)) for name, offset, until_ms in self.all]
        for hold in holds:
            view.put(rows.hold_key(hold.name), hold.row())
        self._set(holds)

    def _without(self, step: Step, gone: list[Hold]) -> None:
        view = step.view
        for hold in gone:
            view.delete(rows.hold_key(hold.name))
        self._set([hold for hold in self.all if hold not in gone])

    def _set(self, holds: list[Hold]) -> None:
        self.all = tuple(sorted(holds))
        self.lowest = min([hold.offset for hold in holds], default=offsets.LAST)
        self.next_ms = min([hold.until_ms for hold in holds], default=None)
