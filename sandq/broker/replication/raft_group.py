"""One Raft group on the event loop: merge commands into entries, propose the entries, and deliver the results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import trio

from sandq.broker import verbose
from sandq.broker.replication.applier import Apply
from sandq.broker.replication.followed_skips import FollowedSkips
from sandq.broker.replication.log_pin import LogPin
from sandq.broker.replication.reader_pins import ReaderPins
from sandq.broker.replication.replica import Replica, loaded_status
from sandq.broker.replication.requests import Backlog, Done, Request, Requests
from sandq.broker.replication.shut import ApplyFailure
from sandq.model.errors import (
    Conflict,
    DiskFull,
    NotLeader,
    SandqError,
    StorageFailed,
    TimedOut,
    Unavailable,
)
from sandq.model.features import FIRST_LEVEL
from sandq.model.limits import Limits
from sandq.model.logger import get_logger
from sandq.model.members import node_of
from sandq.raft import Group, GroupCommit, GroupJournal, Members, ProposalFailed, Proposed, ReadDone, Skip

log = get_logger("sandq.replication")

AFTER_STALL_MOST = 10_000
"""Maximum number of calls that `after_stall` keeps."""
BATCH_WORK: Final = 4 << 20
"""Maximum work of the requests of one group in one commit batch. The last entry may exceed this limit."""
BATCH_BYTES: Final = 1 << 20
"""Maximum bytes of the entries of one group in one commit batch. The last entry may exceed this limit.

The limit protects other groups, which wait while the whole batch is written and synced, and again while its entries are
applied."""


class Stalled(Unavailable):
    """The log or the state of this node is stalled for now. The request was not executed."""


class Confirmation:
    """The outcome of a leadership check. `index`: the commit index that a read must see; None if this node does not
    lead."""

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.index: int | None = None

    def done(self, index: int | None) -> None:
        """Set the outcome, and wake the waiting reader."""
        self.index = index
        self.answered.set()


@dataclass(slots=True)
class Sending:
    """The progress of a snapshot that is being sent to a member."""

    total_bytes: int
    """Approximate size of the snapshot."""
    sent_bytes: int = 0
    chunk_bytes: int = 0
    """Size of the chunk that is being sent."""


@dataclass(slots=True)
class _Listeners:
    """Callbacks of `RaftGroup.listen`."""

    status: list[Callable[[], None]] = field(default_factory=list)
    ready: list[Callable[[bool], None]] = field(default_factory=list)
    route: list[Callable[[bool], None]] = field(default_factory=list)


class RaftGroup:
    """One member of a Raft group with its replica, pending requests and listeners."""

    def __init__(
        self,
        *,
        number: int,
        member: str,
        journal: GroupJournal,
        applied: int,
        replica: Replica,
        encode: Callable[[Sequence[Any]], bytes],
        group_commit: GroupCommit,
        backlog: Backlog,
        limits: Limits,
        check_level: Callable[[int], None],
        reason_to_wait: Callable[[RaftGroup], str | None],
        may_propose: Callable[[RaftGroup], bool],
        what: str,
        settles: bool,
    ) -> None:
        """Add the group to `group_commit`, which runs it from now on.

        `encode(commands)`: encode one entry with the current time. `check_level(level)`: raise if the cluster has not
        reached a feature level. `reason_to_wait(self)`: return why the group must not create entries now, or None.
        `may_propose(self)`: return whether the group may propose more. If the function returns False, its owner ticks
        the group again later. `what`: description of the group in error messages. `settles`: if this node stops
        leading, requests stay pending until their outcome is certain.

        Raise Corruption."""
        self.number = number
        self.what = what
        self.replica = replica
        self.status: Any = loaded_status(replica)
        self.shut: ApplyFailure | None = replica.failure
        """Why the replica on this node is shut; None if it is open.

        A shut replica applies nothing. Its group proposes only member changes and SKIPs (ADR 46)."""
        self.reopens = False
        """True if the group has committed a SKIP that may let the shut replica open.

        Then the replica must be loaded from its rows again."""
        self._shut_in: tuple[ApplyFailure, int, int] | None = None
        """Start of the count of `taken_while_shut`: the failure, the term, and the bytes of the log at that time."""
        self._skips = FollowedSkips()
        self._listeners = _Listeners()
        self._was_ready = self._was_route = False
        self._leaving = False
        self._change_waiters: list[trio.Event] = []
        """Events of the tasks that wait in `changed`."""
        self._changers: set[trio.Event] = set()
        """Events of the tasks that wait for the outcome of a member change or a SKIP."""
        self.failed: StorageFailed | None = None
        """Error after which this node cannot write any more; None before."""
        self.pins: dict[str, LogPin] = {}
        """Claims on the log, by member that is receiving a snapshot. The member will need the entries after the
        snapshot."""
        self.reader_pins = ReaderPins()
        """Claims of external readers, such as backups, on the log."""
        self.sending: dict[str, Sending] = {}
        """Progress of the snapshots that are being sent, by member."""
        self._closed: SandqError | None = None
        self._abandoned: Unavailable | None = None
        """Error for readers, once this node has stopped applying entries; None before."""
        self.stalled: str | None = None
        """Why the group is stalled; None if it makes progress."""
        self._after_stall: list[Callable[[], None]] = []
        self._encode = encode
        self._group_commit = group_commit
        self._backlog = backlog
        self._check_level = check_level
        self._reason_to_wait = reason_to_wait
        self._may_propose = may_propose
        self.requests = Requests(backlog=backlog, limits=limits, what=what)
        self.group: Group = group_commit.add(
            number, member, journal, applied=applied, before_tick=self.flush, settles=settles
        )

    def listen(
        self,
        *,
        on_status: Callable[[], None] | None = None,
        on_ready: Callable[[bool], None] | None = None,
        on_route: Callable[[bool], None] | None = None,
    ) -> None:
        """Call these functions from now on, on the loop.

        - `on_status()`: after each change of `status`.
        - `on_ready(ready)`: after each change of `ready`, with the new value.
        - `on_route(here)`: when clients must begin (True) or stop (False) sending requests to this node. Called before
          `on_ready`.
        """
        if on_route is not None:
            self._listeners.route.append(on_route)
        if on_status is not None:
            self._listeners.status.append(on_status)
        if on_ready is not None:
            self._listeners.ready.append(on_ready)

    def notify_status(self) -> None:
        """Notify the listeners that the status changed."""
        for on_status in self._listeners.status:
            on_status()

    @property
    def ready(self) -> bool:
        """True if this node leads the group and has applied everything that earlier leaders acknowledged.

        False while the group is stalled or its replica is shut.

        If the node cannot write any more, only groups without other voters stay ready: no other node could answer their
        reads."""
        group = self.group
        leads = group.is_leader and self.stalled is None and self.shut is None
        leads = leads and (self.failed is None or group.is_only_voter)
        return leads and bool(self.status.applied_index >= group.term_start)

    @property
    def is_shut_leader(self) -> bool:
        """True if this node leads the group and its replica is shut.

        Requests fail with the reason of the shut replica. Only member changes and SKIPs are proposed."""
        return self.shut is not None and self.group.is_leader and self.failed is None and self._closed is None

    @property
    def taken_while_shut(self) -> int:
        """Bytes by which the log has grown in this term since the replica was shut.

        The count restarts with each term, so that every new leader can commit its log. The leader can apply the failed
        entry only after it has committed the log. Then the leader's replica is shut as well, or the leader sends a
        snapshot that opens this replica."""
        if self.shut is None:
            return 0
        size_bytes = self.group.journal.size_bytes
        if self._shut_in is None or self._shut_in[0] is not self.shut or self._shut_in[1] != self.group.term:
            self._shut_in = self.shut, self.group.term, size_bytes
        return size_bytes - self._shut_in[2]

    @property
    def works(self) -> bool:
        """True if the group is ready and this node can write."""
        return self.failed is None and self.ready

    @property
    def members(self) -> Members:
        """The members of the group, by the latest configuration in the log."""
        return self.group.members

    @property
    def leader(self) -> str | None:
        """The node that leads the group, as far as this node knows; None if this node knows no leader."""
        return self.group.leader

    def hand_over(self, nodes: Collection[str]) -> None:
        """Stop accepting commands, and transfer leadership to a member on one of these nodes.

        The member with the longest log takes over once it has the whole log. The caller repeats the call while this
        node leads, or calls `stop_leaving` to give up."""
        self._leaving = True
        voters = [m for m in self.group.members.voters if node_of(m) in nodes and m != self.group.member]
        if voters:
            self.group.transfer(max(voters, key=self.group.match_index))
        self._group_commit.mark(self.group)

    def stop_leaving(self) -> None:
        """Accept commands again, because the attempt to transfer leadership has ended."""
        self._leaving = False

    async def change_members(self, members: Members) -> None:
        """Make one step of a membership change (see `Group.change_members`), and wait until the step is committed.

        Raise NotLeader, Unavailable (the step is not allowed now), StorageFailed, or TimedOut."""
        await self._propose_own(partial(self.group.change_members, members))

    async def propose_skip(self, skip: Skip) -> None:
        """Propose to skip an entry that could not be applied. Wait until this SKIP is committed.

        Raise Conflict if this replica has not followed an earlier SKIP of the entry. Raise NotLeader, StorageFailed, or
        TimedOut."""
        if self.is_skipping(skip.index):
            raise Conflict(f"entry {skip.index} is being skipped already; ask again in a moment")
        await self._propose_own(partial(self._skips.propose, self.group, skip))

    def is_skipping(self, index: int) -> bool:
        """Return whether an unfinished SKIP prevents a new SKIP of this entry (see `FollowedSkips.is_skipping`)."""
        return self._skips.is_skipping(self.group, index)

    async def _propose_own(self, propose: Callable[[Proposed], None]) -> None:
        """Call `propose` for a member change or a SKIP, and wait for the outcome. A leader whose replica is shut may do
        so, too."""
        if not self.is_shut_leader:
            self.check_ready()
        if self.failed is not None:
            raise self.failed  # `check_ready` does not raise for an only voter, because it still answers reads
        outcome: list[ProposalFailed | None] = []
        finished = trio.Event()

        def done(index: int | None, failure: ProposalFailed | None) -> None:
            outcome.append(failure)
            finished.set()

        propose(done)
        self._group_commit.mark(self.group)
        self._changers.add(finished)
        try:
            await finished.wait()
        finally:
            self._changers.discard(finished)
        if not outcome:
            raise self._closed or TimedOut("this node cannot write (any more): the outcome is unknown")
        if outcome[0] in (ProposalFailed.NOT_LEADER, ProposalFailed.LOST):
            raise self.not_leader()
        if outcome[0] is ProposalFailed.REFUSED:
            raise Unavailable("the members cannot be changed now: the previous change is not finished")
        if outcome[0] is not None:
            raise TimedOut("leadership was lost meanwhile: the outcome is unknown")

    def needed_from(self, lag_bytes: int) -> int:
        """Return the index of the first entry that a member or a reader still needs from this log.

        `lag_bytes`: maximum size of the log that is kept for lagging members. If a snapshot or a reader needs more of
        the log than its budget allows, its claim is dropped."""
        group = self.group
        pins = [pin.needed_from(group.journal, group.match_index(m)) for m, pin in list(self.pins.items())]
        pins.append(self.reader_pins.needed_from(group.journal))
        return min([group.needed_from(lag_bytes), *[index for index in pins if index is not None]])

    @property
    def is_pinned(self) -> bool:
        """True if a snapshot that is being sent keeps a part of the log."""
        return any([not pin.is_lost for pin in self.pins.values()])

    def lose_pins(self) -> None:
        """Drop the claims of snapshots and readers on the log."""
        self.reader_pins.lose()
        for pin in list(self.pins.values()):
            pin.lose()

    def send_commit_index(self) -> None:
        """Send the commit index to the other members at once."""
        self.group.heartbeat()
        self._group_commit.mark(self.group)

    def notify_changed(self) -> None:
        """Wake the tasks that wait in `changed`. If `ready` or the route has changed, notify the listeners."""
        waiters, self._change_waiters = self._change_waiters, []
        for changed in waiters:
            changed.set()
        ready = self.ready and self._closed is None
        route = ready or self.is_shut_leader
        if route != self._was_route:
            self._was_route = route
            for on_route in self._listeners.route:
                on_route(route)
        if ready != self._was_ready:
            self._was_ready = ready
            for on_ready in self._listeners.ready:
                on_ready(ready)

    def check_ready(self) -> None:
        """If the group is not ready, raise NotLeader, Unavailable, or the error that ended the group."""
        if self._closed is not None:
            raise self._closed
        if not self.ready:
            if self.shut is not None and self.group.is_leader:
                raise Unavailable(self.shut.reason)
            if self.stalled is not None and self.group.is_leader:
                raise Stalled(self.stalled)
            raise self.not_leader()

    def not_leader(self) -> NotLeader:
        """Return the error for requests to a node that does not lead. The error names the leader if this node knows
        it."""
        leader = self.group.leader
        if self.group.is_leader or leader is None:
            return NotLeader(f"{self.what} has no leader that is ready; ask again", group=self.number)
        return NotLeader(f"{leader} leads {self.what}", group=self.number, node_id=leader)

    def submit(
        self,
        command: Any,
        done: Done,
        *,
        size: int = 64,
        work: int | None = None,
        messages: int = 0,
        line: Hashable | None = None,
    ) -> None:
        """Queue a command to be proposed, if possible in the next commit batch. `done` gets the result.

        Raise NotLeader, Unavailable, Overloaded, DiskFull or StorageFailed. Raise Conflict if the command needs a
        higher feature level than the cluster has, or if an operator skipped the same command. After an exception,
        `done` is never called.

        `size`: bytes of the backlog that the request uses until it is answered. `work`: see `Request.work`; None:
        `size`. `line`: the flow of the command; commands of one flow stay in order (see `FairQueue.add`). If `line` is
        BEHIND, the command follows all commands that wait now. If `line` is None, the command also precedes all
        commands that are submitted later."""
        if self.failed is not None and self.group.is_only_voter:
            raise self.failed  # an only voter stays ready for reads, so `check_ready` does not raise
        self.check_ready()
        if self.stalled is not None:
            raise Stalled(self.stalled)
        if self._leaving:
            raise Unavailable("this node is handing over the leadership; ask again in a moment")
        reason = self._reason_to_wait(self)
        if reason is not None:
            raise _not_taken(reason)
        if (level := command.needed_level) > FIRST_LEVEL:
            self._check_level(level)
        if self.status.skipped and command.digest() in self.status.skipped:
            raise Conflict(
                f"an operator skipped this request in {self.what}, because no replica could apply it: nothing was "
                "done, and sending it again cannot help"
            )
        if self._backlog.disk_full is not None and command.needs_space:
            raise DiskFull(self._backlog.disk_full)
        self.requests.check_capacity(size)
        self.requests.add(Request(command, size, size if work is None else work, messages, done), line)
        self._group_commit.mark_requests(self.group)

    async def call(
        self,
        command: Any,
        line: Hashable | None = None,
        *,
        size: int = 64,
        work: int | None = None,
        messages: int = 0,
    ) -> Any:
        """Submit a command, and return its result. If the result is an error, raise the error."""
        answered, answers = trio.Event(), []

        def done(result: Any) -> None:
            answers.append(result)
            answered.set()

        self.submit(command, done, size=size, work=work, messages=messages, line=line)
        await answered.wait()
        if isinstance(answers[0], SandqError):
            raise answers[0]
        return answers[0]

    async def read(self) -> None:
        """Wait until this node has applied everything that was acknowledged before this call.

        Other nodes may have acknowledged writes, too: so this node first confirms that it still leads. Raise NotLeader,
        Unavailable or StorageFailed."""
        await self.finish_read(self.begin_read())

    def begin_read(self) -> Confirmation | None:
        """Start the leadership check of `read`, and return the check.

        Return None if this node is the only voter, which needs no check. Raise NotLeader or Unavailable."""
        self.check_ready()
        if self.group.is_only_voter:
            return None
        confirmation = Confirmation()
        self.group.read_index(confirmation.done)
        self._group_commit.mark(self.group)
        return confirmation

    async def confirm_leadership(self) -> None:
        """Wait until a majority confirms that this node led at the time of this call. Raise NotLeader, Unavailable."""
        if not self.is_shut_leader:
            self.check_ready()
        if self.group.is_only_voter:
            return
        confirmation = Confirmation()
        self.group.read_index(confirmation.done)
        self._group_commit.mark(self.group)
        await confirmation.answered.wait()
        if confirmation.index is None:
            raise self.not_leader()

    def ask_index(self, done: ReadDone) -> None:
        """Call `done(index)`: all entries that were acknowledged before this call have an index of at most `index`.

        If this node does not lead, call `done(None)`."""
        if self.group.is_only_voter and self.ready:
            done(self.group.commit_index)  # may be above the applied index: the caller waits until it is applied
        elif self.failed is not None or self._closed is not None:
            done(None)
        else:
            self.group.read_index(done)
            self._group_commit.mark(self.group)

    async def finish_read(self, confirmation: Confirmation | None) -> None:
        """Do the second part of `read`. `confirmation`: the check that `begin_read` returned."""
        if confirmation is None:
            return
        await confirmation.answered.wait()
        index = confirmation.index
        if index is None:
            raise self.not_leader()
        await self.until_applied(index)
        self.check_ready()

    async def until_applied(self, index: int) -> None:
        """Wait until the entry `index` is applied. Raise an error if the entry cannot be applied on this node."""
        while self.status.applied_index < index:
            if self._abandoned is not None:
                raise self._abandoned
            if self.shut is not None:
                raise Unavailable(self.shut.reason)
            if self.stalled is not None:
                raise Stalled(self.stalled)
            await self.changed()
            if self._closed is not None:
                raise self._closed

    async def catch_up(self) -> float:
        """Wait until this node has applied all entries that it knows to be committed.

        Return an age in seconds: this node has everything that was acknowledged at least that long before this call.
        Raise NotLeader if this node has never learned a commit index. Raise Unavailable."""
        age_s = self.group.age_s()
        if self._closed is not None:
            raise self._closed
        if age_s is None:
            raise self.not_leader()
        await self.until_applied(self.group.commit_index)
        return age_s

    async def changed(self) -> None:
        """Wait until this node has applied an entry or changed its role, or the group was shut, stalled or closed."""
        changed = trio.Event()
        self._change_waiters.append(changed)
        await changed.wait()

    def replace(self, replica: Replica, status: Any) -> None:
        """Continue the group with another replica: from a snapshot, or loaded again because the old replica was
        shut."""
        self.replica, self.status = replica, status
        self.shut, self.reopens = replica.failure, False
        self._skips.clear()
        self.requests.drop_all(TimedOut("the state of the group was replaced: the outcome is unknown"))
        self.notify_changed()
        self.notify_status()

    def flush(self) -> None:
        """Propose the queued requests, merged into as few entries as possible, up to the limits of a commit batch.

        Called at the start of each tick."""
        requests = self.requests
        if not requests.waiting:
            return
        if not self.group.is_leader:
            requests.refuse_waiting(NotLeader("this node does not lead it any more"))
            return
        reason = self._reason_to_wait(self)
        if reason is not None:  # checked here, because `_encode` gives the entries their time
            requests.refuse_waiting(_not_taken(reason))
        left, left_bytes = BATCH_WORK, BATCH_BYTES
        while requests.waiting:
            if left <= 0 or left_bytes <= 0:
                self._group_commit.mark(self.group)
                return
            if not self._may_propose(self):
                return
            merged = requests.take_entry()
            left -= sum([request.work for request in merged])
            entry = self._encode([request.command for request in merged])
            left_bytes -= len(entry)
            number = requests.propose(merged)
            self.group.propose(entry, partial(self._proposed, number, merged))

    def _proposed(self, number: int, merged: list[Request], index: int | None, failure: ProposalFailed | None) -> None:
        """Handle the outcome of a proposal. `index`: Raft index of the committed entry. None: the proposal failed."""
        self.requests.proposed.pop(number, None)
        if index is not None:
            self.requests.committed[index] = merged
        elif failure in (ProposalFailed.NOT_LEADER, ProposalFailed.LOST):
            self.requests.answer_all(merged, NotLeader("this node does not lead it any more"))
        else:
            self.requests.answer_all(merged, TimedOut("leadership was lost meanwhile: the outcome is unknown"))

    def task(self, index: int, command: bytes, skip: Skip | None = None) -> Apply:
        """Return the task that applies a committed entry. If the entry is skipped, record that the replica follows the
        SKIP."""
        self._skips.follow(self.group, index)
        return Apply(self.number, self.replica, index, command, index in self.requests.committed, skip)

    def shut_off(self) -> None:
        """Stop serving requests, because the replica is shut (`Replica.failure`).

        Proposed requests may be applied later, on this or another node, so their outcome is unknown. Requests that are
        not proposed yet are refused."""
        self.shut = failure = self.replica.failure
        assert failure is not None
        try:
            self.status = self.replica.status()
        except Exception as error:  # the replica may be shut because its status cannot be computed
            log.error(
                "the status of a shut replica cannot be read: the previous one is shown",
                group=self.number,
                error=repr(error),
            )
        self.requests.refuse_waiting(Unavailable(f"nothing was done: {failure.reason}"))
        self.requests.drop_all(TimedOut(f"the outcome is unknown: {failure.reason}"))
        self.group.reads.fail()
        self._note_skips()
        self.notify_changed()
        self.notify_status()

    def discard(self, index: int, skip: Skip | None) -> None:
        """Do not apply a committed entry now, because the replica is shut. The entry is applied when the replica opens
        again."""
        self.requests.committed.pop(index, None)
        if skip is not None:
            self._note_skips()
            self.notify_changed()

    def _note_skips(self) -> None:
        """Update `reopens` after a SKIP was committed or the replica was shut."""
        self.reopens = self._skips.may_reopen(self.group, self.replica.applied_index, self.shut)

    def applied(self, index: int, results: list[Any]) -> None:
        """Answer the requests of an applied entry."""
        if verbose.is_on():
            log.debug("an entry is applied", group=self.number, index=index, requests=len(results))
        for request, result in zip(self.requests.committed.pop(index, ()), results, strict=False):
            self.requests.answer(request, result)

    def fail(self, error: StorageFailed) -> None:
        """Fail the pending requests, because the node cannot write any more.

        Committed requests are still answered. If the group has other voters, the outcome of the remaining requests is
        unknown, and clients send their requests to these voters."""
        self.failed = error
        alone = self.group.is_only_voter
        self.requests.drop_proposed(error if alone else TimedOut(f"the outcome is unknown: {error.message}"))
        self._give_up_changes()
        self.group.reads.fail()

    def expire(self, timeout_s: float) -> None:
        """Answer with an error all requests that have been pending since the last call, `timeout_s` ago."""
        self.requests.expire(timeout_s, self.group.commit_index)
        if self.requests.waiting:
            self._group_commit.mark(self.group)  # the expired requests may have blocked the group

    def stall(self, why: str) -> None:
        """Fail the pending requests, because the node is stalled. Serve no requests until `resume` is called."""
        self.stalled = why
        self.requests.refuse_waiting(Unavailable(f"it was not stored: {why}"))
        self.requests.drop_all(TimedOut(f"the outcome is unknown: {why}"))
        self._give_up_changes()
        self.group.reads.fail()
        self.notify_changed()

    def resume(self) -> None:
        """Serve requests again after a stall."""
        self.stalled = None
        self.notify_changed()
        waiting, self._after_stall = self._after_stall, []
        for call in waiting:
            call()

    def after_stall(self, call: Callable[[], None]) -> None:
        """Call `call` when the stall ends. `call` must not raise. If `AFTER_STALL_MOST` calls are kept, ignore the new
        call."""
        if len(self._after_stall) < AFTER_STALL_MOST:
            self._after_stall.append(call)

    @property
    def is_leaving(self) -> bool:
        """True while the group accepts no commands because leadership is being transferred."""
        return self._leaving

    def abandon(self, error: StorageFailed) -> None:
        """Stop applying entries, after `fail`. Answer the committed requests with an error, too."""
        if self.group.is_only_voter:
            self.close(error)
        else:
            self.requests.drop_committed(TimedOut(f"the outcome is unknown: {error.message}"))
            self._abandoned = Unavailable(f"this node has stopped applying: {error.message}")
            self.notify_changed()

    def close(self, error: SandqError) -> None:
        """End the group on this node: no request is accepted and no entry is applied any more."""
        self._closed = error
        self.requests.drop_all(error)
        self._give_up_changes()
        self.group.reads.fail()
        self.notify_changed()

    def _give_up_changes(self) -> None:
        """Wake the tasks that wait for a member change or a SKIP. The outcome of the change stays unknown."""
        for finished in self._changers:
            finished.set()


def _not_taken(reason: str) -> Unavailable:
    """Return the error for requests while the group must not create entries."""
    return Unavailable(f"no requests are accepted here for now: {reason}; ask again in a moment")
