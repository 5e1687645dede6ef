"""Tests of the HTTP client with receivers of every kind on loopback sockets."""

from __future__ import annotations

import datetime
import re
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from sandq.model.push_targets import PushRules, Target, TargetRefused
from sandq.push import http_client
from sandq.push.http_client import BODY_BYTES, INFORMATIONAL_MOST, TEXT_CHARS, HttpClient, PushFailed
from tests.support.push_receiver import Receiver, receiving

LOCAL = PushRules.of(["*", "127.0.0.1"], [], True)
HEADERS = [(b"sandq-topic", b"t")]
PATIENCE_S = 60.0


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    client = HttpClient(LOCAL)
    yield client
    client.close()


def at(receiver: Receiver) -> Target:
    return Target.parse(receiver.url)


async def test_a_message_is_posted_and_the_answer_read(http: HttpClient) -> None:
    async with receiving() as receiver:
        receiver.answers = [(418, {"Retry-After": "7"}, b"I am\na \x00teapot " + b"x" * 2000)]
        answer = await http.send(at(receiver), HEADERS, b"body \xff", PATIENCE_S)
    (got,) = receiver.got
    assert (got.target, got.body) == ("/hook", b"body \xff")
    assert got.headers == {"host": f"127.0.0.1:{receiver.port}", "sandq-topic": "t", "content-length": "6"}
    assert (answer.status, answer.retry_after) == (418, "7")
    assert answer.text.startswith("I am a teapot xxx") and len(answer.text) == TEXT_CHARS


async def test_a_connection_is_used_again(http: HttpClient) -> None:
    async with receiving() as receiver:
        for _ in range(3):
            assert (await http.send(at(receiver), HEADERS, b"x" * 200_000, PATIENCE_S)).status == 204
        assert receiver.connections == 1


async def test_connections_of_the_least_recently_used_host_are_closed_first(
    http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_client, "IDLE_MOST", 2)
    async with receiving() as busy, receiving() as second, receiving() as third:
        for receiver in (busy, second, busy, third, busy, second):
            await http.send(at(receiver), HEADERS, b"", PATIENCE_S)
        assert (busy.connections, second.connections, third.connections) == (1, 2, 1)


async def test_closed_connection_is_reopened(http: HttpClient) -> None:
    async with receiving() as receiver:
        port = receiver.port
        await http.send(at(receiver), HEADERS, b"", PATIENCE_S)
    async with receiving(port=port) as receiver:
        assert (await http.send(at(receiver), HEADERS, b"", PATIENCE_S)).status == 204
        assert len(receiver.got) == 1


async def test_redirects_are_not_followed(http: HttpClient) -> None:
    async with receiving() as receiver, receiving() as other:
        receiver.answers = [(302, {"Location": other.url}, b"")]
        assert (await http.send(at(receiver), HEADERS, b"", PATIENCE_S)).status == 302
        assert other.got == []


async def test_a_receiver_that_hangs_is_given_up(http: HttpClient, autojump_clock: trio.testing.MockClock) -> None:
    autojump_clock.autojump_threshold = 0.05
    async with receiving() as receiver:
        receiver.hold = trio.Event()
        with pytest.raises(PushFailed, match="no answer within 30 s, while waiting for the answer"):
            await http.send(at(receiver), HEADERS, b"", 30.0)


def writes(*parts: bytes, forever: bytes = b"") -> Callable[[trio.abc.Stream], trio.abc.Stream]:
    async def write(stream: trio.abc.Stream) -> None:
        for part in parts:
            await stream.send_all(part)
        while forever:
            await stream.send_all(forever)

    return write  # type: ignore[return-value]


async def test_endless_body_is_read_up_to_a_limit(http: HttpClient) -> None:
    async with receiving() as receiver:
        receiver.raw = writes(b"HTTP/1.1 500 no\r\n\r\n", forever=b"z" * 5000)  # type: ignore[assignment]
        answer = await http.send(at(receiver), HEADERS, b"", PATIENCE_S)
        assert (answer.status, answer.text) == (500, "z" * TEXT_CHARS) and BODY_BYTES < 100_000
        assert not http._idle


async def test_a_status_counts_although_the_body_hangs(http: HttpClient) -> None:
    async with receiving() as receiver:

        async def hang(stream: trio.abc.Stream) -> None:
            await stream.send_all(b"HTTP/1.1 200 ok\r\nContent-Length: 50\r\n\r\nhalf")
            await trio.sleep_forever()

        receiver.raw = hang
        assert (await http.send(at(receiver), HEADERS, b"", PATIENCE_S)).status == 200
        assert not http._idle


@asynccontextmanager
async def answering_early(answer: bytes, until: trio.Event | None = None) -> AsyncIterator[Target]:
    """A receiver that answers after the head. Until `until` it neither reads on nor closes the connection."""

    async def serve(stream: trio.SocketStream) -> None:
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some(1000)
        await stream.send_all(answer)
        if until is not None:
            await until.wait()
            # type: ignore[index]
            left = int(re.search(rb"content-length: (\d+)", head)[1]) - len(head.partition(b"\r\n\r\n")[2])
            while left > 0 and (data := await stream.receive_some(1 << 20)):
                left -= len(data)
            read.append(left)
        await trio.sleep_forever()

    read: list[int] = []
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield Target.parse(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/")
        assert until is None or read == [0], "a receiver that accepted the request gets the whole body"
        nursery.cancel_scope.cancel()


LARGE = b"x" * (64 << 20)
"""More bytes than the sockets of both sides buffer while neither side reads."""


async def test_early_refusal_of_a_large_body_is_returned(http: HttpClient) -> None:
    async with answering_early(b"HTTP/1.1 413 too large\r\ncontent-length: 8\r\n\r\nnot that") as target:
        answer = await http.send(target, HEADERS, LARGE, PATIENCE_S)
    assert (answer.status, answer.text) == (413, "not that")


async def test_early_acceptance_waits_until_the_body_is_sent(http: HttpClient) -> None:
    reads = trio.Event()
    answers: list[int] = []
    accepted = b"HTTP/1.1 202 yes\r\ncontent-length: 0\r\n\r\n"
    async with answering_early(accepted, reads) as target, trio.open_nursery() as nursery:

        async def post() -> None:
            answers.append((await http.send(target, HEADERS, LARGE, PATIENCE_S)).status)

        nursery.start_soon(post)
        await trio.testing.wait_all_tasks_blocked(0.01)
        reads.set()
    assert answers == [202]


async def test_acceptance_without_reading_the_body_fails(
    http: HttpClient, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = 0.05
    async with answering_early(b"HTTP/1.1 202 yes\r\ncontent-length: 0\r\n\r\n") as target:
        with pytest.raises(PushFailed, match="answered 202, and did not read the rest of the request"):
            await http.send(target, HEADERS, LARGE, 30.0)
    assert not http._idle


@asynccontextmanager
async def serving(serve: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[Target]:
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield Target.parse(f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/")
        nursery.cancel_scope.cancel()


async def test_acceptance_before_disconnect_fails(http: HttpClient) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(1000)
        await stream.send_all(b"HTTP/1.1 200 ok\r\ncontent-length: 2\r\n\r\nok")
        await stream.send_eof()
        for _ in range(10):  # so that the answer arrives before the connection breaks
            await stream.receive_some(1000)

    async with serving(serve) as target:
        with pytest.raises(PushFailed, match=r"answered 200, and did not read the rest|reset"):
            await http.send(target, HEADERS, LARGE, PATIENCE_S)
    assert not http._idle


async def test_body_is_sent_while_the_reply_is_received(http: HttpClient) -> None:
    got = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal got
        head = b""
        while b"\r\n\r\n" not in head:
            head += await stream.receive_some(1000)
        data = head.partition(b"\r\n\r\n")[2]
        await stream.send_all(b"HTTP/1.1 200 ok\r\ncontent-length: %d\r\n\r\n" % len(LARGE))
        while got < len(LARGE):
            got += len(data)
            await stream.send_all(data)
            data = await stream.receive_some(1 << 20)

    async with serving(serve) as target:
        answer = await http.send(target, HEADERS, LARGE, PATIENCE_S)
    assert (answer.status, answer.text, got) == (200, "x" * TEXT_CHARS, len(LARGE))


@pytest.mark.parametrize("gap", [b"", b"|"])
async def test_a_second_answer_is_none_to_the_next_request(http: HttpClient, gap: bytes) -> None:
    """The second answer comes together with the first or alone."""
    answers = b"HTTP/1.1 204 one\r\n\r\n" + gap + b"HTTP/1.1 204 two\r\n\r\n"
    connections = 0

    async def serve(stream: trio.SocketStream) -> None:
        nonlocal connections
        connections += 1
        await stream.receive_some(1000)
        for part in answers.split(b"|") if connections == 1 else [b"HTTP/1.1 500 no\r\n\r\n"]:
            await stream.send_all(part)
            await trio.testing.wait_all_tasks_blocked(0.01)
        await trio.sleep_forever()

    async with serving(serve) as target:
        assert (await http.send(target, HEADERS, b"", PATIENCE_S)).status == 204
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert (await http.send(target, HEADERS, b"", PATIENCE_S)).status == 500
    assert connections == 2


@pytest.mark.parametrize(
    ("answer", "forever", "why"),
    [
        (b"HTTP/1.1 200 ok\r\n", b"x-more: and more\r\n", "no HTTP"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", f"more than {INFORMATIONAL_MOST} answers"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", b"", "no HTTP"),
        (b"", b"", "closed without an answer"),
        (b"HTTP/1.1 20", b"", "closed without an answer"),
    ],
)
async def test_invalid_reply_is_a_failure(http: HttpClient, answer: bytes, forever: bytes, why: str) -> None:
    async with receiving() as receiver:
        receiver.raw = writes(answer, forever=forever)  # type: ignore[assignment]
        with pytest.raises(PushFailed, match=why):
            await http.send(at(receiver), HEADERS, b"", PATIENCE_S)


async def test_closed_port_is_a_failure(http: HttpClient) -> None:
    async with receiving() as receiver:
        target = at(receiver)
    with pytest.raises(PushFailed, match=r"connecting: .*refused"):
        await http.send(target, HEADERS, b"", PATIENCE_S)


async def test_a_name_is_checked_by_each_of_its_addresses() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        return {"mixed.test": ["169.254.169.254", "127.0.0.1"], "inside.test": ["10.0.0.1", "fd00::1"]}[host]

    http = HttpClient(LOCAL, resolve=resolve)
    async with receiving() as receiver:
        target = at(receiver)._replace(host="mixed.test")
        assert (await http.send(target, HEADERS, b"", PATIENCE_S)).status == 204
        assert receiver.got[0].headers["host"].startswith("mixed.test:")
    with pytest.raises(TargetRefused, match=r"inside.test is at fd00::1"):
        await http.send(target._replace(host="inside.test"), HEADERS, b"", PATIENCE_S)
    with pytest.raises(TargetRefused):
        await http.check(target._replace(host="inside.test"))
    http.close()


async def test_a_name_that_becomes_another_address_is_caught() -> None:
    """The second look-up returns a different address. The client checks it again and connects to the checked
    address."""
    answers = [["127.0.0.1"], ["127.0.0.2"]]

    async def resolve(host: str, port: int) -> list[str]:
        return answers.pop(0)

    http = HttpClient(PushRules.of(["127.0.0.1"], [], True), resolve=resolve)
    target = Target.parse("http://rebinding.test:9/")
    await http.check(target)
    with pytest.raises(TargetRefused):
        await http.send(target, HEADERS, b"", PATIENCE_S)


async def test_a_name_that_is_not_found_is_a_failure() -> None:
    async def resolve(host: str, port: int) -> list[str]:
        raise OSError(-2, "Name or service not known")

    with pytest.raises(PushFailed, match=r"x\.test is not found: Name or service not known"):
        await HttpClient(LOCAL, resolve=resolve).check(Target.parse("https://x.test/"))


async def test_a_name_that_no_host_may_have_is_a_failure(http: HttpClient) -> None:
    with pytest.raises(PushFailed, match="is not found"):
        await http.check(Target.parse("https://" + "a" * 64 + ".invalid/"))


async def test_silent_address_leaves_time_for_the_next(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = 0.05
    really = trio.open_tcp_stream

    async def open_tcp_stream(address: str, port: int) -> trio.SocketStream:
        if address != "127.0.0.1":
            await trio.sleep_forever()
        return await really(address, port)

    async def resolve(host: str, port: int) -> list[str]:
        return ["10.9.9.9", "10.9.9.8", "127.0.0.1"] if host == "some.test" else ["10.9.9.9", "10.9.9.8"]

    monkeypatch.setattr(trio, "open_tcp_stream", open_tcp_stream)
    http = HttpClient(PushRules.of(["127.0.0.1", "10.0.0.0/8"], [], True), resolve=resolve)
    async with receiving() as receiver:
        target = at(receiver)._replace(host="some.test")
        assert (await http.send(target, HEADERS, b"", PATIENCE_S)).status == 204
        with pytest.raises(PushFailed, match="no connection within 10 s"):
            await http.send(target._replace(host="none.test"), HEADERS, b"", PATIENCE_S)
    http.close()


async def test_a_status_that_comes_just_in_time_counts(
    http: HttpClient, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = 0.05

    async def late(stream: trio.abc.Stream) -> None:
        await trio.sleep(29.5)
        await stream.send_all(b"HTTP/1.1 200 ok\r\nContent-Length: 50\r\n\r\nhalf")
        await trio.sleep_forever()

    async with receiving() as receiver:
        receiver.raw = late
        assert (await http.send(at(receiver), HEADERS, b"", 30.0)).status == 200


def certificate(directory: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate of 127.0.0.1."""
    import ipaddress

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = directory / "cert.pem", directory / "key.pem"
    certificate_file.write_bytes(built.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_file, key_file


async def test_certificates_are_verified(http: HttpClient, tmp_path: Path) -> None:
    certificate_file, key_file = certificate(tmp_path)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate_file, key_file)
    async with receiving(tls) as receiver:
        with pytest.raises(PushFailed, match="its certificate is not trusted"):
            await http.send(at(receiver), HEADERS, b"", PATIENCE_S)
        assert receiver.got == []
        trusting = HttpClient(LOCAL, ssl.create_default_context(cafile=certificate_file))
        for _ in range(2):
            assert (await trusting.send(at(receiver), HEADERS, b"x", PATIENCE_S)).status == 204
        assert len({got.connection for got in receiver.got}) == 1
        trusting.close()
