"""The timer partition: one log in the order of delivery times, and any number of groups that lease and ack messages.

Invariants (the first three carry the promise "never skipped, never early, never leased twice at once"):

* A message is placed at max(its time, `floor_ms`). `floor_ms` is the maximum of all applied stamps and of all delivery
  times that a cursor has passed. In an offset, the Raft index follows the time, so no message is inserted at or below a
  cursor.
* A group's cursor is the last offset that was leased or passed over. A lease takes the messages above the cursor, in
  order.
* A message at or below the cursor is in one live lease, waits, is blocked by its key, is dead, or is acked.
* After every entry, rows and memory have the same state. A partition that is loaded from rows continues exactly like
  the partition that wrote them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sandq.model import offsets
from sandq.model.errors import Conflict, InvalidRequest, NotFound, OutOfSequence, Overloaded, Unavailable
from sandq.model.group_limits import with_newest_limits
from sandq.partition import clock_reset
from sandq.partition import commands as c
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.part_pauses import split_part
from sandq.partition.groups.renewal import Change
from sandq.partition.in_memory import InMemory
from sandq.partition.leasing.lease_grants import LeaseGrants
from sandq.partition.leasing.lease_pauses import LeasePauses, Paused
from sandq.partition.leasing.lease_reclaim import LeaseReclaim
from sandq.partition.leasing.settlement import Lost, Part
from sandq.partition.limits.allowance import LimitPause
from sandq.partition.log.appends import Stored
from sandq.partition.partition_state import PartitionState
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.records.claim import Outcome
from sandq.partition.records.leases import Lease
from sandq.partition.restore.restore_commands import apply_closed
from sandq.partition.sending.acks import SendingAcks
from sandq.partition.sending.forwarding import Forwarding
from sandq.partition.shared_state import NOT_YET

Result = Any
"""Result of a command. Its type depends on the command.

Append: (base, count) or `Stored`. Lease: [Lease]. Ack, Nack, AckThen: lost messages (`settlement.Lost`) per item; Nack
also NOT_YET and `settlement.Part`. Extend: the deadline or None per item. Expire, Release: number of returned messages.
OpenGroup: group id. Cancel, Move: an outcome (`pending`) per message. Upkeep: whether more work is due immediately.
Reclaim: (renewed leases, leases that are left). Seek: the new cursor. StartJob, StopJob: the job. RedriveDead,
PurgeDead: an outcome (`jobs.redrive`) per message. Hold: the offset up to which the log is trimmed. RaiseLevel: the
partition's level. OutboxSent, OutboxRefused: the outcome for the batch (`forwarding`). ClockReset: its outcome, the
floor and the time. Every command: the SandqError that rejected it.
"""
Handlers = dict[type[c.Command], Callable[[Any, Step, Any], Result]]
"""The method that applies each command, by the class of the command."""


class TimerPartition(PartitionState):
    """Applies the entries of a partition's log, one after the other."""

    def __init__(self, partition: int, settings: dict[str, Any], look_aheads: LookAheads | None = None) -> None:
        super().__init__(partition, settings, look_aheads)
        shared, group_state = self.shared, self._group_state
        self._lease_grants = LeaseGrants(shared, group_state, self._unique, self.limits)
        self._lease_pauses = LeasePauses(shared, group_state)
        self._lease_reclaim = LeaseReclaim(shared, group_state, self.settlement)
        self._acks = SendingAcks(shared, self.settlement, self.appends, self.outbox)
        self._forwarding = Forwarding(shared, group_state, self.outbox)
        self._in_memory = InMemory(
            shared, self.groups, group_state, self.log.counts, self.producers, self.dead_retention
        )

    def apply(self, index: int, entry: c.Entry, view: View) -> list[Result]:
        """Apply a committed entry, and return one result per command. If the index was applied before, nothing
        changes."""
        if index <= self.applied_index:
            return []
        stamp_ms = min(entry.now_ms, offsets.U48_MAX)  # the time must fit into an offset, even if the clock is broken
        self.shared.copied_bytes = 0
        if self.is_closed:
            return apply_closed(self, index, entry, stamp_ms, view)
        step = self.first_step(index, view)
        if self.resets.state is None:
            self.advance(step, stamp_ms)
        results: list[Result] = []
        self.results = results
        targets = c.targets_of(entry.commands)
        if targets:
            self.pending.look_ahead(step, targets)
        for command in entry.commands:
            position, grants = step.position, step.grants
            try:
                if self.resets.state is None:
                    result = self.HANDLERS[type(command)](self, step, command)
                else:
                    result = self._while_reset(step, stamp_ms, command)
                results.append(result)
            except (NotFound, InvalidRequest, Conflict, OutOfSequence, Overloaded, Unavailable) as refusal:
                # A rejected command stored nothing and granted nothing, so the next one uses its positions and tokens.
                step.position, step.grants = position, grants
                results.append(refusal)
        if self.outbox.restless:
            self._forwarding.settle(step)
        self._group_state.waiting.store_parted(step)
        self._group_state.spilling.spill(step)
        self.note_applied(step, index)
        return results

    def needs_no_disk(self, entry: c.Entry) -> bool:
        """Return whether `apply` of the next entry, and `status` afterwards, are fast and read no stored rows."""
        return self.resets.state is None and not self.is_closed and self._in_memory.applies(entry)

    # -- messages -------------------------------------------------------------------------------------------------

    def _append(self, step: Step, command: c.Append) -> Result:
        """Store a batch, unless it was stored before, and return its result."""
        before = self.producers.answered(command, step.now_ms, step.view) if command.producer_id else None
        if before is not None:
            return before
        position = step.position
        stored = self._store(step, command)
        if command.producer_id:
            self.producers.stored(step, command, stored, position)
        self.trim_schedule.note_appended(step)
        return stored

    def _store(self, step: Step, command: c.Append) -> tuple[bytes, int] | Stored:
        """Store a batch."""
        return self.appends.append(step, command)

    def _cancel(self, step: Step, command: c.Cancel) -> Result:
        """Cancel messages, and return an outcome per message."""
        last = self.applied_index + self.index_base
        return [self.pending.cancel(step, target, last) for target in self.shared.in_slices(command.targets)]

    def _move(self, step: Step, command: c.Move) -> Result:
        """Move or change messages, and return an outcome per message. Items beyond the entry's budget get NOT_YET."""
        outcomes = []
        for fields in self.shared.in_slices(command.items):
            position = step.next_position()  # each item uses a position, even if it is not moved
            if self.shared.is_budget_spent:
                outcomes.append(Outcome(NOT_YET))
                continue
            target, to_ms, is_delay, priority, changes = c.MoveItem(*fields)
            if is_delay and to_ms is not None:
                to_ms += step.stamp_ms
            change = Change.of(changes)
            outcome = self.pending.move(
                step, target, to_ms, position, is_delay=is_delay, priority=priority, change=change
            )
            outcomes.append(outcome)
        return outcomes

    # -- leases ---------------------------------------------------------------------------------------------------

    def _lease(self, step: Step, command: c.Lease) -> list[Lease]:
        """Grant leases of a group to a consumer, and return them."""
        group = self.groups.named(command.group)
        ended = self._group_state.dead.ended
        leases = self._lease_grants.grant(step, command)
        self.shared.totals.leases += len(leases)
        step.floor_ms = max(step.floor_ms, offsets.deliver_ms(group.cursor))
        if self._group_state.dead.ended != ended:
            self.trim_schedule.note_settled(step)
        return leases

    def _ack(self, step: Step, command: c.Ack) -> list[Lost]:
        """Ack messages, and return the lost messages of each item."""
        self.trim_schedule.note_settled(step)
        return self.settlement.ack(step, command.items)

    def _ack_then(self, step: Step, command: c.AckThen) -> list[Lost]:
        """Ack a lease and store what the ack sends."""
        self.trim_schedule.note_settled(step)
        position = step.position
        lost = self._acks.apply(step, command)
        if step.position > position:
            self.trim_schedule.note_appended(step)
        return lost

    def _nack(self, step: Step, command: c.Nack) -> list[Lost | str | Part]:
        """Nack messages, and return per item: the lost messages, NOT_YET, or the part that was done."""
        self.trim_schedule.note_settled(step)
        return self.settlement.nack(step, command.items)

    def _extend(self, step: Step, command: c.Extend) -> list[int | None]:
        """Extend leases, and return the new deadline of each, in ms. None: the lease was lost."""
        return [self.settlement.extend(step, *c.ExtendItem(*item)) for item in self.shared.in_slices(command.items)]

    def _expire(self, step: Step, command: c.Expire) -> int:
        """End leases whose deadline has passed, and return the number of returned messages."""
        self.trim_schedule.note_settled(step)
        return self.settlement.expire(step)

    def _release(self, step: Step, command: c.Release) -> int:
        """End the leases of a consumer that left, and return the number of returned messages."""
        return self.settlement.release(step, command)

    def _reclaim(self, step: Step, command: c.Reclaim) -> tuple[int, int]:
        """Return (number of renewed leases, number of leases that are left for further commands)."""
        renewed, left, ended = self._lease_reclaim.reclaim(step, command)
        if ended:
            self.trim_schedule.note_settled(step)
        return renewed, left

    # -- groups, jobs and schedules -------------------------------------------------------------------------------

    def _open_group(self, step: Step, command: c.OpenGroup) -> int:
        """Create a group unless it exists, and return its id."""
        return self._admin.open_group(step, command)

    def _seek(self, step: Step, command: c.Seek) -> bytes:
        """Move a group's cursor, and return it."""
        self.trim_schedule.note_settled(step)
        return self._admin.seek(step, command)

    def _drop_group(self, step: Step, command: c.DropGroup) -> None:
        """Delete a group."""
        self.trim_schedule.note_settled(step)
        self._admin.drop(step, command.group, unless_unfinished=command.unless_unfinished)

    def _configure_group(self, step: Step, command: c.ConfigureGroup) -> None:
        self._admin.configure(step, command)

    def _pause_group(self, step: Step, command: c.PauseGroup) -> None:
        self._admin.pause(step, command)

    def _pause_part(self, step: Step, command: c.PausePart) -> None:
        part, key = split_part(command.part)
        self.groups.pause_part(step, self.groups.named(command.group), part, command.until_ms, key)

    def _pause_by_lease(self, step: Step, command: c.PauseByLease) -> list[Paused | None]:
        """Pause parts of groups, and return the result of each pause. None: the lease was lost."""
        return [self._lease_pauses.pause(step, *item) for item in command.items]

    def _pause_longer(self, step: Step, command: c.PauseLonger) -> None:
        self._lease_pauses.pause_longer(step, command.group, command.tenant, command.until_ms)

    def _pause_limit(self, step: Step, command: c.PauseLimit) -> LimitPause:
        return self.limits.pause(step, command)

    def _touch(self, step: Step, command: c.Touch) -> None:
        self._admin.touch(step, command)

    def _share_limit(self, step: Step, command: c.ShareLimit) -> None:
        self.limits.share(step, command)

    def _allow_limit(self, step: Step, command: c.AllowLimit) -> None:
        self.limits.allow(step, command)

    def _start_job(self, step: Step, command: c.StartJob) -> dict[str, Any]:
        return self.jobs.start(step, command.job_id, command.kind, command.arguments).shown()

    def _stop_job(self, step: Step, command: c.StopJob) -> dict[str, Any]:
        return self.jobs.stop(step, command.job_id).shown()

    def _settle_dead(self, step: Step, command: c.RedriveDead | c.PurgeDead) -> list[Result]:
        """Redrive or purge dead messages, and return an outcome per message."""
        return self.jobs.each_dead(step, command)

    def _schedule(self, step: Step, command: c.ScheduleCommand) -> list[Result]:
        """Apply a command to its schedules, and return one result per item."""
        position = step.position
        results = self.schedules.apply(step, command)
        if step.position > position:
            self.trim_schedule.note_appended(step)
        return results

    def _forward(self, step: Step, command: c.OutboxSent | c.OutboxRefused) -> str:
        """End or change a batch that was sent to another partition, and return the outcome."""
        self.trim_schedule.note_settled(step)
        return self._forwarding.apply(step, command)

    # -- the partition as a whole ---------------------------------------------------------------------------------

    def _configure(self, step: Step, command: c.Configure) -> None:
        """Set the settings of the topic."""
        self.shared.configure(with_newest_limits(self.shared.settings, command.settings))
        self.limits.configure(step)
        for group in self.groups.by_id.values() if self.shared.rank is not None else ():
            group.note_change()  # tenants may no longer be held up
        self.trim_schedule.note_settled(step)

    def _hold(self, step: Step, command: c.Hold) -> bytes:
        """Change what keeps the log from being trimmed. Return the offset up to which the log is trimmed."""
        before = self.holds.lowest
        self.holds.change(step, command)
        if self.holds.lowest > before:
            self.trim_schedule.note_settled(step)
        return self.log.state.trimmed

    def _upkeep_step(self, step: Step, command: c.Upkeep) -> bool:
        """Do a bounded part of all work that is due. Return whether more work is due immediately."""
        self._upkeep(step)
        return self._is_upkeep_due(step)

    def _is_upkeep_due(self, step: Step) -> bool:
        """Return whether more work is due now."""
        return (self._upkeep_ms(step.view) or step.now_ms + 1) <= step.now_ms

    def _upkeep(self, step: Step) -> None:
        """Do a bounded part of all work that is due."""
        for _ in range(len(self.groups.by_id)):  # checks each group at most once, also groups that stay
            if not self._admin.drop_idle(step):
                break
            self.trim_schedule.note_settled(step)
        self.expiring_rows.sweep(step)
        self.producers.forget(step)
        if self.holds.next_ms is not None and self.holds.next_ms <= step.now_ms:
            self.holds.drop(step)
            self.trim_schedule.note_settled(step)
        self._trimmer.trim(step)
        self.dead_retention.remove(step)
        self.jobs.run(step)

    def _reset_clock(self, step: Step, command: c.ClockReset) -> dict[str, Any]:
        """Begin a clock reset, if the floor is ahead and no reset is in progress."""
        outcome, old_ms = clock_reset.NOT_AHEAD, step.floor_ms
        # A delayed command must not set back a time that is correct by now.
        new_ms = max(command.new_ms, step.stamp_ms)
        if self.resets.state is not None:
            outcome = clock_reset.UNDER_WAY
        elif old_ms - new_ms >= clock_reset.LEAST_AHEAD_MS:
            outcome = clock_reset.BEGUN
            was_ms = step.now_ms
            step.now_ms = step.stamp_ms = new_ms
            # Messages stored from now on are above the cursors, which the reset moves to the end of the new time.
            step.floor_ms = new_ms + 1
            self.clock_epoch += 1
            self.resets.begin(step, old_ms)
            self.schedules.set_back()
            self.limits.set_back(step, was_ms)
        return {"outcome": outcome, "floor_ms": old_ms, "now_ms": step.now_ms, "clock_epoch": self.clock_epoch}

    def _while_reset(self, step: Step, stamp_ms: int, command: c.Command) -> Result:
        """Apply a command during a clock reset. `stamp_ms`: stamp of the entry."""
        match command:
            case c.Upkeep():
                self.resets.advance(step)
                if self.resets.state is not None:
                    return True
                self.advance(step, stamp_ms)  # the rest of this entry uses the entry's own time again
                return self._is_upkeep_due(step)
            case c.ClockReset() | c.TakeDigest() | c.RaiseLevel() | c.Configure() | c.Skipped():
                return self.HANDLERS[type(command)](self, step, command)
            case c.Clock() | c.Touch():
                return None
        self.check_available()
        raise AssertionError("a clock reset is under way")

    def _nothing(self, step: Step, command: c.Clock) -> None:
        """Change nothing: only the stamp of the entry has an effect."""

    def _refuse_restore(self, step: Step, command: c.Command) -> Result:
        """Raise Conflict, because the partition is not being restored."""
        raise Conflict("the topic is not being restored: a restore makes its topics itself")

    HANDLERS: ClassVar[Handlers] = {
        # messages
        c.Append: _append,
        c.Cancel: _cancel,
        c.Move: _move,
        # leases
        c.Lease: _lease,
        c.Ack: _ack,
        c.AckThen: _ack_then,
        c.Nack: _nack,
        c.Extend: _extend,
        c.Expire: _expire,
        c.Release: _release,
        c.Reclaim: _reclaim,
        # groups
        c.OpenGroup: _open_group,
        c.Seek: _seek,
        c.DropGroup: _drop_group,
        c.ConfigureGroup: _configure_group,
        c.PauseGroup: _pause_group,
        c.PausePart: _pause_part,
        c.PauseByLease: _pause_by_lease,
        c.PauseLonger: _pause_longer,
        c.PauseLimit: _pause_limit,
        c.Touch: _touch,
        c.ShareLimit: _share_limit,
        c.AllowLimit: _allow_limit,
        # jobs and dead letters
        c.StartJob: _start_job,
        c.StopJob: _stop_job,
        c.RedriveDead: _settle_dead,
        c.PurgeDead: _settle_dead,
        # schedules
        **dict.fromkeys(c.SCHEDULE_COMMANDS, _schedule),
        # other partitions
        c.OutboxSent: _forward,
        c.OutboxRefused: _forward,
        # the partition as a whole
        c.Upkeep: _upkeep_step,
        c.Clock: _nothing,
        c.ClockReset: _reset_clock,
        c.Hold: _hold,
        c.TakeDigest: PartitionState.take_digest,
        c.RaiseLevel: PartitionState.raise_level,
        c.Configure: _configure,
        c.Skipped: PartitionState.skip,
        **dict.fromkeys((c.RestoreBegin, c.RestoreRows, c.RestoreEnd), _refuse_restore),
    }
    """Applies each command while the partition is open and no clock reset is in progress."""
