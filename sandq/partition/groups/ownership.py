"""Decides whether a producer may still change a message. The producer may not change a message that any group has
leased, acked or made dead (ADR 19)."""

from __future__ import annotations

from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.renewal import Change, renew
from sandq.partition.reader.pieces import MessageReader
from sandq.partition.records.claim import ACKED, DEAD, LEASED, REFUSALS, WAITING, Claim
from sandq.partition.records.leases import Made, Waiting
from sandq.partition.shared_state import SharedState


class Ownership:
    """Decides whether a producer may still change a message, and removes messages from groups."""

    def __init__(self, shared: SharedState, group_state: GroupState) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._waiting = group_state.waiting
        self._spilling = group_state.spilling
        self._kept = group_state.kept

    def claim(self, offset: bytes, view: View) -> Claim:
        """Return the state, over all groups, of a message that is in the log or in rows of groups."""
        pending, waiting = not self._groups.by_id, False
        found: set[str] = set()
        for group in self._groups.by_id.values():
            if group.is_being_sought(offset, view):
                return Claim(pending=False, waiting=False, refusal=WAITING)
            if group.is_pending(offset, view) and not group.is_reviving(offset, view):
                pending = pending or self._groups.awaits(group, offset, view)
                continue
            holder = group.holder_of(offset, view)
            if isinstance(holder, Waiting):
                waiting = True
            elif holder is not None:
                found.add(LEASED)
            elif group.is_dead(offset, view):
                found.add(DEAD)
            else:
                found.add(ACKED)
        return Claim(pending, waiting, next((word for word in REFUSALS if word in found), None))

    def take_back(self, step: Step, offset: bytes) -> list[Group]:
        """Remove a message from all groups in which it waits or is blocked, and return these groups. Its producer must
        be allowed to change it.

        The next message of its key may become free. All other data about the message stays, including its position in
        the log.
        """
        view = step.view
        taken: list[Group] = []
        for group in self._groups.by_id.values():
            if offset in group.order.blocked:
                if offset in group.order.kept:
                    self._kept.take(step, group, offset)
                group.order.remove(offset)
                view.delete(rows.of_group(rows.BLOCKED, group.group_id, offset))
            elif group.unready(step, offset):
                group.note_change()
            elif (entry := self._spilling.holder_of(step, group, offset)) is not None:
                self._waiting.part(step, group, entry, offset, None)
                group.order.finish(offset)
                if entry.kept:
                    self._kept.take(step, group, offset)
            else:
                continue
            taken.append(group)
        return taken

    def rank(self, step: Step, offset: bytes, change: Change, reader: MessageReader) -> None:
        """Change the priority of a message in the groups in which it waits. Its time and its attempts stay the same."""
        for group in self._groups.by_id.values():
            if (entry := self._spilling.holder_of(step, group, offset)) is not None:
                if change.queue(entry.queue) == entry.queue:
                    continue  # unchanged: repeating a command after a lost reply costs nothing
                self._shared.note_copied(renew(step, group, [Range(offset, 1)], entry.kept, change, reader))
                self._waiting.part(step, group, entry, offset, entry.due_ms, entry.made, change)

    def delay(self, step: Step, offset: bytes, due_ms: int, made: Made) -> None:
        """Change the time of a message in the groups in which it waits. Its attempts stay counted. `made`: as in
        `Waiting`."""
        for group in self._groups.by_id.values():
            if (entry := self._spilling.holder_of(step, group, offset)) is not None:
                self._waiting.part(step, group, entry, offset, due_ms, made)
