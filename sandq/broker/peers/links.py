"""The connections of this node with the other nodes of its cluster.

Each pair of nodes has one link. The node with the smaller id dials until there is a link. A new link replaces the
existing link: otherwise an old half-open connection would prevent a new link. A stream is a separate connection for one
large transfer. Either node may open a stream.

If a peer violates the protocol, only the connection to that peer ends. If a callback raises an unexpected exception,
this node has a bug, and `run` raises the exception.
"""

from __future__ import annotations

import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import MappingProxyType
from typing import Any, Final, Protocol

import trio

from sandq.broker.peers import wrong_protocol
from sandq.broker.peers.greeting import refuse, shake_hands
from sandq.broker.peers.handshake import (
    HANDSHAKE_BYTES,
    LINK,
    REMEDIES,
    STREAM,
    Introduced,
    Peer,
    PeerIdentity,
    Refusal,
    Terms,
    accept,
    dial,
)
from sandq.broker.peers.link import PING_S, SILENCE_S, PeerLink
from sandq.broker.peers.peer_slots import PeerSlots
from sandq.broker.peers.peer_tls import PeerTls
from sandq.broker.peers.stream import PeerStream
from sandq.model.config_schema import Address, is_loopback
from sandq.model.errors import ConnectionLost, NotFound, Overloaded, SandqError
from sandq.model.logger import get_logger
from sandq.model.sources import source_of
from sandq.protocol.proofs import NONCE_BYTES
from sandq.storage.known_peers import KnownPeers

CONNECT_S: Final = 2.0
HANDSHAKE_S: Final = 3.0
FIRST_FRAME_S: Final = 1.5
"""Time limit in s for the TLS handshake of an accepted connection, and again for the first frame.

A real node starts both at once."""
SOURCES_MOST: Final = 8
"""Maximum number of source addresses that are remembered for one peer."""
STREAMS_MOST: Final = 64
"""Maximum number of streams from other nodes that are open at the same time. Further streams are closed."""
PAUSE_S: Final = 0.1
"""First pause between two attempts to connect, in s. The pause doubles with each attempt."""
PAUSE_MOST_S: Final = 1.0
"""Longest pause between two attempts to connect, in s."""
UNKNOWN_PEER: Final = "an unknown peer"
_REMEDIES: Final = {
    **REMEDIES,
    ConnectionLost.code: "check that it runs and can be reached at its peer address",
    Overloaded.code: "wait; if it persists, check which hosts connect to this port",
}

log = get_logger("sandq.peers")


class Receiver(Protocol):
    """Callbacks of the links, on the event loop. Order for each link: `up`, any number of `on_frame`, `down`."""

    def up(self, peer: Peer) -> None:
        """Handle a new link with a node."""

    def down(self, node_id: str) -> None:
        """Handle the end of the link with a node."""

    def on_frame(self, node_id: str, kind: int, body: Any, size: int) -> None:
        """Handle a frame of `size` bytes from a node."""

    async def on_stream(self, node_id: str, stream: PeerStream) -> None:
        """Handle a stream that a node opened, until the stream is no longer needed.

        If this function raises a SandqError, for example because the connection broke, only this stream ends."""

    def takes_more(self) -> bool:
        """Return whether frames may be read. After False, the link calls this function again after a short time."""


class PeerLinks:
    """The links of this node. Call `run` to dial and accept connections.

    `peers`: peer address by node id. `secrets`: if it is None, only connections within this machine are allowed.
    """

    def __init__(
        self,
        *,
        cluster: str,
        secrets: Callable[[], Sequence[bytes]] | None,
        identity: Callable[[], PeerIdentity],
        peers: Mapping[str, Address],
        known: KnownPeers,
        ping_s: float = PING_S,
        silence_s: float = SILENCE_S,
        tls: PeerTls | None = None,
    ) -> None:
        self._tls = tls
        self._peers = dict(peers)
        self._terms = Terms(cluster, secrets or (lambda: (b"",)), identity, self._peers, known)
        self._this_machine_only = secrets is None
        self._ping_s = ping_s
        self._silence_s = silence_s
        self._running: tuple[trio.Nursery, Receiver] | None = None
        self._dialled: set[str] = set()
        """Peers that this node dials."""
        self._links: dict[str, PeerLink] = {}
        self._up: dict[str, Peer] = {}
        self._slots = PeerSlots(self._sources)
        self._addresses: dict[str, tuple[Address, frozenset[str]]] = {}
        """By peer: its address, and its known sources (`source_of`).

        The sources are the resolved addresses, and the addresses from which the peer has connected."""
        self._streams = 0
        """Number of open streams that other nodes have opened."""
        self._logged: set[tuple[str, str]] = set()
        """(Peer, reason) of the failures that were logged since the last link with the peer."""

    @property
    def up(self) -> Mapping[str, Peer]:
        """The linked peers, by node id."""
        return MappingProxyType(self._up)

    def reachable(self) -> set[str]:
        """Return this node and all linked nodes."""
        return {self._terms.identity().node_id, *self._up}

    def versions(self) -> dict[str, str | None]:
        """Return the versions of this node and all linked nodes; None for a node that did not state its version."""
        own = self._terms.identity()
        return {own.node_id: own.version, **{node: peer.identity.version for node, peer in self._up.items()}}

    def send(self, node_id: str, kind: int, body: Any) -> bool:
        """Queue a frame of a kind from 1 to 255.

        Return False if there is no link. This function never blocks. Raise FrameTooLarge."""
        link = self._links.get(node_id)
        return link is not None and link.send(kind, body)

    def send_to_all(self, kind: int, body: Any) -> None:
        """Queue a frame for each linked node."""
        for node_id in list(self.up):
            self.send(node_id, kind, body)

    def accepts(self, node_id: str) -> bool:
        """Return whether there is a link to the node with less than `QUEUE_BYTES` queued.

        If a frame would exceed `QUEUE_MOST_BYTES`, `send` closes the link."""
        link = self._links.get(node_id)
        return link is not None and link.accepts

    @asynccontextmanager
    async def open_stream(self, node_id: str) -> AsyncIterator[PeerStream]:
        """Open a separate connection to a node. The connection is closed at the end of the block.

        Raise NotFound, ConnectionLost, ProtocolError."""
        if node_id not in self._peers:
            raise NotFound(f"no peer is called {node_id!r:.80}")
        stream, _ = await self._dial(node_id, STREAM)
        try:
            yield stream
        finally:
            await stream.aclose()

    async def run(
        self,
        listeners: list[trio.SocketListener],
        receiver: Receiver,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Dial and accept connections, and run the links, until cancelled. Close the listeners at the end."""
        async with trio.open_nursery() as nursery:
            self._running = nursery, receiver
            await nursery.start(trio.serve_listeners, self._accept, listeners)
            self._dial_new()
            task_status.started()

    def set_peers(self, peers: Mapping[str, Address]) -> None:
        """Replace the peers. A link with a former peer stays until it breaks."""
        # Change the dict in place, because `_terms` shares it.
        self._peers.update(peers)
        for node_id in self._peers.keys() - peers.keys():
            del self._peers[node_id]
        self._dial_new()

    def renew(self) -> None:
        """End all links, because the identity of this node has changed. The links are then made again."""
        for link in list(self._links.values()):
            self._down(link, "this node belongs to a cluster now")

    def end(self, node_id: str, why: str) -> None:
        """End the link with a node. The nodes then try to make a new link."""
        link = self._links.get(node_id)
        if link is not None:
            self._down(link, why)

    def secrets_changed(self) -> None:
        """End the links that were made with a secret that is no longer valid."""
        current = self._terms.secrets()
        for link in list(self._links.values()):
            if link.secret not in current:
                self._down(link, "the secret that it was made with is no longer valid")

    @property
    def _receiver(self) -> Receiver:
        assert self._running is not None, "there are links only while they are run"
        return self._running[1]

    def _sources(self) -> set[str]:
        """Return the known source addresses of all peers: their resolved addresses, and the addresses from which they
        connected."""
        return {source for _, sources in self._addresses.values() for source in sources}

    async def _resolve(self, node_id: str, address: Address) -> None:
        """Resolve the address of a peer, and remember the result as its sources.

        If the address cannot be resolved, the peer counts as an unknown source until it connects."""
        try:
            with trio.fail_after(CONNECT_S):
                found = await trio.socket.getaddrinfo(*address, type=trio.socket.SOCK_STREAM)
        except (OSError, UnicodeError, trio.TooSlowError):
            return
        if self._peers.get(node_id) == address:
            self._addresses[node_id] = (address, frozenset(source_of(str(sockaddr[0])) for *_, sockaddr in found))

    def _dial_new(self) -> None:
        """Start to dial new peers that have a greater node id than this node. Resolve new addresses of peers."""
        if self._running is None:
            return
        own_id = self._terms.identity().node_id
        for node_id in self._addresses.keys() - self._peers.keys():
            del self._addresses[node_id]
        for node_id, address in self._peers.items():
            if self._addresses.get(node_id, (None,))[0] != address:
                self._addresses[node_id] = (address, frozenset())
                self._running[0].start_soon(self._resolve, node_id, address)
        for node_id in sorted(self._peers.keys() - self._dialled):
            if own_id < node_id:
                self._dialled.add(node_id)
                self._running[0].start_soon(self._keep_linked, node_id)

    # Connections that this node dials.

    async def _keep_linked(self, node_id: str) -> None:
        """Keep a link with a node. If the link ends, dial again. Return once the node is no longer a peer."""
        pause_s = PAUSE_S
        while node_id in self._peers:
            lived_s = 0.0
            own = self._terms.identity()
            try:
                stream, introduced = await self._dial(node_id, LINK)
            except SandqError as error:
                self._log_failure(node_id, error)
            else:
                up_at_s = trio.current_time()
                await self._carry(stream, introduced, own)
                lived_s = trio.current_time() - up_at_s
            if lived_s > PAUSE_MOST_S:
                pause_s = PAUSE_S
            await trio.sleep(pause_s * random.uniform(0.5, 1))
            pause_s = min(2 * pause_s, PAUSE_MOST_S)
        self._dialled.discard(node_id)

    async def _dial(self, node_id: str, purpose: str) -> tuple[PeerStream, Introduced]:
        """Connect to a node, and run the TLS handshake and the peer handshake. Raise ConnectionLost, ProtocolError."""
        address = self._peers.get(node_id)
        if address is None:
            raise ConnectionLost(f"{node_id} is no longer a peer")
        try:
            with trio.fail_after(CONNECT_S):
                await self._check_local(address)
                socket_stream = await trio.open_tcp_stream(*address)
        except trio.TooSlowError:
            raise ConnectionLost(f"cannot connect to {node_id} at {address}: no answer in {CONNECT_S:g} s") from None
        except (OSError, UnicodeError) as error:
            raise ConnectionLost(f"cannot connect to {node_id} at {address}: {error}") from None
        stream = PeerStream(socket_stream)
        try:
            with _in_time(HANDSHAKE_S):
                if self._tls is not None:
                    await self._tls.reach(stream, socket_stream, node_id)
                steps = dial(self._terms, secrets.token_bytes(NONCE_BYTES), node_id, purpose)
                introduced = await shake_hands(stream, steps)
            await self._remember(introduced)
            return stream, introduced
        except BaseException:
            await stream.aclose()
            raise

    async def _check_local(self, address: Address) -> None:
        """If only local connections are allowed, raise Refusal for an address of another machine."""
        if self._this_machine_only:
            found = await trio.socket.getaddrinfo(*address, type=trio.socket.SOCK_STREAM)
            if not all(is_loopback(str(sockaddr[0])) for *_, sockaddr in found):
                raise _far(str(address))

    # Connections that this node accepts.

    async def _accept(self, socket_stream: trio.SocketStream) -> None:
        """Serve an accepted connection: run the handshake, then run the link or serve the stream."""
        stream = PeerStream(socket_stream)
        own = self._terms.identity()
        try:
            introduced = await self._let_in(stream, socket_stream)
            if introduced is None:
                return
            if introduced.purpose == LINK:
                await self._carry(stream, introduced, own)
            elif introduced.secret in self._terms.secrets():
                await self._serve_stream(stream, introduced.peer.identity.node_id)
        finally:
            await stream.aclose()

    async def _let_in(self, stream: PeerStream, socket_stream: trio.SocketStream) -> Introduced | None:
        """Run the handshake of an accepted connection. If the handshake fails, log the reason and return None."""
        host = _host(socket_stream)
        try:
            # If a later connection takes the slot, the block is cancelled, and `introduced` stays None.
            introduced = None
            with self._slots.slot(host) as slot:
                introduced = await self._greet(stream, socket_stream, host, slot.is_known)
            if introduced is None and slot.is_lost:
                self._log_failure(
                    UNKNOWN_PEER, Overloaded("too many connections before their handshake: the oldest is closed")
                )
                return None
            if introduced is not None:
                await self._remember(introduced)
                self._note_source(introduced.peer.identity.node_id, host)
            return introduced
        except ConnectionLost as error:
            log.debug("a connection to the peer port ended before its handshake", error=error.message)
        except SandqError as error:
            claimed_id = error.claimed_id if isinstance(error, Refusal) else None
            self._log_failure(claimed_id if claimed_id in self._peers else UNKNOWN_PEER, error)
        return None

    async def _greet(
        self, stream: PeerStream, socket_stream: trio.SocketStream, host: str, is_known: bool
    ) -> Introduced | None:
        """Run the TLS handshake, if the other side starts one, and the peer handshake.

        Return None if the other side speaks another protocol. Raise Refusal, ConnectionLost."""
        with _in_time(HANDSHAKE_S):
            if self._this_machine_only and not is_loopback(host):
                await refuse(stream, _far(host))
            is_certified, tls = None, self._tls
            if tls is not None:
                with _in_time(FIRST_FRAME_S):
                    is_certified = await tls.let_in(stream, socket_stream, host, is_known)
            with _in_time(FIRST_FRAME_S):
                head = await stream.peek(wrong_protocol.HEAD_BYTES)
                if not self._wrong_protocol(head):
                    await stream.peek_frame(HANDSHAKE_BYTES)
            if await self._turned_away(stream, head):
                return None
            if tls is not None and tls.is_required and is_certified is None:
                await refuse(stream, Refusal("tls", "this node requires TLS of its peers"))
            return await shake_hands(stream, accept(self._terms, secrets.token_bytes(NONCE_BYTES), is_certified))

    def _note_source(self, node_id: str, host: str) -> None:
        """Remember the source address of an accepted connection of a peer."""
        address, sources = self._addresses.get(node_id, (self._peers.get(node_id), frozenset()))
        if address is not None and len(sources) < SOURCES_MOST:
            self._addresses[node_id] = (address, sources | {source_of(host)})

    def _wrong_protocol(self, head: bytes) -> bytes:
        """Return the reply to a client of another protocol. If the connection may be from a node, return empty
        bytes."""
        return wrong_protocol.answer(head, self._terms.identity().addresses)

    async def _turned_away(self, stream: PeerStream, head: bytes) -> bool:
        """If the connection is from a client of another protocol, reply and return True."""
        answer = self._wrong_protocol(head)
        if answer:
            await stream.farewell(answer)
        return bool(answer)

    async def _serve_stream(self, stream: PeerStream, node_id: str) -> None:
        """Let the receiver handle a stream. If too many streams are open, only log this: the caller closes the
        stream."""
        if self._streams >= STREAMS_MOST:
            self._log_failure(node_id, Overloaded(f"{self._streams} streams are open"))
            return
        self._streams += 1
        try:
            await self._receiver.on_stream(node_id, stream)
        except* SandqError as errors:
            log.info("a stream of a peer ended early", peer=node_id, error=str(errors.exceptions[0]))
        finally:
            self._streams -= 1

    # Both kinds of connections.

    async def _remember(self, introduced: Introduced) -> None:
        """Store the node id and the store UUID of a peer durably. Raise SandqError."""
        identity = introduced.peer.identity
        await trio.to_thread.run_sync(self._terms.known.pin, identity.node_id, identity.store_uuid)

    async def _carry(self, stream: PeerStream, introduced: Introduced, own: PeerIdentity) -> None:
        """Run a link with a peer until it ends. `own`: identity of this node at the start of the handshake."""
        peer = introduced.peer
        node_id = peer.identity.node_id
        if own != self._terms.identity() or introduced.secret not in self._terms.secrets():
            await stream.aclose()  # the identity of this node, or the secrets, changed during the handshake
            return
        link = PeerLink(peer, stream, introduced.secret, ping_s=self._ping_s, silence_s=self._silence_s)
        if node_id in self._links:
            self._down(self._links[node_id], "a new connection of the same peer replaced it")
        self._links[node_id] = link
        self._up[node_id] = peer
        self._logged -= {logged for logged in self._logged if logged[0] == node_id}
        log.info("a peer is linked", peer=node_id, store=peer.identity.store_uuid, known=peer.known)
        try:
            self._receiver.up(peer)
            await link.run(partial(self._receiver.on_frame, node_id), self._receiver.takes_more)
        finally:
            self._down(link, "this node stops")
            await stream.aclose()

    def _down(self, link: PeerLink, why: str) -> None:
        """Close a link. If no newer link has replaced it, report its end."""
        link.close(why)
        node_id = link.peer.identity.node_id
        if self._links.get(node_id) is link:
            del self._links[node_id], self._up[node_id]
            log.info("a link has ended", peer=node_id, reason=link.why)
            self._receiver.down(node_id)

    def _log_failure(self, peer: str, error: SandqError) -> None:
        """Log why there is no link. Log each reason only once until there is a link, because the attempts never end."""
        reason = error.reason if isinstance(error, Refusal) else error.code
        if (peer, reason) in self._logged:
            return
        self._logged.add((peer, reason))
        log.warning(
            "there is no link with a peer",
            peer=peer,
            reason=reason,
            error=error.message,
            refused_by="the peer" if isinstance(error, Refusal) and error.by_peer else "this node",
            remedy=_REMEDIES.get(reason, "see the error"),
        )


@contextmanager
def _in_time(seconds: float) -> Iterator[None]:
    """Limit the time of a part of the handshake. Raise ConnectionLost after `seconds`."""
    try:
        with trio.fail_after(seconds):
            yield
    except trio.TooSlowError:
        raise ConnectionLost(f"the handshake was not completed within {seconds:g} s") from None


def _far(where: str) -> Refusal:
    """Return the refusal for a connection with another machine, while only local connections are allowed."""
    return Refusal(
        "place", f"{where} is not on this machine, and without cluster.secret_file nodes connect only within it"
    )


def _host(stream: trio.SocketStream) -> str:
    """Return the IP address of the other side; empty if the connection is gone."""
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return ""
