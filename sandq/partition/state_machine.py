"""The timer partition: one time-ordered log, any number of groups that lease and ack its messages.

Invariants (the first three carry the promise "never skipped, never early, never leased twice at once"):

* A message is placed at max(its time, `floor_ms`), and `floor_ms` is the greatest of every applied stamp and every
  delivery time that a cursor passed. With the Raft index behind it in the offset, no insert lands at or below a cursor.
* A group's cursor is the last offset that was leased, or passed over. A lease takes what lies above it in order.
* A message at or below the cursor is in one live lease, waits, is blocked by its key, is dead, or is acked.
* Rows and memory say the same after every entry: a partition loaded from rows goes on exactly as the one that
  wrote them.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from sandq.model import offsets
from sandq.model.errors import Conflict, InvalidRequest, NotFound, OutOfSequence, Overloaded, Unavailable
from sandq.model.features import FIRST_LEVEL
from sandq.model.group_limits import with_newest_limits
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
from sandq.partition.groups.group_limits import GroupLimits, LimitsStatus
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.ownership import Ownership
from sandq.partition.groups.renewal import Change
from sandq.partition.groups.unique_keys import UniqueKeys
from sandq.partition.in_memory import InMemory
from sandq.partition.jobs.jobs import Jobs
from sandq.partition.leasing.lease_grants import LeaseGrants
from sandq.partition.leasing.lease_reclaim import LeaseReclaim
from sandq.partition.leasing.settlement import LeaseSettlement, Lost
from sandq.partition.log.holds import Hold, Holds
from sandq.partition.log.message_log import MessageLog, Stored
from sandq.partition.log.trim import Trimmer
from sandq.partition.log.trim_schedule import TrimSchedule
from sandq.partition.outbox import Outbox, OutboxStatus
from sandq.partition.pending.pending import Pending
from sandq.partition.pending.ranking import Ranking
from sandq.partition.pending.updates import Updates
from sandq.partition.producers.answers import skipped
from sandq.partition.producers.producers import Producers
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.reader.pieces import MessageReader
from sandq.partition.records.leases import Lease
from sandq.partition.records.metrics import Counted
from sandq.partition.restore import restoring
from sandq.partition.restore.restoring import RestoreState
from sandq.partition.restore.whole import check_whole
from sandq.partition.schedules.schedule_table import ScheduleTable
from sandq.partition.sending.acks import SendingAcks
from sandq.partition.sending.forwarding import Forwarding
from sandq.partition.shared_state import NOT_YET, LogState, SharedState

_STATE_VERSION = 1

Result = Any
"""Of Append: (base, count) or `Stored`. Lease: [Lease]. Ack, Nack, AckThen: per item what was lost (`settlement.Lost`).
Of Nack also NOT_YET, and `settlement.Part`.
Extend: per item the deadline or None. Expire, Release: messages given back. OpenGroup: group id. Cancel, Move: an
outcome (`pending`) for each. Upkeep: whether more is due at once. Reclaim: leases that were renewed, and that are yet
to be. Seek: the new cursor. StartJob, StopJob: the job. RedriveDead, PurgeDead: an outcome (`jobs.redrive`) for each.
Hold: up to where the log is trimmed. RaiseLevel: the level that it is at. OutboxSent, OutboxRefused: what became of the
batch (`forwarding`). ClockReset: its outcome, the floor and time.
Of any: the SandqError that refused it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """An immutable copy of what the event loop needs to know."""

    applied_index: int
    now_ms: int
    floor_ms: int
    next_expiry_ms: int | None
    upkeep_ms: int | None
    """When an `Upkeep` has something to do."""
    messages: int
    later: int
    """Messages whose second has not come."""
    trimmed: bytes
    bytes: int
    dead: int
    garbage_rows: int
    """Log rows that were deleted and are still in the way of who reads there."""
    garbage_bytes: int
    """That the store keeps, though nobody needs them any more."""
    settings: dict[str, Any]
    groups: GroupStatuses
    counted: Counted = field(compare=False)
    """Of this process alone."""
    keys: int = 0
    """That have a value, of a compacted topic."""
    keys_bytes: int = 0
    keys_expire_ms: int | None = None
    """When the time of some value is over."""
    is_resting: bool = False
    """What there is to be compacted of the log is."""
    holds: tuple[Hold, ...] = ()
    level: int = FIRST_LEVEL
    """The feature level whose rules the partition goes by."""
    producers: int = 0
    """Idempotent ones that are known."""
    clock_epoch: int = 0
    """How often the clock was set back."""
    limits: LimitsStatus | None = None
    """Of groups; None when none has any."""
    reset: tuple[int, int] | None = None
    """While it is being set back: so many messages were looked at, of about so many."""
    schedules: int = 0
    schedule_ms: int | None = None
    """When the next of them fires."""
    planned_to: str | None = None
    """The clock was set back: up to this name schedules go by its time again; None: all do."""
    outbox: OutboxStatus | None = None
    """What is to be sent to other partitions; None: nothing."""
    restore: RestoreState | None = None
    """How far the partition is restored from a backup; None: it is not being."""
    skipped: Collection[Any] = frozenset()
    """Digests of the commands that an operator skipped last: they are refused when they come again (ADR 46)."""


class TimerPartition:
    def __init__(self, partition: int, settings: dict[str, Any], look_aheads: LookAheads | None = None) -> None:
        """`look_aheads`: all of the node, when others share them."""
        self.partition = partition
        self.applied_index = 0
        self.now_ms = 0
        self.floor_ms = 0
        self.clock_epoch = 0
        self.digests_asked: list[int] = []
        """Numbers of the digests that entries applied here ask for, until they are taken; of this process alone."""
        self.index_base = 0
        """What is added to the index of an entry where it counts for offsets and tokens: those that stand in rows of a
        backup are below all that are given after it."""
        self.restore: RestoreState | None = None
        """None: nothing is restored here, or it is over."""
        self.successor: TimerPartition | None = None
        """What the rows of a backup have become: it takes the place of this one after the entry."""
        self.skips = Skips()
        self.results: list[Result] = []
        """Results of the commands of the entry that is being applied: their number says where an error came."""
        self._look_aheads = look_aheads
        self.shared = shared = SharedState(settings)
        self.expiring_rows = expiring_rows = ExpiringRows()
        self.groups = GroupTable(shared, look_aheads if look_aheads is not None else LookAheads())
        self.limits = GroupLimits(partition, shared, self.groups)
        reader, log_state = MessageReader(), LogState()
        unique = UniqueKeys(shared, self.groups, expiring_rows)
        self.outbox = outbox = Outbox(partition)
        self._group_state = group_state = GroupState(
            shared, self.groups, log_state, expiring_rows, unique, reader, outbox
        )
        self._forwarding = Forwarding(shared, group_state, outbox)
        self.leases, self.ttl = group_state.leases, group_state.ttl
        ownership = Ownership(shared, group_state)
        self._trim_schedule = schedule = TrimSchedule(shared)
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
        self._statuses = StatusTable(self.groups, self.log.counts, log_state)
        ranking = Ranking(shared, self.groups, self.log)
        self.jobs = Jobs(shared, group_state, self.log, ranking, ownership)
        updates = Updates(shared, self.groups, self.log)
        self.pending = Pending(shared, self.groups, self.log, ownership, ranking, updates)
        self.schedules = ScheduleTable(shared, self.groups, self.log, self.pending)
        self.producers = Producers(partition)
        self._lease_grants = LeaseGrants(shared, group_state, unique, self.limits)
        self._settlement = LeaseSettlement(shared, group_state, unique)
        self._lease_reclaim = LeaseReclaim(shared, group_state, self._settlement)
        self._acks = SendingAcks(shared, self._settlement, self.log, outbox)
        self._admin = GroupAdmin(shared, group_state, self.log, self.jobs)
        self.holds = Holds()
        self._in_memory = InMemory(shared, self.groups, group_state, self.log.counts, self.producers)
        self._trimmer = Trimmer(shared, group_state, self.log, self.holds, unique, schedule)
        self.resets = ClockResets(
            shared=shared,
            group_state=group_state,
            log=self.log,
            settlement=self._settlement,
            jobs=self.jobs,
            holds=self.holds,
            trimmer=self._trimmer,
            producers=self.producers,
            expiring_rows=expiring_rows,
        )

    # -- rows ---------------------------------------------------------------------------------------------------

    def write_state(self, view: View) -> None:
        """Put the state row. The host calls it once for each set of changes it writes."""
        if not self.is_filling:  # else the rows of a backup stand there
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
    def load(
        cls, partition: int, settings: dict[str, Any], view: View, look_aheads: LookAheads | None = None
    ) -> TimerPartition:
        """From rows; `settings` are those of a partition that has none stored yet."""
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
                return self  # of the rest rows are there that are not its own yet
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

    # -- what the host asks ---------------------------------------------------------------------------------------

    @property
    def settings(self) -> dict[str, Any]:
        return self.shared.settings

    def status(self, view: View) -> Status:
        if self.is_closed:
            return self._closed_status()
        groups = self._statuses.look(self.now_ms, view)
        keys, keys_bytes, keys_expire_ms, is_resting = self._keys_status
        return Status(
            applied_index=self.applied_index,
            now_ms=self.now_ms,
            floor_ms=self.floor_ms,
            next_expiry_ms=None if self.resets.state is not None else self._group_state.next_expiry_ms(view),
            upkeep_ms=self._upkeep_ms(),
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
        """Of a partition that takes nothing: there is nothing to be done in it, whatever it has."""
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
        return 0, 0, None, False

    def reset_progress(self) -> tuple[int, int] | None:
        """While the clock is being set back: so many messages were looked at, of about so many."""
        state = self.resets.state
        return None if state is None else (state.done, max(state.total, state.done))

    @property
    def is_filling(self) -> bool:
        """Rows of a backup stand beside what it has itself."""
        return self.restore is not None and not self.restore.is_whole

    @property
    def is_closed(self) -> bool:
        """It takes nothing, as its topic is being restored."""
        restore = self.restore  # not by `is_filling`: this is asked several times per entry
        return (restore is not None and not restore.is_whole) or RESTORING in self.shared.settings

    def check_open(self) -> None:
        """Raises Unavailable while the partition takes nothing, as its topic is being restored."""
        if self.is_closed:
            raise Unavailable(
                "the topic is being restored from a backup: once that is through it can be used; a restore that was "
                "stopped goes on when it is begun again, or the topic can be deleted"
            )

    def check_places(self) -> None:
        """Raises Unavailable while the clock is being set back, or the partition is being restored."""
        self.check_open()
        progress = self.reset_progress()
        if progress is not None:
            done, total = progress
            raise Unavailable(
                f"the partition's clock is being set back, {done} of {total} messages; ask again in a moment"
            )

    def _upkeep_ms(self) -> int | None:
        if self.resets.state is not None:
            return self.now_ms
        forgotten_ms = (self.expiring_rows.next_ms, self.producers.next_ms)
        times = (
            self._trim_schedule.due_ms,
            self.holds.next_ms,
            self.jobs.next_ms,
            self._admin.idle_ms(),
            *forgotten_ms,
        )
        return min((at for at in times if at is not None), default=None)

    # -- apply ----------------------------------------------------------------------------------------------------

    def apply(self, index: int, entry: c.Entry, view: View) -> list[Result]:
        """Apply a committed entry: one result for each of its commands. An index applied before changes nothing."""
        if index <= self.applied_index:
            return []
        stamp_ms = min(entry.now_ms, offsets.U48_MAX)  # a broken clock: what is placed by it must have a place
        self.shared.copied_bytes = 0
        if self.is_closed:
            return self._apply_closed(index, entry, stamp_ms, view)
        step = self._first_step(index, view)
        if self.resets.state is None:
            self._advance(step, stamp_ms)
        results: list[Result] = []
        self.results = results
        targets = c.targets_of(entry.commands)
        if targets:
            self.pending.look_ahead(step, targets)
        for command in entry.commands:
            position, grants = step.position, step.grants
            try:
                match command:
                    case c.ClockReset():
                        result: Result = self._reset_clock(step, command)
                    case _ if self.resets.state is not None:
                        result = self._while_reset(step, stamp_ms, command)
                    case c.Append():
                        result = self._append(step, command)
                    case c.Lease():
                        result = self._lease(step, command)
                    case c.Reclaim():
                        result = self._reclaim(step, command)
                    case c.Move():
                        result = self._move(step, command)
                    case c.Upkeep():
                        self._upkeep(step)
                        result = self._is_upkeep_due(step)
                    case c.AckThen():
                        result = self._ack_then(step, command)
                    case _ if isinstance(command, c.SCHEDULE_COMMANDS):
                        result = self._schedule(step, command)
                    case _:
                        result = self._other(step, command)
                results.append(result)
            except (NotFound, InvalidRequest, Conflict, OutOfSequence, Overloaded, Unavailable) as refusal:
                # What a refused command took goes to the next one: it stored nothing, and granted nothing.
                step.position, step.grants = position, grants
                results.append(refusal)
        if self.outbox.restless:
            self._forwarding.settle(step)
        self._group_state.waiting.store_parted(step)
        self._note_applied(step, index)
        return results

    def needs_no_disk(self, entry: c.Entry) -> bool:
        """Whether `apply` of this entry, the next one, and `status` after it, take a moment and read no stored rows."""
        return self.resets.state is None and not self.is_closed and self._in_memory.applies(entry)

    def _first_step(self, index: int, view: View) -> Step:
        """Return the step of an entry, at the time that the partition has already.

        While the clock is being set back it stays so: only the end of the reset lets the time go on.
        """
        now_ms = self.now_ms
        return Step(view, index=index + self.index_base, stamp_ms=now_ms, now_ms=now_ms, floor_ms=self.floor_ms)

    def _advance(self, step: Step, stamp_ms: int) -> None:
        """Let the partition's time come to the stamp of an entry."""
        step.stamp_ms = stamp_ms
        if stamp_ms > step.now_ms:
            step.now_ms = stamp_ms
        if step.now_ms > step.floor_ms:
            step.floor_ms = step.now_ms
        self.log.counts.advance(step)

    def _note_applied(self, step: Step, index: int) -> None:
        """Take over the times of an entry that was applied, and its index in the Raft log."""
        self.now_ms, self.floor_ms = step.now_ms, step.floor_ms
        self.applied_index = index
        self.results = []

    def _is_upkeep_due(self, step: Step) -> bool:
        """Return whether another `Upkeep` has something to do at once."""
        return (self._upkeep_ms() or step.now_ms + 1) <= step.now_ms

    # -- restoring ------------------------------------------------------------------------------------------------

    def _apply_closed(self, index: int, entry: c.Entry, stamp_ms: int, view: View) -> list[Result]:
        """Apply an entry of a partition that takes nothing but what restores it."""
        now_ms = max(self.now_ms, stamp_ms)
        step = Step(view, index=index, stamp_ms=stamp_ms, now_ms=now_ms, floor_ms=max(self.floor_ms, now_ms))
        results: list[Result] = []
        self.results = results
        for command in entry.commands:
            try:
                results.append(self._while_closed(step, command))
            except (NotFound, InvalidRequest, Conflict, Unavailable) as refusal:
                results.append(refusal)
        self._note_applied(step, index)
        return results

    def _while_closed(self, step: Step, command: c.Command) -> Result:
        match command:
            case c.RestoreBegin():
                return self._restore_begin(command)
            case c.RestoreRows():
                state = restoring.check_chunk(self.restore, command.restore_id)
                self.restore = restoring.put_chunk(step, state, command.number, command.data, self.shared.give_way)
                return self.restore.shown()
            case c.RestoreEnd():
                return self._restore_end(step, command)
            case c.TakeDigest() | c.RaiseLevel():
                return self._other(step, command)
            case c.Configure():
                self.shared.configure(with_newest_limits(self.shared.settings, command.settings))
                if not self.is_closed:
                    self.restore = None
                    self.limits.configure(step)
                    self._trim_schedule.note_settled(step)
                return None
            case c.Skipped():
                return self._skip(step, command)
            case c.Clock() | c.Touch():
                return None
        self.check_open()
        raise AssertionError("a partition is being restored")

    def _restore_begin(self, command: c.RestoreBegin) -> dict[str, Any]:
        wanted = self.shared.settings.get(RESTORING)
        if wanted != command.restore_id:
            raise Conflict(f"the topic is being restored by {wanted}, not by {command.restore_id}")
        if self.restore is None:
            targets = tuple((old, new) for old, new in command.targets)
            self.restore = RestoreState(command.restore_id, targets=targets)
        return restoring.check_chunk(self.restore, command.restore_id).shown()

    def _restore_end(self, step: Step, command: c.RestoreEnd) -> dict[str, Any]:
        """Let the rows be the state. Raises Conflict: they are not all there, or no rows of such a partition."""
        view = step.view
        state = restoring.check_chunk(self.restore, command.restore_id)
        if state.is_whole or self.successor is not None:
            return state._replace(is_whole=True).shown()
        if state.next_chunk != command.chunks:
            raise Conflict(f"{state.next_chunk} chunks of rows are there, and {command.chunks} are expected")
        row = view.get(restoring.STATE_OF_BACKUP)
        if row is None:
            raise Conflict("no row of the state is among those that were restored")
        view.put(rows.STATE_KEY, row)
        view.has_overlays = None  # nobody has looked at these rows
        try:
            restored = self._restored(view)
            restored.index_base += restored.applied_index
            restored.applied_index = step.index
            restored.restore = state._replace(is_whole=True)
            restored.skips = self.skips
            restored.settle_restored(step, self)
        except restoring.NOT_OF_ROWS:
            raise  # another replica may go on, so this one must not answer as if the rows were at fault
        except Exception as error:
            # Whatever the rows are, every replica comes to the same end: the partition stays closed.
            raise Conflict(f"the rows that were restored are not those of such a partition: {error!r:.200}") from error
        view.delete(restoring.STATE_OF_BACKUP)
        self.successor = restored
        return restored.restore.shown()

    def _restored(self, view: View) -> TimerPartition:
        """The partition that the rows of a backup make. Raises whatever is wrong with them."""
        settings = self.shared.settings
        restored = type(self).load(self.partition, settings, view, self._look_aheads)
        other = restored.shared.settings
        fixed = ("rank", "ordering", "max_in_flight_per_key")
        differing = [name for name in fixed if settings.get(name) != other.get(name)]
        if differing:
            raise Conflict(f"{differing[0]} was {other.get(differing[0])!r}, and is {settings.get(differing[0])!r}")
        if restored.resets.state is not None or restored.restore is not None:
            raise Conflict("its clock was being set back, or it was being restored itself")
        restoring.check_numbers(
            restored.applied_index, restored.index_base, restored.now_ms, restored.floor_ms, restored.clock_epoch
        )
        start, stop = rows.tag_bounds(rows.LOG)
        for key, _ in view.scan(start, stop, limit=1, max_bytes=1):
            if (found := offsets.unpack(key[1:]).partition) != self.partition:
                raise Conflict(f"they are of partition {found}, not of {self.partition}")
        check_whole(restored, view, self.shared.give_way)
        return restored

    def settle_restored(self, step: Step, before: TimerPartition) -> None:
        """Go on as the partition that was shut until now: by its settings, level and time. What was leased is to be
        had again, the attempt under way not counted; groups are paused, and in use."""
        shared = self.shared
        shared.give_way = before.shared.give_way
        self.digests_asked = before.digests_asked
        shared.configure(before.shared.settings)
        shared.level = max(shared.level, before.shared.level)
        own = self._first_step(step.index, step.view)
        self._advance(own, max(self.now_ms, step.stamp_ms))
        self._settlement.give_back_all(own)
        for group in self.groups.by_id.values():
            group.use(own)
            group.paused = True
            self.groups.store(own, group)
            if shared.is_ordered:  # what was leased waits now, and so do those behind it
                group.order.clear()
                group.load_key_order(own.view)
        self.limits.configure(own)
        self._note_applied(own, step.index)

    def _reset_clock(self, step: Step, command: c.ClockReset) -> dict[str, Any]:
        """Begin to set the clock back, if the floor is ahead and that is not under way."""
        outcome, old_ms = clock_reset.NOTHING, step.floor_ms
        # One that was long on its way sets nothing back that is right by now.
        new_ms = max(command.new_ms, step.stamp_ms)
        if self.resets.state is not None:
            outcome = clock_reset.UNDER_WAY
        elif old_ms - new_ms >= clock_reset.LEAST_MS:
            outcome = clock_reset.BEGUN
            step.now_ms = step.stamp_ms = new_ms
            # What is placed from here on stands above the cursors, which are put at the end of the new time.
            step.floor_ms = new_ms + 1
            self.clock_epoch += 1
            self.resets.begin(step, old_ms)
            self.schedules.set_back()
        return {"outcome": outcome, "floor_ms": old_ms, "now_ms": step.now_ms, "clock_epoch": self.clock_epoch}

    def _while_reset(self, step: Step, stamp_ms: int, command: c.Command) -> Result:
        """Apply a command while the clock is being set back. `stamp_ms` is that of the entry."""
        match command:
            case c.Upkeep():
                self.resets.advance(step)
                if self.resets.state is not None:
                    return True
                self._advance(step, stamp_ms)  # what follows in this entry goes by its own time again
                return self._is_upkeep_due(step)
            case c.TakeDigest() | c.RaiseLevel() | c.Configure() | c.Skipped():
                return self._other(step, command)
            case c.Clock() | c.Touch():
                return None
        self.check_places()
        raise AssertionError("a clock reset is under way")

    def _append(self, step: Step, command: c.Append) -> Result:
        """Store a batch, unless it was stored before, and return its answer."""
        before = self.producers.answered(command, step.now_ms, step.view) if command.producer_id else None
        if before is not None:
            return before
        position = step.position
        stored = self._store(step, command)
        if command.producer_id:
            self.producers.stored(step, command, stored, position)
        self._trim_schedule.note_appended(step)
        return stored

    def _store(self, step: Step, command: c.Append) -> tuple[bytes, int] | Stored:
        return self.log.append(step, command)

    def _ack_then(self, step: Step, command: c.AckThen) -> list[Lost]:
        """Ack a lease and store what the ack sends."""
        self._trim_schedule.note_settled(step)
        position = step.position
        lost = self._acks.apply(step, command)
        if step.position > position:
            self._trim_schedule.note_appended(step)
        return lost

    def _other(self, step: Step, command: c.Command) -> Result:
        settlement, admin, in_turns = self._settlement, self._admin, self.shared.in_turns
        match command:
            case c.Ack():
                self._trim_schedule.note_settled(step)
                return settlement.ack(step, command.items)
            case c.Nack():
                self._trim_schedule.note_settled(step)
                return settlement.nack(step, command.items)
            case c.Extend():
                return [
                    settlement.extend(step, token, lease_ms, begun[0] if begun else None)
                    for token, lease_ms, *begun in in_turns(command.items)
                ]
            case c.Expire():
                self._trim_schedule.note_settled(step)
                return settlement.expire(step)
            case c.Release():
                return settlement.release(step, command)
            case c.Cancel():
                last = self.applied_index + self.index_base
                return [self.pending.cancel(step, target, last) for target in in_turns(command.targets)]
            case c.OpenGroup():
                return admin.open_group(step, command, _latest(step))
            case c.Seek():
                self._trim_schedule.note_settled(step)
                return admin.seek(step, command, _latest(step))
            case c.DropGroup():
                self._trim_schedule.note_settled(step)
                return admin.drop(step, command.group, unless_unfinished=command.unless_unfinished)
            case c.ConfigureGroup():
                return admin.configure(step, command.group, command.settings)
            case c.PauseGroup():
                return admin.pause(step, command.group, command.paused)
            case c.ShareLimit():
                return self.limits.share(step, command)
            case c.AllowLimit():
                return self.limits.allow(step, command)
            case c.Touch():
                return admin.touch(step, list(command.groups))
            case c.StartJob():
                return self.jobs.start(step, command.job_id, command.kind, command.arguments).shown()
            case c.StopJob():
                return self.jobs.stop(step, command.job_id).shown()
            case c.RedriveDead() | c.PurgeDead():
                return self.jobs.each_dead(step, command)
            case c.OutboxSent() | c.OutboxRefused():
                self._trim_schedule.note_settled(step)
                return self._forwarding.apply(step, command)
            case c.Hold():
                return self._hold(step, command)
            case c.RestoreBegin() | c.RestoreRows() | c.RestoreEnd():
                raise Conflict("the topic is not being restored: a restore makes its topics itself")
            case c.TakeDigest():
                self.digests_asked.append(command.number)
            case c.RaiseLevel():
                self.shared.level = max(self.shared.level, command.level)
                return self.shared.level
            case c.Configure():
                self.shared.configure(with_newest_limits(self.shared.settings, command.settings))
                self.limits.configure(step)
                for group in self.groups.by_id.values() if self.shared.rank is not None else ():
                    group.note_change()  # what held its tenants up may not any more
                self._trim_schedule.note_settled(step)
            case c.Skipped():
                return self._skip(step, command)
        return None

    def _skip(self, step: Step, command: c.Skipped) -> Result:
        """Do nothing but remember what was skipped, and use up the number of a producer's batch."""
        self.skips.note(command)
        if command.producer_id and not self.is_closed:
            self.producers.skipped(step, command, skipped(step, command))
        return refusal()

    def _schedule(self, step: Step, command: c.ScheduleCommand) -> list[Result]:
        position = step.position
        results = self.schedules.apply(step, command)
        if step.position > position:
            self._trim_schedule.note_appended(step)
        return results

    def _lease(self, step: Step, command: c.Lease) -> list[Lease]:
        group = self.groups.named(command.group)
        dead = group.dead.total()
        leases = self._lease_grants.grant(step, command)
        self.shared.totals.leases += len(leases)
        step.floor_ms = max(step.floor_ms, offsets.deliver_ms(group.cursor))
        if group.dead.total() != dead:
            self._trim_schedule.note_settled(step)
        return leases

    def _reclaim(self, step: Step, command: c.Reclaim) -> tuple[int, int]:
        renewed, left, ended = self._lease_reclaim.reclaim(step, command)
        if ended:
            self._trim_schedule.note_settled(step)
        return renewed, left

    def _move(self, step: Step, command: c.Move) -> Result:
        outcomes = []
        for target, at_ms, relative, *others in self.shared.in_turns(command.items):
            position = step.next_position()  # every item has one of its own, also if it is not moved
            if self.shared.is_budget_spent:
                outcomes.append([NOT_YET, None])
                continue
            to_ms = step.stamp_ms + at_ms if relative else at_ms
            priority = others[0] if others else None
            change = Change.of(others[1]) if len(others) > 1 else None
            outcomes.append(
                self.pending.move(step, target, to_ms, position, is_delay=relative, priority=priority, change=change)
            )
        return outcomes

    def _hold(self, step: Step, command: c.Hold) -> bytes:
        before = self.holds.lowest
        self.holds.change(step, command)
        if self.holds.lowest > before:
            self._trim_schedule.note_settled(step)
        return self.log.state.trimmed

    def _upkeep(self, step: Step) -> None:
        """Do a bounded part of all that is due."""
        for _ in range(len(self.groups.by_id)):  # each at most once: what is kept is kept for as long again
            if not self._admin.drop_idle(step):
                break
            self._trim_schedule.note_settled(step)
        self.expiring_rows.sweep(step)
        self.producers.forget(step)
        if self.holds.next_ms is not None and self.holds.next_ms <= step.now_ms:
            self.holds.drop(step)
            self._trim_schedule.note_settled(step)
        self._trimmer.trim(step)
        self.jobs.run(step)


def latest_offset(floor_ms: int, index: int, position: int) -> bytes:
    """Return the greatest offset below all messages that are stored from a position of an entry on.

    It is above every message whose time has come, and below every delayed one.
    """
    # Not by `offsets.pack`, which rejects the position behind a full entry.
    return ((floor_ms << 80) + (index << 32) + (position << 12) - 1).to_bytes(16, "big")


def _latest(step: Step) -> bytes:
    """Return the greatest offset below all messages that this entry stores from here on."""
    return latest_offset(step.floor_ms, step.index, step.position)
