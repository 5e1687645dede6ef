"""Removes dead messages that exceed the settings `dead_retention` and `max_dead_letters`, the oldest deaths first.

`Upkeep` commands remove them, in bounded steps. A group with such messages is due when the first of them exceeds a
setting, but not within `PAUSE_MS` after the group's last removal, so that one command removes many. A message that
waits in the outbox is removed only once its dead letter topic has rejected it.
"""

from __future__ import annotations

from typing import Any, Final

from sandq.model.dead_letter_settings import DEAD_RETENTION_MS, MAX_DEAD_LETTERS
from sandq.partition.base.stale_heaps import LeastOf
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups import dead_letters
from sandq.partition.groups.dead_letters import DeadMessage
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.jobs.redrive import Redrive
from sandq.partition.shared_state import SLICE_READS, SharedState

PAUSE_MS: Final = 10_000
"""Minimum time between two removals in a group, in ms, if the first removes all messages that exceed a setting."""
STEP_MESSAGES: Final = 1000
STEP_BYTES: Final = 8 << 20
"""Maximum number and bytes of the messages that one command removes."""


class DeadRetention:
    def __init__(self, shared: SharedState, group_state: GroupState) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._redrive = Redrive(shared, group_state)
        self._changed = self._groups.changes()
        """Ids of groups that have changed since `_due` was updated."""
        self._rules: tuple[int | None, int | None] = (None, None)
        """The settings with which `_due` was computed."""
        self._due: LeastOf[int] = LeastOf()
        """Time in ms from which messages of a group exceed a setting, by group id."""

    @property
    def knows_due(self) -> bool:
        """Whether `due_ms` reads no rows."""
        groups = self._groups.by_id.values()
        return self._current_rules() == (None, None) or all([group.deaths.knows_first for group in groups])

    def due_ms(self, view: View) -> int | None:
        """Return the time at which dead messages must be removed, in ms. None if no message will exceed a setting."""
        self._update(view)
        first = self._due.first()
        return None if first is None else first[0]

    def _current_rules(self) -> tuple[int | None, int | None]:
        """Return the settings: maximum time in ms, and maximum number of a group."""
        settings: dict[str, Any] = self._shared.settings
        return settings.get(DEAD_RETENTION_MS), settings.get(MAX_DEAD_LETTERS)

    def _update(self, view: View) -> None:
        """Update `_due` for the groups that have changed; for all groups if the settings have changed."""
        rules = self._current_rules()
        if rules != self._rules:
            self._rules = rules
            self._changed.update(self._groups.by_id)
        for group_id in self._changed:
            group = self._groups.by_id.get(group_id)
            self._due.put(group_id, None if group is None else self._group_due_ms(group, view))
            if group is not None:
                group.is_noted = False
        self._changed.clear()

    def _group_due_ms(self, group: Group, view: View) -> int | None:
        """Return the time in ms from which messages of a group exceed a setting. None if they never do."""
        kept_ms, most = self._rules
        # A seek delivers dead messages again, so none is removed meanwhile.
        if self._rules == (None, None) or group.halts or (first_ms := group.deaths.first_ms(view)) is None:
            return None
        is_full = most is not None and group.dead.total() > most
        if not is_full and kept_ms is None:
            return None
        due_ms = 0 if is_full or kept_ms is None else first_ms + kept_ms
        return max(due_ms, group.removed_ms + PAUSE_MS)

    def remove(self, step: Step) -> None:
        """Remove a bounded number of the messages that exceed a setting."""
        self._update(step.view)
        messages, size = STEP_MESSAGES, STEP_BYTES
        for group_id in self._due.up_to(step.now_ms):
            if messages <= 0 or size <= 0:
                break
            removed = self._remove(step, self._groups.by_id[group_id], messages, size)
            messages -= len(removed)
            size -= sum([message.size for message in removed])

    def _remove(self, step: Step, group: Group, limit: int, max_bytes: int) -> list[DeadMessage]:
        """Remove up to `limit` messages of a group that exceed a setting, and return them."""
        view, (kept_ms, most) = step.view, self._rules
        excess = 0 if most is None else group.dead.total() - most
        removed: list[DeadMessage] = []
        size, is_all = 0, True
        for dead_ms, offset in self._shared.in_slices(group.deaths.oldest(view, limit + 1), SLICE_READS):
            if len(removed) >= excess and (kept_ms is None or dead_ms + kept_ms > step.now_ms):
                break
            if len(removed) >= limit or size >= max_bytes:
                is_all = False
                break
            message = dead_letters.find(group, offset, view)
            if message is None or message.dead_ms != dead_ms or message.is_waiting_to_be_sent:
                group.deaths.delete(view, dead_ms, offset)  # a damaged index must not stop the others
                continue
            removed.append(message)
            size += message.size
        self._redrive.purge(step, group, removed)
        group.removed += len(removed)
        if is_all:
            group.removed_ms = step.now_ms
        self._groups.store(step, group)
        return removed
