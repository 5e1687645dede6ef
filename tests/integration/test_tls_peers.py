"""TLS between nodes: which modes can connect, which certificates are accepted, and how TLS is turned on in a running
cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import trio
from cryptography import x509
from structlog.testing import capture_logs

import sandq
from sandq.broker.peers.peer_tls import PeerTls
from sandq.broker.peers.stream import PeerStream
from sandq.model.config_tls import TlsSection
from sandq.model.errors import ConnectionLost
from sandq.tls.budget import Handshakes
from sandq.tls.certificates import Certificates
from sandq.tls.stream import TlsStream
from sandq.tools.certs import Pair
from tests.support.certificates import Authority
from tests.support.nodes.peer_bed import PeerNode, new_node
from tests.support.nodes.three import NAMES, ThreeNodes
from tests.support.stopped_time import loop_clock, node_time
from tests.support.waiting import until_holds

__all__ = ["loop_clock", "node_time"]

LARGE: Final = 3_000_000


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


def peer_tls(mode: str, pair: Pair, authority: Authority) -> PeerTls | None:
    if mode == "off":
        return None
    files = {"cert_file": str(pair.certificate), "key_file": str(pair.key), "ca_file": str(authority.ca)}
    return PeerTls(mode, Certificates(TlsSection(**files)), Handshakes())  # type: ignore[arg-type]


async def two(nursery: trio.Nursery, one: PeerTls | None, other: PeerTls | None) -> tuple[PeerNode, PeerNode]:
    """`n1`, which dials, and `n2`."""
    n1, n2 = await new_node("n1"), await new_node("n2")
    for node, peer, tls in ((n1, n2, one), (n2, n1, other)):
        nursery.start_soon(lambda node=node, peer=peer, tls=tls: node.run({peer.node_id: peer.address}, tls=tls))
    return n1, n2


@pytest.fixture(scope="module")
def pairs(authority: Authority) -> dict[str, Pair]:
    return {name: authority.node(name) for name in ("n1", "n2")}


FIT: Final = {
    *(("off", mode) for mode in ("off", "accept", "send")),
    *(("accept", mode) for mode in ("off", "accept", "send")),
    *(("send", mode) for mode in ("accept", "send", "require")),
    *(("require", mode) for mode in ("accept", "send", "require")),
}


@pytest.mark.parametrize("dials", ["off", "accept", "send", "require"])
@pytest.mark.parametrize("accepts", ["off", "accept", "send", "require"])
async def test_only_compatible_modes_connect(
    authority: Authority, pairs: dict[str, Pair], dials: str, accepts: str
) -> None:
    one, other = (peer_tls(mode, pairs[name], authority) for name, mode in (("n1", dials), ("n2", accepts)))
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            n1, n2 = await two(nursery, one, other)
            if (dials, accepts) in FIT:
                await until_holds(lambda: bool(n1.names("n2") and n2.names("n1")))
                assert n1.links.send("n2", 7, bytes(LARGE)) and n2.links.send("n1", 8, b"x")
                await until_holds(lambda: bytes(LARGE) in n2.names("n1") and b"x" in n1.names("n2"))
                async with n1.links.open_stream("n2") as stream:
                    await stream.send([bytes(LARGE), 1])
                    assert await stream.receive() == ("n1", (bytes(LARGE), 1))
                    assert isinstance(stream._stream, TlsStream) == (dials in ("send", "require"))
            else:
                await until_holds(lambda: any(entry.get("reason") == "tls" for entry in logs))
                told = next(entry for entry in logs if entry.get("reason") == "tls")
                assert "tls.peer" in told["remedy"] and not n1.links.up and not n2.links.up
            nursery.cancel_scope.cancel()


async def reasons(one: PeerTls | None, other: PeerTls | None, wanted: str) -> None:
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            n1, n2 = await two(nursery, one, other)
            await until_holds(lambda: any(entry.get("reason") == wanted for entry in logs))
            assert not n1.links.up and not n2.links.up
            nursery.cancel_scope.cancel()


async def test_a_certificate_of_another_node_is_refused(authority: Authority, pairs: dict[str, Pair]) -> None:
    right, wrong = peer_tls("require", pairs["n1"], authority), peer_tls("require", pairs["n1"], authority)
    await reasons(right, wrong, "certificate")  # the dialing node sees the refusal
    right, wrong = peer_tls("require", pairs["n2"], authority), peer_tls("require", pairs["n2"], authority)
    await reasons(wrong, right, "certificate")  # the accepting node sees the refusal


async def test_a_client_that_is_called_as_a_node_is_none(authority: Authority, pairs: dict[str, Pair]) -> None:
    usage = [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    pair = authority.issue("n1-client", [x509.DNSName("n1")], usage=usage)
    await reasons(peer_tls("require", pair, authority), peer_tls("require", pairs["n2"], authority), "certificate")


async def test_certificates_of_others_and_old_ones_are_refused(
    authority: Authority, pairs: dict[str, Pair], tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other")
    right = peer_tls("require", pairs["n2"], authority)
    for pair in (other.node("n1"), authority.issue("n1-old", [x509.DNSName("n1")], days=-1)):
        await reasons(peer_tls("require", pair, authority), right, "tls")


async def test_client_on_the_peer_port_gets_a_reason_over_tls_too(authority: Authority, pairs: dict[str, Pair]) -> None:
    async with trio.open_nursery() as nursery:
        _, n2 = await two(nursery, None, peer_tls("require", pairs["n2"], authority))
        plain = await trio.open_tcp_stream(*n2.address)
        await plain.send_all(b"GET / HTTP/1.1\r\n\r\n")
        answer = b"".join([piece async for piece in plain])
        assert b"sandq's peer port" in answer
        await plain.aclose()
        nursery.cancel_scope.cancel()


async def test_closed_handshake_raises_connection_lost(authority: Authority, pairs: dict[str, Pair]) -> None:
    tls = peer_tls("require", pairs["n1"], authority)
    assert tls is not None
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:

        async def accept(stream: trio.SocketStream) -> None:
            await stream.aclose()

        nursery.start_soon(trio.serve_listeners, accept, [listener])
        stream = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        with pytest.raises(ConnectionLost):
            await tls.reach(PeerStream(stream), stream, "n2")
        await stream.aclose()
        nursery.cancel_scope.cancel()


class Walked(ThreeNodes):
    """Each node has its own settings."""

    own: dict[str, dict[str, str]]

    def config(self, name: str, **environ: str) -> Any:
        return super().config(name, **self.own.get(name, {}), **environ)


@pytest.mark.long
async def test_tls_is_turned_on_while_the_cluster_works(tmp_path: Path, authority: Authority) -> None:
    """Restart the nodes one by one with each next mode, while a client produces."""
    files = {}
    for name in NAMES:
        pair = authority.node(name)
        files[name] = {
            "TLS__CERT_FILE": str(pair.certificate),
            "TLS__KEY_FILE": str(pair.key),
            "TLS__CA_FILE": str(authority.ca),
        }
    async with trio.open_nursery() as nursery:
        nodes = Walked(tmp_path, nursery)
        nodes.own = {}
        await nodes.start()
        sent: list[int] = []
        servers = [f"127.0.0.1:{port}" for port in nodes.client_ports.values()]

        async def produce(stop: trio.Event, **tls: Any) -> None:
            async with sandq.connect(*servers, **tls) as client:
                while not stop.is_set():
                    await client.produce("t", b"%d" % len(sent))
                    sent.append(len(sent))

        async with nodes.connect() as client:
            await client.admin.create_topic("t", replicas=3)
        for peer, port, tls in (
            ("accept", "accept", {}),
            ("send", "accept", {"ca": authority.ca}),
            ("require", "require", {"ca": authority.ca}),
        ):
            stop = trio.Event()
            async with trio.open_nursery() as producing:
                producing.start_soon(lambda stop=stop, tls=tls: produce(stop, **tls))
                for name in NAMES:
                    await nodes.stop(name)
                    nodes.own[name] = {**files[name], "TLS__PEER": peer, "TLS__CLIENT": port}
                    await nodes.start(name)
                    before = len(sent)
                    await until_holds(lambda before=before: len(sent) > before + 5)
                stop.set()
        async with sandq.connect(*servers, ca=authority.ca) as client, client.subscribe("t", group="g") as taking:
            found = set()
            async for message in taking:
                found.add(int(message.value))
                await message.ack()
                if len(found) == len(sent):
                    break
        assert found == set(sent)
        await nodes.stop(*NAMES)
        nursery.cancel_scope.cancel()
