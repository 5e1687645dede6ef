"""Remember which commands of a partition were skipped, so that the leader rejects repetitions of them (ADR 46)."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from sandq.model.errors import Conflict
from sandq.partition import commands as c

SKIPS_KEPT: Final = 64
"""Maximum number of skipped commands that a partition remembers. The oldest is forgotten first.

The last command of each decision is forgotten only if there are more decisions than this limit. When a replica reaches
a SKIP, it must know whether it has applied that decision already.
"""


_NONE: Final[frozenset[bytes]] = frozenset()


class Skips:
    """The last skipped commands: part of the replicated state."""

    def __init__(self) -> None:
        self._kept: tuple[tuple[bytes, bytes], ...] = ()
        """(skip id, digest of the command), oldest first."""

    def __bool__(self) -> bool:
        return bool(self._kept)

    def note(self, command: c.Skipped) -> None:
        """Remember a command that an applied entry skips."""
        kept = command.skip_id, command.command_digest
        if kept not in self._kept:
            self._kept = _bounded((*self._kept, kept))

    def state(self) -> Any:
        """Return the value that is stored in the state row."""
        return self._kept

    def load(self, state: Any) -> None:
        """Restore the value that `state` returned."""
        self._kept = tuple([(skip_id, digest) for skip_id, digest in state])

    def knows(self, skip_id: bytes) -> bool:
        """Return whether an applied entry contains a command that was skipped by this decision."""
        return any([kept[0] == skip_id for kept in self._kept])

    @property
    def digests(self) -> frozenset[bytes]:
        """Digests of the commands that are refused."""
        if not self._kept:
            return _NONE  # saves time: a status is created for each entry
        return frozenset([digest for _, digest in self._kept if digest])


def refusal() -> Conflict:
    """Return the answer to a command that was skipped."""
    return Conflict(
        "this request was skipped by an operator, because no replica could apply it: nothing was done, and sending the "
        "same again cannot help"
    )


def _bounded(kept: tuple[tuple[bytes, bytes], ...]) -> tuple[tuple[bytes, bytes], ...]:
    """If there are too many pairs, drop the oldest pair that is not the only pair of its decision."""
    if len(kept) <= SKIPS_KEPT:
        return kept
    counts = Counter([skip_id for skip_id, _ in kept])
    at = next((at for at, (skip_id, _) in enumerate(kept) if counts[skip_id] > 1), 0)
    return kept[:at] + kept[at + 1 :]
