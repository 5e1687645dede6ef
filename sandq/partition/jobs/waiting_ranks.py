"""Changes the priority of waiting messages, for a job: in the log, and in rows of groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.rows import Fields
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.ownership import Ownership
from sandq.partition.log.message_log import MessageLog
from sandq.partition.pending.ranking import Ranking
from sandq.partition.shared_state import SharedState

AT_ONCE: Final = 64
"""Number of messages after which to yield. Each message takes about 50 us."""
CHECKS: Final = 8000
"""Maximum number of checks per step: messages times groups. Checking one message in one group takes about 9 us."""


class Waited(NamedTuple):
    """The result for several messages."""

    done: int
    """Number of waiting messages that have the new priority now."""
    too_late: int
    """Number of messages that cannot be changed: a group holds them, is done with them, or they are pending in one
    group while they wait in another."""


class KeptRange(NamedTuple):
    """A range of the messages that a group keeps."""

    group_id: int
    after: bytes
    """The range begins at the next offset."""
    until_ms: int
    """End of the range: a delivery time, excluded."""


class KeptPart(NamedTuple):
    """The chosen messages of a bounded part of a `KeptRange`."""

    chosen: Sequence[bytes]
    position: bytes | None
    """Last offset of the part. None if the range contains no messages."""


class WaitingRanks:
    """Changes the priority of waiting messages, many at a time."""

    def __init__(
        self,
        shared: SharedState,
        group_state: GroupState,
        log: MessageLog,
        ranking: Ranking,
        ownership: Ownership,
    ) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._kept = group_state.kept
        self._log = log
        self._ranking = ranking
        self._ownership = ownership

    def rank(self, step: Step, chosen: Sequence[bytes], priority: int, *, dry_run: bool) -> Waited:
        """Change the priority of the chosen messages that wait for their next attempt. `dry_run`: only count them."""
        done = sum(
            [self._rank_one(step, offset, priority, dry_run) for offset in self._shared.in_slices(chosen, AT_ONCE)]
        )
        return Waited(done, len(chosen) - done)

    def _rank_one(self, step: Step, offset: bytes, priority: int, dry_run: bool) -> bool:
        """Change the priority of one waiting message, unless `dry_run`. Return False if the message cannot be
        changed."""
        found = self._log.find_owned(offset, step.view)
        if found is None:
            return False
        claim = self._ownership.claim(found.offset, step.view)
        if claim.refusal is not None or claim.pending or not claim.waiting:
            return False
        if not dry_run:
            self._log.rank_waiting(step, found, priority)
            self._ranking.note(step, found, priority)
        return True

    def most(self, limit: int) -> int:
        """Return how many messages a step may check, at most `limit`."""
        return max(min(limit, CHECKS // max(len(self._groups.by_id), 1)), 1)

    # -- messages that are no longer in the log -------------------------------------------------------------------

    def first_group(self, above: int = -1) -> int | None:
        """Return the lowest group id above `above`. None if there is none."""
        return min([group_id for group_id in self._groups.by_id if group_id > above], default=None)

    def choose_kept(
        self, view: View, kept: KeptRange, is_chosen: Callable[[bytes, Fields], bool], *, limit: int, max_bytes: int
    ) -> KeptPart:
        """Choose messages that are kept by a group, at most `limit` rows or `max_bytes`.

        Skip messages that the log has or that an earlier group keeps. `is_chosen` decides by offset and fields.
        """
        start = rows.after(rows.of_group(rows.KEPT, kept.group_id, kept.after))
        stop = rows.of_group(rows.KEPT, kept.group_id, offsets.pack(min(kept.until_ms, offsets.U48_MAX), 0, 0, 0))
        found = view.scan(start, stop, limit=limit, max_bytes=max_bytes) if start < stop else []
        chosen = []
        for key, row in self._shared.in_slices(found, AT_ONCE):
            offset, fields = key[-offsets.OFFSET_BYTES :], rows.load_kept(row).fields
            if is_chosen(offset, fields) and not self._is_seen(kept.group_id, offset, view):
                chosen.append(offset)
        return KeptPart(chosen, found[-1][0][-offsets.OFFSET_BYTES :] if found else None)

    def _is_seen(self, group_id: int, offset: bytes, view: View) -> bool:
        """Return whether the job also finds the message in the log or in an earlier group."""
        if self._kept.is_in_log(offset, view):
            return True
        earlier = [other for other in self._groups.by_id if other < group_id]
        return any([view.get(rows.of_group(rows.KEPT, other, offset)) is not None for other in earlier])
