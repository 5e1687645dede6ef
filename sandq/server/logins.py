"""End connections of who is not let in any more, or may do something else now: as identities, roles or time say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from sandq.broker.access.authenticator import Authenticator
from sandq.broker.clock.timers import Timer
from sandq.broker.event_loop import Signal, Turn
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import MetadataView


class LetIn(Protocol):
    """A connection that was let in for a reason."""

    def look(self) -> None:
        """See whether the reason is still there."""


class Logins:
    """Those of one node."""

    def __init__(self, authenticator: Authenticator, at: Callable[[int, Callable[[], None]], Timer]) -> None:
        """`at(at_ms, call)`: call when it is that late."""
        self.authenticator = authenticator
        self.at = at
        self._there: dict[LetIn, None] = {}
        self._changed = Signal()
        self._have_secrets_changed = False

    def add(self, one: LetIn) -> None:
        """It was let in."""
        self._there[one] = None

    def discard(self, one: LetIn) -> None:
        """It has gone."""
        self._there.pop(one, None)

    def secrets_changed(self) -> None:
        """Gateways prove themselves by others from now on."""
        self._have_secrets_changed = True
        self._changed.set()

    async def run(self, metadata: RaftGroup) -> None:
        """Look whenever identities or roles change. This node must take part in its cluster."""
        metadata.listen(on_status=self._changed.set)
        seen = None
        while True:
            view = self.authenticator.look()
            is_due, self._have_secrets_changed = self._have_secrets_changed, False
            if is_due or _differ(view, seen):
                turn = Turn()
                for one in list(self._there):
                    if one in self._there:
                        one.look()
                    await turn.spend(1)
                seen = view
            else:
                await self._changed.wait()


def _differ(view: MetadataView | None, seen: MetadataView | None) -> bool:
    """Whether others are let in by what metadata says now, or may do something else."""
    if view is None:
        return False
    return seen is None or view.identities != seen.identities or view.roles != seen.roles
