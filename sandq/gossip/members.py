"""Membership by Serf's rules: SWIM detects which nodes answer; intents announce joins and leaves.

An intent carries a Lamport time: of two intents about one member the later one counts, regardless of their order of
arrival. A
leave intent precedes SWIM's "dead". A member that dies after a leave intent has left; without one it has failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from sandq.gossip.agenda import Agenda, Task
from sandq.gossip.broadcasts import Broadcasts
from sandq.gossip.messages import User, encode
from sandq.gossip.nodes import MEMBERS_MOST, Liveness, Node
from sandq.gossip.serf_messages import JoinIntent, LeaveIntent, SerfState, decode_tags, encode_serf
from sandq.gossip.steps import Steps, at_once
from sandq.model.config_schema import Address
from sandq.model.errors import ProtocolError
from sandq.model.gossip_timing import Timing
from sandq.model.membership import State

INTENTS_MOST: Final = 4096
"""Maximum number of stored intents about members that are not known yet; the oldest are dropped."""
LTIME_LAST: Final = 2**63
"""Maximum Lamport time that is accepted: the next one must still fit into 64 bits."""
JOIN_STEP: Final = 8
"""Added to the latest known Lamport time to get the time of a new join intent.

The seed may have missed the last leave of this member, and of two intents with the same time neither wins.
"""
LTIME_JUMP: Final = 2**40
"""Maximum jump of the Lamport time between two received intents.

No cluster sends that many intents in between. A larger jump is refused, because the numbers would run out.
"""
RECORDS_AT_ONCE: Final = 256
"""Number of records that are collected in one step."""
RECORDS_WORK: Final = 32
"""Units of work of such a step."""
MERGED_WORK: Final = 1
"""Units of work to merge one intent of another member's state."""


class Record:
    """A member. Its record is kept longer than in SWIM. `suspect` is separate from the state, because a suspicion may
    end."""

    __slots__ = ("address", "forgetting", "meta", "name", "state", "status_ltime", "suspect")

    def __init__(self, name: str) -> None:
        self.name = name
        self.address = Address("", 0)
        self.meta = b""
        self.state = State.ALIVE
        self.suspect = False
        self.status_ltime = 0
        self.forgetting: Task | None = None

    @property
    def believed(self) -> State:
        return State.SUSPECT if self.suspect and self.state == State.ALIVE else self.state

    @property
    def tags(self) -> Mapping[str, str]:
        try:
            return decode_tags(self.meta)
        except ProtocolError:  # this member's own tags are valid, and the core refuses other members' invalid tags
            return {}


class Members:
    """All members. `on_change(name)` is called after each change; a member that is gone is no longer in `records`."""

    def __init__(
        self,
        own_name: str,
        timing: Timing,
        agenda: Agenda,
        broadcasts: Broadcasts,
        on_change: Callable[[str], None],
        counts: Counter[str],
    ) -> None:
        self._own_name = own_name
        self._timing = timing
        self._agenda = agenda
        self._broadcasts = broadcasts
        self._on_change = on_change
        self._counts = counts
        self.records: dict[str, Record] = {}
        self._early: dict[str, JoinIntent | LeaveIntent] = {}
        """The latest intent about each member that is not known yet."""
        self.clock = 0
        """Lamport time of the latest intent that this member knows."""
        self._leaving = False

    # -- changes in SWIM ------------------------------------------------------------------------------------------

    def on_node(self, node: Node, before: Liveness | None) -> None:
        """Update the member after a change of its node."""
        record = self.records.get(node.name)
        if record is None:
            if not node.is_live or not self._has_free_record():
                return
            record = self.records[node.name] = Record(node.name)
        record.address, record.meta = node.address, node.meta
        record.suspect = node.liveness == Liveness.SUSPECT
        if node.is_live:
            if before is None or before > Liveness.SUSPECT:
                self._came(record)
        else:
            self._went(record, node.liveness)
        self._on_change(node.name)

    def _has_free_record(self) -> bool:
        """Return whether one more member fits; if necessary, forget a member that is gone."""
        if len(self.records) < MEMBERS_MOST:
            return True
        for record in self.records.values():
            if record.state in (State.FAILED, State.LEFT):
                self._forget(record)
                return True
        return False

    def _came(self, record: Record) -> None:
        record.state = State.ALIVE
        if record.forgetting is not None:
            record.forgetting.cancel()
            record.forgetting = None
        intent = self._early.pop(record.name, None)
        if intent is not None and intent.ltime > record.status_ltime:
            record.status_ltime = intent.ltime
            if isinstance(intent, LeaveIntent):
                record.state = State.LEAVING

    def _went(self, record: Record, liveness: Liveness) -> None:
        # A node that itself says "dead" has left, even if its leave intent was lost: datagrams carry both.
        left = record.state == State.LEAVING or liveness == Liveness.LEFT
        record.state = State.LEFT if left else State.FAILED
        self._plan_to_forget(record)

    def _plan_to_forget(self, record: Record) -> None:
        if record.forgetting is not None:
            record.forgetting.cancel()
        record.forgetting = self._agenda.after(self._timing.forget_s, lambda: self._forget(record))

    def _forget(self, record: Record) -> None:
        if self.records.get(record.name) is record:
            if record.forgetting is not None:
                record.forgetting.cancel()
            del self.records[record.name]
            self._on_change(record.name)

    # -- intents --------------------------------------------------------------------------------------------------

    def announce_join(self) -> None:
        """Announce that this member is present, with a newer time than any known intent.

        Do nothing if this member has announced its leave."""
        if self._leaving:
            return
        self.clock += JOIN_STEP
        self._announce(JoinIntent(self.clock, self._own_name))

    def announce_leave(self) -> None:
        """Announce that this member will leave; from now on it does not refute leave intents."""
        self._leaving = True
        self.clock += 1
        self._announce(LeaveIntent(self.clock, self._own_name, False))

    def _announce(self, intent: JoinIntent | LeaveIntent) -> None:
        record = self.records[self._own_name]
        record.status_ltime = intent.ltime
        if isinstance(intent, LeaveIntent) and record.state == State.ALIVE:
            record.state = State.LEAVING
            self._on_change(record.name)
        self._broadcast(intent)

    def on_intent(self, intent: JoinIntent | LeaveIntent) -> None:
        """Process a received intent, and pass it on if it is new."""
        if not self._witness(intent.ltime):
            return
        if self._take(intent):
            self._broadcast(intent)

    def _witness(self, ltime: int) -> bool:
        if ltime > min(self.clock + LTIME_JUMP, LTIME_LAST):
            self._counts["refused_ltime"] += 1
            return False
        self.clock = max(self.clock, ltime)
        return True

    def _take(self, intent: JoinIntent | LeaveIntent) -> bool:
        """Apply an intent; return whether it is new."""
        record = self.records.get(intent.node)
        if record is None:
            return self._keep_for_later(intent)
        if intent.node == self._own_name:
            return self._take_own(record, intent)
        if intent.ltime <= record.status_ltime:
            return False
        if isinstance(intent, LeaveIntent):
            return self._take_leave(record, intent)
        if record.state == State.LEFT:
            # Keep the time of the leave until SWIM finds the member alive. Otherwise this node would report a later
            # leave to others.
            return self._keep_for_later(intent)
        record.status_ltime = intent.ltime
        if record.state == State.LEAVING:
            record.state = State.ALIVE
            self._on_change(record.name)
        return True

    def _take_own(self, record: Record, intent: JoinIntent | LeaveIntent) -> bool:
        """Refute a leave intent about this member, from before a restart or sent by mistake; return False.

        This member announces a join that is newer than anything known about it. Otherwise members that have received
        only the leave would believe it forever.
        """
        leaves = isinstance(intent, LeaveIntent) and intent.ltime == record.status_ltime
        if not self._leaving and (leaves or intent.ltime > record.status_ltime):
            self._counts["refutations"] += 1
            self.announce_join()
        return False

    def _take_leave(self, record: Record, intent: LeaveIntent) -> bool:
        record.status_ltime = intent.ltime
        if record.state == State.ALIVE:
            record.state = State.LEAVING
        elif record.state == State.FAILED:
            # An operator decided that the member will not come back.
            record.state = State.LEFT
            self._plan_to_forget(record)
        self._on_change(record.name)
        if intent.prune and record.state == State.LEFT:
            self._forget(record)
        return True

    def _keep_for_later(self, intent: JoinIntent | LeaveIntent) -> bool:
        kept = self._early.get(intent.node)
        if kept is not None and kept.ltime >= intent.ltime:
            return False
        self._early.pop(intent.node, None)
        self._early[intent.node] = intent
        if len(self._early) > INTENTS_MOST:
            del self._early[next(iter(self._early))]
        return True

    def _broadcast(self, intent: JoinIntent | LeaveIntent) -> None:
        self._broadcasts.put(intent.node, encode(User(encode_serf(intent))))

    # -- exchange of states ---------------------------------------------------------------------------------------

    def state(self) -> SerfState:
        """Return the state of all intents, for another member."""
        return at_once(self.building_state())

    def building_state(self) -> Steps[SerfState]:
        """Like `state`, in steps."""
        ltimes: dict[str, int] = {}
        left: list[str] = []
        for at, (name, record) in enumerate(list(self.records.items()), 1):
            ltimes[name] = record.status_ltime
            # List a leaving member as a member that has left. If it stays after all, it receives this state and refutes
            # it.
            if record.state in (State.LEAVING, State.LEFT):
                left.append(name)
            if not at % RECORDS_AT_ONCE:
                yield RECORDS_WORK
        # Serf's agents expect the clock to be later than all times in the state.
        return SerfState(self.clock + 1, ltimes, left, 0, 0)

    def merge(self, theirs: SerfState) -> None:
        """Merge the intents of another member. They are not passed on, because other members already have them."""
        at_once(self.merging(theirs))

    def merging(self, theirs: SerfState) -> Steps[None]:
        """Like `merge`, in steps."""
        latest = max([theirs.ltime - 1, *theirs.status_ltimes.values()])
        if not self._witness(latest):
            return
        left = dict.fromkeys(theirs.left_members)
        for name in left:
            self._take(LeaveIntent(theirs.status_ltimes.get(name, 0), name, False))
            yield MERGED_WORK
        for name, ltime in theirs.status_ltimes.items():
            if name not in left:
                self._take(JoinIntent(ltime, name))
                yield MERGED_WORK
