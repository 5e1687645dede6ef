"""Stores the schedules of a partition, and sends one message for each occurrence.

A replica uses neither time zones nor clocks: the leader computes the next occurrence. The leader's command is applied
only if the schedule still has the version and the next occurrence that the leader saw. So each occurrence becomes one
message, even if several leaders send commands, or commands arrive late. Only the number of schedules, and the time when
the next one fires, are in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sandq.model.errors import InvalidRequest, NotFound
from sandq.model.offsets import U48_MAX
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.log.appends import Appends
from sandq.partition.log.message_log import MessageLog
from sandq.partition.pending.pending import Pending
from sandq.partition.records.claim import ACKED, DEAD, TOO_LATE
from sandq.partition.schedules.schedule import (
    GRACE_MS,
    MISSED,
    SENT,
    SKIPPED,
    TRIGGERED,
    TRIGGERS,
    Schedule,
    fire_key,
    fire_of,
    key_of,
)
from sandq.partition.shared_state import SharedState

CREATED: Final = "created"
CHANGED: Final = "changed"
UNCHANGED: Final = "unchanged"
STALE: Final = "stale"
"""The schedule has changed since the leader read it. The command changed nothing, and the leader must read the schedule
again."""
TAKEN: Final = "taken"
"""The next occurrence is due, or a consumer has its message already. The leader must name a later occurrence."""
FIRED: Final = "fired"
EARLY: Final = "early"


SLICE_ITEMS: Final = 16
"""Number of items after which applying yields. Each item takes about 50 us."""


class ScheduleTable:
    def __init__(
        self, shared: SharedState, groups: GroupTable, log: MessageLog, appends: Appends, pending: Pending
    ) -> None:
        self._shared = shared
        self._groups = groups
        self._log = log
        self._appends = appends
        self._pending = pending
        self.count = 0
        self.next_ms: int | None = None
        """Time at which the next schedule fires, in ms."""
        self.planned_to: str | None = None
        """After a clock reset: schedules up to this name are adjusted. None if all schedules are adjusted."""
        self._from_key = rows.FIRE
        """Lower bound of the keys of index rows."""
        self._is_first = False
        """Whether `_from_key` is the key of the first index row, or above all index rows."""

    def state(self) -> tuple[int, int | None, str | None]:
        """Return the fields for the state row."""
        return self.count, self.next_ms, self.planned_to

    def load(self, state: tuple[int, int | None, str | None]) -> None:
        """Restore what `state` returned."""
        self.count, self.next_ms, self.planned_to = state
        self._from_key = rows.FIRE if self.next_ms is None else fire_key(self.next_ms, "")
        self._is_first = False

    def set_back(self) -> None:
        """Note that a clock reset begins: the next occurrences of schedules may be far ahead."""
        self.planned_to = "" if self.count else None

    def find(self, name: str, view: View) -> Schedule | None:
        """Return the schedule with this name. None if there is none."""
        row = view.get(key_of(name))
        return None if row is None else Schedule.load(name, row)

    # -- commands -------------------------------------------------------------------------------------------------

    def apply(self, step: Step, command: c.ScheduleCommand) -> list[Any]:
        """Apply a command to its items, and return one result per item."""
        one = {
            c.PutSchedules: self._put,
            c.FireSchedules: self._fire,
            c.PauseSchedules: self._pause,
            c.DeleteSchedules: self._delete,
            c.TriggerSchedules: self._trigger,
            c.PlanSchedules: self._replan,
        }[type(command)]
        results: list[Any] = []
        for item in self._shared.in_slices(command.items, SLICE_ITEMS):
            try:
                results.append(one(step, item))
            except (NotFound, InvalidRequest) as refusal:
                results.append(refusal)
        if isinstance(command, c.PlanSchedules):
            self.planned_to = command.behind
        self._find_next(step)
        return results

    def _put(self, step: Step, item: Sequence[Any]) -> list[Any]:
        """Create a schedule, or change its settings. A message that was stored ahead of its time is cancelled."""
        name, settings, fields, seen_version, seen_ms, next_ms, fire_ms, paused = item
        old = self.find(name, step.view)
        if (seen_version, seen_ms) != (0, None) if old is None else self._is_other(old, seen_version, seen_ms):
            return [STALE]
        if old is not None and not self._take_back(step, old, next_ms):
            return [TAKEN]
        now_ms, version = step.now_ms, self._new_version()
        if old is None:
            self.count += 1
            made = Schedule(
                name=name,
                version=version,
                settings=settings,
                fields=fields,
                expected_ms=None,
                fire_ms=None,
                made=None,
                fired=0,
                missed=0,
                paused=paused,
                created_ms=now_ms,
                changed_ms=now_ms,
            )
        else:
            made, before = old, old.recurrence
            made.version, made.settings, made.fields = version, settings, fields
            made.changed_ms, made.paused = now_ms, paused
            if made.recurrence != before:
                made.last_ms, made.gap, made.done = None, None, []
        self._plan(step, made, next_ms, fire_ms)
        step.view.put(key_of(name), made.row())
        return [CREATED if old is None else CHANGED, made.version]

    def _pause(self, step: Step, item: Sequence[Any]) -> list[Any]:
        """Pause a schedule, or resume it from the occurrence that the leader names."""
        name, seen_version, seen_ms, paused, next_ms, fire_ms = item
        schedule = self._named(name, step.view)
        if self._is_other(schedule, seen_version, seen_ms):
            return [STALE]
        if schedule.paused == paused:
            return [UNCHANGED, schedule.version]
        if not self._take_back(step, schedule, next_ms):
            return [TAKEN]
        schedule.paused, schedule.version, schedule.changed_ms = paused, self._new_version(), step.now_ms
        self._plan(step, schedule, next_ms, fire_ms)
        step.view.put(key_of(name), schedule.row())
        return [CHANGED, schedule.version]

    def _delete(self, step: Step, item: Sequence[Any]) -> list[Any]:
        """Delete a schedule. A message that was stored ahead of its time is cancelled, unless it is due."""
        (name,) = item
        schedule = self._named(name, step.view)
        if schedule.made is not None and schedule.fire_ms is not None and schedule.fire_ms > step.stamp_ms:
            self._cancel(step, schedule.made)
        self._unplan(step, schedule)
        step.view.delete(key_of(name))
        self.count -= 1
        return [CHANGED, schedule.version]

    def _trigger(self, step: Step, item: Sequence[Any]) -> list[Any]:
        """Send a message immediately, independent of all occurrences. If a token was used before, send nothing more."""
        name, token = item
        schedule = self._named(name, step.view)
        known = next((one[1] for one in schedule.triggers if one[0] == token), None)
        if known is not None:
            return [TRIGGERED, known]
        at_ms = step.stamp_ms
        fields = schedule.fields_of(at_ms, is_triggered=True)
        message_id = self._appends.store(step, fields, at_ms)
        schedule.triggers = [*schedule.triggers, [token, message_id]][-TRIGGERS:]
        schedule.note(at_ms, at_ms, TRIGGERED, message_id)
        step.view.put(key_of(name), schedule.row())
        return [TRIGGERED, message_id]

    def _replan(self, step: Step, item: Sequence[Any]) -> list[Any]:
        """Set a new next occurrence after a clock reset."""
        name, seen_version, seen_ms, next_ms, fire_ms, last_ms, done = item
        schedule = self.find(name, step.view)
        if schedule is None or self._is_other(schedule, seen_version, seen_ms):
            return [STALE]  # the schedule follows the correct time already
        if not self._take_back(step, schedule, None):
            return [TAKEN]
        schedule.last_ms, schedule.gap, schedule.done = last_ms, None, done
        self._plan(step, schedule, next_ms, fire_ms)
        step.view.put(key_of(name), schedule.row())
        return [CHANGED, schedule.version]

    def _fire(self, step: Step, item: Sequence[Any]) -> list[Any]:
        """Complete the next occurrence and send its message. Then set the following occurrence, which the leader
        names."""
        name, seen_version, seen_ms, next_ms, fire_ms, missed = item
        schedule = self.find(name, step.view)
        if schedule is None or seen_ms is None or self._is_other(schedule, seen_version, seen_ms):
            return [STALE]
        stamp_ms = step.stamp_ms
        assert schedule.fire_ms is not None
        if schedule.fire_ms > stamp_ms:
            return [EARLY]
        outcome, message_id = SENT, schedule.made
        if message_id is None:
            outcome = self._fate(step, schedule)
            if outcome == SENT:
                message_id = self._appends.store(step, schedule.fields_of(seen_ms), schedule.fire_ms)
        schedule.missed += missed + (outcome == MISSED)
        self._is_over(step, schedule, outcome, message_id)
        if next_ms is not None and (missed or outcome == MISSED):
            schedule.gap = [seen_ms - (outcome == MISSED), next_ms]
        self._plan(step, schedule, next_ms, fire_ms)
        step.view.put(key_of(name), schedule.row())
        return [FIRED, outcome]

    # -- helpers --------------------------------------------------------------------------------------------------

    def _fate(self, step: Step, schedule: Schedule) -> str:
        """Return the outcome of an occurrence whose message was not stored ahead of its time."""
        assert schedule.fire_ms is not None
        if schedule.settings.get("misfire") == "skip" and step.stamp_ms - schedule.fire_ms > GRACE_MS:
            return MISSED
        group = schedule.settings.get("overlap_group")
        if group is None:
            return SENT
        runs = [schedule.last_id, *[message_id for _, message_id in schedule.triggers]]
        is_running = any([one is not None and self._is_unsettled(step, group, one) for one in runs])
        return SKIPPED if is_running else SENT

    def _is_unsettled(self, step: Step, group_name: str, message_id: bytes) -> bool:
        """Return whether a message is neither acked nor dead in a group."""
        group, found = self._groups.find(group_name), self._log.find_owned(message_id, step.view)
        if group is None or found is None:
            return False
        state = self._pending.state_in(group, found.offset, step.now_ms, step.view)
        return state not in (ACKED, DEAD)

    @staticmethod
    def _is_other(schedule: Schedule, seen_version: int, seen_ms: int | None) -> bool:
        """Return whether a schedule has changed since the leader read it with this version and next occurrence."""
        return (schedule.version, schedule.expected_ms) != (seen_version, seen_ms)

    def _named(self, name: str, view: View) -> Schedule:
        """Return the schedule with this name. Raise NotFound if there is none."""
        schedule = self.find(name, view)
        if schedule is None:
            raise NotFound(f"there is no schedule {name!r}")
        return schedule

    def _new_version(self) -> int:
        """Return a version that no schedule has had yet."""
        version = self._shared.next_seq
        self._shared.next_seq += 1
        return version

    def _take_back(self, step: Step, schedule: Schedule, next_ms: int | None) -> bool:
        """Cancel the message that was stored ahead of its time, or count it as sent if it is due. Return whether this
        was done.

        Nothing is done if the message is due or a consumer has it, unless the leader names a later occurrence. Nothing
        is done either if no message was stored and the occurrence must fire now.
        """
        if schedule.fire_ms is None:
            return True
        if schedule.fire_ms > step.stamp_ms and (schedule.made is None or self._cancel(step, schedule.made)):
            return True
        assert schedule.expected_ms is not None
        if schedule.made is None or (next_ms is not None and next_ms <= schedule.expected_ms):
            return False
        self._is_over(step, schedule, SENT, schedule.made)
        return True

    def _is_over(self, step: Step, schedule: Schedule, outcome: str, message_id: bytes | None) -> None:
        """Record the outcome of the next occurrence, which is completed now."""
        assert schedule.expected_ms is not None
        schedule.fired += 1
        schedule.last_ms = schedule.expected_ms
        schedule.note(schedule.expected_ms, step.stamp_ms, outcome, message_id)

    def _cancel(self, step: Step, message_id: bytes) -> bool:
        """Cancel a message. Return False if it is too late."""
        target = c.TARGET_ID, message_id
        return self._pending.cancel(step, target, U48_MAX).word != TOO_LATE

    def _plan(self, step: Step, schedule: Schedule, next_ms: int | None, fire_ms: int | None) -> None:
        """Set the next occurrence. If its message is sent in any case, store it ahead of its time."""
        self._unplan(step, schedule)
        if schedule.paused or next_ms is None or fire_ms is None:
            return
        schedule.expected_ms, schedule.fire_ms = next_ms, fire_ms
        key = fire_key(fire_ms, schedule.name)
        step.view.put(key, b"")
        if key < self._from_key:
            self._from_key, self._is_first = key, True
        if schedule.is_ahead:
            schedule.made = self._appends.store(step, schedule.fields_of(next_ms), fire_ms)

    def _unplan(self, step: Step, schedule: Schedule) -> None:
        """Remove the next occurrence. A message that was stored ahead of its time stays."""
        if schedule.fire_ms is not None:
            key = fire_key(schedule.fire_ms, schedule.name)
            step.view.delete(key)
            if key == self._from_key:
                self._is_first = False
        schedule.expected_ms = schedule.fire_ms = schedule.made = None

    def _find_next(self, step: Step) -> None:
        """Find the time at which the next schedule fires."""
        stop = rows.tag_bounds(rows.FIRE)[1]
        if not self._is_first:
            found = step.view.scan(self._from_key, stop, limit=1, max_bytes=1 << 20)
            self._from_key, self._is_first = found[0][0] if found else stop, True
        self.next_ms = fire_of(self._from_key)[0] if self._from_key < stop else None
