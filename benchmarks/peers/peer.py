"""What a peer is: a program that can be started, and a client that speaks its protocol over raw sockets."""

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
    """A peer refused something, or broke off; the text says what it said."""


def connect(port: int) -> socket.socket:
    """A connection on the loopback interface, without Nagle's delay."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=CONNECT_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


class Lines:
    """Cuts what a connection brings at line ends: what follows the last one is kept."""

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, data: bytes) -> bytes:
        """Whole lines, as one piece; often empty."""
        data = self._kept + data
        end = data.rfind(b"\n") + 1
        self._kept = data[end:]
        return data[:end]


class Link(ABC):
    """A producer's connection."""

    answers_each: int = 1
    """Answers to one request."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    @abstractmethod
    def request(self, number: int, values: Sequence[bytes], dues_ms: Sequence[int] | None) -> bytes:
        """What brings these messages, as one request; `number` is unique among those on the way."""

    @abstractmethod
    def count(self, data: bytes) -> int:
        """How many answers end in `data`, received next. PeerError when one refuses."""


class Consumer(ABC):
    """A consumer's connection. Every message is acked as soon as it has come."""

    idle = False
    """Nothing was there: look again after a pause."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.done = 0
        """Messages received, their acks answered (or sent, where acks have no answer)."""

    @abstractmethod
    def start(self) -> bytes:
        """What asks for the first messages."""

    @abstractmethod
    def receive(self, data: bytes) -> bytes:
        """Take what came; acks, and what asks for more."""

    def finish(self) -> None:  # noqa: B027  # most have nothing left to do
        """Wait until the server has seen all acks, where they have no answer."""

    def close(self) -> None:
        self.socket.close()


class Client(ABC):
    """Speaks a peer's protocol. Each call is on a connection of its own."""

    def __init__(self, port: int) -> None:
        self.port = port

    @abstractmethod
    def ping(self) -> None:
        """OSError or PeerError unless it serves."""

    def create(self, scheduled: bool) -> None:  # noqa: B027  # some need no such thing
        """Make the topic, stream, queue or table."""

    @abstractmethod
    def link(self, at: int, size: int, scheduled: bool) -> Link:
        """The producer's connection number `at`, for requests of `size` messages."""

    @abstractmethod
    def consumer(self, messages: int, scheduled: bool, window: int) -> Consumer:
        """For so many messages, and no more; it has at most `window` that are not acked."""

    @abstractmethod
    def stored(self) -> int:
        """Messages that it holds, delayed ones too, by its own count."""

    def unconsumed(self) -> int:
        """Messages that nobody has acked, by its own count; where acked ones are gone, those that it holds."""
        return self.stored()

    def syncs(self) -> int | None:
        """Of the log, since it was started; None where it does not tell."""
        return None

    def put_paced(self, messages: int) -> bool:
        """Schedule the messages of the lateness load in the peer's own way; False: the common way serves."""
        return False


class Peer(ABC):
    """A program beside which sandq is measured."""

    name: str
    program: str
    package: str
    durability: str
    """What it has done before it answers."""
    syncs_first = True
    """Whether that is a sync to the disk."""
    notes: str
    """What it does in each load."""
    cannot: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Loads that it has nothing for, and why."""

    def executable(self) -> str | None:
        """Where the program is; None: not installed."""
        return shutil.which(self.program, path="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")

    def version(self) -> str:
        """As the program says it, one line."""
        executable = self.executable()
        if executable is None:
            return "not installed"
        return subprocess.run([executable, "--version"], capture_output=True, text=True).stdout.strip()

    def prepare(self, directory: Path) -> None:  # noqa: B027  # few need it
        """Once in a run: what every server of it needs. `directory` is its own."""

    @abstractmethod
    def serving(self, directory: Path) -> contextlib.AbstractContextManager[tuple[int, int]]:
        """A new server with its data in an empty directory: its pid and its port. It is gone at the end."""

    @abstractmethod
    def client(self, port: int) -> Client:
        """Of a server."""
