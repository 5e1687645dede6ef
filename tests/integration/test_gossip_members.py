"""The native backend on real sockets: what nodes find, and how strangers are limited."""

from __future__ import annotations

import dataclasses
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import AsyncExitStack, suppress
from itertools import pairwise
from typing import Any

import msgpack
import pytest
import trio
from structlog.testing import capture_logs
from trio.testing import MockClock

from sandq.broker.event_loop import FIRST_WORK, SHARED_WORK, SLICE_WORK
from sandq.broker.peers.peer_slots import KNOWN_SLOTS, SOURCE_SLOTS
from sandq.gossip import lzw
from sandq.gossip.keyring import Keyring
from sandq.gossip.messages import Ping, encode
from sandq.gossip.packets import Packets
from sandq.gossip.steps import Steps
from sandq.gossip.streams import PushPull, Streams
from sandq.membership import gossip_backend, intake
from sandq.model.config_types import Address
from sandq.model.errors import TooLarge, Unavailable
from sandq.model.membership import Change, State
from tests.support.gossip.lzw_encoder import encode as encode_lzw
from tests.support.gossip.socket_members import QUICK, Cluster, Running, agree, gossiping
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until_holds

PATIENT = dataclasses.replace(QUICK, stream_timeout_s=1e6)
"""No stream times out during the test."""
ALIVE, FAILED, LEFT = State.ALIVE, State.FAILED, State.LEFT
ONE, TWO, BOTH, OTHERS = (
    Keyring([bytes(32)]),
    Keyring([b"x" * 32]),
    Keyring([bytes(32), b"x" * 32]),
    Keyring([b"x" * 32, bytes(32)]),
)


@pytest.fixture
def jumping() -> MockClock:
    """Time is fixed while tasks run, and jumps to the next timer when all tasks wait. So no member seems silent on a
    slow machine."""
    return MockClock(autojump_threshold=0.001)


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with gossiping() as found:
        yield found


# ---------------------------------------------------------------------------------------------------- come and go


async def test_members_meet_change_leave_and_crash(jumping: MockClock, cluster: Cluster) -> None:
    a, b, c = await cluster.start_all("abc")
    await b.member.set_tags({**b.tags("b"), "zone": "new"})
    await until_holds(lambda: a.tags("b").get("zone") == c.tags("b").get("zone") == "new")
    with pytest.raises(TooLarge):
        await b.member.set_tags({"zone": "x" * 600})
    assert b.tags("b")["zone"] == "new"
    await b.member.leave()
    await until_holds(lambda: a.state("b") is c.state("b") is LEFT)
    await b.crash()
    since = a.find("c")
    assert since is not None
    await c.crash()
    await until_holds(lambda: a.state("c") is FAILED)
    failed = a.find("c")
    assert failed is not None and failed.since_ms > since.since_ms and a.state("b") is LEFT


async def test_changes_list_all_members_and_then_updates(jumping: MockClock, cluster: Cluster) -> None:
    a, b = await cluster.start_all("ab")
    changes = a.member.changes()
    assert [change.member.name for change in await anext(changes)] == ["a", "b"]
    listed: dict[str, Change] = {}

    async def read_until(name: str, state: State) -> None:
        with trio.fail_after(PATIENCE_S):
            while name not in listed or listed[name].member.state is not state:
                listed.update({change.member.name: change for change in await anext(changes)})

    c = await cluster.start("c", joins=b)
    await read_until("c", ALIVE)
    await c.crash()
    await read_until("c", FAILED)
    await b.member.leave()
    await read_until("b", LEFT)
    assert set(listed) == {"b", "c"} and not any(change.gone for change in listed.values())


async def test_single_member_leaves_immediately(jumping: MockClock, cluster: Cluster) -> None:
    a = await cluster.start("a")
    with trio.fail_after(1):
        await a.member.leave()
    assert a.state("a") is LEFT


async def test_member_that_left_stays_left_until_it_restarts(jumping: MockClock, cluster: Cluster) -> None:
    """Neither new tags nor a seed that replies at last bring it back."""
    a, b = await cluster.start_all("ab")
    await b.member.leave()
    await b.member.set_tags({**b.tags("b"), "zone": "late"})
    await b.member.join([a.address])
    await until_holds(lambda: a.state("b") is LEFT)
    with trio.move_on_after(0.5):
        await until_holds(lambda: a.state("b") is not LEFT)
    assert a.state("b") is LEFT and b.state("b") is LEFT
    await b.crash()
    again = await cluster.start("b", port=b.address.port, joins=a)
    await until_holds(lambda: agree([a, again]))


async def test_member_with_same_store_returns_at_another_port(jumping: MockClock, cluster: Cluster) -> None:
    a, b, c = await cluster.start_all("abc")
    await c.crash()
    again = await cluster.start("c", joins=b)
    assert again.address != c.address
    await until_holds(lambda: agree([a, b, again]))
    await until_holds(lambda: all(one.find("c").address == again.address for one in (a, b)))  # type: ignore[union-attr]


async def test_members_that_nothing_asked_for_are_met_after_a_cut(jumping: MockClock, cluster: Cluster) -> None:
    """A restarted member without seeds returns at its address: nodes that listed it probe it."""
    a, b = await cluster.start_all("ab")
    await b.crash()
    await until_holds(lambda: a.state("b") is FAILED)
    again = await cluster.start("b", port=b.address.port)
    await until_holds(lambda: agree([a, again]))


# ------------------------------------------------------------------------------------------------------------ seeds


async def test_seeds_are_asked_until_one_is_there(
    jumping: MockClock, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gossip_backend, "SEED_PAUSE_S", 0.05)
    monkeypatch.setattr(gossip_backend, "SEED_PAUSE_MOST_S", 0.1)
    port = free_port()
    seeds = [Address("no.such.host.invalid", 1), Address("a..b", 1), Address("127.0.0.1", port)]
    with capture_logs() as log:
        a = await cluster.start("a", seeds=seeds)
        await until_holds(lambda: any("no seed can be reached" in entry["event"] for entry in log))
        b = await cluster.start("b", port=port)
        await until_holds(lambda: agree([a, b]))
    assert sum("no seed can be reached" in entry["event"] for entry in log) == 1, "the change must be reported once"


async def test_a_seed_of_another_name_is_not_asked_again_and_again(
    jumping: MockClock, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A seed may be a name for several addresses, or a forwarder. Then its address is not that of a member."""
    monkeypatch.setattr(gossip_backend, "SEED_PAUSE_S", 0.1)
    monkeypatch.setattr(gossip_backend, "SEED_PAUSE_MOST_S", 0.2)
    b = await cluster.start("b")
    async with trio.open_nursery() as nursery:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        asked = []

        async def forward(stream: trio.SocketStream) -> None:
            asked.append(stream)
            async with stream, await trio.open_tcp_stream(*b.address) as further:
                await further.send_all(await stream.receive_some())
                await stream.send_all(await further.receive_some())

        nursery.start_soon(trio.serve_listeners, forward, [listener])
        door = Address("127.0.0.1", listener.socket.getsockname()[1])
        a = await cluster.start("a", seeds=[door])
        await until_holds(lambda: agree([a, b]))
        await trio.sleep(2)  # ten times the pause
        assert 1 <= len(asked) <= 2
        nursery.cancel_scope.cancel()


async def test_a_join_names_each_seed_that_does_not_answer(jumping: MockClock, cluster: Cluster) -> None:
    a = await cluster.start("a")
    dead = [Address("127.0.0.1", free_port()), Address("a..b", 7), Address("no.such.host.invalid", 8)]
    with pytest.raises(Unavailable) as caught:
        await a.member.join(dead)
    assert all(f"{seed}: " in caught.value.message for seed in dead)
    b = await cluster.start("b")
    assert await a.member.join([*dead, b.address]) == 1
    await until_holds(lambda: agree([a, b]))


async def test_members_known_from_before_are_asked_when_no_seed_answers(
    jumping: MockClock, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gossip_backend, "SEED_PAUSE_S", 0.05)
    monkeypatch.setattr(gossip_backend, "REMEMBER_PAUSE_S", 0.05)
    noted: list[set[Address]] = []

    async def remember(addresses: Collection[Address]) -> None:
        noted.append(set(addresses))

    a, b = await cluster.start_all("ab")
    seeds = [Address("127.0.0.1", free_port())]
    c = await cluster.start("c", joins=a, remember=remember)
    await until_holds(lambda: {a.address, b.address} in noted and agree([a, b, c]))
    await c.crash()
    await a.crash()
    await until_holds(lambda: b.state("a") is b.state("c") is FAILED)
    again = await cluster.start("c", seeds=seeds, known=noted[-1])
    await until_holds(lambda: agree([b, again]))


async def test_joins_at_once(jumping: MockClock, cluster: Cluster) -> None:
    hub = await cluster.start("hub")
    others = [await cluster.start(f"n{number}", seeds=[hub.address]) for number in range(12)]
    async with trio.open_nursery() as nursery:
        for one in others:
            nursery.start_soon(one.member.join, [hub.address, others[0].address])
    await until_holds(lambda: agree([hub, *others]))


# ---------------------------------------------------------------------------------------------------- who is refused


@pytest.mark.parametrize(("theirs", "ours"), [(ONE, TWO), (ONE, None), (None, ONE)])
async def test_member_with_another_key_cannot_join(
    jumping: MockClock, cluster: Cluster, theirs: Keyring | None, ours: Keyring | None
) -> None:
    a, _ = await cluster.start_all("ab", keyring=theirs)
    x = await cluster.start("x", keyring=ours)
    with pytest.raises(Unavailable, match=str(a.address)):
        await x.member.join([a.address])
    assert list(a.member.members()) == ["a", "b"] and list(x.member.members()) == ["x"]


async def test_member_of_another_cluster_is_refused_with_reason(jumping: MockClock, cluster: Cluster) -> None:
    a, _ = await cluster.start_all("ab")
    x = await cluster.start("x", cluster="of others")
    with capture_logs() as log, pytest.raises(Unavailable, match=r"a \(cluster\), b \(cluster\)"):
        await x.member.join([a.address])
    assert list(a.member.members()) == ["a", "b"] and list(x.member.members()) == ["x"]
    told = {(entry.get("member"), entry.get("reason")) for entry in log if entry["log_level"] == "warning"}
    assert {("x", "cluster"), ("a", "cluster")} <= told
    assert a.member.counts["refused_cluster"] >= 1


async def test_keys_are_changed_while_all_live(jumping: MockClock, cluster: Cluster) -> None:
    members = await cluster.start_all("abcd", keyring=ONE)
    for step in (BOTH, OTHERS, TWO):
        for one in members:
            one.member.use_keys(step)
            await one.member.set_tags({**one.tags(one.name), "step": str(id(step))})
            await until_holds(
                lambda name=one.name, step=step: all(m.tags(name).get("step") == str(id(step)) for m in members)
            )
            assert agree(members)
    e = await cluster.start("e", keyring=TWO, joins=members[0])
    await until_holds(lambda: agree([*members, e]))


# ---------------------------------------------------------------------------------------------------------- garbage


async def tcp(address: Address, data: bytes) -> bytes:
    """Return the reply; empty if the stream is closed."""
    stream = await trio.open_tcp_stream(*address)
    found = b""
    async with stream:
        try:
            await stream.send_all(data)
            await stream.send_eof()
            while piece := await stream.receive_some():
                found += piece
        except trio.BrokenResourceError:
            pass
    return found


@pytest.mark.parametrize("keyring", [None, ONE], ids=["plain", "encrypted"])
async def test_garbage_changes_nothing(jumping: MockClock, cluster: Cluster, keyring: Keyring | None) -> None:
    members = await cluster.start_all("abc", keyring=keyring)
    a = members[0]
    rng = random.Random(1)
    streams = Streams(keyring, lambda: bytes(12))
    valid = streams.seal(PushPull(True, (), b""))
    packet = Packets(keyring, lambda: bytes(12)).seal([encode(Ping(1, "a", None, ""))], crc=False)
    garbage = [b"", b"\x00", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", rng.randbytes(1 << 20), b"\xdd\xff\xff\xff\xff" * 99]
    for original in (valid, packet):
        for _ in range(20):
            flipped = bytearray(original)
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
            garbage.append(bytes(flipped))
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        for data in garbage:
            if len(data) < 65_000:
                await udp.sendto(data, a.address)
    for data in garbage:
        with trio.fail_after(PATIENCE_S):
            await tcp(a.address, data)
    before = a.member.traffic["datagrams_in"]
    await until_holds(lambda: a.member.traffic["datagrams_in"] > before + 10)
    assert agree(members) and a.member.counts["malformed"] > 0 and a.member.traffic["streams_in_failed"] > 5
    d = await cluster.start("d", keyring=keyring, joins=a)
    await until_holds(lambda: agree([*members, d]))


async def test_incomplete_streams_do_not_block_others(jumping: MockClock, cluster: Cluster) -> None:
    a, b = await cluster.start_all("ab")
    half = Streams(None, lambda: bytes(12)).seal(PushPull(True, (), b"x" * 100))[:40]
    silent = [await trio.open_tcp_stream(*a.address) for _ in range(KNOWN_SLOTS + 8)]
    for stream in silent:
        with suppress(trio.BrokenResourceError):  # the node has closed this stream
            await stream.send_all(half)
    await until_holds(lambda: a.member.traffic["streams_refused"] >= 8)
    # Silent streams are closed, for new streams and after their time.
    c = await cluster.start("c", seeds=[a.address])
    await until_holds(lambda: agree([a, b, c]))
    for stream in silent:
        await trio.aclose_forcefully(stream)


async def test_strangers_get_few_streams_and_none_of_the_members(jumping: MockClock, cluster: Cluster) -> None:
    a, b = await cluster.start_all("ab", timing=PATIENT)
    async with AsyncExitStack() as stack:
        for host in ("127.0.0.2", "127.0.0.3"):
            for _ in range(SOURCE_SLOTS + 3):
                stream = await trio.open_tcp_stream(*a.address, local_address=host)
                await stack.enter_async_context(stream)
                await stream.send_all(b"\x06")
        await until_holds(lambda: a.member.traffic["streams_refused"] == 6)
        c = await cluster.start("c", joins=a)
        await until_holds(lambda: agree([a, b, c]))


async def test_members_are_served_before_busy_strangers(
    jumping: MockClock, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All bytes from streams share one account; those of the stranger connected longest are released first."""
    monkeypatch.setattr(intake, "SHARED_BYTES", 4 * intake.FREE_BYTES)
    a, b = await cluster.start_all("ab", keyring=ONE, timing=PATIENT)
    peaks = Peaks(lambda: a.member._intake.held_bytes)
    large = struct.pack(">BI", 10, 8 << 20) + bytes(5 * intake.FREE_BYTES // 2)
    trio.lowlevel.add_instrument(peaks)
    async with AsyncExitStack() as stack:
        for number in range(6):
            stream = await trio.open_tcp_stream(*a.address, local_address="127.0.0.2")
            await stack.enter_async_context(stream)
            await stream.send_all(large)
            await until_holds(lambda number=number: a.member.traffic["streams_refused"] >= number - 2)
        await until_holds(lambda: a.member.traffic["streams_refused"] >= 4)
        c = await cluster.start("c", joins=a, keyring=ONE)
        await until_holds(lambda: agree([a, b, c]))
    trio.lowlevel.remove_instrument(peaks)
    assert 2 * intake.FREE_BYTES < peaks.most <= intake.SHARED_BYTES


class Peaks(trio.abc.Instrument):
    """Maximum of a value after any step of any task."""

    def __init__(self, read: Callable[[], int]) -> None:
        self.most = 0
        self._read = read

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.most = max(self.most, self._read())


class Share(trio.abc.Instrument):
    """Return the largest number of decompression steps in one loop iteration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.done = self._in_this_round = 0
        decoding = lzw.decoding

        def counted(data: bytes, limit: int) -> Steps[bytes]:
            steps = decoding(data, limit)
            while True:
                self.done += 1
                self._in_this_round += 1
                self.most = max(self.most, self._in_this_round)
                try:
                    yield next(steps)
                except StopIteration as end:
                    found: bytes = end.value
                    return found

        monkeypatch.setattr(lzw, "decoding", counted)

    def before_io_wait(self, timeout: float) -> None:
        self._in_this_round = 0


async def test_decompression_work_per_round_is_bounded(
    jumping: MockClock, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Expensive decompressions of datagrams and streams are done in slices."""
    a, b = await cluster.start_all("ab", timing=PATIENT)
    share = Share(monkeypatch)
    trio.lowlevel.add_instrument(share)
    buf = encode_lzw(random.Random(1).randbytes(45_000))
    datagram = b"\x09" + msgpack.packb({"Algo": 0, "Buf": buf}, use_bin_type=False)
    large = b"\x09" + msgpack.packb(
        {"Algo": 0, "Buf": encode_lzw(random.Random(2).randbytes(150_000))}, use_bin_type=False
    )
    sent = 6
    before = a.member.counts["malformed"], a.member.traffic["streams_in_failed"]
    with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        async with trio.open_nursery() as nursery:
            for _ in range(sent):
                await udp.sendto(datagram, a.address)
                nursery.start_soon(tcp, a.address, large)
    await until_holds(lambda: a.member.traffic["streams_in_failed"] == before[1] + sent)
    await until_holds(lambda: a.member.counts["malformed"] > before[0])
    trio.lowlevel.remove_instrument(share)
    streams = SLICE_WORK // lzw.STEP_WORK
    # The bound covers the datagrams, one waiting stream, and the first slice of each stream.
    bound = SHARED_WORK // lzw.STEP_WORK + streams + sent * (FIRST_WORK // lzw.STEP_WORK + 1)
    assert share.done > 4 * bound and share.most <= bound, (share.done, share.most)
    assert agree([a, b])


async def test_many_connections_at_once(jumping: MockClock, cluster: Cluster) -> None:
    a, b = await cluster.start_all("ab")
    streams = Streams(None, lambda: bytes(12))
    answers: list[Any] = []

    async def ask() -> None:
        answer = await tcp(a.address, streams.seal(Ping(7, "a", None, "")))
        answers.append(streams.reader().feed(answer) if answer else None)

    async with trio.open_nursery() as nursery:
        for _ in range(40):
            nursery.start_soon(ask)
    good = [answer for answer in answers if answer is not None]
    assert len(good) >= KNOWN_SLOTS and all(answer.seq == 7 for answer in good)
    assert agree([a, b])


async def test_stream_ping_for_another_node_is_not_answered(jumping: MockClock, cluster: Cluster) -> None:
    a = await cluster.start("a")
    assert await tcp(a.address, Streams(None, lambda: bytes(12)).seal(Ping(7, "b", None, ""))) == b""


async def test_member_that_is_pinged_only_by_stream_stays_alive(
    jumping: MockClock, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = await cluster.start_all("ab")
    for one in (a, b):
        monkeypatch.setattr(one.member._datagrams, "send", lambda datagram, to: True)
    before = a.member.counts.get("acks_by_stream", 0)
    await until_holds(lambda: a.member.counts["acks_by_stream"] > before + 5)
    assert agree([a, b])


# ------------------------------------------------------------------------------------------------------------- IPv6


def has_v6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


async def test_encryption_is_turned_on_one_member_after_the_other(jumping: MockClock, cluster: Cluster) -> None:
    """Each mode of `gossip.encrypt` works with the previous mode. The last mode refuses plain packets."""
    modes: list[dict[str, Any]] = [
        {},
        {"keyring": ONE, "seals": False, "takes_plain": True},
        {"keyring": ONE, "takes_plain": True},
        {"keyring": ONE},
    ]
    for one, other in pairwise(modes):
        a = await cluster.start("a", **one)
        b = await cluster.start("b", joins=a, **other)
        await until_holds(lambda a=a, b=b: agree([a, b]))  # type: ignore[misc]
        await a.crash()
        await b.crash()
    plain = await cluster.start("c")
    with pytest.raises(Unavailable):
        await cluster.start("d", joins=plain, keyring=ONE)


@pytest.mark.skipif(not has_v6(), reason="this machine has no ::1")
@pytest.mark.parametrize("keyring", [None, ONE], ids=["plain", "encrypted"])
async def test_members_on_ipv6(jumping: MockClock, cluster: Cluster, keyring: Keyring | None) -> None:
    a, b, c = await cluster.start_all("abc", host="::1", keyring=keyring)
    assert a.address.host == "::1"
    await c.crash()
    await until_holds(lambda: a.state("c") is b.state("c") is FAILED)
    assert a.member.counts["refutations"] == 0


async def test_cancelled_member_frees_its_port(jumping: MockClock, cluster: Cluster) -> None:
    a = await cluster.start("a")
    await a.crash()
    again: Running = await cluster.start("a", port=a.address.port)
    assert again.address == a.address
    with pytest.raises(Unavailable, match="does not run"):
        await a.member.set_tags({})
