"""Tests of the conclusions that a node draws about its clock from the clocks of its peers, in virtual time."""

from __future__ import annotations

import pytest

from sandq.broker.clock.guarded_clock import DISPUTED, OFF, UNCOMPARED, WALL, GuardedClock
from sandq.broker.clock.peer_clocks import COMPARED_WITHIN_S, FRESH_S, RATE, PeerClocks, Standing, _medians

HOUR_S = 3600.0
MAX_DRIFT_S = 0.5
START_S = 1_800_000_000.0
GOOD, DOUBTED, OFF_ = Standing.GOOD, Standing.DOUBTED, Standing.OFF


class Node:
    """A machine whose wall clock is `ahead_s` ahead. Its monotonic clock has its own start value."""

    def __init__(self, world: World, name: str, ahead_s: float) -> None:
        self.name = name
        self.ahead_s = ahead_s
        self.stood_still_s = 0.0
        self._booted_s = START_S - 100 - 1000 * len(world.nodes)
        self.clock = GuardedClock(
            wall=lambda: world.now_s + self.ahead_s,
            monotonic=lambda: world.now_s - self._booted_s - self.stood_still_s,
        )


class World:
    """`**ahead_s`: node -> seconds that its wall clock is ahead at the start."""

    def __init__(self, **ahead_s: float) -> None:
        self.now_s = START_S
        self.nodes: dict[str, Node] = {}
        for name, node_ahead_s in ahead_s.items():
            self.start(name, node_ahead_s)

    def start(self, name: str, ahead_s: float) -> None:
        for node in self.nodes.values():
            node.clock.peers.forget(name)
        self.nodes[name] = Node(self, name, ahead_s)

    def stop(self, name: str) -> None:
        del self.nodes[name]
        for node in self.nodes.values():
            node.clock.peers.forget(name)

    def ask(self, name: str, of: str, there_s: float = 0.001, back_s: float = 0.001) -> None:
        """Let one node compare its clock with that of another. `there_s`, `back_s`: travel times."""
        asks, asked = self.nodes[name].clock, self.nodes[of].clock
        asked_s = asks.monotonic_s()
        self.now_s += there_s
        guarded_s, standing = asked.now_s(), asked.reported_standing
        self.now_s += back_s
        asks.peers.heard(of, guarded_s, standing, asked_s, asks.monotonic_s())
        asks.compare()

    def rounds(self, number: int = 3, **options: float) -> None:
        """Let each node ask every other node `number` times, every two seconds."""
        for _ in range(number):
            for name in self.nodes:
                for of in self.nodes:
                    if of != name:
                        self.ask(name, of, **options)
                self.nodes[name].clock.compare()
            self.now_s += 2

    def reasons(self) -> dict[str, str]:
        """Return the reason of each node whose clock is in alarm."""
        return {name: node.clock.reason for name, node in self.nodes.items() if node.clock.reason is not None}

    def better(self, name: str) -> set[str]:
        return self.nodes[name].clock.better_peers(0.0)

    def off_by_s(self, name: str) -> float:
        return self.nodes[name].clock.now_s() - self.now_s


# -- precision of known clocks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("there_s", "back_s"), [(0.0, 0.1), (0.1, 0.0), (0.03, 0.01)])
def test_a_clock_is_known_to_half_the_round_trip(there_s: float, back_s: float) -> None:
    world = World(a=0.0, b=0.2)
    world.ask("a", "b", there_s, back_s)
    median_ms = world.nodes["a"].clock.status().median_ms
    assert median_ms is not None and abs(median_ms - 200) <= (there_s + back_s) * 1000 / 2 + 1


def test_shortest_round_trip_is_used() -> None:
    world = World(a=0.0, b=0.1)
    for there_s, back_s in ((0.2, 0.0), (0.001, 0.001), (0.0, 0.2)):
        world.ask("a", "b", there_s, back_s)
        world.now_s += 1
    assert world.nodes["a"].clock.status().peers == {"b": pytest.approx(100, abs=2)}


def test_a_long_round_trip_says_as_much_as_is_certain_in_spite_of_it() -> None:
    """Round trips above 250 ms were once ignored. So a clock that was off by an hour stayed good."""
    for there_s, back_s in ((0.3, 0.0), (0.0, 5.0), (1.0, 1.0)):
        world = World(a=0.0, b=HOUR_S)
        world.ask("a", "b", there_s, back_s)
        assert world.reasons() == {"a": OFF}
    for apart_s, reasons in ((1.6, {"a": OFF}), (1.4, {})):
        world = World(a=0.0, b=apart_s)
        world.ask("a", "b", 1.0, 1.0)
        assert world.reasons() == reasons, "only a clock that is certainly beyond max_drift is off"
        assert world.nodes["a"].clock.reported_standing is (OFF_ if reasons else DOUBTED)


def test_offset_is_the_overlap_of_several_replies() -> None:
    """Each reply is exact to one second. One was slow on the way there, the other on the way back."""
    world = World(a=0.0, b=0.2)
    world.ask("a", "b", 2.0, 0.0)
    world.ask("a", "b", 0.0, 2.0)
    assert world.nodes["a"].clock.status().peers == {"b": pytest.approx(200, abs=5)}
    assert world.nodes["a"].clock.reported_standing is GOOD


@pytest.mark.parametrize("round_trip_s", [0.26, 0.6, 2.0])
def test_wrong_clock_is_found_and_its_node_yields_at_any_round_trip_time(round_trip_s: float) -> None:
    world = World(a=HOUR_S, b=0.0, c=0.0)
    world.rounds(there_s=round_trip_s / 2, back_s=round_trip_s / 2)
    assert world.reasons()["a"] == OFF
    for name, of in ("bc", "cb", "ab", "ac"):
        world.ask(name, of, round_trip_s / 2, round_trip_s / 2)
    assert world.better("a") == {"b", "c"}, "the clocks of b and c may be right"
    assert world.off_by_s("b") == pytest.approx(0, abs=0.01)


def test_a_clock_of_which_nothing_is_certain_is_uncompared_after_a_while() -> None:
    world = World(a=0.0, b=0.0)
    clock = world.nodes["a"].clock
    clock.peers.linked("b", clock.monotonic_s())
    for _ in range(int(COMPARED_WITHIN_S) // 2):
        world.ask("a", "b", 1.0, 1.0)
        assert (clock.reason, clock.standing, clock.reported_standing) == (None, GOOD, DOUBTED)
        assert clock.waits
    world.ask("a", "b", 1.0, 1.0)
    assert (clock.reason, clock.standing, clock.reported_standing) == (UNCOMPARED, DOUBTED, DOUBTED)
    assert not clock.waits, "the clock continues, with an alarm"
    world.ask("a", "b")
    assert (clock.reason, clock.standing, clock.reported_standing) == (None, GOOD, GOOD)


def test_clock_with_silent_peers_is_uncompared_until_they_leave() -> None:
    world = World(a=0.0, b=0.0)
    clock = world.nodes["a"].clock
    world.now_s += 1000
    clock.compare()
    assert clock.reason is None, "no peer is there to compare with"
    clock.peers.linked("b", clock.monotonic_s())
    world.now_s += COMPARED_WITHIN_S
    clock.compare()
    assert clock.reason is None
    world.now_s += 1
    clock.compare()
    assert (clock.reason, clock.standing) == (UNCOMPARED, DOUBTED)
    clock.peers.forget("b")
    clock.compare()
    assert (clock.reason, clock.standing) == (None, GOOD)


def test_agreement_of_clocks_expires_with_maximum_drift() -> None:
    world = World(a=0.0, b=0.0)
    clock = world.nodes["a"].clock
    world.ask("a", "b")
    world.now_s += MAX_DRIFT_S / RATE - 1
    clock.compare()
    assert clock.reported_standing is GOOD
    world.now_s += 2
    clock.compare()
    assert (clock.reason, clock.reported_standing) == (UNCOMPARED, OFF_)


# -- waiting for comparison -------------------------------------------------------------------------------------------


def waits(world: World) -> dict[str, bool]:
    return {name: node.clock.waits for name, node in world.nodes.items()}


def test_a_clock_stamps_nothing_before_a_majority_of_the_cluster_is_near_it() -> None:
    """Two of five clocks that are wrong by the same offset agree with each other. Two are no majority."""
    world = World(a=HOUR_S, b=HOUR_S, c=0.0, d=0.0, e=0.0)
    for node in world.nodes.values():
        node.clock.peers.nodes = 5
    world.ask("a", "b")
    world.ask("c", "d")
    world.ask("c", "e")
    assert waits(world) == {"a": True, "b": True, "c": False, "d": True, "e": True}
    assert [world.nodes[name].clock.reported_standing for name in "ac"] == [OFF_, GOOD]
    world.ask("a", "c")
    assert world.nodes["a"].clock.reported_standing is DOUBTED, (
        "the median of the known clocks is near, but the known clocks are no majority"
    )
    world.rounds()
    assert waits(world) == {**dict.fromkeys("ab", True), **dict.fromkeys("cde", False)}
    assert world.reasons() == {"a": OFF, "b": OFF}


@pytest.mark.parametrize("linked", [False, True])
def test_clock_waits_a_bounded_time_for_silent_peers(linked: bool) -> None:
    world = World(a=0.0, b=0.0)
    clock = world.nodes["a"].clock
    if linked:
        world.now_s += 3600
        clock.compare()
        assert not clock.waits
        clock.peers.linked("b", clock.monotonic_s())
    world.now_s += COMPARED_WITHIN_S - 0.1
    clock.compare()
    assert clock.waits
    world.now_s += 0.2
    clock.compare()
    assert not clock.waits


def test_node_with_a_wrong_clock_waits_for_others_to_take_over() -> None:
    world = World(a=0.0, b=0.0, c=0.0)
    world.rounds()
    world.now_s += 3600
    world.rounds(1)
    for name in "bc":
        world.nodes[name].ahead_s = HOUR_S
        world.nodes[name].clock.accept()
    world.rounds(1)
    assert world.reasons() == {"a": OFF} and waits(world) == {"a": True, "b": False, "c": False}
    world.rounds(int(COMPARED_WITHIN_S))
    assert world.reasons() == {"a": OFF} and waits(world) == dict.fromkeys("abc", False)


def test_node_with_wrong_clock_waits_again_after_a_stall() -> None:
    """After the stall the node knows no better leader. It may be elected before it has asked its peers."""
    world = World(a=HOUR_S, b=0.0, c=0.0)
    world.rounds(2 * int(COMPARED_WITHIN_S))
    assert world.reasons() == {"a": OFF} and not waits(world)["a"]
    world.now_s += FRESH_S + 1
    world.nodes["a"].clock.compare()
    assert world.better("a") == set() and waits(world)["a"]
    world.now_s += COMPARED_WITHIN_S + 1
    assert not waits(world)["a"]


def test_old_samples_are_ignored() -> None:
    world = World(a=0.0, b=0.1)
    world.ask("a", "b")
    world.now_s += FRESH_S - 1
    assert world.nodes["a"].clock.status().peers.keys() == {"b"}
    world.now_s += 2
    status = world.nodes["a"].clock.status()
    assert (status.peers, status.median_ms) == ({}, None)


def test_peer_without_link_is_forgotten() -> None:
    world = World(a=0.0, b=0.1)
    world.ask("a", "b")
    world.nodes["a"].clock.peers.forget("b")
    assert world.nodes["a"].clock.status().peers == {}


def test_offset_of_peer_after_its_clock_step_is_updated() -> None:
    world = World(a=0.0, b=0.0)
    world.ask("a", "b")
    world.nodes["b"].ahead_s = HOUR_S
    world.nodes["b"].clock.accept()
    world.ask("a", "b", 0.05, 0.05)
    assert world.nodes["a"].clock.status().peers["b"] == pytest.approx(HOUR_S * 1000, abs=60)


def test_offsets_of_peers_are_corrected_after_own_clock_step() -> None:
    world = World(a=0.0, b=0.0)
    world.ask("a", "b")
    world.nodes["a"].ahead_s = HOUR_S
    assert world.nodes["a"].clock.accept().median_ms == pytest.approx(-HOUR_S * 1000, abs=2)


def test_medians() -> None:
    assert _medians([3, 1, 2]) == (2, 2)
    assert _medians([4, 1, 3, 2]) == (2, 3)


# -- wrong clocks -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead_s", "reasons"),
    [
        ((0.0, 0.0, 0.0), {}),
        ((0.3, 0.0, -0.3), {}),
        ((HOUR_S, 0.0, 0.0), {"a": OFF}),
        ((-HOUR_S, 0.0, 0.0), {"a": OFF}),
        ((0.0, HOUR_S, HOUR_S), {"a": OFF}),
        ((0.0, HOUR_S, -HOUR_S), {"b": OFF, "c": OFF}),  # the one in the middle is the median
        ((HOUR_S, 0.0), {"a": OFF, "b": OFF}),
        ((HOUR_S, 0.0, 0.0, 0.0), {"a": OFF}),
        ((HOUR_S, HOUR_S, 0.0, 0.0, 0.0), {"a": OFF, "b": OFF}),
        ((0.0,), {}),
    ],
)
def test_node_that_starts_with_a_wrong_clock_is_off(ahead_s: tuple[float, ...], reasons: dict[str, str]) -> None:
    world = World(**dict(zip("abcde", ahead_s, strict=False)))
    world.rounds()
    assert world.reasons() == reasons
    for name, node in world.nodes.items():
        fine = world.nodes.keys() - reasons.keys() if name in reasons else set()
        assert world.better(name) == fine
        assert world.off_by_s(name) == pytest.approx(node.ahead_s, abs=0.01), "no clock follows another clock"


def test_node_without_comparison_reports_off_and_keeps_leading() -> None:
    world = World(a=HOUR_S, b=0.0)
    clock = world.nodes["a"].clock
    assert (clock.standing, clock.reported_standing, clock.alarm) == (GOOD, OFF_, False)
    assert world.better("a") == set()


def test_two_against_two() -> None:
    """All four nodes report the dispute. The nodes whose clocks were set leave the lead to the other nodes."""
    world = World(a=0.0, b=0.0, c=0.0, d=0.0)
    world.rounds()
    for name in "ab":
        world.nodes[name].ahead_s = HOUR_S
        world.nodes[name].clock.accept()
    world.rounds()
    assert world.reasons() == {"a": OFF, "b": OFF, "c": DISPUTED, "d": DISPUTED}
    assert [world.better(name) for name in "abcd"] == [{"c", "d"}, {"c", "d"}, set(), set()]
    world.nodes["c"].ahead_s = HOUR_S
    world.nodes["c"].clock.accept()
    world.rounds()
    assert world.reasons() == {"d": OFF}


def test_known_wrong_clock_does_not_affect_the_other_of_two_nodes() -> None:
    world = World(a=HOUR_S, b=0.0, c=0.0)
    world.rounds()
    world.stop("c")
    world.rounds()
    assert world.reasons() == {"a": OFF, "b": DISPUTED}
    assert (world.better("a"), world.better("b")) == ({"b"}, set())
    world.start("a", HOUR_S)
    world.rounds()
    assert (world.better("a"), world.better("b")) == ({"b"}, set()), "a restart changes nothing"
    world.stop("a")
    world.rounds()
    assert world.reasons() == {}, "no peer contradicts any more"


def test_judgement_has_hysteresis_at_max_drift() -> None:
    """A clock beyond max_drift is off. The clock agrees again only when it is well within max_drift."""
    peers = PeerClocks(MAX_DRIFT_S, 0.0)

    def judge(ahead_s: float, at_s: float) -> tuple[bool, bool]:
        for node in ("b", "c"):
            peers.heard(node, at_s + ahead_s, GOOD, at_s, at_s)
        peers.judge(0.0, at_s)
        return peers.off, peers.agreed

    steps = [0.49, 0.501, 0.49, 0.4, 0.501, 0.4, 0.37, 0.49]
    found = [judge(ahead_s, 100.0 * at) for at, ahead_s in enumerate(steps)]
    assert found == [(off, True) for off in (False, True, True, True, True, True, False, False)]


# -- steps of a wall clock --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S, 0.6])
def test_unconfirmed_wall_clock_step_is_not_followed(step_s: float) -> None:
    world = World(a=0.0, b=0.0, c=0.0)
    world.rounds()
    world.nodes["a"].ahead_s = step_s
    world.rounds()
    assert world.reasons() == {"a": WALL}
    assert world.off_by_s("a") == pytest.approx(0, abs=0.01)
    assert (world.better("a"), world.better("b"), world.better("c")) == ({"b", "c"}, set(), set())
    world.nodes["a"].ahead_s = 0.0
    world.rounds(1)
    assert world.reasons() == {}


def test_small_difference_is_slewed_away() -> None:
    world = World(a=0.0, b=0.3)
    world.nodes["a"].ahead_s = 0.3
    world.rounds(1)
    assert world.off_by_s("a") == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("others", ["b", "bc"])
def test_a_step_to_where_the_others_are_is_followed(others: str) -> None:
    """A node started with a wrong wall clock, which is corrected now."""
    world = World(a=HOUR_S, **dict.fromkeys(others, 0.0))
    world.rounds()
    assert world.reasons()["a"] == OFF
    world.nodes["a"].ahead_s = 0.0
    world.rounds()
    assert world.reasons() == {}
    assert world.off_by_s("a") == pytest.approx(0, abs=0.01)


def test_a_machine_that_stood_still_catches_up_with_the_others() -> None:
    """The monotonic clock of the machine stood still. The node notices that its knowledge of the other clocks is
    wrong."""
    world = World(a=0.0, b=0.0, c=0.0)
    world.rounds()
    world.now_s += 600
    world.nodes["a"].stood_still_s = 600.0
    assert world.off_by_s("a") == pytest.approx(-600, abs=0.01)
    world.rounds(1)
    assert world.reasons() == {}
    assert world.off_by_s("a") == pytest.approx(0, abs=0.01)


def test_a_step_accepted_on_two_of_three_is_followed_by_the_third() -> None:
    world = World(a=0.0, b=0.0, c=0.0)
    world.rounds()
    for node in world.nodes.values():
        node.ahead_s = HOUR_S
    world.rounds()
    assert world.reasons() == dict.fromkeys("abc", WALL)
    assert [world.better(name) for name in "abc"] == [set()] * 3
    assert world.nodes["a"].clock.accept().reason == OFF, "no other node has this time so far"
    world.rounds()
    assert world.reasons() == {"a": OFF, "b": WALL, "c": WALL}
    assert [world.better(name) for name in "abc"] == [{"b", "c"}, set(), set()]
    world.nodes["b"].clock.accept()
    world.rounds()
    assert world.reasons() == {}
    assert world.off_by_s("c") == pytest.approx(HOUR_S, abs=0.01)


def test_accepting_clock_of_one_node_settles_both() -> None:
    world = World(a=0.0, b=0.0)
    world.rounds()
    for node in world.nodes.values():
        node.ahead_s = HOUR_S
    world.rounds()
    world.nodes["a"].clock.accept()
    world.rounds()
    assert world.reasons() == {}


def test_two_that_disagree_lead_on() -> None:
    world = World(a=0.0, b=0.0)
    world.rounds()
    world.nodes["a"].ahead_s = HOUR_S
    world.nodes["a"].clock.accept()
    world.rounds()
    assert world.reasons() == {"a": DISPUTED, "b": DISPUTED}
    assert (world.better("a"), world.better("b")) == (set(), set())


def test_clock_step_without_peers_needs_acceptance_by_the_operator() -> None:
    world = World(a=0.0)
    clock = world.nodes["a"].clock
    world.nodes["a"].ahead_s = HOUR_S
    world.now_s += 3600
    assert clock.compare() is None and clock.reason == WALL
    assert not clock.accept().alarm
    assert world.off_by_s("a") == pytest.approx(HOUR_S, abs=0.01)


# -- nodes with better clocks -----------------------------------------------------------------------------------------


def offered(than: Standing, standing: Standing, *, offset_s: float = 0.0, since_s: float = 0.0) -> set[str]:
    """Return the nodes better than this one, if b reports `standing` while c and d agree with this node's clock."""
    peers = PeerClocks(MAX_DRIFT_S, 0.0)
    for node, ahead_s, says in (("b", offset_s, standing), ("c", 0.0, than), ("d", 0.0, than)):
        peers.heard(node, 1000.0 + ahead_s, says, 1000.0, 1000.0)
    return peers.better(than, since_s, 0.0, 1001.0)


def test_leadership_moves_only_to_a_better_standing() -> None:
    found = {(than, says): offered(than, says) for than in Standing for says in Standing}
    assert {pair for pair, nodes in found.items() if nodes} == {(DOUBTED, GOOD), (OFF_, GOOD), (OFF_, DOUBTED)}


def test_leadership_needs_a_fresh_report_and_a_small_offset() -> None:
    assert offered(DOUBTED, GOOD, since_s=1000.0) == {"b"}
    assert offered(DOUBTED, GOOD, since_s=1000.1) == set()
    assert offered(DOUBTED, GOOD, offset_s=0.4) == {"b"}
    assert offered(DOUBTED, GOOD, offset_s=0.6) == set()


def test_old_statement_is_forgotten() -> None:
    peers = PeerClocks(MAX_DRIFT_S, 0.0)
    for node, standing, asked_s in (("a", GOOD, 100.0), ("b", DOUBTED, 100.0), ("c", GOOD, 100.0 - FRESH_S)):
        peers.heard(node, 0.0, standing, asked_s, 100.0)
    assert peers.recent_standings(100.5) == {"a": GOOD, "b": DOUBTED}


def test_flapping_link_does_not_make_a_node_wait_indefinitely() -> None:
    peers = PeerClocks(MAX_DRIFT_S, 0.0)
    peers.nodes = 3
    waited = 0
    for at_s in range(0, 900):
        if at_s % 9 == 0:
            peers.linked("b", float(at_s))
        elif at_s % 9 == 8:
            peers.forget("b")
        peers.judge(0.0, float(at_s))
        waited += peers.waits(float(at_s))
    assert COMPARED_WITHIN_S <= waited <= 900 / 2


def test_single_node_cluster_has_agreed_and_continues_when_a_node_joins() -> None:
    """The single node stamped all data. So it does not wait for the first joining node, which may never answer."""
    peers = PeerClocks(MAX_DRIFT_S, 0.0)
    peers.nodes = 1
    peers.judge(0.0, 1.0)
    assert peers.agreed and not peers.waits(1.0)
    peers.nodes = 2
    peers.linked("b", 100.0)
    for at_s in (100.0, 101.0, 109.0, 200.0):
        peers.judge(0.0, at_s)
        assert not peers.waits(at_s), at_s
    peers.heard("b", 200.0 + 3600.0, GOOD, 200.0, 200.1)
    peers.judge(0.0, 200.1)
    assert peers.disputed and not peers.off and not peers.waits(200.1), (
        "of the two nodes the first has the better claim"
    )
