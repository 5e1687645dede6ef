"""NATS JetStream: one stream in files."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from benchmarks.peers import server
from benchmarks.peers.peer import REPLY_BYTES, Client, Consumer, Lines, Link, Peer, PeerError, connect
from benchmarks.peers.workloads import POLL_S, VALUE_BYTES

STREAM = "bench"
CONSUMER = "workers"
_DELIVERY = "deliver.bench"
_HELLO = b'CONNECT {"verbose":false,"pedantic":false,"lang":"benchmarks","version":"1","protocol":1}\r\nPING\r\n'
_MESSAGE = re.compile(rb"MSG \S+ \S+ (\S+) %d\r\n.{%d}\r\n" % (VALUE_BYTES, VALUE_BYTES), re.DOTALL)
_inboxes = itertools.count()
_NO_DELAY = "no delayed delivery: only a negative ack with a delay, for a message that was already delivered"


class Nats(Peer):
    name = "nats"
    program = "nats-server"
    package = "nats-server"
    durability = "page cache; fsync every 2 min"
    syncs_first = False
    notes = "one stream in files, a durable push consumer; this version cannot sync before each response"
    cannot: ClassVar = dict.fromkeys(("produce_scheduled", "scheduled_out", "lateness"), _NO_DELAY)

    @contextlib.contextmanager
    def serving(self, directory: Path) -> Iterator[tuple[int, int]]:
        port = server.free_port()
        (directory / "nats.conf").write_text(config(port, directory / "data"))
        with server.running([str(self.executable()), "-c", "nats.conf"], directory) as pid:
            server.wait_until_ready(self.client(port).ping, pid)
            yield pid, port

    def client(self, port: int) -> Client:
        return NatsClient(port)


def config(port: int, data: Path) -> str:
    """Return the configuration of a server that listens only on loopback."""
    return f'listen: "127.0.0.1:{port}"\njetstream {{\n  store_dir: "{data}"\n  max_file_store: 16GB\n}}\n'


class NatsConnection:
    """A connection whose responses arrive in an inbox of its own."""

    def __init__(self, port: int) -> None:
        self.socket = connect(port)
        self._inbox = b"inbox.%d" % next(_inboxes)
        self.socket.sendall(_HELLO + b"SUB %s 1\r\n" % self._inbox)
        self._received = b""
        self.until(b"PONG\r\n")

    def until(self, mark: bytes) -> bytes:
        """Return the bytes before `mark`, and remove both from the buffer."""
        while mark not in self._received:
            data = self.socket.recv(REPLY_BYTES)
            if not data:
                raise PeerError("the server closed the connection")
            self._received += data
        before, _, self._received = self._received.partition(mark)
        return before

    def ask(self, subject: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request of the JetStream API."""
        payload = b"" if body is None else json.dumps(body).encode()
        head = b"PUB $JS.API.%s %s %d\r\n" % (subject.encode(), self._inbox, len(payload))
        self.socket.sendall(head + payload + b"\r\n")
        self.until(b"MSG ")
        self.until(b"\r\n")
        answer: dict[str, Any] = json.loads(self.until(b"\r\n"))
        if "error" in answer:
            raise PeerError(f"{subject}: {answer['error']}")
        return answer


class NatsClient(Client):
    def ping(self) -> None:
        connection = NatsConnection(self.port)
        connection.ask("INFO")
        connection.socket.close()

    def create(self, scheduled: bool) -> None:
        settings = {"name": STREAM, "subjects": [f"{STREAM}.*"], "storage": "file", "retention": "limits"}
        NatsConnection(self.port).ask(f"STREAM.CREATE.{STREAM}", settings)

    def link(self, at: int, size: int, scheduled: bool) -> Link:
        return NatsLink(self.port, at, size)

    def consumer(self, messages: int, scheduled: bool, window: int) -> Consumer:
        settings = {"durable_name": CONSUMER, "deliver_subject": _DELIVERY, "ack_policy": "explicit"}
        connection = NatsConnection(self.port)
        config = {**settings, "deliver_policy": "all", "max_ack_pending": window}
        connection.ask(f"CONSUMER.DURABLE.CREATE.{STREAM}.{CONSUMER}", {"stream_name": STREAM, "config": config})
        return NatsConsumer(connection)

    def stored(self) -> int:
        connection = NatsConnection(self.port)
        state = connection.ask(f"STREAM.INFO.{STREAM}")["state"]
        connection.socket.close()
        return int(state["messages"])

    def unconsumed(self) -> int:
        connection = NatsConnection(self.port)
        state = connection.ask(f"CONSUMER.INFO.{STREAM}.{CONSUMER}")
        connection.socket.close()
        return int(state["num_pending"]) + int(state["num_ack_pending"])


class NatsLink(Link):
    def __init__(self, port: int, at: int, size: int) -> None:
        super().__init__(NatsConnection(port).socket)
        self.answers_each = size
        self._lines = Lines()
        self._subject = b"%s.%d" % (STREAM.encode(), at)
        self._inbox = b"acks.%d" % at
        self.socket.sendall(b"SUB %s 3\r\n" % self._inbox)

    def request(self, number: int, values: Sequence[bytes], dues_ms: Sequence[int] | None) -> bytes:
        head = b"PUB %s %s " % (self._subject, self._inbox)
        return b"".join([b"%s%d\r\n%s\r\n" % (head, len(value), value) for value in values])

    def count(self, data: bytes) -> int:
        lines = self._lines.feed(data)
        if b'"error"' in lines or b"-ERR" in lines:
            raise PeerError(f"an ack is an error: {lines[:500]!r}")
        return lines.count(b'"seq":')


class NatsConsumer(Consumer):
    """Receives pushed messages, and sends `+ACK` for each. Acks have no response: `finish` waits for all."""

    def __init__(self, connection: NatsConnection) -> None:
        super().__init__(connection.socket)
        self._connection = connection
        self._kept = b""

    def start(self) -> bytes:
        return b"SUB %s 2\r\n" % _DELIVERY.encode()

    def receive(self, data: bytes) -> bytes:
        data = self._kept + data
        replies = _MESSAGE.findall(data)
        head = data.rfind(b"MSG ")
        match = _MESSAGE.match(data, head) if head >= 0 else None
        self._kept = data[match.end() :] if match else data[max(head, 0) :]
        if b"-ERR" in data:
            raise PeerError(f"the server says: {data[:500]!r}")
        self.done += len(replies)
        answers = [b"PUB %s 4\r\n+ACK\r\n" % reply for reply in replies]
        if b"PING\r\n" in data:
            answers.append(b"PONG\r\n")
        return b"".join(answers)

    def finish(self) -> None:
        self._connection.socket.sendall(b"PING\r\n")
        self._connection.until(b"PONG\r\n")
        while self._connection.ask(f"CONSUMER.INFO.{STREAM}.{CONSUMER}")["num_ack_pending"]:
            time.sleep(POLL_S)
