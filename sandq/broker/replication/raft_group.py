"""One Raft group as the event loop sees it: merge commands into entries, propose them, hand out their results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import structlog
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
from sandq.model.members import node_of
from sandq.raft import Group, GroupCommit, GroupJournal, Members, ProposalFailed, Proposed, ReadDone, Skip

log = structlog.get_logger("sandq.replication")

AFTER_STALL_MOST = 10_000
PASS_WORK: Final = 4 << 20
PASS_BYTES: Final = 1 << 20
"""Of the entries of a group in one pass, but for the last: others wait for all of it to be written and synced, and may
wait for as much again."""


class Stalled(Unavailable):
    """The log or the state of this node stands still, for now; nothing was done."""


class Confirmation:
    """That this node leads still, and up to which index a read must see."""

    def __init__(self) -> None:
        self.answered = trio.Event()
        self.index: int | None = None

    def done(self, index: int | None) -> None:
        self.index = index
        self.answered.set()


@dataclass(slots=True)
class Sending:
    """A snapshot on its way to a member."""

    total_bytes: int
    """Roughly."""
    sent_bytes: int = 0
    chunk_bytes: int = 0
    """Of what was read of it last, and is being sent."""


@dataclass(slots=True)
class _Listeners:
    """Callbacks of `RaftGroup.listen`."""

    status: list[Callable[[], None]] = field(default_factory=list)
    ready: list[Callable[[bool], None]] = field(default_factory=list)
    flush: list[Callable[[], None]] = field(default_factory=list)
    route: list[Callable[[bool], None]] = field(default_factory=list)


class RaftGroup:
    """`encode(commands)` stamps and encodes one entry."""

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
        has_room: Callable[[RaftGroup], bool],
        what: str,
        settles: bool,
    ) -> None:
        """Run a group from now on. `check_level(level)` raises when the cluster has not come to a feature level;
        `reason_to_wait(self)` says why nothing may be stamped now, or None; `has_room(self)`: whether more may be
        proposed, else the group is marked once it may be; `what` it is a group of, for messages;
        `settles`: what waits when this node ceases to lead is answered once it is certain what became of it. Raises
        Corruption."""
        self.number = number
        self.what = what
        self.replica = replica
        self.status: Any = loaded_status(replica)
        self.shut: ApplyFailure | None = replica.failure
        """Why the replica here is shut: nothing is applied, and nothing but members and SKIPs is proposed (ADR 46)."""
        self.reopens = False
        """The group has committed a SKIP that the shut replica has not followed, and that may open it: the replica is
        to be loaded from its rows again."""
        self._shut_in: tuple[ApplyFailure, int, int] | None = None
        """The failure and the term that `taken_while_shut` counts from, and the bytes of the log at that time."""
        self._skips = FollowedSkips()
        self._listeners = _Listeners()
        self._was_ready = self._was_route = False
        self._leaving = False
        self._readers: list[trio.Event] = []
        self._changers: set[trio.Event] = set()
        """Of changes of members that are not committed yet."""
        self.failed: StorageFailed | None = None
        self.pins: dict[str, LogPin] = {}
        """Of members that a snapshot is on its way to: what comes behind it they will need from the log."""
        self.reader_pins = ReaderPins()
        """Of those who read the log from outside."""
        self.sending: dict[str, Sending] = {}
        """How far those snapshots are."""
        self._closed: SandqError | None = None
        self._stands: Unavailable | None = None
        """Nothing is applied any more."""
        self.stalled: str | None = None
        """Why nothing goes on here, for now."""
        self._after_stall: list[Callable[[], None]] = []
        self._encode = encode
        self._group_commit = group_commit
        self._backlog = backlog
        self._check_level = check_level
        self._reason_to_wait = reason_to_wait
        self._has_room = has_room
        self.requests = Requests(backlog=backlog, limits=limits, what=what)
        self.group: Group = group_commit.add(
            number, member, journal, applied=applied, before_tick=self.flush, settles=settles
        )

    def listen(
        self,
        *,
        on_status: Callable[[], None] | None = None,
        on_ready: Callable[[bool], None] | None = None,
        on_flush: Callable[[], None] | None = None,
        on_route: Callable[[bool], None] | None = None,
    ) -> None:
        """Call these from now on, on the loop: `on_status` after each change of `status`; `on_ready(ready)` when this
        node begins to lead the group and may answer for it, and when it ceases to; `on_flush` before something is
        proposed: what is submitted then is written and synced with it; `on_route(here)` when requests are to come to
        this node from now on, and when they are not, before `on_ready`."""
        if on_route is not None:
            self._listeners.route.append(on_route)
        if on_status is not None:
            self._listeners.status.append(on_status)
        if on_ready is not None:
            self._listeners.ready.append(on_ready)
        if on_flush is not None:
            self._listeners.flush.append(on_flush)

    def notify_status(self) -> None:
        """Tell all listeners that the status is another one."""
        for on_status in self._listeners.status:
            on_status()

    @property
    def ready(self) -> bool:
        """It leads, and whatever was acknowledged before is applied. A node that cannot write any more still answers
        for what nobody else can: others will lead the groups that they are members of."""
        group = self.group
        leads = group.is_leader and self.stalled is None and self.shut is None
        leads = leads and (self.failed is None or group.is_only_voter)
        return leads and bool(self.status.applied_index >= group.term_start)

    @property
    def is_shut_leader(self) -> bool:
        """It leads and is shut: it takes requests only to say why they fail, and proposes members and SKIPs."""
        return self.shut is not None and self.group.is_leader and self.failed is None and self._closed is None

    @property
    def taken_while_shut(self) -> int:
        """Bytes that the log has grown by in this term since the replica was shut.

        What came before does not count, and each term counts anew: its leader must be able to commit what it has, for
        only then it applies the entry, and is shut, or opens this replica by a snapshot."""
        if self.shut is None:
            return 0
        size_bytes = self.group.journal.size_bytes
        if self._shut_in is None or self._shut_in[0] is not self.shut or self._shut_in[1] != self.group.term:
            self._shut_in = self.shut, self.group.term, size_bytes
        return size_bytes - self._shut_in[2]

    @property
    def works(self) -> bool:
        """It is ready, and can write."""
        return self.failed is None and self.ready

    @property
    def members(self) -> Members:
        """The latest configuration in the log."""
        return self.group.members

    @property
    def leader(self) -> str | None:
        """The node that leads the group, as far as is known here."""
        return self.group.leader

    def hand_over(self, nodes: Collection[str]) -> None:
        """Take nothing more, and let the member on one of these nodes that has most of the log lead as soon as it has
        all of it. To be called again until this node leads no more, or to be ended with `stay`."""
        self._leaving = True
        voters = [m for m in self.group.members.voters if node_of(m) in nodes and m != self.group.member]
        if voters:
            self.group.transfer(max(voters, key=self.group.match_index))
        self._group_commit.mark(self.group)

    def stay(self) -> None:
        """Go on leading: nobody has taken over."""
        self._leaving = False

    async def change_members(self, members: Members) -> None:
        """One step (see `Group.change_members`), and wait until it is committed. Raises NotLeader; Unavailable when it
        may not be made now; StorageFailed; TimedOut."""
        await self._propose_own(partial(self.group.change_members, members))

    async def propose_skip(self, skip: Skip) -> None:
        """Replace an entry that could not be applied, and wait until that is committed. Raises NotLeader; Conflict
        while another SKIP of it is not followed; StorageFailed; TimedOut."""
        if self.is_skipping(skip.index):
            raise Conflict(f"entry {skip.index} is being skipped already; ask again in a moment")
        await self._propose_own(partial(self._skips.propose, self.group, skip))

    def is_skipping(self, index: int) -> bool:
        """Return whether a SKIP of an entry is proposed, or in the log, that this replica has not followed yet."""
        return self._skips.is_skipping(self.group, index)

    async def _propose_own(self, propose: Callable[[Proposed], None]) -> None:
        """Propose what is decided by the log alone: a shut leader may do that, too."""
        if not self.is_shut_leader:
            self.check_ready()
        if self.failed is not None:
            raise self.failed  # an only voter still answers reads
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
            raise Unavailable("the members cannot be changed now: the change before is not finished")
        if outcome[0] is not None:
            raise TimedOut("leadership was lost meanwhile: the outcome is unknown")

    def needed_from(self, lag_bytes: int) -> int:
        """The first entry of the log that some member has yet to get from here: of a log of up to `lag_bytes`, and of
        what snapshots pin, and readers. Pins beyond their budget are lost."""
        group = self.group
        pins = [pin.needed_from(group.journal, group.match_index(m)) for m, pin in list(self.pins.items())]
        pins.append(self.reader_pins.needed_from(group.journal))
        return min([group.needed_from(lag_bytes), *[index for index in pins if index is not None]])

    @property
    def is_pinned(self) -> bool:
        """Whether a snapshot that is on its way keeps a part of the log."""
        return any([not pin.is_lost for pin in self.pins.values()])

    def lose_pins(self) -> None:
        """Let snapshots that are on their way, and readers, pin nothing any more."""
        self.reader_pins.lose()
        for pin in list(self.pins.values()):
            pin.lose()

    def hurry(self) -> None:
        """Let the other members hear at once what is committed."""
        self.group.heartbeat()
        self._group_commit.mark(self.group)

    def look(self) -> None:
        """Something changed: wake who waits for it, and tell whether `ready` is another."""
        readers, self._readers = self._readers, []
        for changed in readers:
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
        """Raises NotLeader, Unavailable, or what ended the group."""
        if self._closed is not None:
            raise self._closed
        if not self.ready:
            if self.shut is not None and self.group.is_leader:
                raise Unavailable(self.shut.reason)
            if self.stalled is not None and self.group.is_leader:
                raise Stalled(self.stalled)
            raise self.not_leader()

    def not_leader(self) -> NotLeader:
        """With whom to ask, as far as is known here."""
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
        """Propose when its turn comes, with the next pass if there is not too much. Raises NotLeader, Unavailable,
        Overloaded, DiskFull, StorageFailed; Conflict for a command above the cluster's feature level. Then `done` is
        never called.

        `size`: bytes that it takes until it is answered. `work`: what it costs to apply, in bytes of a batch that cost
        as much; None: its size. `line`: in which it keeps its order, while lines have turns; BEHIND: it comes behind
        everything that waits here; None: and before everything that comes after it.
        """
        if self.failed is not None and self.group.is_only_voter:
            raise self.failed
        self.check_ready()
        if self.stalled is not None:
            raise Stalled(self.stalled)
        if self._leaving:
            raise Unavailable("this node hands the leadership over to another one; ask again in a moment")
        reason = self._reason_to_wait(self)
        if reason is not None:
            raise _not_taken(reason)
        if (level := command.needed_level) > FIRST_LEVEL:
            self._check_level(level)
        if self.status.skipped and command.digest() in self.status.skipped:
            raise Conflict(
                f"an operator skipped this very request in {self.what}, because no replica could apply it: nothing was "
                "done, and sending it again cannot help"
            )
        if self._backlog.no_room is not None and command.needs_space:
            raise DiskFull(self._backlog.no_room)
        self.requests.check_room(size)
        self.requests.add(Request(command, size, size if work is None else work, messages, done), line)
        self._group_commit.mark(self.group)

    async def call(
        self,
        command: Any,
        line: Hashable | None = None,
        *,
        size: int = 64,
        work: int | None = None,
        messages: int = 0,
    ) -> Any:
        """`submit`, and wait for the result. Raises what refused it."""
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
        """Wait until everything that was acknowledged before this call, by whomever, is applied here, and this node
        is known to have led still. Raises NotLeader, StorageFailed."""
        await self.finish_read(self.begin_read())

    def begin_read(self) -> Confirmation | None:
        """Ask for what `read` waits for; None: this node need ask nobody. Raises NotLeader."""
        self.check_ready()
        if self.group.is_only_voter:
            return None
        confirmation = Confirmation()
        self.group.read_index(confirmation.done)
        self._group_commit.mark(self.group)
        return confirmation

    async def confirm_leadership(self) -> None:
        """Wait until this node is known to have led when this was called. Raises NotLeader, Unavailable."""
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
        """`done(index)`: everything that was acknowledged before this call stands up to there; `done(None)`: this node
        does not lead."""
        if self.group.is_only_voter and self.ready:
            done(self.group.commit_index)  # others may act upon what is committed, before it is applied here
        elif self.failed is not None or self._closed is not None:
            done(None)
        else:
            self.group.read_index(done)
            self._group_commit.mark(self.group)

    async def finish_read(self, confirmation: Confirmation | None) -> None:
        """The rest of `read`."""
        if confirmation is None:
            return
        await confirmation.answered.wait()
        index = confirmation.index
        if index is None:
            raise self.not_leader()
        await self.until_applied(index)
        self.check_ready()

    async def until_applied(self, index: int) -> None:
        """Wait until an entry is applied. Raises what keeps it from that."""
        while self.status.applied_index < index:
            if self._stands is not None:
                raise self._stands
            if self.shut is not None:
                raise Unavailable(self.shut.reason)
            if self.stalled is not None:
                raise Stalled(self.stalled)
            await self.changed()
            if self._closed is not None:
                raise self._closed

    async def catch_up(self) -> float:
        """Wait until what is known here to be committed is applied. How long before this call (seconds) that was
        certainly all that had been acknowledged. Raises NotLeader when that was never known here, Unavailable."""
        age_s = self.group.age_s()
        if self._closed is not None:
            raise self._closed
        if age_s is None:
            raise self.not_leader()
        await self.until_applied(self.group.commit_index)
        return age_s

    async def changed(self) -> None:
        """Wait until something has been applied, or the node has begun or ceased to lead."""
        changed = trio.Event()
        self._readers.append(changed)
        await changed.wait()

    def replace(self, replica: Replica, status: Any) -> None:
        """Go on with another state of the same group: that of a snapshot, or what a shut replica has stored."""
        self.replica, self.status = replica, status
        self.shut, self.reopens = replica.failure, False
        self._skips.clear()
        self.requests.drop_all(TimedOut("the group was installed anew: the outcome is unknown"))
        self.look()
        self.notify_status()

    def flush(self) -> None:
        """Propose what has gathered, merged into as few entries as the limits allow, up to `PASS_WORK` and
        `PASS_BYTES`. Runs at the start of a tick."""
        requests = self.requests
        if not requests.waiting:
            return
        if not self.group.is_leader:
            requests.refuse_waiting(NotLeader("this node does not lead it any more"))
            return
        reason = self._reason_to_wait(self)
        if reason is not None:  # only here are entries stamped
            requests.refuse_waiting(_not_taken(reason))
        for on_flush in self._listeners.flush:
            on_flush()
        left, left_bytes = PASS_WORK, PASS_BYTES
        while requests.waiting:
            if left <= 0 or left_bytes <= 0:
                self._group_commit.mark(self.group)
                return
            if not self._has_room(self):
                return
            merged = requests.take_entry()
            left -= sum([request.work for request in merged])
            entry = self._encode([request.command for request in merged])
            left_bytes -= len(entry)
            number = requests.propose(merged)
            self.group.propose(entry, partial(self._proposed, number, merged))

    def _proposed(self, number: int, merged: list[Request], index: int | None, failure: ProposalFailed | None) -> None:
        self.requests.proposed.pop(number, None)
        if index is not None:
            self.requests.committed[index] = merged
        elif failure in (ProposalFailed.NOT_LEADER, ProposalFailed.LOST):
            self.requests.answer_all(merged, NotLeader("this node does not lead it any more"))
        else:
            self.requests.answer_all(merged, TimedOut("leadership was lost meanwhile: the outcome is unknown"))

    def task(self, index: int, command: bytes, skip: Skip | None = None) -> Apply:
        """What the apply thread is to do with a committed entry. Notes which SKIP it follows."""
        self._skips.follow(self.group, index)
        return Apply(self.number, self.replica, index, command, index in self.requests.committed, skip)

    def shut_off(self) -> None:
        """The replica is shut (`Replica.failure`). What was proposed may be applied later, by this node or another one,
        so that its outcome is unknown; what was not is refused."""
        self.shut = failure = self.replica.failure
        assert failure is not None
        try:
            self.status = self.replica.status()
        except Exception as error:  # the state that cannot be summed up is the very reason
            log.error("the last state of a shut replica is shown", group=self.number, error=repr(error))
        self.requests.refuse_waiting(Unavailable(f"nothing was done: {failure.reason}"))
        self.requests.drop_all(TimedOut(f"the outcome is unknown: {failure.reason}"))
        self.group.reads.fail()
        self._note_skips()
        self.look()
        self.notify_status()

    def discard(self, index: int, skip: Skip | None) -> None:
        """A committed entry is not applied, as the replica is shut: it will be once that opens again."""
        self.requests.committed.pop(index, None)
        if skip is not None:
            self._note_skips()
            self.look()

    def _note_skips(self) -> None:
        self.reopens = self._skips.may_reopen(self.group, self.replica.applied_index, self.shut)

    def applied(self, index: int, results: list[Any]) -> None:
        if verbose.is_on():
            log.debug("an entry is applied", group=self.number, index=index, requests=len(results))
        for request, result in zip(self.requests.committed.pop(index, ()), results, strict=False):
            self.requests.answer(request, result)

    def fail(self, error: StorageFailed) -> None:
        """The node cannot write any more. What is committed is still answered; the rest fails, outcome unknown: who
        has other members to go on with asks those."""
        self.failed = error
        alone = self.group.is_only_voter
        self.requests.drop_proposed(error if alone else TimedOut(f"the outcome is unknown: {error.message}"))
        self._give_up_changes()
        self.group.reads.fail()

    def expire(self, timeout_s: float) -> None:
        """Answer what was submitted before this was called last, that time ago, and is still not done."""
        self.requests.expire(timeout_s, self.group.commit_index)
        if self.requests.waiting:
            self._group_commit.mark(self.group)  # it may have waited for what was given up

    def stall(self, why: str) -> None:
        """Nothing goes on here, for as long as it takes: answer what waits, and leave the group to other members."""
        self.stalled = why
        self.requests.refuse_waiting(Unavailable(f"it was not stored: {why}"))
        self.requests.drop_all(TimedOut(f"the outcome is unknown: {why}"))
        self._give_up_changes()
        self.group.reads.fail()
        self.look()

    def resume(self) -> None:
        """It goes on."""
        self.stalled = None
        self.look()
        waiting, self._after_stall = self._after_stall, []
        for call in waiting:
            call()

    def after_stall(self, call: Callable[[], None]) -> None:
        """Call this once it goes on, at most `AFTER_STALL_MOST` of them; it must not raise."""
        if len(self._after_stall) < AFTER_STALL_MOST:
            self._after_stall.append(call)

    @property
    def is_leaving(self) -> bool:
        """Whether it takes nothing, because another member is to lead."""
        return self._leaving

    def abandon(self, error: StorageFailed) -> None:
        """After `fail`: nothing is applied any more either, so that what is committed cannot be answered."""
        if self.group.is_only_voter:
            self.close(error)
        else:
            self.requests.drop_committed(TimedOut(f"the outcome is unknown: {error.message}"))
            self._stands = Unavailable(f"this node cannot go on: {error.message}")
            self.look()

    def close(self, error: SandqError) -> None:
        """The group is gone: nothing more will be taken or applied."""
        self._closed = error
        self.requests.drop_all(error)
        self._give_up_changes()
        self.group.reads.fail()
        self.look()

    def _give_up_changes(self) -> None:
        """Nobody will say what became of them."""
        for finished in self._changers:
            finished.set()


def _not_taken(reason: str) -> Unavailable:
    return Unavailable(f"nothing is taken here for a moment: {reason}; ask again")
