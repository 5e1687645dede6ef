"""Redrives and purges dead messages. A job handles the dead messages of a group in bounded parts. Messages named by
their ids are handled immediately.

A redriven message is ready again, with attempt 0, in a row that its group keeps. The row also contains the life that
has ended. A purged message is deleted completely. Outcomes for named messages: `["redriven", id]`, `["purged", id]`;
`["not_dead", state]` if the group holds the message in another state (leased, waiting or ready, for example after an
earlier redrive), or if the message is being sent to the dead letter topic (forwarded); `["not_found", nil]`; and
`["not_yet", nil]` if the preceding messages together were too large, or the outbox has no capacity for the message: the
caller must ask again.
"""

from __future__ import annotations

from sandq.model import offsets
from sandq.model.errors import Overloaded, Unavailable
from sandq.model.limits import FIXED
from sandq.model.retries import RetryRules, rules_of
from sandq.partition.base import rows
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.commands import PurgeDead, RedriveDead
from sandq.partition.groups import dead_letters
from sandq.partition.groups.dead_letters import DeadFilter, DeadMessage
from sandq.partition.groups.group import SEEKING, Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.jobs.job import Job
from sandq.partition.pending.pending import READY
from sandq.partition.records.claim import LEASED, NOT_DEAD, NOT_FOUND, PURGED, REDRIVEN, WAITING, Outcome
from sandq.partition.records.leases import Made, Waiting, merged
from sandq.partition.records.packed_ranges import PackedRanges
from sandq.partition.shared_state import NOT_YET, SLICE_READS, SharedState

WAITING_RANGES = 9000
"""A redrive pauses while the group has this many waiting ranges. More than eight tenants with failing messages can
reach this number."""
PAUSE_MS = 1000
EACH_BYTES = 8 << 20
"""Maximum bytes of named dead messages that one command handles. The next command handles the rest."""

FORWARDED = "forwarded"
"""State of a dead message that may have been sent to the dead letter topic. Its row is deleted once that is certain."""


class Redrive:
    def __init__(self, shared: SharedState, group_state: GroupState) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._waiting = group_state.waiting
        self._kept = group_state.kept
        self._dead = group_state.dead

    def run(self, step: Step, job: Job, most: int, most_bytes: int) -> bool:
        """Redrive or purge the dead messages of a group that a job selects, at most `most`. Return whether the job is
        done."""
        now_ms = step.now_ms
        arguments = job.arguments
        group = self._groups.by_id.get(arguments["group_id"])
        if group is None:
            return True
        if group.seeking:
            # The log delivers messages that died above the new cursor again, so they must not be redriven as well.
            job.next_ms = now_ms + PAUSE_MS
            return False
        allowed = self._allowed(step, job, group, most)
        if allowed <= 0:
            return False
        found = dead_letters.scan(group.group_id, job.position or None, most, most_bytes, step.view)
        chosen: list[DeadMessage] = []
        sends = job.kind == "redrive" and not arguments["dry_run"]
        again = again_bytes = 0
        is_cut = False  # True: the loop ended early, because the outbox has no capacity for the next message
        which = DeadFilter._make(map(arguments.get, DeadFilter._fields))
        for at, message in enumerate(found):
            # Skip messages that died after the job began, or that may have been sent to the dead letter topic.
            is_there = message.dead_ms <= job.started_ms and not self._dead.is_leaving(message)
            if is_there and which.takes(message):
                if sends and message.sent_to is not None:
                    again, again_bytes = again + 1, again_bytes + message.size
                    if not self._dead.may_send_again(again, again_bytes):
                        job.next_ms, found = now_ms + PAUSE_MS, found[:at]
                        is_cut = True
                        break
                chosen.append(message)
                if len(chosen) == allowed:
                    found = found[: at + 1]
                    break
        job.matched += len(chosen)
        if chosen and not arguments["dry_run"]:
            (self.redrive if job.kind == "redrive" else self.purge)(step, group, chosen)
            job.done += len(chosen)
        if found:
            job.position = found[-1].offset
        return not found and not is_cut

    def _allowed(self, step: Step, job: Job, group: Group, most: int) -> int:
        """Return how many dead messages may be handled now. If none may, set the time of the job's next step."""
        rate = job.arguments.get("rate")
        if job.kind != "redrive" or job.arguments["dry_run"]:
            return most
        if group.waiting_ranges >= WAITING_RANGES:
            job.next_ms = step.now_ms + PAUSE_MS
            return 0
        if rate is None:
            return most
        allowed = rate * (step.now_ms - job.started_ms) // 1000 + 1 - job.done
        if allowed <= 0:
            job.next_ms = job.started_ms + -(-job.done * 1000 // rate)
        return min(int(allowed), most)

    def each(self, step: Step, command: RedriveDead | PurgeDead) -> list[Outcome]:
        """Redrive or purge dead messages by their ids, and return an outcome for each (see the module's docstring).
        Raise UnknownGroup, or Unavailable while the group cannot accept them."""
        view, now_ms = step.view, step.now_ms
        group = self._groups.named(command.group)
        if group.seeking:
            raise Unavailable(f"group {group.name!r}: {SEEKING}; ask again in a moment")
        is_redrive = isinstance(command, RedriveDead)
        if is_redrive and group.waiting_ranges >= WAITING_RANGES:
            raise Unavailable(
                f"{group.waiting_ranges} ranges of messages wait in group {group.name!r} (limit {WAITING_RANGES} of a "
                "redrive); ask again when there are fewer"
            )
        chosen: dict[bytes, DeadMessage] = {}
        outcomes: list[Outcome] = []
        size = again = again_bytes = 0
        for message_id in self._shared.in_slices(command.ids, SLICE_READS):
            if size >= EACH_BYTES:
                outcomes.append(Outcome(NOT_YET))
                continue
            message = self._find(group, message_id, view)
            if message is None:
                outcomes.append(self._not_dead(group, message_id, now_ms, view))
                continue
            if self._dead.is_leaving(message):
                outcomes.append(Outcome(NOT_DEAD, FORWARDED))
                continue
            if is_redrive and message.sent_to is not None and message.offset not in chosen:
                again, again_bytes = again + 1, again_bytes + message.size
                if not self._dead.may_send_again(again, again_bytes):
                    if not chosen:
                        raise Overloaded(
                            f"the outbox of the partition is full of messages that acks send (limits "
                            f"{FIXED.outbox_messages} messages and {FIXED.outbox_bytes} bytes); ask again in a moment"
                        )
                    outcomes.append(Outcome(NOT_YET))
                    continue
            if message.offset not in chosen:
                chosen[message.offset] = message
                size += message.size
            outcomes.append(Outcome(REDRIVEN if is_redrive else PURGED, message.id))
        if chosen:
            messages = [chosen[offset] for offset in sorted(chosen)]
            (self.redrive if is_redrive else self.purge)(step, group, messages)
        return outcomes

    def _find(self, group: Group, message_id: bytes, view: View) -> DeadMessage | None:
        """Return a dead message of a group by its id. None if there is none."""
        found = dead_letters.find(group, self._offset_of(message_id, view), view)
        return found if found is None or found.id == message_id else None

    def _offset_of(self, message_id: bytes, view: View) -> bytes:
        """Return the current offset of a message."""
        moved = view.get(rows.MOVED + message_id)
        return message_id if moved is None else rows.load_moved(moved).offset

    def _not_dead(self, group: Group, message_id: bytes, now_ms: int, view: View) -> Outcome:
        """Return the outcome for a message that is not dead in the group."""
        holder = group.holder_of(self._offset_of(message_id, view), view)
        if holder is None:
            return Outcome(NOT_FOUND)
        if isinstance(holder, Waiting):
            return Outcome(NOT_DEAD, WAITING if holder.due_ms > now_ms else READY)
        return Outcome(NOT_DEAD, LEASED)

    def redrive(self, step: Step, group: Group, messages: list[DeadMessage]) -> None:
        """Make dead messages ready again, with attempt 0, in rows that their group keeps. If a message died before its
        time, which a clock reset may cause, it waits until its time."""
        view, now_ms = step.view, step.now_ms
        alike: dict[tuple[int, RetryRules | None], list[bytes]] = {}
        for message in messages:
            if message.sent_to is not None:
                self._dead.send_again(step, group, message)
                self._take(step, group, message)
                continue
            due_ms = max(offsets.deliver_ms(message.offset), now_ms)
            alike.setdefault((due_ms, rules_of(message.fields)), []).append(message.offset)
            self._take(step, group, message)
            kept = message.kept_row(now_ms)
            view.put(rows.of_group(rows.KEPT, group.group_id, message.offset), kept)
            order = rows.order_of(message.fields) if self._shared.is_ordered else None
            if order is not None:
                group.order.start(message.offset, order)
        for (due_ms, retry), found in alike.items():
            ranges = PackedRanges(merged(found))
            made = None if due_ms == now_ms else Made(0, due_ms)
            entry = Waiting(due_ms, 0, 0, None, ranges, now_ms, kept=True, made=made, retry=retry)
            self._waiting.add(step, group, entry)
        self._groups.store(step, group)

    def purge(self, step: Step, group: Group, messages: list[DeadMessage]) -> None:
        """Delete dead messages."""
        for message in messages:
            self._take(step, group, message)
            self._kept.expire_move(step, message.offset, message.id)
        self._groups.store(step, group)

    def _take(self, step: Step, group: Group, message: DeadMessage) -> None:
        """Remove a dead message from its row, from the outbox and from the counts."""
        self._dead.withdraw(step, message)
        dead_letters.delete_row(step, group, message)
        group.dead[message.reason] -= 1
