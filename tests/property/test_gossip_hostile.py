"""Datagrams of an attacker do not disturb a small cluster."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandq.gossip import lzw, members, nodes
from sandq.gossip.broadcasts import KEPT_MOST
from sandq.gossip.core import ASKS_MOST, Gossip
from sandq.gossip.keyring import Keyring
from sandq.gossip.members import INTENTS_MOST, LTIME_JUMP
from sandq.gossip.messages import (
    VSN,
    Ack,
    Alive,
    Dead,
    IndirectPing,
    Message,
    Nack,
    Ping,
    Suspect,
    User,
    encode,
)
from sandq.gossip.nodes import INCARNATION_JUMP, REFUSALS_MOST
from sandq.gossip.packets import PACKET_BYTES, Packets
from sandq.gossip.serf_messages import JoinIntent, LeaveIntent, SerfState, encode_serf, encode_tags
from sandq.gossip.streams import NodeState, PushPull
from sandq.gossip.tags import judge_of
from sandq.model.config_types import Address
from sandq.model.errors import ProtocolError
from sandq.model.gossip_timing import PROFILES
from sandq.model.membership import State
from tests.support.examples import examples
from tests.support.gossip.lzw_encoder import encode as encode_lzw
from tests.support.simulation.gossip_world import Member, World, acquainted

FOE = Address("203.0.113.66", 6666)
NAMES = ("n0", "n1", "n2")
SECONDS = 20.0
LEFT_BYTES = 3 << 20
"""Maximum memory that twenty thousand messages may leave in use, in bytes."""
KEY = Keyring([bytes(32)])
PLAIN = Packets(None, lambda: bytes(12))


def address_of(number: int) -> Address:
    return Address(f"10.0.0.{number + 1}", 9900)


def tags_of(name: str, **more: str) -> bytes:
    return encode_tags({"cluster": "sandq", "id": name, "store": f"store of {name}", **more})


def beliefs(world: World) -> dict[str, Mapping[str, tuple[State, Address, bytes]]]:
    return {
        name: {of: (record.state, record.address, record.meta) for of, record in member.core.records.items()}
        for name, member in world.members.items()
    }


def give(world: World, datagram: bytes, source: Address = FOE, to: str = "n0") -> None:
    member = world.members[to]
    member.core.receive(member.now(), datagram, source)
    world.step(member)


def small_world(keys: Keyring | None = None, seed: int = 1) -> World:
    world = acquainted(3, seed, keys=keys)
    world.run(2.0)
    return world


# ----------------------------------------------------------------------------------------------------- forged packets

ANY_NAMES = st.sampled_from([*NAMES, "x", "y" * 255, "\u0000\n"])
NUMBERS = st.sampled_from([0, 1, 2, 3, 1000, INCARNATION_JUMP, INCARNATION_JUMP * 2, 2**31, 2**32 - 1])
LTIMES = st.sampled_from([0, 1, 2, 50, LTIME_JUMP, 2**63, 2**64 - 1])
ADDRESSES = st.sampled_from(
    [address_of(0), address_of(1), address_of(9), FOE, Address("::1", 1), Address("0.0.0.0", 53)]
)
OF_OTHERS = st.sampled_from(
    [tags_of("x", cluster="another"), tags_of("somebody else"), b"\xff\xc1", b"\xff\x81\xa1a\x01", b"\xff" * 512]
)
SOURCES = st.none() | ADDRESSES
INTENTS = st.one_of(
    st.builds(LeaveIntent, LTIMES, ANY_NAMES, st.booleans()),
    st.builds(JoinIntent, LTIMES, ANY_NAMES),
    st.builds(SerfState, LTIMES, st.dictionaries(ANY_NAMES, LTIMES, max_size=3), st.just(()), LTIMES, LTIMES),
).map(encode_serf)
BODIES = st.binary(max_size=40) | INTENTS
ASKED = [
    st.builds(Ping, NUMBERS, ANY_NAMES, SOURCES, ANY_NAMES | st.just("")),
    st.builds(IndirectPing, NUMBERS, ADDRESSES, ANY_NAMES, st.booleans(), SOURCES, ANY_NAMES | st.just("")),
    st.builds(Ack, NUMBERS, st.binary(max_size=10)),
    st.builds(Nack, NUMBERS),
]
ACCUSING = [st.builds(Suspect, NUMBERS, ANY_NAMES, ANY_NAMES), st.builds(Dead, NUMBERS, ANY_NAMES, ANY_NAMES)]
# Messages of another cluster, or in a version that no member can read.
STRANGE = st.builds(Alive, NUMBERS, st.sampled_from(["x", "z"]), ADDRESSES, OF_OTHERS, st.just(VSN) | st.just(()))
USER = st.builds(User, BODIES)
FORGED = st.one_of(*ASKED, *ACCUSING, STRANGE, USER)
WELL_FORMED = st.lists(FORGED.map(encode), min_size=1, max_size=5).map(lambda parts: PLAIN.seal(parts, crc=False))


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    data = bytearray(draw(WELL_FORMED))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        data[at : at + draw(st.integers(0, 4))] = draw(st.binary(max_size=4))
    return bytes(data)


NOISE = st.binary(max_size=1400)


# ----------------------------------------------------------------------------------------------------------- nothing


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.sampled_from(NAMES), NOISE | WELL_FORMED | mutated()), min_size=1, max_size=10))
def test_packets_without_the_key_change_nothing(attack: list[tuple[str, bytes]]) -> None:
    world = small_world(KEY)
    before, sent = beliefs(world), world.packets
    malformed = sum(member.core.counts["malformed"] for member in world.members.values())
    for name, datagram in attack:
        give(world, datagram, to=name)
    assert beliefs(world) == before and world.packets == sent
    assert sum(member.core.counts["malformed"] for member in world.members.values()) == malformed + len(attack)
    world.run(SECONDS)
    assert beliefs(world) == before and not world.believed_somewhere(State.SUSPECT, State.FAILED, State.LEFT)


@settings(max_examples=examples(60))
@given(st.lists(st.tuples(st.sampled_from(NAMES), NOISE | WELL_FORMED | mutated()), min_size=1, max_size=10))
def test_forged_messages_are_refuted_without_a_key(attack: list[tuple[str, bytes]]) -> None:
    """Members may believe a forged message for a moment. Then the accused members report that they live."""
    world = small_world()
    for name, datagram in attack:
        give(world, datagram, to=name)
        world.run(0.05)
    # All members agree after their next comparison at the latest.
    assert world.run(100, world.agree) < 70.0
    for name in NAMES:
        assert set(world.members[name].core.records) >= set(NAMES)


@pytest.mark.parametrize(
    "word",
    [
        Suspect(1, "n1", "n2"),
        Suspect(9, "n1", "n2"),
        Dead(1, "n1", "n2"),
        Dead(9, "n1", "n2"),
        Dead(1, "n1", "n1"),
        User(encode_serf(LeaveIntent(40, "n1", False))),
        User(encode_serf(LeaveIntent(40, "n1", True))),
        Suspect(1, "n0", "n2"),
        Dead(1, "n0", "n0"),
        User(encode_serf(LeaveIntent(40, "n0", True))),
    ],
)
def test_message_against_member_is_refuted_at_once(word: Message) -> None:
    world = small_world()
    give(world, PLAIN.seal([encode(word)], crc=False))
    assert world.run(10, world.agree) < 2.0
    world.run(60)
    assert world.agree()


@settings(max_examples=examples(40))
@given(st.integers(0, 2**32), st.data())
def test_old_packets_change_nothing(seed: int, data: st.DataObject) -> None:
    """Old packets are sent again, repeatedly, to all members, in another order."""
    world = World(seed)
    packets: list[tuple[Address, bytes, Address]] = []
    carry = world._carry

    def keep(sender: Member, to: Address, datagram: bytes) -> None:
        packets.append((to, datagram, sender.address))
        carry(sender, to, datagram)

    world._carry = keep  # type: ignore[method-assign]
    for number in range(4):
        world.add(f"n{number}")
        if number:
            world.join(f"n{number}", "n0")
        world.run(1)
    world.members["n2"].core.set_tags({"cluster": "sandq", "id": "n2", "store": "store of n2", "zone": "new"})
    world.run(3)
    # n3 moves to another address, and then leaves.
    world.crash("n3")
    world.add("n3", address=Address("10.9.9.9", 9900))
    world.join("n3", "n1")
    world.run(3)
    world.leave("n3")
    world.crash("n3")
    world.run(3)
    before = beliefs(world)
    assert before["n0"]["n3"][0] == State.LEFT and len(packets) > 40
    again = data.draw(st.lists(st.sampled_from(packets), min_size=10, max_size=60))
    world._carry = carry  # type: ignore[method-assign]
    for _, datagram, source in again:
        for name in list(world.members):
            give(world, datagram, source, name)
    world.run(5)
    assert beliefs(world) == before
    assert not [line for line in world.history if line[3] in (State.SUSPECT, State.FAILED)]


# ------------------------------------------------------------------------------------------------------------- floods


def one(timing: str = "lan", packets: Packets = PLAIN) -> Gossip:
    return Gossip(
        name="n0",
        address=address_of(0),
        tags={"cluster": "sandq", "id": "n0", "store": "store of n0"},
        timing=PROFILES[timing],
        packets=packets,
        judge=judge_of("sandq", lambda: None),
        rng=random.Random(1),
        now=0.0,
    )


def flood(core: Gossip, message: Callable[[int], Message], count: int, seconds: float) -> None:
    """Send `count` messages, 20 per packet, with ticks between."""
    for start in range(0, count, 20):
        parts = [encode(message(number)) for number in range(start, start + 20)]
        now = seconds * start / count
        core.receive(now, PLAIN.seal(parts, crc=False), FOE)
        core.tick(now)
        assert all(len(datagram) <= PACKET_BYTES for _, datagram in core.take_packets())
        assert len(core.take_asks()) <= ASKS_MOST
        core.take_changed()


def test_a_storm_of_new_members_stops_at_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "MEMBERS_MOST", 2000)
    monkeypatch.setattr(members, "MEMBERS_MOST", 2000)
    core = one()

    def alive(number: int) -> Message:
        address = Address(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 9900)
        return Alive(1, f"x{number}", address, tags_of(f"x{number}"), VSN)

    flood(core, alive, 20_000, 2.0)
    assert len(core.records) == len(core._nodes) == 2000
    assert core.counts["refused_too_many_members"] == 18_001 and len(core.refusals) == REFUSALS_MOST
    assert len(core._rumours) <= 2000 and len(core._agenda) < 100 and len(core._prober._order) <= 4001


FLOODS: dict[str, Callable[[int], Message]] = {
    "intents about nobody": lambda n: User(encode_serf(LeaveIntent(n + 1, f"x{n}", False))),
    "intents about itself": lambda n: User(encode_serf(LeaveIntent(n + 1, "n0", True))),
    "times that jump": lambda n: User(encode_serf(LeaveIntent(min((n + 1) * LTIME_JUMP, 2**64 - 1), "n0", True))),
    "accusations": lambda n: Suspect(min(n * 2, 2**32 - 1), "n0", f"x{n}"),
    "accusations that jump": lambda n: Dead(min(n * INCARNATION_JUMP, 2**32 - 1), "n0", f"x{n}"),
    "pings": lambda n: Ping(n, "n0", FOE, f"x{n}"),
    "indirect pings": lambda n: IndirectPing(n, address_of(1), "n1", True, FOE, f"x{n}"),
    "acks": lambda n: Ack(n, b""),
    "one that comes and goes": lambda n: (
        Alive(n, "n1", address_of(1), tags_of("n1"), VSN) if n % 2 else Dead(n, "n1", "n2")
    ),
    "one that is suspected and not": lambda n: (
        Alive(n, "n1", address_of(1), tags_of("n1"), VSN) if n % 2 else Suspect(n, "n1", f"x{n}")
    ),
    "refusals": lambda n: Alive(1, f"x{n}", address_of(1), tags_of("y"), VSN),
}


@pytest.mark.parametrize("message", FLOODS.values(), ids=FLOODS)
def test_a_flood_leaves_little_behind(message: Callable[[int], Message]) -> None:
    core = one()
    core.receive(0.0, PLAIN.seal([encode(Alive(1, "n1", address_of(1), tags_of("n1"), VSN))], crc=False), address_of(1))
    tracemalloc.start()
    try:
        flood(core, message, 10_000, 10.0)
        assert tracemalloc.get_traced_memory()[0] < LEFT_BYTES
    finally:
        tracemalloc.stop()
    assert len(core._rumours) + len(core._intents) <= 2 * KEPT_MOST
    assert len(core._members._early) <= INTENTS_MOST
    assert core.push_pull(False).nodes[0].name == "n0"
    # The state of the core can still be encoded, and the core still works.
    core.announce_join()
    core.tick(core.next_at)
    assert core.records["n0"].state == State.ALIVE


# Data with the largest and the smallest decompressed size, and data with both.
BOMBS = [bytes(65_000), random.Random(1).randbytes(40_000), bytes(range(256)) * 100]


@pytest.mark.parametrize("plain", BOMBS, ids=["long codes", "short codes", "both"])
@pytest.mark.parametrize("keys", [None, KEY], ids=["plain", "encrypted"])
def test_compressed_datagrams_are_decoded_in_small_steps(plain: bytes, keys: Keyring | None) -> None:
    """Each step does at most `STEP_WORK`. The work of all steps is in proportion to the decompressed bytes."""
    packets = Packets(keys, lambda: bytes(12))
    data = b"\x09" + msgpack.packb({"Algo": 0, "Buf": encode_lzw(plain)}, use_bin_type=False)
    datagram = packets.seal([data], crc=False)
    core = one(packets=packets)
    tracemalloc.start()
    try:
        for number in range(4):
            works = [*core.receiving(float(number), datagram, FOE)]
            assert max(works) <= lzw.STEP_WORK
            assert sum(works) >= max(len(data) // 16 - lzw.STEP_WORK, 1)
            core.tick(float(number))
            core.take_packets()
        assert tracemalloc.get_traced_memory()[0] < LEFT_BYTES
    finally:
        tracemalloc.stop()
    assert core.counts["malformed"] == 4 and set(core.records) == {"n0"}


# ------------------------------------------------------------------------------------------------------------ streams

NODE_STATES = st.builds(NodeState, ANY_NAMES, ADDRESSES, OF_OTHERS, NUMBERS, st.integers(0, 3), st.just(VSN))
STATES = st.builds(PushPull, st.booleans(), st.lists(NODE_STATES, max_size=4), BODIES)


@settings(max_examples=examples(60))
@given(st.lists(STATES, min_size=1, max_size=4))
def test_forged_states_are_refuted_as_well(attack: list[PushPull]) -> None:
    world = small_world()
    core: Any = world.members["n0"].core
    for states in attack:
        with suppress(ProtocolError):
            core.on_push_pull(world.members["n0"].now(), states)
        world.step(world.members["n0"])
        world.run(0.1)
    assert world.run(100, world.agree) < 70.0
