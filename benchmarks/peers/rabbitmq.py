"""RabbitMQ: one quorum queue, publisher confirms; AMQP 0-9-1 in prepared frames."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Final

from benchmarks.peers import server
from benchmarks.peers.peer import REPLY_BYTES, Client, Consumer, Link, Peer, PeerError, connect

QUEUE: Final = "bench"
SCRIPT: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")
"""Script that starts the server. The package's own command runs it, too, after it has changed the user."""
LIBRARY: Final = Path("/usr/lib/rabbitmq/lib")
QUEUE_S: Final = 1.0
"""How long a channel may hold back acks, until the queue has them."""
_EPMD = "/usr/bin/epmd"
_NO_DELAY = "no delayed delivery without a plugin: TTLs of dead-lettered messages are only checked in queue order"

METHOD, HEADER, BODY = 1, 2, 3
_FRAME = struct.Struct(">BHI")
_END = b"\xce"
_ACK = struct.Struct(">HHQB")
_START, _START_OK, _TUNE_OK, _OPEN, _OPEN_OK = (10, 10), (10, 11), (10, 31), (10, 40), (10, 41)
_TUNE, _CHANNEL_OPEN, _CHANNEL_OPEN_OK, _CHANNEL_CLOSE, _CHANNEL_CLOSE_OK = (
    (10, 30),
    (20, 10),
    (20, 11),
    (20, 40),
    (20, 41),
)
_DECLARE, _DECLARE_OK, _QOS, _QOS_OK = (50, 10), (50, 11), (60, 10), (60, 11)
_CONSUME, _CONSUME_OK, _PUBLISH, _DELIVER, _BASIC_ACK = (60, 20), (60, 21), (60, 40), (60, 60), (60, 80)
_SELECT, _SELECT_OK = (85, 10), (85, 11)
_PERSISTENT = struct.pack(">HB", 0x1000, 2)  # the only property: delivery mode


class RabbitMQ(Peer):
    name = "rabbitmq"
    program = "rabbitmq-server"
    package = "rabbitmq-server"
    durability = "fdatasync before each confirm (Raft log)"
    notes = "a quorum queue of one member, persistent messages, publisher confirms; basic.ack for each delivery tag"
    cannot: ClassVar = dict.fromkeys(("produce_scheduled", "scheduled_out", "lateness"), _NO_DELAY)

    def executable(self) -> str | None:
        return str(SCRIPT) if SCRIPT.exists() and Path(_EPMD).exists() else None

    def version(self) -> str:
        found = [path.name.partition("-")[2] for path in LIBRARY.glob("rabbitmq_server-*")]
        return f"RabbitMQ {', '.join(found)}"

    @contextlib.contextmanager
    def serving(self, directory: Path) -> Iterator[tuple[int, int]]:
        port, names_port = server.free_port(), server.free_port()
        environ = settings(directory, port, names_port, server.free_port())
        (directory / "plugins").write_text("[].\n")
        (directory / "rabbitmq.conf").write_text("loopback_users.guest = true\n")
        names = [_EPMD, "-port", str(names_port), "-address", "127.0.0.1"]
        with (
            server.running(names, directory, environ=environ),
            # SIGKILL, because its data is removed as well and a clean end takes seconds.
            server.running([str(SCRIPT)], directory, environ=environ, stop=signal.SIGKILL) as pid,
        ):
            server.wait_until_ready(self.client(port).ping, pid)
            yield pid, port

    def client(self, port: int) -> Client:
        return RabbitClient(port)


def settings(directory: Path, port: int, names_port: int, nodes_port: int) -> dict[str, str]:
    """Return the environment of a node with all its files in a directory, reachable only from this machine."""
    ours = {name: str(directory / name) for name in ("mnesia", "log")}
    return {
        "HOME": str(directory),
        "ERL_EPMD_PORT": str(names_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        # The script replaces itself by the server, so no shell outlives this process.
        "RUNNING_UNDER_SYSTEMD": "true",
        "RABBITMQ_NODENAME": f"bench{os.getpid()}@localhost",
        "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
        "RABBITMQ_NODE_PORT": str(port),
        "RABBITMQ_DIST_PORT": str(nodes_port),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput -kernel inet_dist_use_interface {127,0,0,1}",
        "RABBITMQ_CONF_ENV_FILE": "/dev/null",
        "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "plugins"),
        "RABBITMQ_MNESIA_BASE": ours["mnesia"],
        "RABBITMQ_LOG_BASE": ours["log"],
    }


def short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def long(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return _FRAME.pack(kind, channel, len(payload)) + payload + _END


def method(which: tuple[int, int], arguments: bytes = b"", channel: int = 1) -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *which) + arguments)


class Frames:
    """Splits received bytes into frames."""

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return types and payloads of complete frames. Raises PeerError for anything else."""
        data = self._kept + data
        at, found, size_at = 0, [], _FRAME.unpack_from
        while len(data) - at >= 7:
            kind, _, size = size_at(data, at)
            if len(data) - at < size + 8:
                break
            if data[at + 7 + size] != 0xCE:
                raise PeerError(f"not a frame: {data[at : at + 100]!r}")
            found.append((kind, data[at + 7 : at + 7 + size]))
            at += size + 8
        self._kept = data[at:]
        return found


class Channel:
    """A connection with its only channel."""

    def __init__(self, port: int) -> None:
        self.socket = connect(port)
        self._frames = Frames()
        self.socket.sendall(b"AMQP\0\0\x09\x01")
        self.wait(_START)
        self._send(_START_OK, long(b"") + short("PLAIN") + long(b"\0guest\0guest") + short("en_US"))
        channels, frame_bytes, _ = struct.unpack(">HIH", self.wait(_TUNE))
        self._send(_TUNE_OK, struct.pack(">HIH", channels, frame_bytes, 0))
        self._send(_OPEN, short("/") + b"\0\0")
        self.wait(_OPEN_OK)
        self.ask(_CHANNEL_OPEN, short(""), _CHANNEL_OPEN_OK)

    def _send(self, which: tuple[int, int], arguments: bytes) -> None:
        self.socket.sendall(method(which, arguments, channel=0))

    def ask(self, which: tuple[int, int], arguments: bytes, answer: tuple[int, int]) -> bytes:
        """Return the payload of the response."""
        self.socket.sendall(method(which, arguments))
        return self.wait(answer)

    def wait(self, answer: tuple[int, int]) -> bytes:
        """Wait for this method; no other may arrive."""
        while not (frames := self._frames.feed(self._receive())):
            pass
        payload = frames[0][1]
        if struct.unpack_from(">HH", payload) != answer:
            raise PeerError(f"expected {answer}, got {payload[:300]!r}")
        return payload[4:]

    def _receive(self) -> bytes:
        data = self.socket.recv(REPLY_BYTES)
        if not data:
            raise PeerError("the server closed the connection")
        return data

    def declare(self, *, passive: bool) -> int:
        """Declare the queue; return its number of ready messages."""
        flags = b"\1" if passive else b"\2"  # 2: durable
        kind = b"" if passive else short("x-queue-type") + b"S" + long(b"quorum")
        answer = self.ask(_DECLARE, b"\0\0" + short(QUEUE) + flags + long(kind), _DECLARE_OK)
        return int(struct.unpack_from(">I", answer, 1 + len(QUEUE))[0])


class RabbitClient(Client):
    def ping(self) -> None:
        Channel(self.port).socket.close()

    def create(self, scheduled: bool) -> None:
        channel = Channel(self.port)
        channel.declare(passive=False)
        channel.socket.close()

    def link(self, at: int, size: int, scheduled: bool) -> Link:
        channel = Channel(self.port)
        channel.ask(_SELECT, b"\0", _SELECT_OK)
        return RabbitLink(channel.socket, size)

    def consumer(self, messages: int, scheduled: bool, window: int) -> Consumer:
        channel = Channel(self.port)
        channel.ask(_QOS, struct.pack(">IHB", 0, window, 0), _QOS_OK)
        return RabbitConsumer(channel)

    def stored(self) -> int:
        channel = Channel(self.port)
        found = channel.declare(passive=True)
        channel.socket.close()
        return found


class RabbitLink(Link):
    def __init__(self, connection: socket.socket, size: int) -> None:
        super().__init__(connection)
        self.answers_each = size
        self._frames = Frames()
        self._below = 0
        """All messages up to this delivery tag are confirmed."""
        self._above: set[int] = set()

    def request(self, number: int, values: Sequence[bytes], dues_ms: Sequence[int] | None) -> bytes:
        publish = method(_PUBLISH, b"\0\0" + short("") + short(QUEUE) + b"\0")
        return b"".join(
            [
                publish + frame(HEADER, 1, struct.pack(">HHQ", 60, 0, len(value)) + _PERSISTENT) + frame(BODY, 1, value)
                for value in values
            ]
        )

    def count(self, data: bytes) -> int:
        before = self._below + len(self._above)
        for _, payload in self._frames.feed(data):
            if len(payload) != _ACK.size or payload[:4] != b"\0\x3c\0\x50":
                raise PeerError(f"not a confirm: {payload[:300]!r}")
            _, _, tag, multiple = _ACK.unpack(payload)
            self._confirm(tag, multiple)
        return self._below + len(self._above) - before

    def _confirm(self, tag: int, multiple: int) -> None:
        if multiple:
            self._below = max(self._below, tag)
            self._above = {one for one in self._above if one > tag}
        else:
            self._above.add(tag)
        while self._below + 1 in self._above:
            self._below += 1
            self._above.discard(self._below)


class RabbitConsumer(Consumer):
    """Acks have no response: `finish` waits until the channel received them, `close` until the queue did."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(channel.socket)
        self._channel = channel
        self._frames = Frames()
        self._tags: list[int] = []

    def start(self) -> bytes:
        return method(_CONSUME, b"\0\0" + short(QUEUE) + short("c") + b"\0" + long(b""))

    def receive(self, data: bytes) -> bytes:
        out = []
        for kind, payload in self._frames.feed(data):
            if kind == METHOD:
                which = struct.unpack_from(">HH", payload)
                if which == _DELIVER:
                    self._tags.append(
                        struct.unpack_from(">Q", payload, 6)[0]
                    )  # the delivery tag follows the consumer tag "c"
                elif which != _CONSUME_OK:
                    raise PeerError(f"not a delivery: {payload[:300]!r}")
            elif kind == BODY:
                out.append(method(_BASIC_ACK, struct.pack(">QB", self._tags.pop(0), 0)))
                self.done += 1
        return b"".join(out)

    def finish(self) -> None:
        self._channel.declare(passive=True)

    def close(self) -> None:
        """A closed channel returns messages whose acks the queue did not see; the count then shows them."""
        time.sleep(QUEUE_S)
        self._channel.ask(_CHANNEL_CLOSE, b"\0\xc8" + short("") + b"\0\0\0\0", _CHANNEL_CLOSE_OK)
        self.socket.close()
