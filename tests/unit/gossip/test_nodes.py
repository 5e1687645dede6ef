"""Tests of SWIM with suspicion: each message about a member, in each state of the member."""

from __future__ import annotations

from collections import Counter

import pytest

from sandq.gossip.messages import VSN, Alive, Dead, Suspect
from sandq.gossip.nodes import Liveness
from sandq.gossip.streams import NodeState
from sandq.model.config_types import Address
from tests.support.gossip.swim_bench import LAN, SwimBench, address_of, alive, dead, known_as, left, suspect, tags_of

ALIVE, SUSPECT, DEAD, LEFT = Liveness
ELSEWHERE = Address("10.9.9.9", 9900)
LEAST_S = LAN.suspicion_s(2)


# ---------------------------------------------------------------------------------------------------------- precedence

NOTHING = None
WORDS: list[tuple[Liveness, Alive | Suspect | Dead, tuple[Liveness, int] | None]] = [
    (ALIVE, alive("a", 4), NOTHING),
    (ALIVE, alive("a", 5), NOTHING),
    (ALIVE, alive("a", 6), (ALIVE, 6)),
    (ALIVE, suspect("a", 4), NOTHING),
    (ALIVE, suspect("a", 5), (SUSPECT, 5)),
    (ALIVE, suspect("a", 6), (SUSPECT, 6)),
    (ALIVE, dead("a", 4), NOTHING),
    (ALIVE, dead("a", 5), (DEAD, 5)),
    (ALIVE, dead("a", 6), (DEAD, 6)),
    (ALIVE, left("a", 4), NOTHING),
    (ALIVE, left("a", 5), (LEFT, 5)),
    (SUSPECT, alive("a", 4), NOTHING),
    (SUSPECT, alive("a", 5), NOTHING),
    (SUSPECT, alive("a", 6), (ALIVE, 6)),
    (SUSPECT, dead("a", 4), NOTHING),
    (SUSPECT, dead("a", 5), (DEAD, 5)),
    (SUSPECT, left("a", 5), (LEFT, 5)),
    (DEAD, alive("a", 4), NOTHING),
    (DEAD, alive("a", 5), NOTHING),
    (DEAD, alive("a", 6), (ALIVE, 6)),
    (DEAD, suspect("a", 6), NOTHING),
    (DEAD, dead("a", 6), NOTHING),
    (DEAD, left("a", 6), NOTHING),
    (LEFT, alive("a", 5), NOTHING),
    (LEFT, alive("a", 6), (ALIVE, 6)),
    (LEFT, suspect("a", 6), NOTHING),
    (LEFT, dead("a", 6), NOTHING),
]


@pytest.mark.parametrize(("before", "word", "after"), WORDS)
def test_stronger_of_two_messages_wins(
    before: Liveness, word: Alive | Suspect | Dead, after: tuple[Liveness, int] | None
) -> None:
    bench = known_as(before)
    bench.receive(word)
    assert bench.liveness("a") == (after or (before, 5))
    # Only new information is retransmitted, once and unchanged.
    assert bench.take_broadcasts() == ([word] if after else [])
    assert bench.changes == ([("a", before, after[0])] if after else [])
    assert bench.refused() == {}


@pytest.mark.parametrize("word", [suspect("x"), dead("x"), left("x")])
def test_only_alive_is_accepted_for_unknown_member(word: Suspect | Dead) -> None:
    bench = SwimBench(others="a")
    bench.receive(word)
    assert (bench.nodes.get("x"), bench.take_broadcasts(), bench.changes) == (None, [], [])
    bench.receive(alive("x", 7))
    assert bench.changes == [("x", None, ALIVE)] and bench.liveness("x") == (ALIVE, 7)


def test_new_tags_come_with_a_higher_incarnation() -> None:
    bench = known_as(ALIVE)
    bench.receive(alive("a", 5, meta=tags_of("a", zone="x")))
    assert bench.node("a").meta == tags_of("a")
    bench.receive(alive("a", 6, meta=tags_of("a", zone="x")))
    assert bench.node("a").meta == tags_of("a", zone="x")


# ---------------------------------------------------------------------------------------------------------- refutation

ACCUSED: list[tuple[Suspect | Dead, int | None]] = [
    (suspect("own", 0), None),
    (suspect("own", 1), 2),
    (dead("own", 1), 2),
    (left("own", 1), 2),
    # Old messages from before a restart: the node begins at 1 and must exceed its earlier numbers.
    (suspect("own", 40), 41),
    (dead("own", 40), 41),
    (left("own", 40), 41),
]


@pytest.mark.parametrize(("word", "says"), ACCUSED)
def test_suspicion_of_own_node_is_refuted(word: Suspect | Dead, says: int | None) -> None:
    bench = SwimBench(others="a")
    bench.receive(word)
    assert bench.liveness("own") == (ALIVE, says or 1)
    assert bench.take_broadcasts() == ([alive("own", says)] if says else [])
    assert bench.counts["refutations"] == bench.awareness.score == (1 if says else 0)


@pytest.mark.parametrize("state", [ALIVE, SUSPECT, DEAD, LEFT])
def test_old_messages_are_refuted_when_states_are_compared(state: Liveness) -> None:
    bench = SwimBench()
    old = NodeState("own", address_of("own"), tags_of("own", zone="old"), 17, state, VSN)
    bench.nodes.merge(old)
    assert bench.take_broadcasts() == [alive("own", 18)]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (alive("own", 1), None),
        (alive("own", 0, meta=tags_of("own", zone="old")), None),
        (alive("own", 1, meta=tags_of("own", zone="old")), 2),
        (alive("own", 1, at=ELSEWHERE), 2),
        (alive("own", 9), 10),
    ],
)
def test_message_about_earlier_state_of_own_node_is_refuted(word: Alive, says: int | None) -> None:
    bench = SwimBench(others="a")
    bench.receive(word)
    assert bench.take_broadcasts() == ([alive("own", says)] if says else [])


def test_another_machine_with_the_own_name_is_refused() -> None:
    bench = SwimBench(others="a")
    bench.receive(alive("own", 5, at=ELSEWHERE, meta=tags_of("own", store="of another")))
    assert bench.liveness("own") == (ALIVE, 1) and bench.take_broadcasts() == []
    assert bench.refused() == {"refused_name_conflict": 1} and bench.nodes.refusals == {"own": "name_conflict"}


def test_departing_node_refutes_nothing() -> None:
    bench = SwimBench(others="a")
    bench.nodes.depart()
    assert bench.take_broadcasts() == [left("own", 1)] and bench.liveness("own") == (LEFT, 1)
    bench.receive(suspect("own", 3), dead("own", 3), left("own", 3), alive("own", 3))
    bench.nodes.retag(tags_of("own", zone="new"))
    bench.nodes.depart()
    assert bench.take_broadcasts() == [] and bench.liveness("own") == (LEFT, 1)


def test_tags_that_are_the_same_are_no_news() -> None:
    bench = SwimBench(others="a")
    bench.nodes.retag(tags_of("own"))
    assert bench.take_broadcasts() == []
    bench.nodes.retag(tags_of("own", zone="x"))
    assert bench.take_broadcasts() == [alive("own", 2, meta=tags_of("own", zone="x"))]


# ----------------------------------------------------------------------------------------------------------- suspicion


def suspected_for(bench: SwimBench, name: str = "a") -> float:
    """Return the time until the suspected member is declared dead."""
    began = bench.agenda.now
    while bench.node(name).liveness == SUSPECT:
        at = bench.agenda.next_at
        assert at is not None
        bench.agenda.run(at)
    assert bench.node(name).liveness == DEAD
    return bench.agenda.now - began


@pytest.mark.parametrize(("agreeing", "times"), [("", 6.0), ("c", 6 - 5 * 0.6309), ("cd", 1.0), ("cdef", 1.0)])
def test_each_confirmation_shortens_a_suspicion(agreeing: str, times: float) -> None:
    bench = SwimBench(others="abcdefg")
    bench.receive(suspect("a", 1, "b"), *(suspect("a", 1, name) for name in agreeing))
    assert suspected_for(bench) == pytest.approx(times * LEAST_S, rel=1e-3)
    assert bench.take_broadcasts()[0] == dead("a", 1, "own")


def test_repeated_suspicion_by_same_node_is_ignored() -> None:
    bench = SwimBench(others="abcdefg")
    bench.receive(suspect("a", 1, "b"), suspect("a", 1, "c"))
    assert bench.take_broadcasts() == [suspect("a", 1, "c")]
    bench.receive(suspect("a", 1, "b"), suspect("a", 1, "c"))
    assert bench.take_broadcasts() == []
    bench.receive(suspect("a", 1, "d"))
    assert bench.take_broadcasts() == [suspect("a", 1, "d")]
    bench.receive(suspect("a", 1, "e"))
    assert bench.take_broadcasts() == [], "enough members have confirmed the suspicion"


def test_late_confirmation_ends_a_suspicion_at_once() -> None:
    bench = SwimBench(others="abcdefg")
    bench.receive(suspect("a", 1, "b"))
    bench.advance(2 * LEAST_S)
    bench.receive(suspect("a", 1, "c"), suspect("a", 1, "d"))
    assert suspected_for(bench) == 0.0


def test_shortest_time_is_used_if_few_can_confirm() -> None:
    bench = SwimBench(others="ab")
    bench.receive(suspect("a", 1, "b"))
    assert suspected_for(bench) == LEAST_S


def test_gone_members_do_not_count_for_suspicion_time() -> None:
    """Otherwise the last two members would wait for confirmations of members that are gone."""
    bench = SwimBench(others="abcdefg")
    bench.receive(*(dead(name) for name in "bcdefg"), suspect("a", 1, "own"))
    assert suspected_for(bench) == LEAST_S


@pytest.mark.parametrize("word", [alive("a", 2), left("a", 1), dead("a", 1)])
def test_ended_suspicion_fails_no_member(word: Alive | Dead) -> None:
    bench = SwimBench(others="abcdefg")
    bench.receive(suspect("a", 1, "b"), word)
    liveness = bench.liveness("a")
    bench.receive(suspect("a", 0, "c"))
    bench.take_broadcasts()
    bench.advance(7 * LEAST_S)
    assert bench.take_broadcasts() == [] and (bench.nodes.get("a") is None or bench.liveness("a") == liveness)


def test_a_second_suspicion_has_its_own_time() -> None:
    bench = SwimBench(others="ab")
    bench.receive(suspect("a", 1, "b"))
    bench.advance(LEAST_S - 1)
    bench.receive(alive("a", 2), suspect("a", 2, "b"))
    assert suspected_for(bench) == LEAST_S


# -------------------------------------------------------------------------------------------- forgetting and comparing


@pytest.mark.parametrize("word", [dead("a", 1), left("a", 1)])
def test_gone_member_is_forgotten_and_may_return(word: Dead) -> None:
    bench = SwimBench(others="ab")
    bench.receive(word)
    bench.advance(LAN.dead_gossip_s - 0.1)
    assert bench.nodes.get("a") is not None
    bench.advance(0.1)
    assert bench.nodes.get("a") is None and bench.nodes.get("b") is not None
    bench.receive(alive("a", 1))
    bench.advance(LAN.dead_gossip_s)
    assert bench.liveness("a") == (ALIVE, 1)


def test_member_that_rejoined_in_time_is_not_forgotten() -> None:
    bench = SwimBench(others="a")
    bench.receive(dead("a"))
    bench.advance(LAN.dead_gossip_s / 2)
    bench.receive(alive("a", 2))
    bench.advance(LAN.dead_gossip_s / 2)
    bench.receive(dead("a", 2))
    bench.advance(LAN.dead_gossip_s - 0.1)
    assert bench.liveness("a") == (DEAD, 2), "the time of the member starts again"


@pytest.mark.parametrize(
    ("theirs", "ours"), [(ALIVE, (ALIVE, 6)), (SUSPECT, (SUSPECT, 6)), (DEAD, (SUSPECT, 6)), (LEFT, (LEFT, 6))]
)
def test_view_of_a_peer_is_merged(theirs: Liveness, ours: tuple[Liveness, int]) -> None:
    """The "dead" message may be old, so the member gets time to refute it."""
    bench = known_as(ALIVE)
    bench.nodes.merge(NodeState("a", address_of("a"), tags_of("a"), 6, theirs, VSN))
    assert bench.liveness("a") == ours


def test_sample_respects_the_filter() -> None:
    bench = SwimBench(others="abcde")
    for _ in range(50):
        drawn = {node.name for node in bench.nodes.sample(3, lambda node: node.name != "c")}
        assert len(drawn) == 3 and drawn <= set("abde")
    assert {node.name for node in bench.nodes.sample(9, lambda node: True)} == set("abcde")


def test_members_are_sampled_uniformly() -> None:
    bench = SwimBench()
    bench.receive(*(alive(f"x{number}") for number in range(40)), *(dead(f"x{number}") for number in range(10)))
    drawn: Counter[str] = Counter()
    for _ in range(2000):
        nodes = bench.nodes.sample(3, lambda node: node.liveness == ALIVE)
        assert len({node.name for node in nodes}) == 3
        drawn.update(node.name for node in nodes)
    assert set(drawn) == {f"x{number}" for number in range(10, 40)}
    assert all(140 < count < 260 for count in drawn.values()), drawn
    few = bench.nodes.sample(3, lambda node: node.name in ("x7", "x8", "x9", "x10"))
    assert len(few) == 3, "all nodes are checked if few nodes match"
    bench.receive(alive("new"))
    bench.nodes._forget(bench.node("x0"))
    assert len(bench.nodes.sample(99, lambda node: True)) == 40
