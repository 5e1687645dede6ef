"""Who is a member, by Serf's rules: SWIM says who answers, intents say who meant to come or go.

An intent carries a Lamport time, so that of two words about one member the later one counts, whatever order they
arrive in. A leave intent goes before the "dead" of SWIM: who is dead after it has left, who is dead without it failed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from sandq.gossip.agenda import Agenda, Task
from sandq.gossip.broadcasts import Broadcasts
from sandq.gossip.messages import User, encode
from sandq.gossip.nodes import MEMBERS_MOST, Node, Standing
from sandq.gossip.serf_messages import JoinIntent, LeaveIntent, SerfState, decode_tags, encode_serf
from sandq.gossip.steps import Steps, at_once
from sandq.model.config_schema import Address
from sandq.model.errors import ProtocolError
from sandq.model.gossip_timing import Timing
from sandq.model.membership import State

INTENTS_MOST: Final = 4096
"""About members that are not known yet; the oldest give way."""
LTIME_LAST: Final = 2**63
"""Nor a later one than this: what is one more must still be a number of 64 bits."""
JOIN_STEP: Final = 8
"""Who joins says a time that much later than what it heard: its seed may have missed the last leave, and of two words
of one time neither counts."""
LTIME_JUMP: Final = 2**40
"""No cluster says so much between two words that a member hears. Who names a later time is not believed: the numbers
would run out."""
RECORDS_AT_ONCE: Final = 256
"""Of records, told in a step ..."""
RECORDS_WORK: Final = 32
"""... which is so many units of work."""
MERGED_WORK: Final = 1
"""Units of work for an intent of another one's state."""


class Record:
    """A member, until it is forgotten: longer than SWIM knows it. `suspect` is beside the state: it may pass."""

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
        except ProtocolError:  # the core takes no such tags; this member's own are well formed
            return {}


class Members:
    """`on_change(name)` is called after each change; the member is gone when `records` has it no more."""

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
        """Intents about members that are not known yet, the latest of each."""
        self.clock = 0
        """Lamport time: of the latest word that this member knows."""
        self._leaving = False

    # -- what SWIM says -------------------------------------------------------------------------------------------

    def on_node(self, node: Node, before: Standing | None) -> None:
        """After each change of a node."""
        record = self.records.get(node.name)
        if record is None:
            if not node.is_live or not self._has_room():
                return
            record = self.records[node.name] = Record(node.name)
        record.address, record.meta = node.address, node.meta
        record.suspect = node.standing == Standing.SUSPECT
        if node.is_live:
            if before is None or before > Standing.SUSPECT:
                self._came(record)
        else:
            self._went(record, node.standing)
        self._on_change(node.name)

    def _has_room(self) -> bool:
        """For one more; somebody who is gone gives way."""
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

    def _went(self, record: Record, standing: Standing) -> None:
        # Who says itself that it is dead has left, also when its leave intent was lost: datagrams carry both.
        left = record.state == State.LEAVING or standing == Standing.LEFT
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
        """Say that this member means to be there: later than whatever was said of it. Not when it means to go."""
        if self._leaving:
            return
        self.clock += JOIN_STEP
        self._tell(JoinIntent(self.clock, self._own_name))

    def announce_leave(self) -> None:
        """Say that this member means to go; from here on it does not object to that."""
        self._leaving = True
        self.clock += 1
        self._tell(LeaveIntent(self.clock, self._own_name, False))

    def _tell(self, intent: JoinIntent | LeaveIntent) -> None:
        record = self.records[self._own_name]
        record.status_ltime = intent.ltime
        if isinstance(intent, LeaveIntent) and record.state == State.ALIVE:
            record.state = State.LEAVING
            self._on_change(record.name)
        self._hand_on(intent)

    def heard(self, intent: JoinIntent | LeaveIntent) -> None:
        """News is handed on."""
        if not self._witness(intent.ltime):
            return
        if self._take(intent):
            self._hand_on(intent)

    def _witness(self, ltime: int) -> bool:
        if ltime > min(self.clock + LTIME_JUMP, LTIME_LAST):
            self._counts["refused_ltime"] += 1
            return False
        self.clock = max(self.clock, ltime)
        return True

    def _take(self, intent: JoinIntent | LeaveIntent) -> bool:
        """Whether it is news."""
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
            # Until SWIM finds it, it has left at the time of its leave: another one would be told that it left later.
            return self._keep_for_later(intent)
        record.status_ltime = intent.ltime
        if record.state == State.LEAVING:
            record.state = State.ALIVE
            self._on_change(record.name)
        return True

    def _take_own(self, record: Record, intent: JoinIntent | LeaveIntent) -> bool:
        """An old word, of before a restart, or somebody's mistake. This member is here, and says so later than anything
        that anybody knows of it: else who heard that it left, and nothing since, would believe it for ever."""
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
            # Somebody decided that it does not come back.
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

    def _hand_on(self, intent: JoinIntent | LeaveIntent) -> None:
        self._broadcasts.put(intent.node, encode(User(encode_serf(intent))))

    # -- comparing ------------------------------------------------------------------------------------------------

    def state(self) -> SerfState:
        """What another member is to know of intents."""
        return at_once(self.telling())

    def telling(self) -> Steps[SerfState]:
        """Say the same in steps."""
        ltimes: dict[str, int] = {}
        left: list[str] = []
        for at, (name, record) in enumerate(list(self.records.items()), 1):
            ltimes[name] = record.status_ltime
            # Who is leaving is among those that left: if it stays after all, it hears of it and says so.
            if record.state in (State.LEAVING, State.LEFT):
                left.append(name)
            if not at % RECORDS_AT_ONCE:
                yield RECORDS_WORK
        # Serf's agents take the clock of what they know as later than any of it.
        return SerfState(self.clock + 1, ltimes, left, 0, 0)

    def merge(self, theirs: SerfState) -> None:
        """What another member knows of intents. Nothing of it is handed on: it is no news to others."""
        at_once(self.merging(theirs))

    def merging(self, theirs: SerfState) -> Steps[None]:
        """Do the same in steps."""
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
