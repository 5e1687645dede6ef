"""Cancels, moves and updates messages, named by id or unique key. Each request gets a definite reply.

A producer may change a message that no group has leased, acked or made dead, even if the message waits for its next
attempt. If a waiting message is moved, it keeps its offset, and only its due time in the groups in which it waits
changes. If a message waits in one group while it is pending in another, it can be cancelled and updated, but not moved.
A move would give the message a new offset, and the first group would get it again as if it had made no attempts.

An outcome `TOO_LATE` has the state of the message: leased, acked, dead, waiting or gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandq.model import offsets
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.step import Step
from sandq.partition.base.view import Bounds, View
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.ownership import Ownership
from sandq.partition.groups.renewal import Change
from sandq.partition.log.message_log import CANCELLED as TAKEN_BY_CANCEL
from sandq.partition.log.message_log import Found, Kept, MessageLog
from sandq.partition.pending.ranking import Ranking
from sandq.partition.pending.updates import Updates
from sandq.partition.reader.reader import holding_bounds
from sandq.partition.records.claim import (
    ACKED,
    CANCELLED,
    DEAD,
    LEASED,
    MOVED,
    NOT_FOUND,
    TOO_LATE,
    UPDATED,
    WAITING,
    Claim,
    Outcome,
)
from sandq.partition.records.leases import Waiting
from sandq.partition.shared_state import SharedState

DELAYED, READY, GONE = "delayed", "ready", "gone"
AHEAD_FROM = 8
"""Rows are looked up in advance only for at least this many ids."""
AHEAD_IDS = 4096
AHEAD_RANGES = 1 << 16
"""Maximum number of key ranges of an entry that are looked up in advance. Each result takes about 200 bytes of
memory."""
LOOK_RANGES = 1024
"""Number of key ranges that one call looks up. A call takes about 2 ms, and may read a large row once more."""
_FIRST_OF = (LEASED, WAITING, DEAD, READY, DELAYED, ACKED)
"""States of a message in groups. If the state differs between groups, the first state of this list is reported."""

_NONE = Outcome("")
"""The outcome of a message that may be changed."""


class Pending:
    def __init__(
        self,
        shared: SharedState,
        groups: GroupTable,
        log: MessageLog,
        ownership: Ownership,
        ranking: Ranking,
        updates: Updates,
    ) -> None:
        self._shared = shared
        self._ownership = ownership
        self._groups = groups
        self._log = log
        self._ranking = ranking
        self._updates = updates
        self._inside: list[bytes] = []
        """Messages of the current entry that may share a row with other messages."""

    def look_ahead(self, step: Step, targets: Sequence[c.Target]) -> None:
        """Find out in advance which of many messages do not exist. This only saves time: it changes no result.

        If a missing row lies next to a large row, a look-up takes as long as reading the large row. Without this
        method, that would happen for each row that a message might have.
        """
        step.view.forget_vacant()
        self._inside = []
        named = {bytes(name) for kind, name, *_ in targets if kind == c.TARGET_ID and len(name) == offsets.OFFSET_BYTES}
        ids = sorted(named)[:AHEAD_IDS]
        if len(ids) < AHEAD_FROM:
            return
        # These look-ups step over each deleted row once, unlike `get`, which costs far less than reading a row.
        held = [holding_bounds(one) for one in ids]
        vacant = self._find_vacant(step, sorted(held + [_bounds(rows.LOG, one) for one in ids]))
        for tag in (rows.MOVED, rows.TOMBSTONE):
            self._find_vacant(step, [_bounds(tag, one) for one in ids])
        self._inside = [one for one, bounds in zip(ids, held, strict=True) if bounds not in vacant]
        self._note_vacant(step, [one for one, bounds in zip(ids, held, strict=True) if bounds in vacant])

    def _note_vacant_in_gap(self, step: Step) -> None:
        """Find out which messages in the gap next to a large row do not exist. The gap is known once the large row was
        read."""
        low, high = self._log.gap
        found = [one for one in self._inside if low < one < high]
        if found:
            self._inside = [one for one in self._inside if not low < one < high]
            self._note_vacant(step, found)

    def _note_vacant(self, step: Step, ids: Sequence[bytes]) -> None:
        """Find out which of these messages are in rows of groups. None of them has a log row."""
        if len(ids) < AHEAD_FROM:
            return
        prefixes = [rows.of_group(rows.KEPT, group_id) for group_id in self._groups.by_id]
        prefixes += [rows.of_group(rows.DEAD, one.group_id) for one in self._groups.by_id.values() if one.dead.total()]
        for prefix in prefixes[: AHEAD_RANGES // len(ids)]:
            self._find_vacant(step, [_bounds(prefix, one) for one in ids])

    def _find_vacant(self, step: Step, ranges: Sequence[Bounds]) -> set[Bounds]:
        """Record which of these sorted ranges contain no row, and return them. Yield after each part."""
        view = step.view
        vacant: set[Bounds] = set()
        for first in range(0, len(ranges), LOOK_RANGES):
            vacant |= view.note_vacant(ranges[first : first + LOOK_RANGES])
            self._shared.yield_now()
        return vacant

    # -- commands -------------------------------------------------------------------------------------------------

    def cancel(self, step: Step, target: c.Target, applied_index: int) -> Outcome:
        """Cancel a message. `applied_index`: index of the last applied entry, as in offsets."""
        found, _, refusal = self._find_owned(step, target, applied_index)
        if found is None:
            return refusal
        self._log.cancel(step, found)
        return Outcome(CANCELLED, found.id)

    def move(
        self,
        step: Step,
        target: c.Target,
        to_ms: int | None,
        position: int,
        *,
        is_delay: bool = False,
        priority: int | None = None,
        change: Change | None = None,
    ) -> Outcome:
        """Change the time, the priority, and (`change`) the value and headers of a message. None: unchanged.

        `position`: the position in the entry that the message gets if its offset changes.
        """
        found, claim, refusal = self._find_owned(step, target, step.index - 1)
        if found is None:
            return Outcome(TOO_LATE, GONE) if refusal.word == CANCELLED else refusal
        stays = to_ms is None and priority is None
        if claim is not None and claim.waiting and claim.pending and not stays:
            return Outcome(TOO_LATE, WAITING)
        if change is not None:
            self._updates.update(step, found, change)
            if stays:
                return Outcome(UPDATED, found.offset)
            found, claim, _ = self._find_owned(step, target, step.index - 1)
            assert found is not None, "a message that was just updated is gone"
        word = MOVED if change is None else UPDATED
        moved = self._move(step, found, claim, to_ms, position, is_delay=is_delay, priority=priority)
        return Outcome(word, moved)

    def _move(
        self,
        step: Step,
        found: Found | Kept,
        claim: Claim | None,
        to_ms: int | None,
        position: int,
        *,
        is_delay: bool,
        priority: int | None,
    ) -> bytes:
        """Change the time or the priority, or both, of a message that its producer may change. Return its new or
        unchanged offset."""
        if claim is not None and claim.waiting:
            if priority is not None:
                self._log.rank_waiting(step, found, priority)
            if to_ms is None or max(to_ms, step.now_ms) >= offsets.deliver_ms(found.offset):
                if priority is not None:
                    self._ranking.note(step, found, priority)
                if to_ms is None:
                    return found.offset
                return self._log.delay(step, found, to_ms, is_delay=is_delay)
            # A clock reset has moved the waiting message to a delivery time in the future. An earlier due time in its
            # groups would have no effect.
        if to_ms is None:
            if priority is not None and self._ranking.rank(step, found, priority):
                return found.offset
            to_ms = offsets.deliver_ms(found.offset)
        return self._log.move(step, found, to_ms, position, is_delay=is_delay, priority=priority)

    def _find_owned(
        self, step: Step, target: c.Target, applied_index: int
    ) -> tuple[Found | Kept | None, Claim | None, Outcome]:
        """Return (message, claim, empty outcome). If the change must be rejected, the message is None and the outcome
        says why."""
        view = step.view
        message_id = self.id_of(target, step.now_ms, view)
        if message_id is None:
            return None, None, Outcome(NOT_FOUND)
        if self._inside and self._log.gap[1]:
            self._note_vacant_in_gap(step)
        owned = self._log.find_owned(message_id, view)
        if owned is None:
            return None, None, self._absent(step, message_id, applied_index)
        claim = self._ownership.claim(owned.offset, view)
        if claim.refusal is not None:
            return None, claim, Outcome(TOO_LATE, claim.refusal)
        return owned, claim, _NONE

    def _absent(self, step: Step, message_id: bytes, applied_index: int) -> Outcome:
        """Return the outcome for a message that exists neither in the log nor in a group: cancelled, gone, or never
        stored."""
        view = step.view
        moved = view.get(rows.MOVED + message_id)
        offset = rows.load_moved(moved).offset if moved is not None else message_id
        tombstone = view.get(rows.TOMBSTONE + offset)
        if tombstone is not None:
            # A moved message has a row at its new offset. If there is no such row, the message was trimmed.
            is_cancelled = rows.load_tombstone(tombstone).why == TAKEN_BY_CANCEL
            return Outcome(CANCELLED, message_id) if is_cancelled else Outcome(TOO_LATE, GONE)
        state = self.own_rows_state(offset, view)
        if state is not None or moved is not None:
            return Outcome(TOO_LATE, state or GONE)
        parts = offsets.unpack(message_id)
        if parts.index > applied_index or parts.deliver_ms > step.floor_ms or parts.partition != self._log.partition:
            return Outcome(NOT_FOUND)
        return Outcome(TOO_LATE, GONE)

    # -- lookups --------------------------------------------------------------------------------------------------

    def id_of(self, target: c.Target, now_ms: int, view: View) -> bytes | None:
        """Return the id of the message with this name; None if its unique key is free."""
        kind, name, tenant, key = c.MessageName(*target)
        if kind == c.TARGET_ID:
            return bytes(name)
        named = self._log.find_named(name, None if tenant is None else tenant.encode(), key, now_ms, view)
        return None if named is None else named.id

    def state_of(self, offset: bytes, now_ms: int, view: View) -> str:
        """Return the state of a message in the log, over all groups."""
        states = {self.state_in(group, offset, now_ms, view) for group in self._groups.by_id.values()}
        if not states:
            return READY if offsets.deliver_ms(offset) <= now_ms else DELAYED
        return next(state for state in _FIRST_OF if state in states)

    def state_in(self, group: Group, offset: bytes, now_ms: int, view: View) -> str:
        """Return the state of a message in one group."""
        if not group.has_passed(offset, view):
            return READY if offsets.deliver_ms(offset) <= now_ms else DELAYED
        if offset in group.order.blocked or group.is_promoted(offset, view):
            return READY
        holder = group.holder_of(offset, view)
        if isinstance(holder, Waiting):
            return WAITING if holder.due_ms > now_ms else READY
        if holder is not None:
            return LEASED
        if group.is_dead(offset, view):
            return DEAD
        return ACKED

    def own_rows_state(self, offset: bytes, view: View) -> str | None:
        """Return `leased` or `dead` for a message that is only in rows of groups. None if no group has a row of it."""
        for group in self._groups.by_id.values():
            if view.get(rows.of_group(rows.KEPT, group.group_id, offset)) is not None:
                return LEASED
        if any(group.is_dead(offset, view) for group in self._groups.by_id.values()):
            return DEAD
        return None


def _bounds(prefix: bytes, offset: bytes) -> Bounds:
    """Return the bounds of a single row."""
    return prefix + offset, rows.after(prefix + offset)
