"""TLS on the client port: accepted clients, refused clients and their reasons, and certificates that change."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
import trio
from cryptography import x509
from structlog.testing import capture_logs

import sandq
from sandq.client import connect_with
from sandq.client.options import Options
from sandq.errors import ConnectionLost, InvalidRequest, WrongPort
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.node.tls import NodeTls
from sandq.protocol.frames import FrameReader, Type, encode_frame
from sandq.spark.source.brokers import ClientBrokers
from sandq.spark.source.options import parse_options
from sandq.tls import certificates
from sandq.tools.certs import Pair, revoke
from tests.support.certificates import Authority
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import take
from tests.support.stopped_time import loop_clock, node_time
from tests.support.waiting import until_holds

__all__ = ["loop_clock", "node_time"]

HOST: Final = "127.0.0.1"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ca")


def settings(pair: Pair, authority: Authority, **more: str) -> dict[str, str]:
    files = {"CERT_FILE": str(pair.certificate), "KEY_FILE": str(pair.key), "CA_FILE": str(authority.ca)}
    return {f"TLS__{name}": value for name, value in {**files, **more}.items()}


@asynccontextmanager
async def node(directory: Path, authority: Authority, pair: Pair | None = None, **more: str) -> AsyncIterator[Serving]:
    given = settings(pair or authority.node("node1"), authority, **more)
    async with run_node(small_config(directory, **given)) as serving:
        yield serving


def at(serving: Serving, host: str = HOST) -> str:
    return f"{host}:{serving.client_port}"


async def refused(serving: Serving, **options: Any) -> sandq.errors.SandqError:
    with pytest.raises((ConnectionLost, WrongPort)) as caught:
        async with sandq.connect(at(serving), **options):
            raise AssertionError
    return caught.value


async def test_messages_go_through(tmp_path: Path, authority: Authority) -> None:
    async with node(tmp_path, authority) as serving, sandq.connect(at(serving), ca=authority.ca) as client:
        await client.admin.create_topic("t", partitions=2)
        large = bytes(3_000_000)
        async with client.producer("t") as producer:
            for number in range(200):
                await producer.send(b"%d" % number, key=b"%d" % number)
        await client.produce("t", large)
        async with client.subscribe("t", group="g") as subscription:
            taken = await take(subscription, 201)
        assert {message.value for message in taken} == {*(b"%d" % number for number in range(200)), large}


async def test_refused_tls_client_gets_a_reason(tmp_path: Path, authority: Authority) -> None:
    other = Authority(tmp_path / "other")
    async with node(tmp_path, authority) as serving:
        plain = await refused(serving)
        assert isinstance(plain, WrongPort) and "this port requires TLS: give sandq.connect ca" in plain.message
        strange = await refused(serving, ca=other.ca)
        assert "its certificate is refused" in strange.message and "give ca" in strange.message
        unknown = await refused(serving, tls=True)
        assert "its certificate is refused" in unknown.message
        async with sandq.connect(at(serving), ca=authority.ca) as client:  # the server must continue
            assert client.cluster_uuid


async def test_server_name_is_checked(tmp_path: Path, authority: Authority) -> None:
    pair = authority.issue("node1", [x509.DNSName("node1"), x509.DNSName("elsewhere.example")])
    async with node(tmp_path, authority, pair) as serving:
        assert "is not valid for '127.0.0.1'" in (await refused(serving, ca=authority.ca)).message


async def test_expired_certificate_is_refused(tmp_path: Path, authority: Authority) -> None:
    pair = authority.issue("node1", [x509.DNSName("node1"), x509.IPAddress(_ip(HOST))], days=-1)
    async with node(tmp_path, authority, pair) as serving:
        assert "certificate has expired" in (await refused(serving, ca=authority.ca)).message


def _ip(host: str) -> Any:
    from ipaddress import ip_address

    return ip_address(host)


async def test_clients_with_certificates_alone(tmp_path: Path, authority: Authority) -> None:
    ada, other = authority.client("ada"), Authority(tmp_path / "other").client("bob")
    ended = authority.issue("eve", [], days=-1)
    async with node(tmp_path, authority, CLIENT_CERTIFICATES="require") as serving:
        assert "requires a certificate of the client" in (await refused(serving, ca=authority.ca)).message
        for pair, why in ((other, "does not know who issued"), (ended, "it has ended")):
            error = await refused(serving, ca=authority.ca, cert=pair.certificate, key=pair.key)
            assert why in error.message, error.message
        async with sandq.connect(at(serving), ca=authority.ca, cert=ada.certificate, key=ada.key):
            (connection,) = serving.metrics.clients.open
            assert connection.certificate_name == "ada" and connection.is_encrypted


async def test_revoked_certificate_is_refused(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "CHECK_S", 0.01)
    ada, bob = authority.client("ada"), authority.client("bob")
    lists, count = revoke([], authority.directory, tmp_path)
    assert count == 0
    async with node(tmp_path, authority, CLIENT_CERTIFICATES="require", CRL_FILE=str(lists)) as serving:
        async with sandq.connect(at(serving), ca=authority.ca, cert=ada.certificate, key=ada.key) as client:
            with capture_logs() as log:
                assert revoke([ada.certificate], authority.directory, tmp_path) == (lists, 1)
                await until_holds(lambda: "the certificates were read again" in [entry["event"] for entry in log])
            assert await client.admin.list_topics() == [], "open connections must continue"
        error = await refused(serving, ca=authority.ca, cert=ada.certificate, key=ada.key)
        assert "revoked" in error.message, error.message
        async with sandq.connect(at(serving), ca=authority.ca, cert=bob.certificate, key=bob.key):
            pass


async def test_both_are_let_in_while_clients_are_changed(tmp_path: Path, authority: Authority) -> None:
    async with (
        node(tmp_path, authority, CLIENT="accept", CLIENT_CERTIFICATES="accept") as serving,
        sandq.connect(at(serving)) as plain,
        sandq.connect(at(serving), ca=authority.ca) as by_tls,
    ):
        assert plain.cluster_uuid == by_tls.cluster_uuid
        found = {(one.is_encrypted, one.certificate_name) for one in serving.metrics.clients.open}
        assert found == {(False, None), (True, None)}


async def test_a_node_speaks_to_others_as_they_do_while_that_is_changed(tmp_path: Path, authority: Authority) -> None:
    certified = settings(authority.node("node1"), authority, CLIENT="accept")
    inside = NodeTls(small_config(tmp_path, **certified)).for_nodes()
    assert inside is not None
    options = Options(tls=inside)
    for directory, mode in (("accept", "accept"), ("require", "require")):
        (tmp_path / directory).mkdir()
        config = small_config(tmp_path / directory, **{**certified, "TLS__CLIENT": mode})
        async with run_node(config) as serving, connect_with(options, (at(serving),), "node"):
            assert [one.is_encrypted for one in serving.metrics.clients.open] == [True]
    async with run_node(small_config(tmp_path)) as serving, connect_with(options, (at(serving),), "node"):
        assert [one.is_encrypted for one in serving.metrics.clients.open] == [False]


async def test_tls_to_a_port_that_has_none(tmp_path: Path, authority: Authority) -> None:
    async with run_node(small_config(tmp_path)) as serving:
        error = await refused(serving, ca=authority.ca)
        assert isinstance(error, WrongPort) and "it does not speak TLS: connect without" in error.message


async def test_http_on_the_client_port(tmp_path: Path, authority: Authority) -> None:
    async with node(tmp_path, authority) as serving, await trio.open_tcp_stream(HOST, serving.client_port) as stream:
        await stream.send_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        answer = b"".join([piece async for piece in stream])
        assert answer.startswith(b"HTTP/1.1 400 ") and b"client port, and requires TLS" in answer


async def test_renewed_certificate_is_used_and_connections_continue(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "CHECK_S", 0.01)
    pair = authority.issue("node1", [x509.DNSName("node1"), x509.IPAddress(_ip(HOST))], days=0.5)

    def serial(serving: Serving) -> int:
        context = ssl.create_default_context(cafile=authority.ca)
        with (
            socket.create_connection((HOST, serving.client_port)) as raw,
            context.wrap_socket(raw, server_hostname=HOST) as tls,
        ):
            return x509.load_der_x509_certificate(tls.getpeercert(True) or b"").serial_number

    async with node(tmp_path, authority, pair) as serving, sandq.connect(at(serving), ca=authority.ca) as client:
        first = await trio.to_thread.run_sync(serial, serving)
        pair.certificate.write_text("half of a")  # a half-written file, which the next call replaces
        authority.node("node1", force=True)
        numbers = {first}
        while len(numbers) == 1:
            numbers.add(await trio.to_thread.run_sync(serial, serving))
        await client.admin.create_topic("t")  # over the existing connection
        await client.produce("t", b"x")
        assert len(serving.metrics.clients.open) <= 2


async def test_failed_handshake_does_not_affect_other_clients(tmp_path: Path, authority: Authority) -> None:
    async with node(tmp_path, authority) as serving, sandq.connect(at(serving), ca=authority.ca) as client:
        for said in (b"\x16\x03\x01\xff\xff", b"\x16\x03\x01\x00\x05hello", b"\x16\x00\x01\x00\x05hello", b"\x16"):
            stream = await trio.open_tcp_stream(HOST, serving.client_port)
            with suppress(trio.BrokenResourceError):
                await stream.send_all(said)
                await stream.send_eof()
                while await stream.receive_some(1000):
                    pass  # possibly an alert
            await stream.aclose()
        await client.admin.create_topic("t")
        await until_holds(lambda: len(serving.metrics.clients.open) == 1)


async def test_a_raw_client_gets_a_frame(tmp_path: Path, authority: Authority) -> None:
    async with node(tmp_path, authority) as serving, await trio.open_tcp_stream(HOST, serving.client_port) as stream:
        await stream.send_all(encode_frame(Type.HELLO, 1, 2, "plain", {}))
        answer = b"".join([piece async for piece in stream])
        (error,) = FrameReader().feed(answer)
        assert error[:3] == [Type.ERROR, 0, "WRONG_PORT"]


def test_invalid_tls_options_are_rejected(authority: Authority, tmp_path: Path) -> None:
    async def connect(**options: Any) -> None:
        async with sandq.connect(f"{HOST}:1", **options):
            raise AssertionError

    ada, bob = authority.client("ada"), authority.client("bob")
    missing = tmp_path / "no.pem"
    for options, said in (
        ({"ca": missing}, "no.pem: No such file"),
        ({"cert": ada.certificate, "key": missing}, "no.pem: No such file"),
        ({"cert": ada.certificate, "key": bob.key}, "it is not the key of the certificate"),
        ({"key": ada.key}, "give cert, too"),
        ({"ca": ada.key}, "it cannot be used"),
        ({"tls": False, "ca": authority.ca}, "without TLS there are none"),
        ({"tls": ssl.create_default_context(), "ca": authority.ca}, "a context has its own files"),
        ({"tls": 1}, "tls: True, False or an ssl.SSLContext"),
        ({"ca": ""}, "the path of a file"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            trio.run(lambda given=options: connect(**given))
        assert said in caught.value.message, caught.value.message


async def test_environment_variables_configure_tls(
    tmp_path: Path, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node(tmp_path, authority) as serving:
        monkeypatch.setenv("SANDQ_CA", str(authority.ca))
        async with sandq.connect(at(serving)) as client:
            assert client.cluster_uuid
        assert isinstance(await refused(serving, tls=False), WrongPort)
        monkeypatch.setenv("SANDQ_TLS", "perhaps")
        async with sandq.connect(at(serving)):  # the file alone turns on TLS
            pass
        monkeypatch.delenv("SANDQ_CA")
        with pytest.raises(InvalidRequest, match="SANDQ_TLS: 1 or 0"):
            await refused(serving)


def test_a_blocking_client(tmp_path: Path, authority: Authority) -> None:
    ada = authority.client("ada")

    async def main() -> None:
        async with node(tmp_path, authority, CLIENT_CERTIFICATES="require") as serving:
            await trio.to_thread.run_sync(use, at(serving))

    def use(address: str) -> None:
        with sandq.sync.connect(address, ca=authority.ca, cert=ada.certificate, key=ada.key) as client:
            client.admin.create_topic("t")
            client.produce("t", b"x")

    trio.run(main)


async def test_spark_reads_by_it(tmp_path: Path, authority: Authority) -> None:
    async with node(tmp_path, authority) as serving, sandq.connect(at(serving), ca=authority.ca) as client:
        await client.admin.create_topic("t")
        given = {"sandq.bootstrap.servers": at(serving), "subscribe": "t", "tls": "true", "ca": str(authority.ca)}
        options = parse_options(given)

        def count_partitions() -> int:
            brokers = ClientBrokers(options.servers, options.credentials)
            try:
                return len(brokers.partitions(options.topics))
            finally:
                brokers.close()

        assert await trio.to_thread.run_sync(count_partitions) == 1


async def test_tls_metrics_are_exported(tmp_path: Path, authority: Authority) -> None:
    async with node(tmp_path, authority) as serving, sandq.connect(at(serving), ca=authority.ca) as client:
        await refused(serving, tls=True)
        await until_holds(lambda: serving.metrics._tls is not None and serving.metrics._tls[1].failed == 1)
        lines = (await serving.metrics.render())[0].decode().splitlines()
        told = {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}
        assert 364 < told['sandq_tls_certificate_expires_seconds{file="cert_file"}'] / 86_400 < 365
        assert told['sandq_tls_certificate_expires_seconds{file="ca_file"}'] > 0
        assert (
            told['sandq_tls_handshakes_total{result="done"}']
            == told['sandq_tls_handshakes_total{result="failed"}']
            == 1
        )
        assert told["sandq_tls_certificates_unusable"] == 0 < told["sandq_tls_handshake_cpu_seconds_total"]
        (ends_s,) = client.certificate_ends.values()
        assert ends_s == certificates_end(authority)


def certificates_end(authority: Authority) -> float:
    found = x509.load_pem_x509_certificate((authority.directory / "node1.pem").read_bytes())
    return found.not_valid_after_utc.timestamp()
