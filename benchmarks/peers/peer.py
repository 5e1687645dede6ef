"""The interface of a peer: a program that can be started, and a client for its protocol over raw sockets."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, Final

CONNECT_S: Final = 30.0
REPLY_BYTES: Final = 1 << 16


class PeerError(Exception):
    """A peer refused a request or closed the connection; the text has its message."""


def connect(port: int) -> socket.socket:
    """Open a connection on the loopback interface, without Nagle's delay."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=CONNECT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Lines:
    """Splits received bytes at line ends, and keeps an incomplete last line."""

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, data: bytes) -> bytes:
        """Return the complete lines as one piece; often empty."""
        data = self._kept + data
        end = data.rfind(b"\n") + 1
        self._kept = data[end:]
        return data[:end]


class Link(ABC):
    """Connection of a producer."""

    answers_each: int = 1
    """Number of responses to one request."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    @abstractmethod
    def request(self, number: int, values: Sequence[bytes], dues_ms: Sequence[int] | None) -> bytes:
        """Return one request that sends these messages; `number` is unique among those in flight."""

    @abstractmethod
    def count(self, data: bytes) -> int:
        """Return how many responses become complete with `data`, the next received bytes. Raises PeerError for an
        error."""


class Consumer(ABC):
    """Connection of a consumer. It acks each message as soon as it arrives."""

    idle = False
    """True if the last read returned no messages: the consumer reads again after a pause."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.done = 0
        """Number of received messages whose acks were confirmed; if acks have no response, whose acks were sent."""

    @abstractmethod
    def start(self) -> bytes:
        """Return the bytes that ask for the first messages."""

    @abstractmethod
    def receive(self, data: bytes) -> bytes:
        """Process received bytes; return acks, and the bytes that ask for more."""

    def finish(self) -> None:  # noqa: B027  # most have nothing left to do
        """Wait until the server has seen all acks, if they have no response."""

    def close(self) -> None:
        self.socket.close()


class Client(ABC):
    """Speaks a peer's protocol. Each call uses a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    @abstractmethod
    def ping(self) -> None:
        """Raise OSError or PeerError unless the server is ready."""

    def create(self, scheduled: bool) -> None:  # noqa: B027  # some need no such thing
        """Create the topic, stream, queue or table."""

    @abstractmethod
    def link(self, at: int, size: int, scheduled: bool) -> Link:
        """Return the producer's connection number `at`, for requests of `size` messages."""

    @abstractmethod
    def consumer(self, messages: int, scheduled: bool, window: int) -> Consumer:
        """Return a consumer for this many messages; it holds at most `window` unacked ones."""

    @abstractmethod
    def stored(self) -> int:
        """Return the peer's own count of its messages, including delayed ones."""

    def unconsumed(self) -> int:
        """Return the peer's own count of unacked messages; where acked ones are deleted, of all messages."""
        return self.stored()

    def syncs(self) -> int | None:
        """Return the syncs of the log since the server's start; None if the peer does not report them."""
        return None

    def put_paced(self, messages: int) -> bool:
        """Schedule the messages of the lateness load in the peer's own way; return False if the common way works."""
        return False


class Peer(ABC):
    """A broker to compare with sandq."""

    name: str
    program: str
    package: str
    durability: str
    """Text that says how durable a message is when the peer responds."""
    syncs_first = True
    """Whether the peer syncs a message to disk before it responds."""
    notes: str
    """Settings and commands of the peer in the loads, for the report."""
    cannot: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Loads that it cannot run, with reasons."""

    def executable(self) -> str | None:
        """Return the path of the program; None if it is not installed."""
        return shutil.which(self.program, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")

    def version(self) -> str:
        """Return the version as the program prints it, on one line."""
        executable = self.executable()
        if executable is None:
            return "not installed"
        return subprocess.run([executable, "--version"], capture_output=True, text=True).stdout.strip()

    def prepare(self, directory: Path) -> None:  # noqa: B027  # few need it
        """Prepare for all servers of a run. `directory` belongs to the peer."""

    @abstractmethod
    def serving(self, directory: Path) -> contextlib.AbstractContextManager[tuple[int, int]]:
        """Start a server with its data in an empty directory; yield its pid and its port. The server ends with the
        block."""

    @abstractmethod
    def client(self, port: int) -> Client:
        """Return the client of a server."""
