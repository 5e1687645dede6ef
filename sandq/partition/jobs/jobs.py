"""Jobs: bulk work that is too large for one command. A job runs in steps, each a part of an `Upkeep` command.

A job is replicated state: it survives the leader that began it, and its progress can be read. Row: the fields of `Job`.
A job only changes messages whose offsets have a lower Raft index than the job. Messages stored after its start, and
messages that it moved itself, have a higher or the same index. So no job processes a message twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.errors import Conflict, InvalidRequest, NotFound
from sandq.partition.base import rows
from sandq.partition.base.prefixes import Prefixes
from sandq.partition.base.rows import Fields, Range
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.commands import DEAD_JOBS, UNIQUE_KEY_PREFIX, PurgeDead, RedriveDead
from sandq.partition.groups import dead_letters
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.ownership import Ownership
from sandq.partition.jobs.job import DONE, RUNNING, STOPPED, Job
from sandq.partition.jobs.redrive import Redrive
from sandq.partition.jobs.waiting_ranks import KeptRange, Waited, WaitingRanks
from sandq.partition.log.message_log import MessageLog
from sandq.partition.pending.ranking import Ranking
from sandq.partition.reader.reader import LogReader, cursor_before
from sandq.partition.records.claim import Outcome
from sandq.partition.records.leases import merged
from sandq.partition.shared_state import SharedState

STEP_MESSAGES = 1000
STEP_BYTES = 8 << 20
NO_LIMIT = 1 << 40
EMPTY_GROUPS = 64
"""Maximum number of groups without kept messages that one step skips."""
RUNNING_JOBS = 64
FINISHED_JOBS = 64
KINDS = ("cancel", "move", *DEAD_JOBS)
OWN_KINDS = ("seek", "drop")
"""Kinds of jobs that the partition itself begins."""
_OF_GROUP = (
    *(rows.WAITING, rows.SPILLED, rows.SPILLED_AT, rows.DEAD, rows.DEATH),
    *(rows.KEPT, rows.BLOCKED, rows.GAPS),
)
OWN_IDS = b"sandq\x00\x00\x00"
"""Beginning of the ids of the partition's own jobs."""


class Jobs:
    def __init__(
        self,
        shared: SharedState,
        group_state: GroupState,
        log: MessageLog,
        ranking: Ranking,
        ownership: Ownership,
    ) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._kept = group_state.kept
        self._spilling = group_state.spilling
        self._dead = group_state.dead
        self._log = log
        self._ranking = ranking
        self._redrive = Redrive(shared, group_state)
        self._waiting_ranks = WaitingRanks(shared, group_state, log, ranking, ownership)
        self._jobs: dict[bytes, Job] = {}
        """Jobs by id, in the order in which they began."""
        self._steps: dict[str, Callable[[Step, Job], bool]] = {
            "cancel": self._pending,
            "move": self._pending,
            "redrive": self._dead_letters,
            "purge_dead": self._dead_letters,
            "seek": self._seek,
            "drop": self._drop,
        }
        """By kind: function that does a bounded part of a job, and returns whether the job is done."""
        self._ready_from: dict[int, bytes] = {}
        """By group id: key below which all rows of deleted ready queues are deleted."""

    def load(self, view: View) -> None:
        """Load all jobs, and mark the groups with a seek in progress."""
        found = [Job.load(value) for _, value in rows.all_rows(view, rows.JOB)]
        for job in sorted(found, key=lambda job: job.seq):
            self._jobs[job.job_id] = job
            if job.kind == "seek" and job.state == RUNNING:
                group = self._groups.by_id.get(job.arguments["group_id"])
                if group is not None:
                    group.seeking = True
                    group.note_change()

    # -- commands -------------------------------------------------------------------------------------------------

    def start(self, step: Step, job_id: bytes, kind: str, arguments: dict[str, Any]) -> Job:
        """Begin a job, unless a job with this id exists. Raise Conflict if too many jobs run. Raise InvalidRequest or
        UnknownGroup if its arguments are wrong."""
        if job_id.startswith(OWN_IDS):
            raise InvalidRequest("job ids that begin so are the partition's own")
        known = self._jobs.get(job_id)
        if known is not None:
            return known
        if kind in DEAD_JOBS:
            arguments = arguments | {"group_id": self._groups.named(arguments["group"]).group_id}
        elif kind not in KINDS:
            raise InvalidRequest(f"there are no jobs of kind {kind!r}")
        if sum(job.state == RUNNING for job in self._jobs.values()) >= RUNNING_JOBS:
            raise Conflict(f"{RUNNING_JOBS} jobs run in this partition, which is the limit; wait until one is done")
        return self._begin(step, job_id, kind, arguments)

    def start_own(self, step: Step, kind: str, arguments: dict[str, Any]) -> Job:
        """Begin a job of the partition itself."""
        job_id = OWN_IDS + self._shared.next_seq.to_bytes(8, "big")
        return self._begin(step, job_id, kind, arguments)

    def _begin(self, step: Step, job_id: bytes, kind: str, arguments: dict[str, Any]) -> Job:
        """Store a new job."""
        job = self._jobs[job_id] = Job(
            job_id=job_id,
            kind=kind,
            arguments=dict(arguments),
            index=step.index,
            seq=self._shared.next_seq,
            started_ms=step.now_ms,
            next_ms=step.now_ms,
        )
        self._shared.next_seq += 1
        step.view.put(rows.JOB + job_id, job.row())
        return job

    def find(self, job_id: bytes) -> Job:
        """Return a job. Raise NotFound."""
        job = self._jobs.get(job_id)
        if job is None:
            raise NotFound("there is no such job in this partition (any more)")
        return job

    def stop(self, step: Step, job_id: bytes) -> Job:
        """Stop a job, unless it has ended or belongs to the partition itself. Return it."""
        job = self.find(job_id)
        if job.state == RUNNING and job.kind not in OWN_KINDS:
            self._finish(step, job, STOPPED)
        return job

    def each_dead(self, step: Step, command: RedriveDead | PurgeDead) -> list[Outcome]:
        """Redrive or purge dead messages by their ids, immediately and without a job. See `Redrive.each`."""
        return self._redrive.each(step, command)

    @property
    def next_ms(self) -> int | None:
        """Time at which the next step of a job is due, in ms. None if no job runs."""
        return min((job.next_ms for job in self._jobs.values() if job.state == RUNNING), default=None)

    def run(self, step: Step) -> None:
        """Do a bounded part of the job that has waited longest, if one is due."""
        now_ms = step.now_ms
        due = [job for job in self._jobs.values() if job.state == RUNNING and job.next_ms <= now_ms]
        if not due:
            return
        job = min(due, key=lambda job: (job.next_ms, job.index, job.job_id))
        job.next_ms = now_ms
        if self._steps[job.kind](step, job):
            self._finish(step, job, DONE)
        else:
            # This job continues after the other jobs that are due.
            job.next_ms = max(job.next_ms, max(other.next_ms for other in due))
            step.view.put(rows.JOB + job.job_id, job.row())

    def set_back(self, step: Step) -> None:
        """Adjust to a clock reset, which sets the partition's time back to that of `step`: lower all later times in
        jobs.

        Jobs that callers began are stopped, because messages move to other offsets. The partition's own jobs continue
        immediately.
        """
        view, now_ms = step.view, step.now_ms
        for job in list(self._jobs.values()):
            job.started_ms = min(job.started_ms, now_ms)
            job.next_ms = min(job.next_ms, now_ms)
            job.finished_ms = None if job.finished_ms is None else min(job.finished_ms, now_ms)
            if job.state == RUNNING and job.kind not in OWN_KINDS:
                job.state, job.finished_ms = STOPPED, now_ms
            view.put(rows.JOB + job.job_id, job.row())

    def run_own(self, step: Step) -> bool:
        """Do a bounded part of a job that the partition itself began. Return whether there was such a job."""
        if not any(job.state == RUNNING for job in self._jobs.values()):
            return False
        self.run(step)
        return True

    def _finish(self, step: Step, job: Job, state: str) -> None:
        """End a job, and forget the oldest ended jobs if there are too many."""
        view = step.view
        job.state, job.finished_ms = state, step.now_ms
        view.put(rows.JOB + job.job_id, job.row())
        # Forget the jobs that ended first, but never `job`, because its caller waits for the result.
        ends = [
            (other.finished_ms, other.seq, other.job_id)
            for other in self._jobs.values()
            if other.finished_ms is not None and other is not job
        ]
        for _, _, job_id in sorted(ends)[: max(len(ends) + 1 - FINISHED_JOBS, 0)]:
            del self._jobs[job_id]
            view.delete(rows.JOB + job_id)

    # -- pending messages -----------------------------------------------------------------------------------------

    def _pending(self, step: Step, job: Job) -> bool:
        """Cancel or move pending messages in a time window, optionally with prefixes of their keys."""
        view = step.view
        arguments = job.arguments
        if "kept_of" in arguments:
            return self._kept_by_groups(step, job)
        from_ms, until_ms, prefixes = arguments["from_ms"], arguments["until_ms"], _prefixes(arguments)
        start = offsets.pack(from_ms, 0, 0, 0) if from_ms else offsets.FIRST
        start = max(job.position, cursor_before(start), self._log.state.trimmed)
        reader = LogReader(start, look_ahead=STEP_MESSAGES)
        # A cancel without prefixes reads only offsets, so it needs no limit for the size of messages.
        blind = prefixes.say_nothing and job.kind == "cancel"
        most = self._waiting_ranks.most(STEP_MESSAGES) if self._only_ranks(arguments) else STEP_MESSAGES
        ranges = reader.take(view, until_ms - 1, most, NO_LIMIT if blind else STEP_BYTES).ranges
        if prefixes.say_nothing:
            chosen = [offset for base, length in ranges for offset in offsets.run(base, length)]
        else:
            messages = self._log.reader.messages(view, ranges)
            chosen = [message.offset for message in messages if prefixes.take(message.fields)]
        chosen = [offset for offset in chosen if offsets.unpack(offset).index < job.index]
        late: list[bytes] = []
        if chosen and self._only_ranks(arguments):
            ranked = self._ranking.rank_each(step, chosen, arguments["priority"], dry_run=arguments["dry_run"])
            job.matched += ranked.done
            job.done += 0 if arguments["dry_run"] else ranked.done
            late, chosen = ranked.too_late, ranked.left
        for offset in chosen:
            if not self._log.is_pending(offset, view):
                late.append(offset)
                continue
            job.matched += 1
            if not arguments["dry_run"]:
                self._change(step, job, offset)
                job.done += 1
        if self._only_ranks(arguments):
            self._count(job, self._waiting_ranks.rank(step, late, arguments["priority"], dry_run=arguments["dry_run"]))
        else:
            job.too_late += len(late)
        job.position = reader.cursor
        if ranges:
            return False
        return not self._only_ranks(arguments) or self._goes_on_with(job, self._waiting_ranks.first_group())

    def _kept_by_groups(self, step: Step, job: Job) -> bool:
        """Cancel or move messages that are only in rows of groups. Only waiting ones may be changed."""
        for _ in range(EMPTY_GROUPS):
            if self._kept_by_one(step, job):
                return False
            if self._goes_on_with(job, self._waiting_ranks.first_group(above=job.arguments["kept_of"])):
                return True
        return False

    def _kept_by_one(self, step: Step, job: Job) -> bool:
        """Cancel or move a bounded part of the messages that one group keeps. Return whether there were any."""
        arguments, prefixes = job.arguments, _prefixes(job.arguments)
        ranks, priority = self._waiting_ranks, arguments["priority"]

        def is_chosen(offset: bytes, fields: Fields) -> bool:
            """Return whether the job changes a message that a group keeps."""
            is_older = offsets.unpack(offset).index < job.index
            return (fields.get(Column.PRIORITY) or 0) != priority and is_older and prefixes.take(fields)

        kept = KeptRange(arguments["kept_of"], after=job.position, until_ms=arguments["until_ms"])
        part = ranks.choose_kept(step.view, kept, is_chosen, limit=ranks.most(STEP_MESSAGES), max_bytes=STEP_BYTES)
        self._count(job, ranks.rank(step, part.chosen, priority, dry_run=arguments["dry_run"]))
        if part.position is not None:
            job.position = part.position
        return part.position is not None

    def _goes_on_with(self, job: Job, group_id: int | None) -> bool:
        """Continue a job with the messages that a group keeps. Return True if there is no such group, so that the job
        is done."""
        if group_id is not None:
            from_ms = job.arguments["from_ms"]
            job.arguments["kept_of"] = group_id
            job.position = cursor_before(offsets.pack(from_ms, 0, 0, 0) if from_ms else offsets.FIRST)
        return group_id is None

    def _count(self, job: Job, waited: Waited) -> None:
        """Add the result for waiting messages to the numbers of a job."""
        job.matched += waited.done
        job.done += 0 if job.arguments["dry_run"] else waited.done
        job.too_late += waited.too_late

    def _only_ranks(self, arguments: dict[str, Any]) -> bool:
        """Return whether a job changes only priorities, so that messages stay at their offsets."""
        stays = arguments.get("to_ms") is None and not arguments.get("shift_ms")
        return stays and arguments.get("priority") is not None and self._ranking.keeps_offsets

    def _change(self, step: Step, job: Job, offset: bytes) -> None:
        """Cancel or move one pending message."""
        found = self._log.find(offset, step.view)
        assert found is not None, "a message that was just read is gone"
        if job.kind == "cancel":
            self._log.cancel(step, found, remember=False)
            return
        arguments = job.arguments
        to_ms, priority = arguments.get("to_ms"), arguments.get("priority")
        shift_ms = arguments.get("shift_ms", 0)
        if to_ms is None:
            if priority is not None and not shift_ms and self._ranking.rank(step, found, priority):
                return
            to_ms = max(offsets.deliver_ms(offset) + shift_ms, 0)
        self._log.move(step, found, to_ms, step.next_position(), priority=priority)

    # -- dead letters ---------------------------------------------------------------------------------------------

    def _dead_letters(self, step: Step, job: Job) -> bool:
        """Do a bounded part of a redrive or purge. Return whether the job is done."""
        return self._redrive.run(step, job, STEP_MESSAGES, STEP_BYTES)

    # -- groups ---------------------------------------------------------------------------------------------------

    def _seek(self, step: Step, job: Job) -> bool:
        """Make messages that died above the new cursor of a group ready again: from the log, or from their own rows if
        the log no longer has them. Before that, decide about spilled messages."""
        view = step.view
        group = self._groups.by_id.get(job.arguments["group_id"])
        if group is None:
            return True
        if group.ready is not None and self._drop_ready(step, group):
            return False
        if self._seek_spilled(step, job, group):
            return False
        found = dead_letters.scan(
            group.group_id, max(job.position, job.arguments["above"]), STEP_MESSAGES, STEP_BYTES, view
        )
        own = [message for message in found if message.sent_to is None]  # all others were never in the log
        # If the requested position was below the beginning of the log, the cursor is at the beginning: it will never
        # reach the messages below.
        in_log = [
            message for message in own if message.offset > group.cursor and self._kept.is_in_log(message.offset, view)
        ]
        logged = {message.offset for message in in_log}
        gone = [message for message in own if message.offset not in logged]
        if in_log:
            self._redrive.purge(step, group, in_log)
        if gone:
            swept = [Range(message.offset, 1) for message in gone if message.offset > group.cursor]
            if swept:
                group.gaps.add(step, swept)
            self._redrive.redrive(step, group, gone)
        if found:
            job.position = found[-1].offset
            return False
        group.seeking = False
        group.note_change()
        return True

    def _seek_spilled(self, step: Step, job: Job, group: Group) -> bool:
        """Decide about a bounded part of the spilled messages of a group. Return whether there were any.

        A message above the new position that the log does not deliver again is ready, with attempt 0. All others no
        longer wait."""
        above, swept = job.arguments["above"], list[bytes]()
        found = group.spilled.after(job.arguments.get("spilled_to", offsets.FIRST), STEP_MESSAGES, step.view)
        for offset in self._shared.in_slices(found):
            if above < offset and (offset <= group.cursor or not self._kept.is_in_log(offset, step.view)):
                self._spilling.begin_again(step, group, offset)
                swept += [offset] if offset > group.cursor else []
            else:
                group.spilled.remove(step, offset)
                self._kept.drop(step, group, offset)
        if swept:
            group.gaps.add(step, merged(swept))
        if found:
            job.arguments["spilled_to"] = found[-1]
        return bool(found)

    def _drop_ready(self, step: Step, group: Group) -> bool:
        """Delete rows of deleted ready queues. Return whether there were any."""
        view = step.view
        start, stop = rows.group_bounds(rows.READY, group.group_id)
        # Start where the last step ended. A scan from the first key would step over all rows deleted so far.
        start = self._ready_from.pop(group.group_id, start)
        found = view.scan(start, stop, limit=STEP_MESSAGES, max_bytes=STEP_BYTES)
        for key, _ in found:
            view.delete(key)
        if found:
            self._ready_from[group.group_id] = rows.after(found[-1][0])
        return bool(found)

    def _drop(self, step: Step, job: Job) -> bool:
        """Delete the rows of a deleted group."""
        view = step.view
        for tag in sorted((*_OF_GROUP, rows.READY, rows.QUEUE, rows.TURNS, rows.PACE, rows.PAUSE)):
            start, stop = rows.group_bounds(tag, job.arguments["group_id"])
            found = view.scan(max(start, job.position), stop, limit=STEP_MESSAGES, max_bytes=STEP_BYTES)
            for key, _ in found:
                view.delete(key)
            for key, value in found:
                if tag == rows.DEAD:
                    message = dead_letters.load(key, value)
                    self._dead.withdraw(step, message)
                    self._kept.expire_move(step, key[5:], message.id)
                elif tag == rows.KEPT:
                    self._kept.forget(step, key[5:], value)
            if found:
                # Continue from here. A scan from the group's first key would step over all rows deleted so far.
                job.position = rows.after(found[-1][0])
                job.done += len(found)
                return False
        return True


def _prefixes(arguments: dict[str, Any]) -> Prefixes:
    return Prefixes(arguments["key_prefix"], arguments.get(UNIQUE_KEY_PREFIX))
