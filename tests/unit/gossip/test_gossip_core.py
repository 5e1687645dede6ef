"""Tests of a complete member: its packets, its stream replies, and its counters."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter

import pytest

from sandq.gossip.core import ASKS_MOST, STATES_AT_ONCE, Gossip
from sandq.gossip.keyring import Keyring
from sandq.gossip.members import RECORDS_AT_ONCE
from sandq.gossip.messages import VSN, Ack, Alive, Dead, Ping, Suspect, User, encode
from sandq.gossip.nodes import Node
from sandq.gossip.packets import PACKET_BYTES, Packets
from sandq.gossip.serf_messages import NAMES_AT_ONCE, encode_tags
from sandq.gossip.streams import NodeState, PushPull
from sandq.gossip.tags import judge_of
from sandq.model.config_types import Address
from sandq.model.errors import ProtocolError, TooLarge
from sandq.model.gossip_timing import PROFILES, Timing
from sandq.model.membership import State

LAN = PROFILES["lan"]
QUIET = dataclasses.replace(LAN, probe_interval_s=1e6, push_pull_interval_s=1e6, reconnect_interval_s=1e6)
"""Timing of a core that only retransmits the messages that it received."""


def core_of(timing: Timing = LAN, packets: Packets | None = None) -> Gossip:
    """Return the core of a member named `own`, with fixed randomness."""
    return Gossip(
        name="own",
        address=Address("10.0.0.1", 9900),
        tags={"cluster": "sandq", "id": "own"},
        timing=timing,
        packets=packets or Packets(None, lambda: bytes(12)),
        judge=judge_of("sandq", lambda: None),
        rng=random.Random(3),
        now=0.0,
    )


def alive(name: str, number: int, fill: int = 0, vsn: tuple[int, ...] = VSN) -> Alive:
    meta = encode_tags({"cluster": "sandq", "fill": "f" * fill})
    return Alive(1, name, Address(f"10.0.1.{number + 1}", 9900), meta, vsn)


def run(core: Gossip, seconds: float) -> list[tuple[Address, bytes]]:
    """Run the core for this time, and return the packets that it sends."""
    end, sent = core._agenda.now + seconds, list(core.take_packets())
    while core.next_at <= end:
        core.tick(core.next_at)
        sent += core.take_packets()
    return sent


@pytest.mark.parametrize("keyed", [False, True], ids=["plain", "encrypted"])
def test_packets_are_bounded_and_largest_messages_are_sent(keyed: bool) -> None:
    """Names and tags have the maximum size, so a packet holds only one such message."""
    packets = Packets(Keyring([bytes(32)]) if keyed else None, lambda: bytes(12))
    core = core_of(packets=packets)
    names = [f"{number:02}" + "n" * 126 for number in range(30)]
    words = [alive(name, number, 460) for number, name in enumerate(names)]
    for word in words:
        core.receive(0.0, packets.seal([encode(word)], crc=False), word.address)
    said = set()
    largest = 0
    for _, datagram in run(core, 60.0):
        largest = max(largest, len(datagram))
        said |= {message for message in packets.open(datagram).messages if isinstance(message, Alive)}
    assert set(words) <= said and 1200 < largest <= PACKET_BYTES


def test_messages_are_sent_a_limited_number_of_times_newest_first() -> None:
    core = core_of(QUIET)
    run(core, 10.0)
    packets = Packets(None, lambda: bytes(12))
    words = [alive(name, number) for number, name in enumerate("abcdefgh")]
    for word in words:
        core.receive(20.0, packets.seal([encode(word)], crc=False), word.address)
    sent = [packets.open(datagram).messages for _, datagram in run(core, 30.0)]
    times: Counter[object] = Counter(message for messages in sent for message in messages)
    assert {times[word] for word in words} == {LAN.transmits(9)}
    sent_on = [message for message in sent[0] if message in words]
    assert sent_on == list(reversed(words))[: len(sent_on)]


def test_news_is_not_for_those_that_left() -> None:
    core = core_of(QUIET)
    packets = Packets(None, lambda: bytes(12))
    there, gone, failed = (alive(name, number) for number, name in enumerate("abc"))
    for word in (there, gone, failed, Dead(1, "b", "b"), Dead(1, "c", "x")):
        core.receive(0.0, packets.seal([encode(word)], crc=False), there.address)
    receivers = {to for to, _ in run(core, 5.0)}
    assert there.address in receivers and failed.address in receivers and gone.address not in receivers


def test_checksums_are_sent_only_to_members_that_support_them() -> None:
    core = core_of(QUIET)
    packets = Packets(None, lambda: bytes(12))
    new, old = alive("new", 1), alive("old", 2, vsn=(1, 4, 2, 2, 5, 5))
    for word in (new, old):
        core.receive(0.0, packets.seal([encode(word)], crc=False), word.address)
    first_bytes = {(to, datagram[0] == 12) for to, datagram in run(core, 5.0)}
    assert first_bytes == {(new.address, True), (old.address, False)}


def test_unreadable_messages_are_counted() -> None:
    core = core_of()
    packets = Packets(None, lambda: bytes(12))
    before = dict(core.records)
    for datagram in (
        b"",
        b"\x63",
        packets.seal([encode(User(b"")), b"\x00\x01"], crc=False),
        b"\x0d\x81\xa5Error\xa1x",
    ):
        core.receive(0.0, datagram, Address("10.9.9.9", 9))
    core.receive(0.0, packets.seal([encode(User(b"\x03event"))], crc=False), Address("10.9.9.9", 9))
    assert core.counts["malformed"] == 5 and core.counts["not_spoken"] == 1 and core.records == before


def test_answers_over_a_stream() -> None:
    core = core_of()
    assert core.on_stream_ping(Ping(7, "own", None, "")) == core.on_stream_ping(Ping(7, "", None, "")) == Ack(7, b"")
    assert core.on_stream_ping(Ping(7, "a", None, "")) is None
    told = core.push_pull(True)
    assert told.join and [node.name for node in told.nodes] == ["own"]


def test_a_state_that_cannot_be_read_changes_nothing() -> None:
    core, other = core_of(), core_of()
    packets = Packets(None, lambda: bytes(12))
    other.receive(0.0, packets.seal([encode(alive("a", 1))], crc=False), Address("10.9.9.9", 9))
    with pytest.raises(ProtocolError):
        core.on_push_pull(0.0, PushPull(False, other.push_pull(False).nodes, b"\x02\xff"))
    assert list(core.records) == ["own"]
    core.on_push_pull(0.0, other.push_pull(False))
    assert list(core.records) == ["own", "a"]


def test_tags_that_do_not_fit_change_nothing() -> None:
    core = core_of()
    with pytest.raises(TooLarge):
        core.set_tags({"fill": "f" * 600})
    assert core.records["own"].tags == {"cluster": "sandq", "id": "own"}


def test_streams_to_be_opened_do_not_pile_up() -> None:
    core = core_of()
    packets = Packets(None, lambda: bytes(12))
    core.receive(0.0, packets.seal([encode(alive("a", 1))], crc=False), Address("10.9.9.9", 9))
    run(core, 5000.0)
    assert len(core.take_asks()) == ASKS_MOST and core.counts["asks_left_out"] > 0
    assert core.take_asks() == []


def test_changes_are_reported_once() -> None:
    core = core_of()
    packets = Packets(None, lambda: bytes(12))
    assert core.take_changed() == {"own"}
    for word in (alive("a", 1), Suspect(1, "a", "x")):
        core.receive(0.0, packets.seal([encode(word)], crc=False), Address("10.9.9.9", 9))
    assert core.take_changed() == {"a"} and core.take_changed() == set()
    assert core.records["a"].believed == State.SUSPECT


def test_own_messages_are_distinguished_from_those_of_others() -> None:
    """A leaving node waits until its own messages were sent, not until the queue is empty."""
    core = core_of(QUIET)
    packets = Packets(None, lambda: bytes(12))
    core.receive(0.0, packets.seal([encode(alive("a", 1))], crc=False), Address("10.9.9.9", 9))
    run(core, 10.0)
    assert not core.has_own_news
    core.receive(20.0, packets.seal([encode(alive("b", 2))], crc=False), Address("10.9.9.9", 9))
    assert not core.has_own_news
    for step in (core.announce_join, core.announce_leave, core.depart):
        step()
        assert core.has_own_news
        run(core, 5.0)
        assert not core.has_own_news


def test_state_of_all_members_is_reported_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of one step is bounded, so that it fits into a turn of the loop."""
    core, count = core_of(QUIET), 2_000
    word = alive("a", 1)
    states = [NodeState(f"n{at}", Address("10.0.1.2", 9900), word.meta, 1, 0, VSN) for at in range(count)]
    core.on_push_pull(0.0, PushPull(False, states, b""))
    core.take_changed()
    at_a_time, done = [], 0
    told = Node.state

    def counted(node: Node) -> NodeState:
        nonlocal done
        done += 1
        return told(node)

    monkeypatch.setattr(Node, "state", counted)
    steps, works = core.building_push_pull(False), []
    with pytest.raises(StopIteration) as end:
        while True:
            before = done
            works.append(next(steps))
            at_a_time.append(done - before)
    assert max(at_a_time) == STATES_AT_ONCE and max(works) <= 128
    steps_least = count // STATES_AT_ONCE + count // RECORDS_AT_ONCE + count // NAMES_AT_ONCE
    assert len(works) == steps_least
    assert end.value.value == core.push_pull(False) and len(end.value.value.nodes) == count + 1


def test_members_may_change_while_a_state_is_reported() -> None:
    core = core_of(QUIET)
    states = [NodeState(f"n{at}", Address("10.0.1.2", 9900), alive("a", 1).meta, 1, 0, VSN) for at in range(1_000)]
    core.on_push_pull(0.0, PushPull(False, states, b""))
    steps, rounds = core.building_push_pull(False), 0
    with pytest.raises(StopIteration) as end:
        while True:
            next(steps)
            rounds += 1
            gone, come = states[rounds], NodeState(f"m{rounds}", Address("10.0.1.2", 9900), states[0].meta, 1, 0, VSN)
            core.on_push_pull(0.0, PushPull(False, [dataclasses.replace(gone, state=3), come], b""))
    other = core_of(QUIET)
    other.on_push_pull(0.0, end.value.value)
    assert {f"n{at}" for at in range(1_000)} <= set(other.records) and rounds > 10
