"""Administration of groups: they are created, moved, configured, paused and deleted."""

from __future__ import annotations

from operator import itemgetter

from sandq.model import offsets
from sandq.model.errors import InvalidRequest
from sandq.model.limits import FIXED
from sandq.model.retries import RetryRules
from sandq.model.unfinished import unfinished_conflict
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.base.step import Step
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.jobs.jobs import Jobs
from sandq.partition.log.message_log import MessageLog
from sandq.partition.reader.reader import cursor_before
from sandq.partition.records.leases import Waiting
from sandq.partition.records.packed_ranges import PackedRanges
from sandq.partition.shared_state import SharedState


class GroupAdmin:
    def __init__(self, shared: SharedState, group_state: GroupState, log: MessageLog, jobs: Jobs) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._leases = group_state.leases
        self._waiting = group_state.waiting
        self._kept = group_state.kept
        self._outbox = group_state.outbox
        self._log = log
        self._jobs = jobs

    def open_group(self, step: Step, command: c.OpenGroup) -> int:
        """Create a group unless it exists, and return its id. Raise InvalidRequest if there are too many groups, or if
        the start is an offset of another partition."""
        group = self._groups.find(command.group)
        if group is None:
            if len(self._groups.by_id) >= FIXED.groups_per_topic:
                raise InvalidRequest(
                    f"group {command.group!r} is one too many: a topic has {FIXED.groups_per_topic} groups at most "
                    "(groups_per_topic, which is fixed); delete some, or have unused ones go by themselves (group_ttl)",
                    limit="groups_per_topic",
                    maximum=FIXED.groups_per_topic,
                )
            group = self._groups.create(command.group, self._cursor(command.start, step.latest_offset))
            if command.paused:
                self._pause(step, group, command.until_ms)
        group.use(step)
        self._groups.store(step, group)
        return group.group_id

    def seek(self, step: Step, command: c.Seek) -> bytes:
        """Move the cursor of a group, and return the new cursor. Revoke its leases and delete its waiting messages."""
        view = step.view
        group = self._groups.named(command.group)
        if group.seeking:
            raise InvalidRequest(f"group {group.name!r} is being put elsewhere already; wait until that is done")
        above = self._cursor(command.to, step.latest_offset, clamped=False)
        cursor = max(above, self._log.state.trimmed)
        gone: list[Range] = []
        by_rules: dict[RetryRules | None, list[Range]] = {}
        for lease in list(group.leases.values()):
            taken = self._take_kept(step, group, lease.select(lease.live), lease.kept, above, cursor)
            by_rules.setdefault(lease.retry, []).extend(taken)
            gone += taken
            self._leases.revoke(step, lease)
        for entry in list(group.waiting.values()):
            waiting = self._waiting.take(step, group, entry, entry.ranges.messages)
            taken = self._take_kept(step, group, waiting, entry.kept, above, cursor)
            by_rules.setdefault(entry.retry, []).extend(taken)
            gone += taken
        blocked, kept, still_blocked = dict(group.order.blocked), set(group.order.kept), []
        group.order.clear()
        for offset in blocked:
            if self._take_kept(step, group, [Range(offset, 1)], offset in kept, above, cursor):
                still_blocked.append(offset)
            else:
                view.delete(rows.of_group(rows.BLOCKED, group.group_id, offset))
        group.gaps.clear(step)
        was_ready = 0
        if group.ready is not None:
            was_ready = group.ready.messages
            group.ready.clear(step)
        group.reader.seek(cursor)
        group.generation += 1
        if group.is_expired:
            group.use(step)
        if gone:
            # The log rows of these messages were trimmed or swept. So the group keeps them, and delivers them again.
            in_order = [(min(alike), rules) for rules, alike in by_rules.items() if alike]
            for _, rules in sorted(in_order, key=itemgetter(0)):
                ranges = PackedRanges(sorted(by_rules[rules]))
                again = Waiting(step.now_ms, 0, 0, None, ranges, step.now_ms, kept=True, retry=rules)
                self._waiting.add(step, group, again)
            swept = [one for one in sorted(gone) if one.base > cursor]
            if swept:
                group.gaps.add(step, swept)
            if self._shared.is_ordered:
                group.start_keys(gone, True, view)
        for offset in sorted(still_blocked):
            group.order.load(offset, blocked[offset], kept=True)
        if group.dead.total() or was_ready or group.spilled.messages:
            group.seeking = True
            self._jobs.start_own(step, "seek", {"group_id": group.group_id, "above": above})
        self._groups.store(step, group)
        return cursor

    def drop(self, step: Step, name: str, *, unless_unfinished: bool = False) -> None:
        """Delete a group with its leases, waiting and dead messages. Raise Conflict if `unless_unfinished` is given and
        the group has received messages that it has not finished."""
        group = self._groups.named(name)
        if unless_unfinished and group.unfinished:
            raise unfinished_conflict(name, group.unfinished)
        for lease in list(group.leases.values()):
            self._leases.revoke(step, lease)
        self._groups.remove(step, group)
        self._jobs.start_own(step, "drop", {"group_id": group.group_id})

    def configure(self, step: Step, command: c.ConfigureGroup) -> None:
        """Replace the group's settings. Raise UnknownGroup if there is no such group."""
        group = self._groups.named(command.group)
        group.settings = command.settings
        self._groups.limit_keys(group)
        self._groups.store(step, group)

    def pause(self, step: Step, command: c.PauseGroup) -> None:
        """Pause or resume a group, as an operator says. Pausing and resuming count as use of the group. Raise
        UnknownGroup if there is no such group."""
        group = self._groups.named(command.group)
        group.pause(False, None)
        if command.paused:
            self._pause(step, group, command.until_ms)
        group.use(step)
        self._groups.store(step, group)

    @staticmethod
    def _pause(step: Step, group: Group, until_ms: int | None) -> None:
        """Pause a group, unless the end of the pause has passed."""
        if until_ms is None or until_ms > step.now_ms:
            group.pause(True, until_ms)

    def touch(self, step: Step, command: c.Touch) -> None:
        """Record that groups are in use. Ignore names of groups that do not exist."""
        for name in command.groups:
            group = self._groups.find(name)
            if group is not None:
                group.use(step)
                self._groups.store(step, group)

    def idle_ms(self) -> int | None:
        """Return the time in ms at which the first group will be deleted because it is unused. None if no group will
        be."""
        ttl_ms = self._shared.settings["group_ttl_ms"]
        if ttl_ms is None:
            return None
        first = self._groups.longest_unused
        return None if first is None else first.touched_ms + ttl_ms

    def drop_idle(self, step: Step) -> bool:
        """Delete one group that was unused for `group_ttl`. Return whether there was such a group.

        Two kinds of groups are kept for another `group_ttl`: paused groups, and groups with dead messages while the
        outbox is not empty. A group with unfinished messages expires `group_ttl` after the last of these messages was
        due, but is not deleted.
        """
        now_ms = step.now_ms
        idle_ms = self.idle_ms()
        if idle_ms is None or idle_ms > now_ms:
            return False
        group = self._groups.longest_unused
        assert group is not None
        if group.paused or (self._outbox.messages and group.dead.total()):
            group.touched_ms = now_ms
            self._groups.store(step, group)
            return True
        if group.unfinished:
            due_ms, ttl_ms = group.latest_due_ms(step.view), idle_ms - group.touched_ms
            if due_ms + ttl_ms > now_ms:
                group.touched_ms = due_ms
            else:
                group.touched_ms, group.is_expired = now_ms, True  # from now on the log may be trimmed
            self._groups.store(step, group)
            return True
        self.drop(step, group.name)
        return True

    def _cursor(self, to: c.Position, latest: bytes, *, clamped: bool = True) -> bytes:
        """Return the cursor of a group that continues at a position. The cursor is never above `latest`. If `clamped`,
        it is never inside the trimmed part of the log."""
        cursor: bytes = latest
        if isinstance(to, bytes):
            parts = offsets.unpack(to)
            if parts.partition != self._log.partition:
                raise InvalidRequest(
                    f"offset {offsets.to_text(to)} is of partition {parts.partition}, not of {self._log.partition}"
                )
            cursor = cursor_before(to)
        elif isinstance(to, int):
            cursor = cursor_before(offsets.pack(to, 0, 0, 0))
        elif to == "earliest":
            cursor = offsets.FIRST
        elif to != "latest":
            raise InvalidRequest(f"{to!r} is no place: earliest, latest, an instant or an offset is expected")
        return min(max(cursor, self._log.state.trimmed) if clamped else cursor, latest)

    def _take_kept(
        self, step: Step, group: Group, ranges: list[Range], kept: bool, above: bytes, cursor: bytes
    ) -> list[Range]:
        """Return messages that are only in rows of the group, and will be delivered again after a seek. Delete the
        other rows."""
        view = step.view
        if not kept:
            return []
        again: list[Range] = []
        for base, length in ranges:
            for offset in offsets.run(base, length):
                if above < offset and (offset <= cursor or not self._kept.is_in_log(offset, view)):
                    again.append(Range(offset, 1))
                else:
                    self._kept.drop(step, group, offset)
        return again
