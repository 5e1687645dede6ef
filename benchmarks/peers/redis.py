"""Redis: a stream with a consumer group. Scheduled messages are in a sorted set; a script removes the due ones."""

from __future__ import annotations

import contextlib
import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.peers import server
from benchmarks.peers.peer import REPLY_BYTES, Client, Consumer, Lines, Link, Peer, PeerError, connect
from benchmarks.peers.workloads import VALUE_BYTES

STREAM: Final = b"bench"
DELAYED: Final = b"bench:delayed"
GROUP: Final = b"workers"
_ENTRY = re.compile(
    rb"\$\d+\r\n(\d+-\d+)\r\n\*2\r\n\$1\r\nv\r\n\$%d\r\n.{%d}\r\n|:(\d+)\r\n" % (VALUE_BYTES, VALUE_BYTES)
)
_COUNTED = re.compile(rb"(?:pending|lag)\r\n:(\d+)")
_TAKE = b"""local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ms, 'LIMIT', 0, ARGV[1])
if #due > 0 then redis.call('ZREM', KEYS[1], unpack(due)) end
return due"""
_DURABILITY = {"always": "fsync before each response", "everysec": "page cache; fsync every second"}


class Redis(Peer):
    program = "redis-server"
    package = "redis-server"

    def __init__(self, appendfsync: str) -> None:
        self.name = f"redis-{appendfsync}"
        self.durability = _DURABILITY[appendfsync]
        self.syncs_first = appendfsync == "always"
        self.notes = (
            f"append-only file, appendfsync {appendfsync}, never rewritten; a stream, two XREADGROUP in flight, one "
            "XACK with the ids of each; scheduled: ZADD to a sorted set, a script polls each ms and takes what is due"
        )
        self._appendfsync = appendfsync

    def version(self) -> str:
        return super().version().partition(" sha=")[0]

    @contextlib.contextmanager
    def serving(self, directory: Path) -> Iterator[tuple[int, int]]:
        port = server.free_port()
        settings = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--daemonize", "no")
        log = ("--appendonly", "yes", "--appendfsync", self._appendfsync, "--auto-aof-rewrite-percentage", "0")
        with server.running([str(self.executable()), *settings, *log], directory) as pid:
            server.wait_until_ready(self.client(port).ping, pid)
            yield pid, port

    def client(self, port: int) -> Client:
        return RedisClient(port)


def command(*words: bytes) -> bytes:
    """Return a command in the server's format: an array of strings."""
    return b"*%d\r\n" % len(words) + b"".join([b"$%d\r\n%s\r\n" % (len(word), word) for word in words])


class RedisClient(Client):
    def ping(self) -> None:
        self._ask(b"PING")

    def _ask(self, *words: bytes) -> bytes:
        """Send a command with a short response."""
        with connect(self.port) as connection:
            connection.sendall(command(*words))
            answer = connection.recv(REPLY_BYTES)
        if answer[:1] not in (b"+", b":", b"*"):
            raise PeerError(f"{words[0].decode()}: {answer!r}")
        return answer[1:].strip()

    def create(self, scheduled: bool) -> None:
        self._ask(b"XGROUP", b"CREATE", STREAM, GROUP, b"0", b"MKSTREAM")

    def link(self, at: int, size: int, scheduled: bool) -> Link:
        return DelayedLink(connect(self.port)) if scheduled else StreamLink(self.port, size)

    def consumer(self, messages: int, scheduled: bool, window: int) -> Consumer:
        connection = connect(self.port)
        return DelayedConsumer(connection, window) if scheduled else StreamConsumer(connection, messages, window)

    def stored(self) -> int:
        return int(self._ask(b"XLEN", STREAM)) + int(self._ask(b"ZCARD", DELAYED))

    def unconsumed(self) -> int:
        counts = _COUNTED.findall(self._ask(b"XINFO", b"GROUPS", STREAM))
        if len(counts) != 2:
            raise PeerError("XINFO GROUPS does not report pending and undelivered messages")
        return sum(map(int, counts)) + int(self._ask(b"ZCARD", DELAYED))


class StreamLink(Link):
    def __init__(self, port: int, size: int) -> None:
        super().__init__(connect(port))
        self.answers_each = size
        self._lines = Lines()

    def request(self, number: int, values: Sequence[bytes], dues_ms: Sequence[int] | None) -> bytes:
        return b"".join([command(b"XADD", STREAM, b"*", b"v", value) for value in values])

    def count(self, data: bytes) -> int:
        lines = b"\n" + self._lines.feed(data)
        check(lines)
        return lines.count(b"-")  # each reply is an id of the form number-number


class DelayedLink(Link):
    """Return one ZADD for a whole request."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._lines = Lines()

    def request(self, number: int, values: Sequence[bytes], dues_ms: Sequence[int] | None) -> bytes:
        assert dues_ms is not None
        pairs = [word for value, due_ms in zip(values, dues_ms, strict=True) for word in (b"%d" % due_ms, value)]
        return command(b"ZADD", DELAYED, *pairs)

    def count(self, data: bytes) -> int:
        lines = b"\n" + self._lines.feed(data)
        check(lines)
        return lines.count(b":")


def check(lines: bytes) -> None:
    """Raise PeerError if a reply line begins with "-"."""
    if b"\n-" in lines:
        raise PeerError(f"an answer is an error: {lines[:500]!r}")


class StreamConsumer(Consumer):
    """Keeps two reads in flight, if it may hold more than one message; acks the ids of each together with the next."""

    def __init__(self, connection: socket.socket, messages: int, window: int) -> None:
        super().__init__(connection)
        self._at_once = min(window, 2)
        self._entries = window // self._at_once
        """Return the ids of one read."""
        self._unread = messages
        self._reads: list[int] = []
        self._ids: list[bytes] = []
        self._kept = b""

    def start(self) -> bytes:
        return b"".join([self._read() for _ in range(self._at_once)])

    def _read(self) -> bytes:
        entries = min(self._entries, self._unread)
        if not entries:
            return b""
        self._unread -= entries
        self._reads.append(entries)
        return command(b"XREADGROUP", b"GROUP", GROUP, b"c", b"COUNT", b"%d" % entries, b"STREAMS", STREAM, b">")

    def receive(self, data: bytes) -> bytes:
        data = self._kept + data
        check(data[:2])
        end, out = 0, []
        for match in _ENTRY.finditer(data):
            end = match.end()
            if match[2]:
                self.done += int(match[2])
                continue
            self._ids.append(match[1])
            if len(self._ids) == self._reads[0]:
                del self._reads[0]
                out += [command(b"XACK", STREAM, GROUP, *self._ids), self._read()]
                self._ids = []
        self._kept = data[end:]
        return b"".join(out)


class DelayedConsumer(Consumer):
    """Removes and returns due messages, repeatedly."""

    def __init__(self, connection: socket.socket, window: int) -> None:
        super().__init__(connection)
        self._window = window
        self._kept = b""

    def start(self) -> bytes:
        return command(b"EVAL", _TAKE, b"1", DELAYED, b"%d" % self._window)

    def receive(self, data: bytes) -> bytes:
        self._kept += data
        check(b"\n" + self._kept)
        head, mark, body = self._kept.partition(b"\r\n")
        many = int(head[1:]) if mark else 0
        if not mark or body.count(b"\n") < 2 * many:
            return b""
        self._kept = b""
        self.done += many
        self.idle = not many
        return self.start()
