"""Redrive and purge dead letters: a job takes those of a group out of their rows, a bounded part at a time.

A redriven one is ready again, attempt 0, in a row that its group keeps; of a purged one nothing stays.
"""

from __future__ import annotations

from sandq.model import offsets
from sandq.partition import rows
from sandq.partition.groups import dead_letters
from sandq.partition.groups.dead_letters import DeadMessage
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.leases import Made, Waiting, merged
from sandq.partition.groups.packed_ranges import PackedRanges
from sandq.partition.jobs.job import Job
from sandq.partition.levels import CLOCK_RESET, CROWDING
from sandq.partition.shared_state import SharedState
from sandq.partition.view import View

WAITING_RANGES = 9000
"""A redrive makes a pause while so many ranges of the group wait: more than eight tenants that fail come to."""
WAITING_RANGES_BEFORE = 5000
"""Below the level `CROWDING`."""
PAUSE_MS = 1000


class Redrive:
    def __init__(self, shared: SharedState, group_state: GroupState) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._waiting = group_state.waiting
        self._kept = group_state.kept

    def step(self, job: Job, most: int, most_bytes: int, now_ms: int, view: View) -> bool:
        """Redrive or purge dead messages of a group, by reason and time of death: so many at most. Whether that was
        all."""
        arguments = job.arguments
        group = self._groups.by_id.get(arguments["group_id"])
        if group is None:
            return True
        if group.seeking:
            # What died above the new cursor comes from the log again: it must not be redriven as well.
            job.next_ms = now_ms + PAUSE_MS
            return False
        allowed = self._allowed(job, group, most, now_ms)
        if allowed <= 0:
            return False
        found = dead_letters.scan(group.group_id, job.position or None, most, most_bytes, view)
        chosen: list[DeadMessage] = []
        for at, message in enumerate(found):
            if (
                arguments["reason"] in (None, message.reason)
                and arguments["from_ms"] <= message.dead_ms < arguments["until_ms"]
                and message.dead_ms <= job.started_ms
            ):
                chosen.append(message)
                if len(chosen) == allowed:
                    found = found[: at + 1]
                    break
        job.matched += len(chosen)
        if chosen and not arguments["dry_run"]:
            (self.redrive if job.kind == "redrive" else self.purge)(group, chosen, now_ms, view)
            job.done += len(chosen)
        if found:
            job.position = found[-1].offset
        return not found

    def _allowed(self, job: Job, group: Group, most: int, now_ms: int) -> int:
        """How many dead messages may be taken now; sets when to go on."""
        rate = job.arguments.get("rate")
        if job.kind != "redrive" or job.arguments["dry_run"]:
            return most
        most_waiting = WAITING_RANGES if self._shared.level >= CROWDING else WAITING_RANGES_BEFORE
        if group.waiting_ranges >= most_waiting:
            job.next_ms = now_ms + PAUSE_MS
            return 0
        if rate is None:
            return most
        allowed = rate * (now_ms - job.started_ms) // 1000 + 1 - job.done
        if allowed <= 0:
            job.next_ms = job.started_ms + -(-job.done * 1000 // rate)
        return min(int(allowed), most)

    def redrive(self, group: Group, messages: list[DeadMessage], now_ms: int, view: View) -> None:
        """Make dead messages ready again, attempt 0, in rows that their group keeps: those that died too early, under a
        clock that was set back since, when their time comes."""
        by_due: dict[int, list[bytes]] = {}
        for message in messages:
            due_ms = now_ms
            if self._shared.level >= CLOCK_RESET:
                due_ms = max(offsets.deliver_ms(message.offset), now_ms)
            by_due.setdefault(due_ms, []).append(message.offset)
            self._take(group, message, view)
            view.put(rows.of_group(rows.KEPT, group.group_id, message.offset), message.kept_row())
            order = rows.order_of(message.fields) if self._shared.is_ordered else None
            if order is not None:
                group.order.start(message.offset, order)
        for due_ms, found in by_due.items():
            ranges = PackedRanges(merged(found))
            made = None if due_ms == now_ms else Made(0, due_ms)
            self._waiting.add(group, Waiting(due_ms, 0, 0, None, ranges, now_ms, kept=True, made=made), view)
        self._groups.store(group, view)

    def purge(self, group: Group, messages: list[DeadMessage], now_ms: int, view: View) -> None:
        """Delete dead messages."""
        for message in messages:
            self._take(group, message, view)
            self._kept.expire_move(message.offset, message.id, now_ms, view)
        self._groups.store(group, view)

    def _take(self, group: Group, message: DeadMessage, view: View) -> None:
        view.delete(rows.of_group(rows.DEAD, group.group_id, message.offset))
        group.dead[message.reason] -= 1
