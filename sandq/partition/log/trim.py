"""Trimming: deletes the oldest messages of the log that every group is done with and that no setting keeps.

With `delete_on_ack`, these are messages that all groups acked at least `retention` ago. Otherwise these are messages
older than `retain`, or in excess of `retain_bytes`. A message is trimmed only if every group is done with it. If a
message is leased, waits or is blocked by its key for long, it is copied into a row of the group, so that the log after
it can be trimmed. Nothing above a hold is trimmed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Any

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.base.rows import LogEntry, Range
from sandq.partition.base.step import Step
from sandq.partition.base.view import Row
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.unique_keys import UniqueKeys
from sandq.partition.log.holds import Holds
from sandq.partition.log.message_log import MessageLog
from sandq.partition.log.sweep import Sweeper
from sandq.partition.log.trim_schedule import SAMPLES, TrimSchedule
from sandq.partition.reader.reader import FILL_TOMBSTONES, tombstones
from sandq.partition.records.leases import Lease, Waiting
from sandq.partition.shared_state import SharedState

TRIM_ROWS = 1000
TRIM_BYTES = 8 << 20
"""Maximum bytes of rows that are read in order to be deleted."""
PIN_MS = 60_000
"""Time in ms after its first lease, at which an unsettled message is copied into a row of its group."""
UNPIN_MESSAGES = 1000
UNPIN_BYTES = 8 << 20


class Trimmer:
    def __init__(
        self,
        shared: SharedState,
        group_state: GroupState,
        log: MessageLog,
        holds: Holds,
        unique: UniqueKeys,
        schedule: TrimSchedule,
    ) -> None:
        self._shared = shared
        self._schedule = schedule
        self._groups = group_state.groups
        self._leases = group_state.leases
        self._waiting = group_state.waiting
        self._kept = group_state.kept
        self._summaries = group_state.summaries
        self._unique = unique
        self._log = log
        self._holds = holds
        self._sweeper = Sweeper(shared, group_state, log, holds, unique)
        self._done: list[tuple[int, bytes]] = []
        """(time in ms, offset below which every group was done with all messages at that time), in ascending order."""

    def state(self) -> tuple[Any, ...]:
        """Return the values to store in the state row."""
        state = self._schedule.due_ms, self._done
        return state if self._shared.rank is None else (*state, self._sweeper.state())

    def load(self, state: Sequence[Any]) -> None:
        """Restore the values that `state` returned."""
        self._schedule.due_ms, self._done = state[0], [(ms, offset) for ms, offset in state[1]]
        if len(state) > 2:
            self._sweeper.load(state[2])

    def set_back(self, step: Step) -> None:
        """Adjust to a clock reset, which sets the partition's time back to that of `step`. The times at which messages
        were done are no longer known, so keep these messages for the whole `retention` from now on."""
        self._done = []
        self._sweeper.set_back()
        self._schedule.due_ms = step.now_ms if self._schedule.trims else None

    def trim(self, step: Step) -> None:
        """Trim a bounded number of rows, if a trim is due."""
        now_ms = step.now_ms
        if self._schedule.due_ms is None or self._schedule.due_ms > now_ms:
            return
        self._schedule.due_ms = None
        limit = self._limit(step)
        if limit is not None:
            is_behind = self._trim(step, limit)
            self._move_expired(step)
            if is_behind or self._unpin(step):
                self._schedule.due_ms = now_ms
                return
            if self._sweeper.is_due:
                self._sweeper.sweep(step)
                self._schedule.due_ms = now_ms
                return
            self._schedule.due_ms = self._next_pin_ms()
        if self._schedule.keeps and (self._groups.by_id or not self._settings["delete_on_ack"]):
            # The first row may become deletable without any event, but not before its delivery time.
            start = rows.after(rows.log_key(self._log.state.trimmed))
            first = step.view.scan(start, rows.tag_bounds(rows.LOG)[1], limit=1, max_bytes=1)
            if first:
                self._schedule.due_ms = max(now_ms + self._schedule.pause_ms, offsets.deliver_ms(first[0][0][1:]))

    # -- limit of a trim ------------------------------------------------------------------------------------------

    @property
    def _settings(self) -> dict[str, object]:
        return self._shared.settings

    def _limit(self, step: Step) -> bytes | None:
        """Return the offset below which groups and `retention` allow rows to be deleted. None if no row may be
        deleted."""
        now_ms = step.now_ms
        done = self._summaries.done_below()
        settings = self._settings
        if not settings["delete_on_ack"]:
            if not self._schedule.keeps:
                return None
            return done if done is not None else offsets.pack(now_ms, 0, 0, 0)
        retention_ms = settings["retention_ms"]
        assert isinstance(retention_ms, int)
        if done is None or not retention_ms:
            return done
        if not self._done or now_ms - self._done[-1][0] >= retention_ms // SAMPLES:
            self._done.append((now_ms, done))
        old = [offset for ms, offset in self._done if ms + retention_ms <= now_ms]
        self._done = self._done[max(len(old) - 1, 0) :]
        # After a seek, a group may have messages below that offset again, so also apply the current limit.
        return min(old[-1], done) if old else None

    def _is_wanted(self, entry: LogEntry, now_ms: int) -> bool:
        """Return whether a setting keeps a row that every group is done with."""
        settings = self._settings
        if settings["delete_on_ack"]:
            return False
        retain_ms, retain_bytes = settings["retain_ms"], settings["retain_bytes"]
        too_old = isinstance(retain_ms, int) and offsets.deliver_ms(entry.first) + retain_ms <= now_ms
        too_much = isinstance(retain_bytes, int) and self._log.state.bytes > retain_bytes
        return not (too_old or too_much)

    # -- rows -----------------------------------------------------------------------------------------------------

    def _trim(self, step: Step, limit: bytes) -> bool:
        """Delete a bounded number of rows below `limit`. Return whether there may be more."""
        now_ms = step.now_ms
        state = self._log.state
        # A hold below the trimmed part has no effect on it.
        held = max(self._holds.lowest, state.trimmed)
        limit = min(limit, rows.after(held))
        # Start where the last trim ended. A scan from the start of the log would step over all rows deleted so far.
        start = rows.after(rows.log_key(state.trimmed))
        found = step.view.scan(start, rows.log_key(limit), limit=TRIM_ROWS, max_bytes=TRIM_BYTES)
        if not found:
            return self._trim_tombstones(step, limit)
        gone = tombstones(step.view, state.trimmed, rows.last_of(rows.log_entry(*found[-1])), FILL_TOMBSTONES)
        complete = gone[-1] if len(gone) == FILL_TOMBSTONES else offsets.LAST
        plain = self._plain(found) if not gone and self._settings["delete_on_ack"] else 0
        self._delete_plain(step, found[:plain])
        more = True
        for key, value in found[plain:]:
            entry = rows.log_entry(key, value)
            last = rows.last_of(entry)
            # If a hold lies within the row, also keep the tombstones at the end of the row: otherwise `trimmed` would
            # move above the hold.
            if _last_left(entry, gone) >= limit or last > held or self._is_wanted(entry, now_ms):
                more = False
                break
            if last > complete:
                # Too many tombstones precede the end of the row. Continue with the row when the tombstones before it
                # are deleted.
                state.trimmed = max(state.trimmed, gone[bisect_left(gone, entry.first) - 1])
                break
            here = bisect_right(gone, last) - bisect_left(gone, entry.first) if gone else 0
            self._delete(step, key, value, entry, here)
            if entry.extra is not None:
                self._unique.release(step, entry.extra, entry.first)
        for offset in gone[: bisect_right(gone, state.trimmed)]:
            self._log.drop_tombstone(step, offset)
        self._log.counts.drop_before(step, offsets.deliver_ms(state.trimmed) // 1000)
        return more

    def _plain(self, found: list[Row]) -> int:
        """Return how many of the first rows are plain."""
        if rows.are_plain([value for _, value in found]):
            return len(found)
        return next(at for at, (_, value) in enumerate(found) if not rows.is_plain(value))

    def _delete_plain(self, step: Step, found: list[Row]) -> None:
        """Delete plain log rows. No other rows exist for such messages. The caller has checked that they may go."""
        if not found:
            return
        state, last = self._log.state, found[-1][0][1:]
        self._log.delete_rows(step, found)
        state.messages -= len(found)
        state.bytes -= sum([len(value) for _, value in found])
        state.trimmed = last
        second = offsets.deliver_ms(last) // 1000
        begin = rows.log_key((second * 1000 << 80).to_bytes(16, "big"))
        before = bisect_left(found, begin, key=_key)
        known = state.gone[1] if not before and state.gone[0] == second else 0
        state.gone = (second, len(found) - before + known)

    def _trim_tombstones(self, step: Step, limit: bytes) -> bool:
        """Delete tombstones below `limit`, where no rows are left. Return whether there may be more."""
        state = self._log.state
        found = tombstones(step.view, state.trimmed, limit, FILL_TOMBSTONES)
        gone = found[: bisect_left(found, limit)]
        for offset in gone:
            self._log.drop_tombstone(step, offset)
            state.trimmed = max(state.trimmed, offset)
        return len(gone) == FILL_TOMBSTONES

    def _delete(self, step: Step, key: bytes, value: bytes, entry: LogEntry, gone: int) -> None:
        """Delete a log row, `gone` messages of which were removed before."""
        state = self._log.state
        self._log.delete_row(step, key, len(value), entry.length if value[0] == rows.KIND_BATCH else 0)
        state.messages -= entry.length - gone
        state.bytes -= entry.size - gone * entry.unit
        state.trimmed = rows.last_of(entry)
        second = offsets.deliver_ms(state.trimmed) // 1000
        state.gone = (second, entry.length - gone + (state.gone[1] if state.gone[0] == second else 0))
        if value[0] == rows.KIND_MESSAGE:
            message_id = rows.id_of(key, value)
            step.view.delete(rows.PAYLOAD + message_id)
            self._kept.expire_move(step, entry.first, message_id)

    def _move_expired(self, step: Step) -> None:
        """Move the cursors of expired groups to the end of the trimmed rows, which these groups may have read ahead."""
        for group_id in sorted(self._groups.expired):
            group = self._groups.by_id[group_id]
            if group.cursor < self._log.state.trimmed:
                group.reader.seek(self._log.state.trimmed)
                group.gaps.clear_passed(step, group.cursor)
                self._groups.store(step, group)

    # -- pins -----------------------------------------------------------------------------------------------------

    def _next_pin_ms(self) -> int | None:
        """Return when the first of the messages that keep the log will be copied into a row of its group, in ms."""
        since_ms = self._summaries.pinned_since_ms()
        return None if since_ms is None else since_ms + PIN_MS

    def _unpin(self, step: Step) -> bool:
        """Copy old messages that keep the log into rows of their groups. Return whether there were any."""
        now_ms = step.now_ms
        messages = size = 0
        for group in self._summaries.pinning(now_ms - PIN_MS):
            holders: list[Lease | Waiting] = [*group.leases.values(), *group.waiting.values()]
            for holder in holders:
                if holder.kept or holder.since_ms + PIN_MS > now_ms:
                    continue
                if messages >= UNPIN_MESSAGES or size >= UNPIN_BYTES:
                    return True
                kept, kept_bytes = self._keep(step, group, holder)
                messages += kept
                size += kept_bytes
            while (offset := group.order.lowest_logged()) is not None:
                if offsets.deliver_ms(offset) + PIN_MS > now_ms:
                    break
                if messages >= UNPIN_MESSAGES or size >= UNPIN_BYTES:
                    return True
                messages += 1
                size += self._keep_blocked(step, group, offset)
        return messages > 0

    def _keep(self, step: Step, group: Group, holder: Lease | Waiting) -> tuple[int, int]:
        """Copy the messages of a lease or a waiting entry. Return their number and their bytes."""
        ranges = holder.select(holder.live) if isinstance(holder, Lease) else list(holder.ranges)
        count, size = self._copy(step, group, ranges)
        holder.kept = True
        group.note_change()
        if isinstance(holder, Lease):
            self._leases.store(step, holder)
        else:
            self._waiting.store(step, group, holder)
        return count, size

    def _keep_blocked(self, step: Step, group: Group, offset: bytes) -> int:
        """Copy a message that is blocked by its key. Return its bytes."""
        _, size = self._copy(step, group, [Range(offset, 1)])
        step.view.put(rows.of_group(rows.BLOCKED, group.group_id, offset), rows.pack(group.order.blocked[offset], True))
        group.order.keep(offset)
        return size

    def _copy(self, step: Step, group: Group, ranges: list[Range]) -> tuple[int, int]:
        """Put messages of the log into rows of a group. Return their number and their bytes."""
        copied = [
            self._kept.put(step, group, message) for message in self._log.reader.messages(step.view, ranges, timed=True)
        ]
        return len(copied), sum(copied)


def _key(row: Row) -> bytes:
    """Return the key of a row, for a search."""
    return row[0]


def _last_left(entry: LogEntry, gone: list[bytes]) -> bytes:
    """Return the offset of the last message of a row that is not in `gone`, the offsets with tombstones. If all
    messages were removed, return the first offset.

    Removed messages at the end of a row are never leased, so a group's cursor may stay below them.
    """
    last = rows.last_of(entry)
    following = bisect_right(gone, last)
    while following and gone[following - 1] == last and last > entry.first:
        last, following = offsets.shift(last, -1), following - 1
    return last
