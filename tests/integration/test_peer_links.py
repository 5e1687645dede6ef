"""Links between nodes on real sockets: what they guarantee, and which connections are refused."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from sandq.broker.peers import links as peer_links
from sandq.broker.peers.handshake import STREAM, PeerIdentity, Refusal
from sandq.broker.peers.links import STREAMS_MOST, PeerLinks
from sandq.broker.peers.peer_slots import KNOWN_SLOTS, SOURCE_SLOTS
from sandq.broker.peers.stream import PeerStream
from sandq.model.config import Address
from sandq.model.errors import ConnectionLost, NotFound, WrongPort
from sandq.protocol.frames import FrameReader, decode_error
from sandq.protocol.requests import Hello
from sandq.storage.known_peers import NAME, KnownPeers
from sandq.storage.memory_files import MemoryFiles
from tests.support.nodes.peer_bed import LONG_S, Network, PeerNode, by_hand, linked, new_node
from tests.support.storage.faulty_files import FaultyFiles, Plan
from tests.support.waiting import until_holds

Log = list[Any]


@pytest.fixture
def log() -> Iterator[Log]:
    with capture_logs() as captured:
        yield captured


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No link is closed because this machine was slow."""
    monkeypatch.setattr(peer_links, "CONNECT_S", LONG_S)
    monkeypatch.setattr(peer_links, "HANDSHAKE_S", LONG_S)
    monkeypatch.setattr(peer_links, "FIRST_FRAME_S", LONG_S)


@pytest.fixture
def jumping() -> trio.testing.MockClock:
    """Time is fixed while tasks run, and jumps to the next timer when all tasks wait."""
    return trio.testing.MockClock(autojump_threshold=0.001)


def refusals(log: Log) -> list[tuple[str, str, str]]:
    return [
        (entry["peer"], entry["reason"], entry["refused_by"]) for entry in log if entry.get("log_level") == "warning"
    ]


async def both() -> tuple[PeerNode, PeerNode]:
    return await new_node("node1"), await new_node("node2")


def is_up(*nodes: PeerNode) -> bool:
    return all(len(node.links.up) == len(nodes) - 1 for node in nodes)


# ------------------------------------------------------------------------------------------------------------ links


async def test_three_nodes_are_linked_and_frames_are_in_order() -> None:
    nodes = [await new_node(f"node{number}") for number in (1, 2, 3)]
    async with linked(*nodes):
        await until_holds(lambda: is_up(*nodes))
        for node in nodes:
            for other in node.links.up:
                assert node.links.accepts(other)
                assert all(node.links.send(other, 1 + number % 9, (number, b"x" * number)) for number in range(500))
        await until_holds(lambda: all(len(node.events) == 2 + 2 * 500 for node in nodes))
    for node in nodes:
        for other in nodes:
            if other is not node:
                assert node.names(other.node_id) == ["up", *((number, b"x" * number) for number in range(500)), "down"]


async def test_send_without_a_link_is_refused() -> None:
    node1, node2 = await both()
    async with linked(node1, node2):
        await until_holds(lambda: is_up(node1, node2))
        assert not node1.links.send("node3", 1, None) and not node1.links.accepts("node3")
        await node2.stop()
        await until_holds(lambda: not node1.links.up)
        assert node1.names("node2") == ["up", "down"]
        assert not node1.links.send("node2", 1, None) and not node1.links.accepts("node2")


async def test_peer_met_before_is_known_after_restart(log: Log) -> None:
    files = MemoryFiles(), MemoryFiles()
    for known in (False, True):
        node1, node2 = [await new_node(f"node{number}", files=files[number - 1]) for number in (1, 2)]
        async with linked(node1, node2):
            await until_holds(lambda one=node1, two=node2: is_up(one, two))
            assert node1.links.up["node2"] == (node2.identity, known)
            assert node2.links.up["node1"] == (node1.identity, known)
    assert refusals(log) == []


async def test_a_peer_is_pinned_before_anything_is_handed_up() -> None:
    files = MemoryFiles(), MemoryFiles()
    node1, node2 = [await new_node(f"node{number}", files=files[number - 1]) for number in (1, 2)]
    found: list[Any] = []
    for node, disk in ((node1, files[0]), (node2, files[1])):
        node.on_up = lambda peer, disk=disk: found.append(dict(KnownPeers.open(disk).all()))
    async with linked(node1, node2):
        await until_holds(lambda: len(found) == 2)
    assert {"node1": "store-node1"} in found and {"node2": "store-node2"} in found


async def test_a_disk_that_takes_no_pin_means_no_link_and_no_end(log: Log) -> None:
    plan = Plan()
    node1, node2 = await new_node("node1", files=FaultyFiles(MemoryFiles(), plan)), await new_node("node2")
    plan.full = True
    async with linked(node1, node2):
        await until_holds(lambda: ("node2", "STORAGE_FAILED", "this node") in refusals(log))
        assert not node1.events
        plan.full = False
        await until_holds(lambda: is_up(node1, node2))


async def test_new_connection_replaces_a_half_open_one() -> None:
    node2 = await new_node("node2")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node2.run, {"node1": Address("127.0.0.1", 1)})
        await trio.testing.wait_all_tasks_blocked()
        async with by_hand(node2, "node1") as (old, _):
            await old.send((1, "of the old"))
            await until_holds(lambda: node2.names("node1") == ["up", "of the old"])
            async with by_hand(node2, "node1") as (new, _):
                await until_holds(lambda: node2.names("node1") == ["up", "of the old", "down", "up"])
                with pytest.raises(ConnectionLost):
                    while True:
                        assert await old.receive() == (0, None)
                assert node2.links.send("node1", 5, "to the new")
                await new.send((1, "of the new"))
                assert await new.receive() == (5, "to the new")
                await until_holds(lambda: node2.names("node1")[-1] == "of the new")
        await until_holds(lambda: node2.names("node1") == ["up", "of the old", "down", "up", "of the new", "down"])
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("direction", ["there", "back"])
async def test_a_cut_in_one_direction_ends_the_link(jumping: trio.testing.MockClock, direction: str) -> None:
    node1, node2 = await both()
    network = Network(node2.address)
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        short = {"ping_s": 0.5, "silence_s": 3.0}
        nursery.start_soon(lambda: node1.run({"node2": network.address}, **short))
        nursery.start_soon(lambda: node2.run({"node1": node1.address}, **short))
        await until_holds(lambda: network.accepted == 1 and is_up(node1, node2))
        network.cut.add(f"{direction} 1")
        # The proxy forwards the next connection completely.
        await until_holds(lambda: node1.names("node2")[:3] == node2.names("node1")[:3] == ["up", "down", "up"])
        nursery.cancel_scope.cancel()


async def test_a_hundred_megabytes_take_little_memory() -> None:
    node1, node2 = await both()
    size, count, got = 1 << 20, 100, 0

    def on_frame(node: str, kind: int, body: Any, frame_bytes: int) -> None:
        nonlocal got
        assert len(body[0][1]) == size
        got += 1

    node2.on_frame = on_frame
    async with linked(node1, node2):
        await until_holds(lambda: is_up(node1, node2))
        tracemalloc.start()
        try:
            for number in range(count):
                await until_holds(lambda: node1.links.accepts("node2"))
                assert node1.links.send("node2", 1, [(number, bytes(size))])
            await until_holds(lambda: got == count)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 48 << 20, f"{peak >> 20} MiB"
        assert node1.names("node2") == ["up"]


# ---------------------------------------------------------------------------------------------- who gets no link


async def refused(log: Log, node1: PeerNode, node2: PeerNode, one: dict[str, Any], two: dict[str, Any]) -> None:
    """Wait until the dialer has tried three times."""
    network = Network(node2.address)
    async with trio.open_nursery() as nursery:
        await nursery.start(network.run)
        nursery.start_soon(lambda: node1.run({"node2": network.address}, **one))
        nursery.start_soon(lambda: node2.run({"node1": node1.address}, **two))
        await until_holds(lambda: network.accepted == 3 and len(refusals(log)) == 2)
        assert not node1.events and not node2.events
        nursery.cancel_scope.cancel()


async def test_peer_with_another_secret_is_refused(log: Log) -> None:
    node1, node2 = await both()
    await refused(log, node1, node2, {"secret": b"another one, as long"}, {})
    assert sorted(refusals(log)) == [("node1", "secret", "this node"), ("node2", "secret", "the peer")], "each once"
    assert all("cluster.secret_file" in entry["remedy"] for entry in log if entry["log_level"] == "warning")
    assert "another one" not in str(log)


async def test_peer_of_another_cluster_is_refused(log: Log) -> None:
    node1, node2 = await both()
    await refused(log, node1, node2, {"cluster": "other"}, {})
    assert sorted(refusals(log)) == [("node1", "cluster", "this node"), ("node2", "cluster", "the peer")]


@pytest.mark.parametrize("wiped", [1, 2])
async def test_a_node_that_lost_its_disk(log: Log, wiped: int) -> None:
    files = MemoryFiles(), MemoryFiles()
    first = [await new_node(f"node{number}", files=files[number - 1]) for number in (1, 2)]
    async with linked(*first):
        await until_holds(lambda: is_up(*first))
    log.clear()
    node1, node2 = [
        await new_node(f"node{number}", **({"store": "new"} if number == wiped else {"files": files[number - 1]}))
        for number in (1, 2)
    ]
    await refused(log, node1, node2, {}, {})
    assert sorted(refusals(log)) == [
        ("node1", "store", "this node" if wiped == 1 else "the peer"),
        ("node2", "store", "the peer" if wiped == 1 else "this node"),
    ]
    told = f"node{wiped} returned with another data directory (store new instead of store-node{wiped})"
    assert all(entry["error"].startswith(told) for entry in log if entry["log_level"] == "warning")
    assert (node1, node2)[wiped - 1].known.all() == {}, "a refused peer must not be pinned"


async def test_reason_is_logged_again_after_a_link(log: Log) -> None:
    node1, node2 = await both()
    async with linked(node1, node2):
        await until_holds(lambda: is_up(node1, node2))
        await node2.stop()
        await until_holds(lambda: refusals(log) == [("node2", "CONNECTION_LOST", "this node")])
        (listener,) = await trio.open_tcp_listeners(node2.address.port, host="127.0.0.1")
        again = PeerNode("node2", listener)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(again.run, {"node1": node1.address})
            await until_holds(lambda: node1.names("node2") == ["up", "down", "up"])
            await again.stop()
        await until_holds(lambda: refusals(log) == 2 * [("node2", "CONNECTION_LOST", "this node")])


@pytest.mark.parametrize("host", ["n" * 70 + ".example", "127.0.0.1"])
async def test_unreachable_peer_is_dialled_repeatedly(log: Log, host: str) -> None:
    node1 = await new_node("node1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node1.run, {"node2": Address(host, 1)})
        await until_holds(lambda: refusals(log) == [("node2", "CONNECTION_LOST", "this node")])
        with pytest.raises(ConnectionLost, match="cannot connect to node2 at"):
            async with node1.links.open_stream("node2"):
                pass
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\xff" * 100, "malformed"),
        (struct.pack(">I", 4097) + b"x" * 4097, "malformed"),
        (struct.pack(">I", 6) + b"\xc1" * 6, "malformed"),
        (b"\0\0\0\0\0\0\0\0", "malformed"),
    ],
)
async def test_garbage_ends_its_own_connection_only(log: Log, data: bytes, reason: str) -> None:
    node1, node2 = await both()
    async with linked(node1, node2):
        await until_holds(lambda: is_up(node1, node2))
        async with await trio.open_tcp_stream(*node2.address) as raw:
            await raw.send_all(data)
            said = b""
            async for part in raw:
                said += part
            assert b"refused" in said and reason.encode() in said
        await until_holds(lambda: refusals(log) == [("an unknown peer", reason, "this node")])
        assert node1.links.send("node2", 1, "still there")
        await until_holds(lambda: node2.names("node1") == ["up", "still there"])


async def test_garbage_on_a_link_ends_that_link_only(log: Log) -> None:
    node2, node3 = await new_node("node2"), await new_node("node3")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node2.run, {"node1": Address("127.0.0.1", 1), "node3": node3.address})
        nursery.start_soon(node3.run, {"node2": node2.address})
        async with by_hand(node2, "node1") as (stream, _):
            await until_holds(lambda: set(node2.links.up) == {"node1", "node3"})
            await stream.send_bytes(struct.pack(">I", 3) + b"\xc1\xc1\xc1")
            await until_holds(lambda: node2.names("node1") == ["up", "down"])
        assert set(node2.links.up) == {"node3"} and node2.names("node3") == ["up"]
        assert any(entry["event"] == "a link has ended" and "decoded" in entry["reason"] for entry in log)
        nursery.cancel_scope.cancel()


async def test_frames_before_the_handshake_ends_are_ignored() -> None:
    """Frames that follow a HELLO without a handshake do not belong to a link."""
    node1, node2 = await both()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node2.run, {"node1": node1.address})
        with pytest.raises(Refusal, match="do not share the same secret"):
            async with by_hand(node2, "node1", secret=b"a guess of the secret"):
                pass
        assert not node2.events and not node2.links.up
        assert node2.known.all() == {}
        nursery.cancel_scope.cancel()
    await node1.listener.aclose()


async def test_requests_for_other_ports_are_explained(log: Log) -> None:
    node1, node2 = await both()
    async with linked(node1, node2):
        async with await trio.open_tcp_stream(*node2.address) as raw:
            await raw.send_all(b"GET /cluster HTTP/1.1\r\nHost: x\r\n\r\n")
            said = b"".join([part async for part in raw])
        assert said.startswith(b"HTTP/1.1 400") and b"sandq's peer port" in said and b"127.0.0.1:7170" in said
        async with await trio.open_tcp_stream(*node2.address) as raw:
            await raw.send_all(Hello(2, "test", {}).frame(1))
            (frame,) = FrameReader().feed(b"".join([part async for part in raw]))
        assert type(decode_error(frame)) is WrongPort
        await until_holds(lambda: is_up(node1, node2))
    assert refusals(log) == []


@pytest.mark.parametrize("frames", [b"", struct.pack(">I", 100) + b"12"])
async def test_silent_connections_do_not_block_peers(
    jumping: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, log: Log, frames: bytes
) -> None:
    """All slots are used by connections from the peer's address, which send nothing or only these frames."""
    monkeypatch.setattr(peer_links, "FIRST_FRAME_S", 1.0)
    node1, node2 = await both()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node2.run, {"node1": node1.address})
        await trio.testing.wait_all_tasks_blocked()
        silent = [await trio.open_tcp_stream(*node2.address) for _ in range(KNOWN_SLOTS)]
        for raw in silent:
            await raw.send_all(frames) if frames else None
        began = trio.current_time()
        async with by_hand(node2, "node1"):
            await until_holds(lambda: node2.links.up)
            assert await silent[0].receive_some() == b"", "the oldest connection must be closed"
            assert trio.current_time() - began < 0.9, "at once"
            assert refusals(log) == [("an unknown peer", "OVERLOADED", "this node")]
            for raw in silent:
                assert await raw.receive_some() == b"", "the other silent connections must be closed after a while"
                await raw.aclose()
            assert node2.links.up
        nursery.cancel_scope.cancel()
    await node1.listener.aclose()


async def test_unknown_source_gets_few_connections(jumping: trio.testing.MockClock, log: Log) -> None:
    node1, node2 = await both()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node2.run, {"node1": node1.address})
        await trio.testing.wait_all_tasks_blocked()
        others = [
            await trio.open_tcp_stream(*node2.address, local_address="127.0.0.9") for _ in range(SOURCE_SLOTS + 2)
        ]
        for raw in others[:2]:
            assert await raw.receive_some() == b""
        async with by_hand(node2, "node1"):
            await until_holds(lambda: node2.links.up)
        assert refusals(log) == [("an unknown peer", "OVERLOADED", "this node")]
        for raw in others:
            await raw.aclose()
        nursery.cancel_scope.cancel()
    await node1.listener.aclose()


# ------------------------------------------------------------------------------------------ a secret that is changed


async def test_links_with_removed_secret_are_reconnected(log: Log) -> None:
    node1, node2 = await both()
    old, new = b"the old one, as long", b"the new one, as long"
    now = [old]
    async with linked(node1, node2, secrets=lambda: tuple(now)):
        await until_holds(lambda: is_up(node1, node2))
        for step in ([old, new], [new, old]):
            now[:] = step
            for node in (node1, node2):
                node.links.secrets_changed()
        assert node1.names("node2") == ["up"], "the link must stay as long as its secret is valid"
        now[:] = [new]
        node1.links.secrets_changed()
        await until_holds(lambda: node1.names("node2") == ["up", "down", "up"])
        await until_holds(lambda: is_up(node1, node2))
    assert not refusals(log)


async def test_a_secret_that_ends_while_two_shake_hands_by_it_makes_no_link() -> None:
    node1, node2 = await both()
    old, new = b"the old one, as long", b"the new one, as long"
    now, pin = [old, new], node2.known.pin

    def pin_late(node_id: str, store_uuid: str) -> None:
        """The secret is removed between the handshake and the start of the link."""
        if old in now:
            now.remove(old)
            for node in (node1, node2):
                trio.from_thread.run_sync(node.links.secrets_changed)
        pin(node_id, store_uuid)

    node2.known.pin = pin_late  # type: ignore[method-assign]
    async with linked(node1, node2, secrets=lambda: tuple(now)):
        await until_holds(lambda: is_up(node1, node2) and old not in now)
        await until_holds(lambda: all(link.secret == new for link in node2.links._links.values()))
        assert node2.names("node1") == ["up"], "no link may use the old secret"


# ----------------------------------------------------------------------------------------------- without a secret


async def test_without_a_secret_this_machine_only(log: Log) -> None:
    node1, node2 = await both()
    async with linked(node1, node2, secret=None):
        await until_holds(lambda: is_up(node1, node2))
    node1 = await new_node("node1")
    async with trio.open_nursery() as nursery:
        # An address reserved for documentation, which no machine has.
        nursery.start_soon(lambda: node1.run({"node2": Address("192.0.2.1", 9190)}, secret=None))
        await until_holds(lambda: refusals(log) == [("node2", "place", "this node")])
        assert "cluster.secret_file" in log[-1]["remedy"] and "cluster.secret_file" in log[-1]["error"]
        nursery.cancel_scope.cancel()


class FarListener(trio.abc.Listener[trio.SocketStream]):
    """Every connection seems to come from another machine."""

    def __init__(self, listener: trio.SocketListener) -> None:
        self._listener = listener

    async def accept(self) -> trio.SocketStream:
        """Accept a connection that seems to come from another machine."""
        stream = await self._listener.accept()
        socket = stream.socket

        class FarSocket:
            def getpeername(self) -> tuple[str, int]:
                return "192.0.2.7", 4711

            def __getattr__(self, name: str) -> Any:
                return getattr(socket, name)

        stream.socket = FarSocket()  # type: ignore[assignment]
        return stream

    async def aclose(self) -> None:
        await self._listener.aclose()


@pytest.mark.parametrize("secret", [None, b"what all nodes of the cluster share"])
async def test_peer_from_another_machine_needs_the_secret(log: Log, secret: bytes | None) -> None:
    node1, node2 = await both()
    node2.listener = FarListener(node2.listener)  # type: ignore[assignment]
    async with linked(node1, node2, secret=secret):
        if secret is not None:
            await until_holds(lambda: is_up(node1, node2))
            return
        await until_holds(lambda: len(refusals(log)) == 2)
        assert sorted(refusals(log)) == [("an unknown peer", "place", "this node"), ("node2", "place", "the peer")]
        assert all("cluster.secret_file" in entry["remedy"] for entry in log)
        assert not node1.events and not node2.events


# ------------------------------------------------------------------------------------------------------- streams


async def test_either_node_opens_streams() -> None:
    node1, node2 = await both()
    async with linked(node1, node2):
        await until_holds(lambda: is_up(node1, node2))
        for opener, other in ((node1, "node2"), (node2, "node1")):
            async with opener.links.open_stream(other) as first, opener.links.open_stream(other) as second:
                await second.send(b"x" * (8 << 20))
                await first.send("small")
                assert await first.receive() == (opener.node_id, "small")
                assert await second.receive() == (opener.node_id, b"x" * (8 << 20))
        with pytest.raises(NotFound, match="node9"):
            async with node1.links.open_stream("node9"):
                pass
        assert node1.names("node2") == node2.names("node1") == ["up"], "links must not be affected"


async def test_a_stream_is_closed_when_its_handler_returns() -> None:
    node1, node2 = await both()

    async def send_one_frame(node_id: str, stream: PeerStream) -> None:
        await stream.send("bye")

    node2.on_stream = send_one_frame
    async with linked(node1, node2), node1.links.open_stream("node2") as stream:
        assert await stream.receive() == "bye"
        with pytest.raises(ConnectionLost):
            await stream.receive()


async def test_streams_are_bounded(log: Log) -> None:
    node1, node2 = await both()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(node2.run, {"node1": node1.address})
        streams = []
        for _ in range(STREAMS_MOST):
            connection = by_hand(node2, "node1", STREAM)
            stream, _ = await connection.__aenter__()
            streams.append(connection)
            await stream.send(1)
            assert await stream.receive() == ("node1", 1)
        async with by_hand(node2, "node1", STREAM) as (one_more, _):
            with pytest.raises(ConnectionLost):
                await one_more.receive()
        assert refusals(log) == [("node1", "OVERLOADED", "this node")]
        for connection in reversed(streams):
            await connection.__aexit__(None, None, None)
        nursery.cancel_scope.cancel()
    await node1.listener.aclose()


async def test_a_stream_that_breaks_ends_nothing_else(log: Log) -> None:
    node1, node2 = await both()

    async def in_a_nursery(node_id: str, stream: PeerStream) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stream.receive)

    async with linked(node1, node2):
        await until_holds(lambda: is_up(node1, node2))
        for handler in (node2.on_stream, in_a_nursery):
            node2.on_stream = handler
            log.clear()
            async with node1.links.open_stream("node2"):
                pass
            await until_holds(lambda: any(entry["event"] == "a stream of a peer ended early" for entry in log))
        assert is_up(node1, node2)


# ------------------------------------------------------------------------------------------------- faults of ours


@pytest.mark.parametrize("where", ["on_up", "on_frame", "on_down", "on_stream"])
@pytest.mark.parametrize("error", [KeyError("a bug"), ConnectionLost("a bug")])
async def test_a_fault_in_a_callback_ends_the_run(where: str, error: Exception) -> None:
    if where == "on_stream" and isinstance(error, ConnectionLost):
        return  # An error of its stream leaves a handler, and must not look like an error of the handler.
    node1, node2 = await both()

    def fails(*given: Any) -> None:
        raise error

    async def fails_later(*given: Any) -> None:
        raise error

    setattr(node2, where, fails_later if where == "on_stream" else fails)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with linked(node1, node2):
            if where != "on_up":
                await until_holds(lambda: is_up(node1, node2))
            node1.links.send("node2", 1, None)
            if where == "on_stream":
                async with node1.links.open_stream("node2") as stream:
                    await stream.send(None)
                    await trio.sleep_forever()
            if where == "on_down":
                await node1.stop()
            await trio.sleep_forever()
    assert caught.group_contains(type(error), match="a bug")


async def test_a_link_may_be_used_within_its_callbacks() -> None:
    node1, node2 = await both()
    sent: list[bool] = []
    node1.on_up = lambda peer: sent.append(node1.links.send("node2", 1, "at once"))
    node1.on_down = lambda node: sent.append(node1.links.send("node2", 1, "too late"))
    async with linked(node1, node2):
        await until_holds(lambda: node2.names("node1") == ["up", "at once"])
        await node2.stop()
        await until_holds(lambda: sent == [True, False])


def test_links_can_be_created_before_the_node_listens() -> None:
    """No event loop and no socket are needed: a node creates its links before it listens."""
    links = PeerLinks(
        cluster="sandq",
        secrets=None,
        identity=lambda: PeerIdentity(node_id="node1", store_uuid="store-1", cluster_uuid=None, addresses={}),
        peers={},
        known=KnownPeers.open(MemoryFiles()),
    )
    assert not links.up and not links.send("node2", 1, None)
    assert NAME == "known-peers"
