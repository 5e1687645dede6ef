"""Tests of handshakes over sockets: their ends, unread data after them, and the streams after them."""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from sandq.model.config_tls import TlsSection
from sandq.model.errors import ConnectionLost
from sandq.tls import stream as stream_module
from sandq.tls.budget import Handshakes
from sandq.tls.certificates import Certificates, trusts_itself
from sandq.tls.session import TlsError, TlsSession
from sandq.tls.stream import HANDSHAKE_S, TlsStream, let_in, reach, speaks_tls
from tests.support.certificates import Authority

LARGE = 5_000_000
SMALL_BUFFER = 16_384


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    authority = Authority(tmp_path_factory.mktemp("ca"))
    pair = authority.node("node1")
    files = {"cert_file": str(pair.certificate), "key_file": str(pair.key), "ca_file": str(authority.ca)}
    return Certificates(TlsSection(**files))  # type: ignore[arg-type]


@asynccontextmanager
async def sockets() -> AsyncIterator[tuple[trio.SocketStream, trio.SocketStream]]:
    near, far = (trio.socket.from_stdlib_socket(one) for one in socket.socketpair())
    for one in (near, far):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BUFFER)
    async with trio.SocketStream(near) as one, trio.SocketStream(far) as other:
        yield one, other


@asynccontextmanager
async def streams(certificates: Certificates) -> AsyncIterator[tuple[TlsStream, TlsStream]]:
    """Return the streams of a server and a client."""
    found: list[TlsSession] = []
    async with sockets() as (near, far):

        async def serve() -> None:
            assert await speaks_tls(near)
            found.append(await let_in(near, certificates.loaded.peer, Handshakes(), "a"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            client = await reach(far, certificates.loaded.dial)
        yield TlsStream(near, found[0]), TlsStream(far, client)


async def all_of(stream: TlsStream, size: int) -> bytes:
    found = bytearray()
    while len(found) < size and (piece := await stream.receive_some(65_536)):
        found += piece
    return bytes(found)


async def test_both_say_much_at_once(certificates: Certificates) -> None:
    said = random.Random(1).randbytes(LARGE)
    async with streams(certificates) as (one, other), trio.open_nursery() as nursery:
        assert one.session.certificate is not None and one.session.version == "TLSv1.3"
        nursery.start_soon(one.send_all, said)
        nursery.start_soon(other.send_all, said[::-1])

        async def read(stream: TlsStream, expected: bytes) -> None:
            assert await all_of(stream, LARGE) == expected

        nursery.start_soon(read, other, said)
        nursery.start_soon(read, one, said[::-1])


async def test_data_that_does_not_fit_is_flushed_later(certificates: Certificates) -> None:
    said = bytes(1_000_000)
    async with streams(certificates) as (one, other), trio.open_nursery() as nursery:
        assert one.send_now(said) == len(said) and one.is_stuck
        assert one.send_now(b"more") == 0  # no data is accepted before the rest is sent

        async def flush_and_send() -> None:
            await one.flush()
            assert not one.is_stuck
            await one.send_all(b"more")

        nursery.start_soon(flush_and_send)
        assert await all_of(other, len(said) + 4) == said + b"more"


async def test_last_bytes_are_delivered(certificates: Certificates) -> None:
    async with streams(certificates) as (one, other):
        await one.send_all(b"bye")
        await one.send_eof()
        assert await all_of(other, 10) == b"bye" and other.session.has_ended
        await other.send_all(b"you, too")  # the other direction continues
        assert await all_of(one, 8) == b"you, too"
        await other.aclose()
        assert await one.receive_some(10) == b""
        with pytest.raises((trio.ClosedResourceError, trio.BrokenResourceError)):
            await other.send_all(b"more")


async def test_data_after_the_handshake_stays_in_the_socket(certificates: Certificates) -> None:
    """The client's last handshake message and its first data arrive together."""
    async with sockets() as (near, far), trio.open_nursery() as nursery:

        async def client() -> None:
            session = TlsSession(certificates.loaded.dial, is_server=False)
            session.greet()
            await far.send_all(session.words())
            while not session.is_open:
                session.greet(bytes(await far.receive_some(65_536)))
            await far.send_all(session.words() + session.encode((b"hello",)))

        nursery.start_soon(client)
        session = await let_in(near, certificates.loaded.peer, Handshakes(), "a")
        assert session.decode(b"") == b""
        assert session.decode(bytes(await near.receive_some(65_536))) == b"hello"


@pytest.mark.parametrize("seed", range(20))
async def test_garbage_is_refused_and_nothing_else_happens(certificates: Certificates, seed: int) -> None:
    rng = random.Random(seed)
    client = TlsSession(certificates.loaded.dial, is_server=False)
    client.greet()
    hello = bytearray(client.words())
    for _ in range(rng.randrange(1, 6)):
        hello[rng.randrange(len(hello))] = rng.randrange(256)
    garbage = bytes(hello) if seed % 2 else b"\x16\x03" + rng.randbytes(rng.randrange(300))
    handshakes = Handshakes()
    async with sockets() as (near, far):
        await far.send_all(garbage)
        await far.send_eof()
        with pytest.raises((TlsError, ConnectionLost)):
            await let_in(near, certificates.loaded.client, handshakes, "a")
    assert handshakes.failed == 1 and not handshakes.in_progress and not handshakes.done


async def test_silent_member_is_not_awaited(certificates: Certificates, autojump_clock: MockClock) -> None:
    handshakes = Handshakes()
    async with sockets() as (near, far):
        await far.send_all(b"\x16\x03\x01")
        began_s = trio.current_time()
        with pytest.raises(ConnectionLost, match="no TLS handshake within 10 s"):
            await let_in(near, certificates.loaded.client, handshakes, "a")
        assert trio.current_time() - began_s == pytest.approx(HANDSHAKE_S)
    assert handshakes.failed == 1 and not handshakes.in_progress


async def test_size_of_handshake_is_limited(certificates: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "HANDSHAKE_BYTES", 100)
    async with sockets() as (near, far):
        client = TlsSession(certificates.loaded.dial, is_server=False)
        client.greet()
        await far.send_all(client.words())
        with pytest.raises(TlsError, match="a handshake of more than 100 bytes"):
            await let_in(near, certificates.loaded.client, Handshakes(), "a")


async def test_a_handshake_is_not_cut_into_bytes(certificates: Certificates) -> None:
    async with sockets() as (near, far):
        client = TlsSession(certificates.loaded.dial, is_server=False)
        client.greet()
        hello = client.words()[5:]
        await far.send_all(b"".join(b"\x16\x03\x01\0\x01" + hello[at : at + 1] for at in range(len(hello))))
        with pytest.raises(TlsError, match="64 records"):
            await let_in(near, certificates.loaded.client, Handshakes(), "a")


async def test_failed_handshakes_are_counted(certificates: Certificates) -> None:
    handshakes = Handshakes()
    async with sockets() as (near, far):

        async def fail() -> None:
            with pytest.raises(TlsError, match="no certificate"):
                await let_in(near, certificates.loaded.peer, handshakes, "a")
            await near.send_eof()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fail)
            client = TlsSession(anonymous(), is_server=False)
            client.greet()
            await far.send_all(client.words())
            while not client.is_open:
                client.greet(bytes(await far.receive_some(65_536)))
            before_s = handshakes.cpu_s
            await far.send_all(client.words())
            while await far.receive_some(65_536):
                pass
        assert handshakes.cpu_s > before_s > 0 and handshakes.failed == 1


def anonymous() -> ssl.SSLContext:
    """Return the context of a client that trusts any server and shows no certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


async def test_bytes_changed_in_transit_break_the_connection(certificates: Certificates) -> None:
    async with streams(certificates) as (one, other):
        record = bytearray(one.session.encode((b"hello",)))
        record[-1] ^= 1
        with pytest.raises(TlsError):
            other.session.decode(bytes(record))


def test_node_trusts_its_own_certificate(certificates: Certificates) -> None:
    assert trusts_itself(certificates.loaded) is None
