"""The state of a partition: its parts, the row for state that has no row of its own, and its status."""

from __future__ import annotations

from typing import Any, Self

from sandq.model.errors import Conflict, Unavailable
from sandq.model.names import RESTORING
from sandq.partition import clock_reset
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.expiring_rows import ExpiringRows
from sandq.partition.base.skips import Skips, refusal
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.clock_reset import ClockResets
from sandq.partition.group_administration import GroupAdmin
from sandq.partition.group_status import GroupStatuses, StatusTable
from sandq.partition.groups.group_limits import GroupLimits
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.ownership import Ownership
from sandq.partition.groups.unique_keys import UniqueKeys
from sandq.partition.jobs.dead_retention import DeadRetention
from sandq.partition.jobs.jobs import Jobs
from sandq.partition.leasing.settlement import LeaseSettlement
from sandq.partition.log.appends import Appends
from sandq.partition.log.holds import Holds
from sandq.partition.log.message_log import MessageLog
from sandq.partition.log.trim import Trimmer
from sandq.partition.log.trim_schedule import TrimSchedule
from sandq.partition.outbox import Outbox
from sandq.partition.partition_status import Status
from sandq.partition.pending.pending import Pending
from sandq.partition.pending.ranking import Ranking
from sandq.partition.pending.updates import Updates
from sandq.partition.producers.answers import skipped
from sandq.partition.producers.producers import Producers
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.reader.pieces import MessageReader
from sandq.partition.records.restore_state import RestoreState
from sandq.partition.schedules.schedule_table import ScheduleTable
from sandq.partition.shared_state import LogState, SharedState

_STATE_VERSION = 1


class PartitionState:
    """The state of a partition, in memory and in rows. `TimerPartition` applies entries to it."""

    def __init__(self, partition: int, settings: dict[str, Any], look_aheads: LookAheads | None = None) -> None:
        """`look_aheads`: the look-aheads of the node, which its partitions share. None: this partition has its own."""
        self.partition = partition
        self.applied_index = 0
        self.now_ms = 0
        self.floor_ms = 0
        self.clock_epoch = 0
        self.digests_asked: list[int] = []
        """Numbers of the digests that applied entries request, until the caller takes them. Local to this process."""
        self.index_base = 0
        """Number to add to the index of an entry in offsets and tokens. After a restore, this makes new offsets and
        tokens higher than all offsets and tokens in the rows of the backup."""
        self.restore: RestoreState | None = None
        """Progress of a restore. None if no restore is in progress."""
        self.successor: Self | None = None
        """State loaded from the rows of a backup. After the current entry, it replaces this object."""
        self.skips = Skips()
        self.results: list[Any] = []
        """Results of the commands of the entry that is being applied. If a command raises an error, the number of
        results shows which one."""
        self.look_aheads = look_aheads
        self.shared = shared = SharedState(settings)
        self.expiring_rows = expiring_rows = ExpiringRows()
        self.groups = GroupTable(shared, look_aheads if look_aheads is not None else LookAheads())
        self.limits = GroupLimits(partition, shared, self.groups)
        reader, log_state = MessageReader(), LogState()
        self._unique = unique = UniqueKeys(shared, self.groups, expiring_rows)
        self.outbox = outbox = Outbox(partition)
        self._group_state = group_state = GroupState(
            shared, self.groups, log_state, expiring_rows, unique, reader, outbox
        )
        self.leases, self.ttl = group_state.leases, group_state.ttl
        ownership = Ownership(shared, group_state)
        self.trim_schedule = schedule = TrimSchedule(shared)
        self.log = MessageLog(
            partition=partition,
            shared=shared,
            state=log_state,
            reader=reader,
            group_state=group_state,
            unique=unique,
            expiring_rows=expiring_rows,
            trim_schedule=schedule,
            ownership=ownership,
        )
        self.appends = Appends(shared, group_state, self.log, unique, ownership)
        self._statuses = StatusTable(self.groups, self.log.counts, log_state)
        ranking = Ranking(shared, self.groups, self.log)
        self.jobs = Jobs(shared, group_state, self.log, ranking, ownership)
        updates = Updates(shared, self.groups, self.log)
        self.pending = Pending(shared, self.groups, self.log, ownership, ranking, updates)
        self.schedules = ScheduleTable(shared, self.groups, self.log, self.appends, self.pending)
        self.dead_retention = DeadRetention(shared, group_state)
        self.producers = Producers(partition)
        self.settlement = LeaseSettlement(shared, group_state, unique)
        self._admin = GroupAdmin(shared, group_state, self.log, self.jobs)
        self.holds = Holds()
        self._trimmer = Trimmer(shared, group_state, self.log, self.holds, unique, schedule)
        self.resets = ClockResets(
            shared=shared,
            group_state=group_state,
            log=self.log,
            settlement=self.settlement,
            jobs=self.jobs,
            holds=self.holds,
            trimmer=self._trimmer,
            producers=self.producers,
            expiring_rows=expiring_rows,
        )

    # -- rows ---------------------------------------------------------------------------------------------------

    def write_state(self, view: View) -> None:
        """Put the state row. The caller calls this once for each set of changes that it writes."""
        if not self.is_filling:  # while filling, all other rows belong to a backup
            self.log.counts.write(view)
            self.producers.write(view)
        state = (
            _STATE_VERSION,
            self.applied_index,
            self.now_ms,
            self.floor_ms,
            self.clock_epoch,
            self.log.state.fields(),
            self.log.counts.state(),
            self.expiring_rows.state(),
            self._trimmer.state(),
            (self.groups.next_id, self.shared.next_seq, self.ttl.any_own),
            self.shared.settings,
            self.shared.level,
            self.resets.state,
            self.schedules.state(),
            self.outbox.state(),
            self.index_base,
            self.restore,
            self.skips.state(),
        )
        view.put(rows.STATE_KEY, rows.pack(*state))

    @classmethod
    def load(cls, partition: int, settings: dict[str, Any], view: View, look_aheads: LookAheads | None = None) -> Self:
        """Load a partition from its rows. `settings` apply to a partition that has no stored settings yet."""
        self = cls(partition, settings, look_aheads)
        row = view.get(rows.STATE_KEY)
        if row is not None:
            _, self.applied_index, self.now_ms, self.floor_ms, self.clock_epoch, *parts = rows.unpack(row)
            log, counts, expiring_rows, trimmer, numbers, stored, level, reset, *parts = parts
            schedules, outbox, self.index_base, restore, skips = parts
            self.shared.level = level
            self.restore = None if restore is None else RestoreState.load(restore)
            self.skips.load(skips)
            if self.is_filling:
                self.shared.configure(stored)
                return self  # all other rows belong to a backup, and become the state when the restore ends
            self.schedules.load(schedules)
            self.outbox.load(outbox, view)
            self.log.state.load(log)
            self.log.counts.load(counts)
            self.expiring_rows.load(expiring_rows)
            self._trimmer.load(trimmer)
            self.groups.next_id, self.shared.next_seq, self.ttl.any_own = numbers
            self.shared.configure(stored)
            self.limits.load(view)
            self._group_state.load(view, placing=clock_reset.is_placing(reset))
            self.jobs.load(view)
            self.producers.load(view)
            self.holds.load(view)
            self.resets.load(reset)
        return self

    # -- values for the host --------------------------------------------------------------------------------------

    @property
    def settings(self) -> dict[str, Any]:
        return self.shared.settings

    def status(self, view: View) -> Status:
        """Return an immutable copy of the state that the event loop needs."""
        if self.is_closed:
            return self._closed_status()
        groups = self._statuses.refresh(self.now_ms, view)
        keys, keys_bytes, keys_expire_ms, is_resting = self._keys_status
        return Status(
            applied_index=self.applied_index,
            now_ms=self.now_ms,
            floor_ms=self.floor_ms,
            next_expiry_ms=None if self.resets.state is not None else self._group_state.next_expiry_ms(view),
            upkeep_ms=self._upkeep_ms(view),
            messages=self.log.state.messages,
            later=self.log.counts.later,
            trimmed=self.log.state.trimmed,
            bytes=self.log.state.bytes,
            dead=self._statuses.dead,
            garbage_rows=self.log.garbage.rows,
            garbage_bytes=self.log.garbage.bytes,
            settings=self.shared.settings,
            groups=groups,
            counted=self.shared.totals.counted(),
            keys=keys,
            keys_bytes=keys_bytes,
            keys_expire_ms=keys_expire_ms,
            is_resting=is_resting,
            holds=self.holds.all,
            level=self.shared.level,
            producers=len(self.producers),
            clock_epoch=self.clock_epoch,
            limits=self.limits.status(),
            reset=self.reset_progress(),
            schedules=self.schedules.count,
            schedule_ms=self.schedules.next_ms,
            planned_to=self.schedules.planned_to,
            outbox=self.outbox.status(),
            skipped=self.skips.digests,
        )

    def _closed_status(self) -> Status:
        """Return the status of a closed partition, in which no work is due."""
        log, shared = self.log, self.shared
        return Status(
            applied_index=self.applied_index,
            now_ms=self.now_ms,
            floor_ms=self.floor_ms,
            next_expiry_ms=None,
            upkeep_ms=None,
            messages=log.state.messages,
            later=log.counts.later,
            trimmed=log.state.trimmed,
            bytes=log.state.bytes,
            dead=0,
            garbage_rows=0,
            garbage_bytes=0,
            settings=shared.settings,
            groups=GroupStatuses(),
            counted=shared.totals.counted(),
            level=shared.level,
            clock_epoch=self.clock_epoch,
            restore=self.restore,
            skipped=self.skips.digests,
        )

    @property
    def _keys_status(self) -> tuple[int, int, int | None, bool]:
        """The fields of `Status` about keys. A compacted partition overrides this."""
        return 0, 0, None, False

    def reset_progress(self) -> tuple[int, int] | None:
        """Return (number of processed messages, approximate total number) during a clock reset. None otherwise."""
        state = self.resets.state
        return None if state is None else (state.done, max(state.total, state.done))

    @property
    def is_filling(self) -> bool:
        """Whether the store contains rows of a backup that have yet to become the state."""
        return self.restore is not None and not self.restore.is_whole

    @property
    def is_closed(self) -> bool:
        """Whether the partition accepts no commands, because its topic is being restored."""
        restore = self.restore  # for speed, does not call `is_filling`: this property is read several times per entry
        return (restore is not None and not restore.is_whole) or RESTORING in self.shared.settings

    def check_open(self) -> None:
        """Raise Unavailable if the partition is closed, because its topic is being restored."""
        if self.is_closed:
            raise Unavailable(
                "the topic is being restored from a backup: once that is through it can be used; a restore that was "
                "stopped goes on when it is begun again, or the topic can be deleted"
            )

    def check_available(self) -> None:
        """Raise Unavailable during a clock reset or a restore."""
        self.check_open()
        progress = self.reset_progress()
        if progress is not None:
            done, total = progress
            raise Unavailable(
                f"the partition's clock is being set back, {done} of {total} messages; ask again in a moment"
            )

    def _upkeep_ms(self, view: View) -> int | None:
        """Return the time from which an `Upkeep` has work to do, in ms; None if there is none."""
        if self.resets.state is not None:
            return self.now_ms
        forgotten_ms = (self.expiring_rows.next_ms, self.producers.next_ms)
        times = (
            self.trim_schedule.due_ms,
            self.holds.next_ms,
            self.jobs.next_ms,
            self.dead_retention.due_ms(view),
            self._admin.idle_ms(),
            self.groups.pause_end_ms,  # each entry ends pauses
            *forgotten_ms,
        )
        return min((at for at in times if at is not None), default=None)

    # -- entries --------------------------------------------------------------------------------------------------

    def first_step(self, index: int, view: View) -> Step:
        """Return the step of an entry, with the present time of the partition.

        During a clock reset, the step keeps this time: time advances again only when the reset ends.
        """
        now_ms = self.now_ms
        return Step(view, index=index + self.index_base, stamp_ms=now_ms, now_ms=now_ms, floor_ms=self.floor_ms)

    def advance(self, step: Step, stamp_ms: int) -> None:
        """Advance the partition's time to the stamp of an entry."""
        step.stamp_ms = stamp_ms
        if stamp_ms > step.now_ms:
            step.now_ms = stamp_ms
        if step.now_ms > step.floor_ms:
            step.floor_ms = step.now_ms
        self.log.counts.advance(step)
        self.groups.end_pauses(step)

    def note_applied(self, step: Step, index: int) -> None:
        """Adopt the times and the Raft index of an applied entry."""
        self.now_ms, self.floor_ms = step.now_ms, step.floor_ms
        self.applied_index = index
        self.results = []

    def skip(self, step: Step, command: c.Skipped) -> Conflict:
        """Remember a command that an operator skipped, and use up the number of its producer's batch. Return the error
        that its sender gets."""
        self.skips.note(command)
        if command.producer_id and not self.is_closed:
            self.producers.skipped(step, command, skipped(step, command))
        return refusal()

    def take_digest(self, step: Step, command: c.TakeDigest) -> None:
        """Request that the caller computes a digest of all rows after this entry."""
        self.digests_asked.append(command.number)

    def raise_level(self, step: Step, command: c.RaiseLevel) -> int:
        """Apply the rules of a feature level from now on, unless they apply already. Return the partition's level."""
        self.shared.level = max(self.shared.level, command.level)
        return self.shared.level
