"""Tests of Serf's rules: the state of a member that follows from intents and SWIM."""

from __future__ import annotations

import pytest

from sandq.gossip import members
from sandq.gossip.broadcasts import Broadcasts
from sandq.gossip.members import INTENTS_MOST, JOIN_STEP, LTIME_JUMP, LTIME_LAST, Members
from sandq.gossip.messages import Alive, Dead, Suspect, User, decode
from sandq.gossip.nodes import Liveness, Node
from sandq.gossip.serf_messages import JoinIntent, LeaveIntent, SerfState, decode_serf
from sandq.model.membership import State
from tests.support.gossip.swim_bench import LAN, SwimBench, alive, dead, left, suspect, tags_of

FORGET_S = LAN.forget_s
JOINED = 4 + JOIN_STEP


class MemberBench(SwimBench):
    """A SWIM bench with Serf's rules."""

    def __init__(self, others: str = "") -> None:
        self.intents = Broadcasts()
        self.reported: list[str] = []
        self.members: Members | None = None
        super().__init__()
        self.members = Members("own", LAN, self.agenda, self.intents, self.reported.append, self.counts)
        self.members.on_node(self.own, None)
        self.receive(*(alive(name) for name in others))
        self.take_broadcasts()
        self.reported.clear()

    def on_node(self, node: Node, before: Liveness | None) -> None:
        super().on_node(node, before)
        if self.members is not None:
            self.members.on_node(node, before)

    @property
    def serf(self) -> Members:
        assert self.members is not None
        return self.members

    def intend(self, *intents: JoinIntent | LeaveIntent) -> None:
        for intent in intents:
            self.serf.on_intent(intent)

    def take_intents(self) -> list[object]:
        """Take the waiting messages, the newest first."""
        found: list[object] = []
        for part in self.intents.take(1 << 20, 1):
            message = decode(part)
            assert isinstance(message, User)
            found.append(decode_serf(message.body))
        return found

    def state(self, name: str) -> State | None:
        record = self.serf.records.get(name)
        return record.believed if record is not None else None


def leaves(name: str, ltime: int = 1, prune: bool = False) -> LeaveIntent:
    return LeaveIntent(ltime, name, prune)


def joins(name: str, ltime: int = 1) -> JoinIntent:
    return JoinIntent(ltime, name)


Word = Alive | Suspect | Dead | JoinIntent | LeaveIntent

LIVES: list[tuple[str, list[Word], State | None]] = [
    ("is heard of", [alive("a")], State.ALIVE),
    ("does not answer", [alive("a"), suspect("a")], State.SUSPECT),
    ("answers again", [alive("a"), suspect("a"), alive("a", 2)], State.ALIVE),
    ("fails", [alive("a"), dead("a")], State.FAILED),
    ("fails after a suspicion", [alive("a"), suspect("a"), dead("a")], State.FAILED),
    ("means to leave", [alive("a"), leaves("a")], State.LEAVING),
    ("means to leave and is suspected", [alive("a"), leaves("a"), suspect("a")], State.LEAVING),
    ("leaves", [alive("a"), leaves("a"), left("a")], State.LEFT),
    ("leaves and is found dead", [alive("a"), leaves("a"), dead("a")], State.LEFT),
    ("leaves before it is known", [leaves("a"), alive("a"), left("a")], State.LEFT),
    ("is known after its leave intent", [leaves("a"), alive("a")], State.LEAVING),
    ("says that it left, and its leave intent was lost", [alive("a"), left("a")], State.LEFT),
    ("says it in the other order", [alive("a"), left("a"), leaves("a")], State.LEFT),
    ("failed and is taken out", [alive("a"), dead("a"), leaves("a", 9)], State.LEFT),
    ("failed and is forgotten at once", [alive("a"), dead("a"), leaves("a", 9, prune=True)], None),
    ("left and is forgotten at once", [alive("a"), leaves("a", 2), left("a"), leaves("a", 9, prune=True)], None),
    ("lives and is to be forgotten", [alive("a"), leaves("a", 9, prune=True)], State.LEAVING),
    ("comes back after it failed", [alive("a"), dead("a"), alive("a", 2)], State.ALIVE),
    ("comes back after it left", [alive("a"), leaves("a"), left("a"), alive("a", 2)], State.ALIVE),
    (
        "comes back, says so, and fails",
        [alive("a"), leaves("a", 3), left("a"), alive("a", 2), joins("a", 4), dead("a", 2)],
        State.FAILED,
    ),
    (
        "comes back and an old leave intent is heard again",
        [alive("a"), leaves("a", 3), left("a"), alive("a", 2), joins("a", 4), leaves("a", 3)],
        State.ALIVE,
    ),
    ("stays after all", [alive("a"), leaves("a", 3), joins("a", 4)], State.ALIVE),
    ("said long ago that it joins", [alive("a"), leaves("a", 3), joins("a", 2)], State.LEAVING),
    ("leaves at the time of its join", [alive("a"), joins("a", 3), leaves("a", 3)], State.ALIVE),
    ("joined before it left, heard late", [joins("a", 2), leaves("a", 3), joins("a", 2), alive("a")], State.LEAVING),
    ("left, and joined after that", [leaves("a", 3), joins("a", 4), alive("a")], State.ALIVE),
    ("is said to be gone by nobody who knew it", [dead("a"), left("a"), leaves("a")], None),
]


@pytest.mark.parametrize(("words", "state"), [life[1:] for life in LIVES], ids=[life[0] for life in LIVES])
def test_member_state_follows_from_messages(words: list[Word], state: State | None) -> None:
    bench = MemberBench()
    for word in words:
        if isinstance(word, JoinIntent | LeaveIntent):
            bench.intend(word)
        else:
            bench.receive(word)
    assert bench.state("a") == state
    assert bench.state("own") == State.ALIVE


def test_each_change_is_reported() -> None:
    bench = MemberBench("a")
    bench.receive(suspect("a"))
    bench.receive(alive("a", 2, meta=tags_of("a", zone="x")))
    bench.intend(leaves("a", 1), joins("a", 2), leaves("a", 3))
    bench.receive(left("a", 2))
    assert bench.reported == ["a"] * 6
    assert bench.serf.records["a"].tags["zone"] == "x"


def test_intents_that_are_news_are_handed_on_once() -> None:
    bench = MemberBench("a")
    intents = [leaves("a", 3), joins("a", 4), leaves("x", 5)]
    for intent in intents:
        bench.intend(intent)
        assert bench.take_intents() == [intent]
        bench.intend(intent)
        assert bench.take_intents() == []
    bench.intend(joins("a", 2), leaves("x", 4))
    assert bench.take_intents() == []


# -------------------------------------------------------------------------------------------------------------- itself


def test_own_intent_is_later_than_all_known_intents() -> None:
    bench = MemberBench("a")
    bench.intend(joins("a", 41))
    bench.serf.announce_join()
    assert bench.take_intents()[0] == joins("own", 41 + JOIN_STEP)
    bench.serf.announce_leave()
    assert bench.take_intents() == [leaves("own", 42 + JOIN_STEP)] and bench.state("own") == State.LEAVING
    bench.nodes.depart()
    assert bench.state("own") == State.LEFT


def test_false_leave_of_own_node_is_refuted() -> None:
    bench = MemberBench("a")
    bench.intend(leaves("own", 7))
    assert bench.take_intents() == [joins("own", 7 + JOIN_STEP)] and bench.state("own") == State.ALIVE
    assert bench.counts["refutations"] == 1
    bench.intend(leaves("own", 7))
    assert bench.take_intents() == [], "the member sent a later message"


def test_old_leave_message_is_refuted_after_a_restart() -> None:
    bench = MemberBench()
    bench.serf.merge(SerfState(31, {"own": 30, "a": 12}, ["own"], 0, 0))
    assert bench.take_intents() == [joins("own", 30 + JOIN_STEP)] and bench.state("own") == State.ALIVE


@pytest.mark.parametrize(
    ("theirs", "says"),
    [
        (SerfState(31, {"own": 30}, [], 0, 0), 30 + JOIN_STEP),
        (SerfState(31, {"own": JOINED}, ["own"], 0, 0), 30 + JOIN_STEP),
        (SerfState(31, {"own": JOINED}, [], 0, 0), None),
        (SerfState(31, {"own": JOINED - 1}, ["own"], 0, 0), None),
    ],
)
def test_node_overrides_later_intents_about_itself(theirs: SerfState, says: int | None) -> None:
    """A peer got the leave but neither the end nor the new join. So it lists the node as leaving.

    `JOINED`: the time of the node's join message.
    """
    bench = MemberBench("a")
    bench.intend(joins("a", 4))
    bench.serf.announce_join()
    assert bench.take_intents()[0] == joins("own", JOINED)
    bench.serf.merge(theirs)
    assert bench.take_intents() == ([joins("own", says)] if says else [])


def test_own_intent_received_again_is_ignored() -> None:
    bench = MemberBench("a")
    bench.serf.announce_join()
    bench.take_intents()
    bench.intend(joins("own", JOIN_STEP))
    bench.serf.merge(bench.serf.state())
    assert bench.take_intents() == [] and bench.counts["refutations"] == 0


def test_leaving_node_does_not_announce_join() -> None:
    """A late answer of a seed must not undo a leave."""
    bench = MemberBench("a")
    bench.serf.announce_leave()
    bench.take_intents()
    bench.serf.announce_join()
    bench.intend(leaves("own", 9), joins("own", 10))
    assert (
        not any(isinstance(said, JoinIntent) for said in bench.take_intents()) and bench.state("own") == State.LEAVING
    )
    bench.nodes.depart()
    assert bench.state("own") == State.LEFT


# ----------------------------------------------------------------------------------------------------------- comparing


def test_serf_state_reports_intents() -> None:
    bench = MemberBench("abc")
    bench.intend(joins("a", 3), leaves("b", 4), leaves("c", 5))
    bench.receive(left("b"), dead("a"))
    assert bench.serf.state() == SerfState(6, {"own": 0, "a": 3, "b": 4, "c": 5}, ["b", "c"], 0, 0)


def test_rejoining_member_stays_left_until_it_is_alive() -> None:
    bench = MemberBench("a")
    bench.intend(leaves("a", 4))
    bench.receive(left("a"))
    bench.intend(joins("a", 9))
    assert bench.serf.state() == SerfState(10, {"own": 0, "a": 4}, ["a"], 0, 0)
    bench.intend(leaves("a", 6))
    assert bench.serf.state().status_ltimes["a"] == 6
    bench.receive(alive("a", 2))
    assert bench.serf.state() == SerfState(10, {"own": 0, "a": 9}, [], 0, 0) and bench.state("a") == State.ALIVE


def test_state_of_a_peer_is_merged_and_not_retransmitted() -> None:
    bench = MemberBench("abcd")
    bench.receive(dead("b"), left("c"))
    bench.serf.merge(SerfState(10, {"a": 9, "b": 8, "c": 7, "x": 6}, ["b", "c", "x"], 0, 0))
    assert [bench.state(name) for name in "abcd"] == [State.ALIVE, State.LEFT, State.LEFT, State.ALIVE]
    assert bench.take_intents() == [] and bench.serf.clock == 9
    bench.receive(alive("x"))
    assert bench.state("x") == State.LEAVING, "SWIM is behind"


def test_a_state_without_the_time_of_a_leave_says_nothing() -> None:
    bench = MemberBench("a")
    bench.serf.merge(SerfState(0, {}, ["a"], 0, 0))
    assert bench.state("a") == State.ALIVE and bench.serf.clock == 0


# -------------------------------------------------------------------------------------------------------------- limits


def test_departed_member_is_listed_for_a_while() -> None:
    bench = MemberBench("abc")
    bench.receive(dead("a"))
    bench.intend(leaves("b"))
    bench.receive(left("b"), suspect("c"), alive("c", 2))
    bench.reported.clear()
    bench.advance(FORGET_S - 1)
    assert (bench.state("a"), bench.state("b"), bench.reported) == (State.FAILED, State.LEFT, [])
    bench.advance(1)
    assert list(bench.serf.records) == ["own", "c"] and bench.reported == ["a", "b"]


def test_rejoined_member_is_not_forgotten_at_the_earlier_deadline() -> None:
    bench = MemberBench("a")
    bench.receive(dead("a"))
    bench.advance(LAN.dead_gossip_s + 1)
    bench.receive(alive("a"))
    assert bench.state("a") == State.ALIVE
    bench.advance(FORGET_S)
    assert bench.state("a") == State.ALIVE
    bench.receive(dead("a"))
    bench.advance(FORGET_S / 2)
    bench.intend(leaves("a", 5))
    bench.advance(FORGET_S / 2)
    assert bench.state("a") == State.LEFT, "the leave is new information"
    bench.advance(FORGET_S / 2)
    assert bench.state("a") is None


def test_intents_of_unknown_nodes_are_limited_and_the_oldest_are_dropped() -> None:
    bench = MemberBench()
    for number in range(INTENTS_MOST + 1):
        bench.intend(leaves(f"x{number}"))
    bench.receive(alive("x0"), alive("x1"))
    assert (bench.state("x0"), bench.state("x1")) == (State.ALIVE, State.LEAVING)


def test_departed_member_is_dropped_for_a_present_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MEMBERS_MOST", 3)
    bench = MemberBench("ab")
    bench.receive(alive("c"))
    assert bench.state("c") is None
    bench.receive(dead("b"))
    bench.reported.clear()
    bench.receive(alive("c", 2), alive("b", 2))
    assert list(bench.serf.records) == ["own", "a", "c"] and bench.reported == ["b", "c"]
    bench.advance(FORGET_S)
    assert list(bench.serf.records) == ["own", "a", "c"]


@pytest.mark.parametrize("ltime", [LTIME_JUMP + 1, 2**64 - 1])
def test_a_time_far_ahead_is_not_believed(ltime: int) -> None:
    bench = MemberBench("a")
    bench.intend(leaves("a", ltime))
    bench.serf.merge(SerfState(0, {"a": ltime}, ["a"], 0, 0))
    bench.serf.merge(SerfState(min(ltime + 1, 2**64 - 1), {"a": 1}, ["a"], 0, 0))
    assert bench.state("a") == State.ALIVE and bench.serf.clock == 0 and bench.take_intents() == []
    assert bench.counts["refused_ltime"] == 3


def test_lamport_times_stay_below_the_maximum() -> None:
    """The number after the latest accepted time can still be encoded."""
    bench = MemberBench("a")
    bench.serf.clock = LTIME_LAST - 1
    bench.intend(leaves("own", LTIME_LAST), leaves("own", LTIME_LAST + 1), leaves("own", LTIME_LAST + 2))
    assert bench.take_intents() == [joins("own", LTIME_LAST + JOIN_STEP)] and bench.counts["refused_ltime"] == 2
    for _ in range(3):
        bench.serf.announce_join()
    assert bench.take_intents() == [joins("own", LTIME_LAST + 4 * JOIN_STEP)]
