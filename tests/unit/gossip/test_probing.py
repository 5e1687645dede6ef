"""Tests of probes: their failures, the helpers, and the answers of this member."""

from __future__ import annotations

import random

import pytest

from sandq.gossip import probing
from sandq.gossip.messages import Ack, IndirectPing, Message, Nack, Ping, Suspect
from sandq.gossip.nodes import Liveness
from sandq.gossip.probing import RELAY_SHARE, Prober
from sandq.model.config_types import Address
from sandq.model.gossip_timing import PROFILES, Timing
from tests.support.gossip.swim_bench import LAN, SwimBench, address_of, alive, dead, left, suspect

ALIVE, SUSPECT, DEAD, LEFT = Liveness
SOMEWHERE = Address("192.0.2.7", 4711)
OWN = address_of("own")


class ProbeBench(SwimBench):
    """`sent`: (address, message) in order. `asked`: (name, seq) of probes over streams."""

    def __init__(self, others: str = "", timing: Timing = LAN) -> None:
        super().__init__(timing, others=others)
        self.timing = timing
        self.sent: list[tuple[Address, Message]] = []
        self.asked: list[tuple[str, int]] = []
        self.round_trips: list[float] = []
        self.prober = Prober(
            nodes=self.nodes,
            timing=timing,
            agenda=self.agenda,
            awareness=self.awareness,
            rng=random.Random(7),
            send=self.send,
            ask_by_stream=lambda node, seq: self.asked.append((node.name, seq)),
            on_round_trip=self.round_trips.append,
            counts=self.counts,
        )

    def send(self, to: Address, messages: list[Message], crc: bool) -> None:
        self.sent += [(to, message) for message in messages]

    def taken(self) -> list[tuple[Address, Message]]:
        sent, self.sent = self.sent, []
        return sent

    def probe(self) -> Ping:
        """Advance the time until a probe begins. Return its ping."""
        for _ in range(1000):
            self.agenda.run(self.next_at)
            for _, message in self.sent:
                if isinstance(message, Ping):
                    self.sent.clear()
                    return message
        raise AssertionError("it probes nobody")

    @property
    def next_at(self) -> float:
        at = self.agenda.next_at
        assert at is not None
        return at

    def helpers(self) -> dict[str, IndirectPing]:
        """Return the indirect pings, by the name of the node that got them."""
        names = {address_of(node.name): node.name for node in self.nodes.all()}
        return {names[to]: message for to, message in self.sent if isinstance(message, IndirectPing)}


# -------------------------------------------------------------------------------------------------------------- rounds


def test_only_live_members_are_probed_round_robin() -> None:
    bench = ProbeBench("abcdef")
    bench.receive(dead("c"), left("d"), suspect("e"))
    turns = []
    for _ in range(3):
        turn = []
        for _ in range(4):
            ping = bench.probe()
            turn.append(ping.node)
            bench.prober.on_ack(ping.seq)
        turns.append("".join(sorted(turn)))
    assert turns == ["abef"] * 3
    assert bench.counts["probes"] == 12 and bench.counts["probes_failed"] == 0


def test_single_member_probes_no_peer() -> None:
    bench = ProbeBench()
    bench.advance(10)
    assert bench.sent == [] and bench.counts["probes"] == 0


def test_new_member_is_probed_in_this_round() -> None:
    bench = ProbeBench("abcdefghij")
    bench.prober.on_ack(bench.probe().seq)
    bench.receive(alive("x"))
    bench.prober.welcome("x")
    probed = []
    for _ in range(10):
        ping = bench.probe()
        probed.append(ping.node)
        bench.prober.on_ack(ping.seq)
    assert "x" in probed


def test_names_of_gone_members_do_not_accumulate() -> None:
    bench = ProbeBench("ab")
    for number in range(2000):
        bench.receive(alive(f"x{number}"))
        bench.prober.welcome(f"x{number}")
        bench.receive(dead(f"x{number}"))
        bench.nodes._forget(bench.node(f"x{number}"))
    assert len(bench.prober._order) < 20


def test_departing_node_probes_no_peer() -> None:
    bench = ProbeBench("ab")
    bench.nodes.depart()
    bench.advance(5)
    assert bench.sent == []


def test_an_answer_ends_a_probe() -> None:
    bench = ProbeBench("abcd")
    bench.awareness.add(2)
    ping = bench.probe()
    assert ping.source == OWN and ping.source_node == "own"
    bench.agenda.advance(bench.agenda.now + 0.125)
    bench.prober.on_ack(ping.seq)
    assert bench.round_trips == [0.125] and bench.awareness.score == 1
    bench.advance(0.6)
    assert bench.helpers() == {} and bench.asked == []
    bench.prober.on_ack(ping.seq)
    assert bench.round_trips == [0.125] and bench.counts["late_acks"] == 1


def test_probe_of_a_suspect_carries_the_suspicion() -> None:
    bench = ProbeBench("a")
    bench.receive(suspect("a", 1, "b"))
    bench.agenda.run(bench.next_at)
    assert [message for _, message in bench.sent if isinstance(message, Suspect)] == [suspect("a", 1, "own")]


# --------------------------------------------------------------------------------------------------- unanswered probes


def test_indirect_pings_and_a_stream_precede_a_suspicion() -> None:
    bench = ProbeBench("abcdef")
    ping = bench.probe()
    bench.advance(LAN.probe_timeout_s - 0.01)
    assert bench.helpers() == {} and bench.asked == []
    bench.advance(0.02)
    helpers = bench.helpers()
    assert len(helpers) == LAN.indirect_checks and ping.node not in helpers and "own" not in helpers
    assert set(helpers.values()) == {IndirectPing(ping.seq, address_of(ping.node), ping.node, True, OWN, "own")}
    assert bench.asked == [(ping.node, ping.seq)]
    bench.advance(LAN.probe_interval_s - LAN.probe_timeout_s - 0.02)
    assert bench.node(ping.node).liveness == ALIVE
    bench.advance(0.02)
    assert bench.node(ping.node).liveness == SUSPECT and bench.counts["probes_failed"] == 1


@pytest.mark.parametrize("by", ["helper", "stream"])
def test_indirect_ack_counts(by: str) -> None:
    bench = ProbeBench("abcdef")
    ping = bench.probe()
    bench.advance(LAN.probe_timeout_s + 0.1)
    bench.prober.on_ack(bench.asked[0][1] if by == "stream" else next(iter(bench.helpers().values())).seq)
    bench.advance(1.0)
    assert bench.node(ping.node).liveness == ALIVE and bench.awareness.score == 0


def test_suspected_and_gone_members_are_not_asked_to_help() -> None:
    bench = ProbeBench("abcdef")
    bench.receive(suspect("a"), suspect("b"), dead("c"), left("d"))
    while (ping := bench.probe()).node != "e":
        bench.prober.on_ack(ping.seq)
    bench.advance(LAN.probe_timeout_s)
    assert set(bench.helpers()) == {"f"}


def test_a_failed_probe_costs_one_round_not_two() -> None:
    bench = ProbeBench("abcdef")
    first = bench.probe()
    began = bench.agenda.now
    bench.advance(LAN.probe_timeout_s)
    for _ in range(3):
        bench.prober.on_nack(first.seq)
    assert bench.probe().node != first.node
    assert bench.agenda.now - began == LAN.probe_interval_s and bench.counts["probes_failed"] == 1


@pytest.mark.parametrize(("nacks", "doubt"), [(0, 3), (1, 2), (3, 0), (9, 0)])
def test_missing_nacks_lower_own_health(nacks: int, doubt: int) -> None:
    bench = ProbeBench("abcdef")
    ping = bench.probe()
    bench.awareness.add(1)
    bench.advance(LAN.probe_timeout_s)
    for _ in range(nacks):
        bench.prober.on_nack(ping.seq)
        bench.prober.on_nack(ping.seq + 1)
    bench.advance(LAN.probe_interval_s - LAN.probe_timeout_s)
    assert bench.counts["probes_failed"] == 1 and bench.awareness.score == 1 + doubt


def test_failed_probe_without_helpers_lowers_own_health() -> None:
    bench = ProbeBench("a")
    bench.probe()
    bench.advance(LAN.probe_interval_s)
    assert bench.awareness.score == 1


def test_node_with_low_self_awareness_waits_longer_and_skips_rounds() -> None:
    bench = ProbeBench("abcdef")
    bench.awareness.add(2)
    ping = bench.probe()
    bench.advance(3 * LAN.probe_interval_s - 0.01)
    assert bench.node(ping.node).liveness == ALIVE and bench.counts["probes"] == 1
    bench.advance(0.02)
    assert bench.node(ping.node).liveness == SUSPECT


def test_member_alive_during_failed_probe_is_not_suspected() -> None:
    bench = ProbeBench("abcd")
    ping = bench.probe()
    bench.advance(LAN.probe_timeout_s)
    bench.receive(alive(ping.node, 2))
    bench.advance(LAN.probe_interval_s - LAN.probe_timeout_s)
    assert bench.counts["probes_failed"] == 1 and bench.liveness(ping.node) == (ALIVE, 2)


def test_member_forgotten_during_probe_is_ignored() -> None:
    bench = ProbeBench("abcd")
    ping = bench.probe()
    bench.receive(dead(ping.node))
    bench.nodes._forget(bench.node(ping.node))
    bench.advance(1.0)
    assert bench.nodes.get(ping.node) is None


# ------------------------------------------------------------------------------------------------------ relayed probes


@pytest.mark.parametrize(
    ("source", "source_node", "packet_from", "answered"),
    [
        (None, "", SOMEWHERE, SOMEWHERE),
        (address_of("a"), "a", address_of("a"), address_of("a")),
        # The packet comes through a router or from another socket. The answer goes to the known address.
        (address_of("a"), "a", SOMEWHERE, address_of("a")),
        (address_of("a"), "x", SOMEWHERE, SOMEWHERE),
        (address_of("a"), "b", SOMEWHERE, SOMEWHERE),
        (address_of("x"), "x", SOMEWHERE, SOMEWHERE),
        (Address("198.51.100.1", 53), "a", SOMEWHERE, SOMEWHERE),
    ],
)
def test_only_the_asker_or_a_known_member_is_answered(
    source: Address | None, source_node: str, packet_from: Address, answered: Address
) -> None:
    bench = ProbeBench("ab")
    for name in ("own", ""):
        bench.prober.on_ping(Ping(9, name, source, source_node), packet_from)
        assert bench.taken() == [(answered, Ack(9, b""))]
    bench.prober.on_indirect_ping(IndirectPing(9, address_of("x"), "x", True, source, source_node), packet_from)
    assert bench.taken() == [(answered, Nack(9))]


def test_ping_for_another_node_is_not_answered() -> None:
    bench = ProbeBench("ab")
    bench.prober.on_ping(Ping(9, "a", address_of("b"), "b"), address_of("b"))
    assert bench.sent == [] and bench.counts["pings_for_others"] == 1


def relayed(bench: ProbeBench, nack: bool = True) -> Ping:
    """Send the request of "b" to ping "a", and return the relayed ping."""
    asked = IndirectPing(9, address_of("a"), "a", nack, address_of("b"), "b")
    bench.prober.on_indirect_ping(asked, address_of("b"))
    ((to, ping),) = bench.taken()
    assert to == address_of("a") and isinstance(ping, Ping)
    assert (ping.node, ping.source, ping.source_node) == ("a", OWN, "own")
    return ping


def test_a_relay_hands_an_answer_on() -> None:
    bench = ProbeBench("ab")
    ping = relayed(bench)
    bench.prober.on_ack(ping.seq)
    assert bench.taken() == [(address_of("b"), Ack(9, b""))]
    bench.prober.on_ack(ping.seq)
    assert bench.taken() == [], "once"
    bench.advance(0.5)
    assert not [message for _, message in bench.sent if isinstance(message, Nack)]


@pytest.mark.parametrize("timing", PROFILES.values(), ids=PROFILES)
def test_a_relay_says_that_there_is_no_answer_before_the_asker_gives_up(timing: Timing) -> None:
    bench = ProbeBench("ab", timing)
    bench.nodes.leaving = True  # this member sends no own probes
    relayed(bench)
    left_s = timing.probe_interval_s - timing.probe_timeout_s
    waits_s = min(timing.probe_timeout_s, RELAY_SHARE * left_s)
    assert waits_s <= 0.9 * left_s, "the relay leaves time for the transmission"
    bench.advance(waits_s - 0.001)
    assert bench.taken() == []
    bench.advance(0.002)
    assert bench.taken() == [(address_of("b"), Nack(9))]


def test_ping_without_nack_request_gets_no_nack() -> None:
    bench = ProbeBench("ab")
    bench.nodes.leaving = True
    relayed(bench, nack=False)
    bench.advance(1)
    bench.prober.on_indirect_ping(IndirectPing(9, SOMEWHERE, "a", False, None, ""), address_of("b"))
    assert bench.taken() == []


@pytest.mark.parametrize(
    ("name", "target"), [("x", address_of("x")), ("a", SOMEWHERE), ("a", Address(address_of("a").host, 53))]
)
def test_ping_relay_to_unknown_address_is_refused(name: str, target: Address) -> None:
    bench = ProbeBench("ab")
    bench.prober.on_indirect_ping(IndirectPing(9, target, name, True, None, ""), address_of("b"))
    assert bench.taken() == [(address_of("b"), Nack(9))] and bench.counts["relays_refused"] == 1


def test_relays_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "RELAYS_MOST", 3)
    bench = ProbeBench("ab")
    bench.nodes.leaving = True
    for _ in range(3):
        relayed(bench)
    bench.prober.on_indirect_ping(IndirectPing(8, address_of("a"), "a", True, None, ""), address_of("b"))
    assert bench.taken() == [(address_of("b"), Nack(8))]
    bench.advance(1)
    bench.taken()
    relayed(bench)
