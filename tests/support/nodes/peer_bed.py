"""Run nodes that only have peer links, in a network that can fail. A test can also act as a peer."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from sandq.broker.peers.greeting import shake_hands
from sandq.broker.peers.handshake import LINK, Introduced, Peer, PeerIdentity, Terms, dial
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.stream import PeerStream
from sandq.model.config import Address
from sandq.storage.files import Files
from sandq.storage.known_peers import KnownPeers
from sandq.storage.memory_files import MemoryFiles

SECRET = b"what all nodes of the cluster share"
LONG_S = 600.0
"""Timeout that is long enough for links to survive a pause of this machine."""


class PeerNode:
    """A node. `events` holds the calls of its links, in order."""

    def __init__(
        self, node_id: str, listener: trio.SocketListener, files: Files | None = None, store: str = ""
    ) -> None:
        self.node_id = node_id
        self.listener = listener
        self.address = Address("127.0.0.1", listener.socket.getsockname()[1])
        self.known = KnownPeers.open(MemoryFiles() if files is None else files)
        self.identity = PeerIdentity(
            node_id=node_id,
            store_uuid=store or f"store-{node_id}",
            cluster_uuid=None,
            addresses={"client": "127.0.0.1:7170"},
        )
        self.events: list[tuple[Any, ...]] = []
        self.on_frame: Callable[[str, int, Any, int], None] = lambda node, kind, body, size: self.events.append(
            (kind, node, body)
        )
        self.on_up: Callable[[Peer], None] = lambda peer: self.events.append(("up", peer.identity.node_id, peer.known))
        self.on_down: Callable[[str], None] = lambda node: self.events.append(("down", node))
        self.on_stream: Callable[[str, PeerStream], Awaitable[None]] = self._echo
        self.links: PeerLinks
        self._scope = trio.CancelScope()
        self._stopped = trio.Event()

    # Callbacks of the links. They call attributes, so that a test can replace the reactions.

    def up(self, peer: Peer) -> None:
        self.on_up(peer)

    def down(self, node: str) -> None:
        self.on_down(node)

    def takes_more(self) -> bool:
        return True

    async def _echo(self, node_id: str, stream: PeerStream) -> None:
        while True:
            await stream.send((node_id, await stream.receive()))

    def names(self, node_id: str) -> list[Any]:
        """Return the events of one peer: "up", "down" and the bodies of frames."""
        return [
            event[2] if event[0] not in ("up", "down") else event[0] for event in self.events if event[1] == node_id
        ]

    async def run(self, peers: dict[str, Address], **options: Any) -> None:
        settings: dict[str, Any] = {"cluster": "sandq", "silence_s": LONG_S, **options}
        secret = settings.pop("secret", SECRET)
        settings.setdefault("secrets", None if secret is None else lambda: (secret,))
        self.links = PeerLinks(
            identity=lambda: self.identity,
            peers=peers,
            known=self.known,
            **settings,
        )
        try:
            with self._scope:
                await self.links.run([self.listener], self)
        finally:
            self._stopped.set()

    async def stop(self) -> None:
        self._scope.cancel()
        await self._stopped.wait()


async def new_node(node_id: str, **options: Any) -> PeerNode:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    return PeerNode(node_id, listener, **options)


@asynccontextmanager
async def linked(*nodes: PeerNode, **options: Any) -> AsyncIterator[trio.Nursery]:
    """Run the nodes with links. Each node knows the addresses of all nodes."""
    addresses = {node.node_id: node.address for node in nodes}
    async with trio.open_nursery() as nursery:
        for node in nodes:
            peers = {name: address for name, address in addresses.items() if name != node.node_id}
            nursery.start_soon(lambda node=node, peers=peers: node.run(peers, **options))
        await trio.testing.wait_all_tasks_blocked()
        yield nursery
        nursery.cancel_scope.cancel()


class Network:
    """Forwards bytes to an address, except in the directions that are in `cut`."""

    def __init__(self, to: Address) -> None:
        self.to = to
        self.accepted = 0
        self.cut: set[str] = set()
        self.address: Address

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.address = Address("127.0.0.1", listener.socket.getsockname()[1])
        task_status.started()
        await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, near: trio.SocketStream) -> None:
        self.accepted += 1
        async with near, await trio.open_tcp_stream(*self.to) as far, trio.open_nursery() as nursery:
            nursery.start_soon(self._pass, near, far, f"there {self.accepted}")
            nursery.start_soon(self._pass, far, near, f"back {self.accepted}")

    async def _pass(self, source: trio.SocketStream, sink: trio.SocketStream, direction: str) -> None:
        """Copy bytes from `source` to `sink`. A cut direction discards bytes and the end of the stream."""
        try:
            async for data in source:
                if direction not in self.cut:
                    await sink.send_all(data)
            if direction not in self.cut:
                await sink.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            await trio.aclose_forcefully(sink)


@asynccontextmanager
async def by_hand(
    to: PeerNode, node_id: str, purpose: str = LINK, secret: bytes = SECRET
) -> AsyncIterator[tuple[PeerStream, Introduced]]:
    """Connect to a node as `node_id`, a peer that exists only in this test."""
    identity = PeerIdentity(node_id=node_id, store_uuid=f"store-{node_id}", cluster_uuid=None, addresses={})
    terms = Terms("sandq", lambda: (secret,), lambda: identity, {to.node_id}, KnownPeers.open(MemoryFiles()))
    async with await trio.open_tcp_stream(*to.address) as socket_stream:
        stream = PeerStream(socket_stream)
        yield stream, await shake_hands(stream, dial(terms, secrets.token_bytes(32), to.node_id, purpose))
