"""PostgreSQL: one table, consumers that skip rows locked by others; prepared statements over the wire protocol."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.peers import server
from benchmarks.peers.peer import REPLY_BYTES, Client, Consumer, Link, Peer, PeerError, connect

LIBRARY: Final = Path("/usr/lib/postgresql/15/bin")
USERS: Final = ("postgres", "nobody")
"""Users to run it as, because it refuses to run as root; the first existing one is used."""
_CONNECTIONS = 40
_NOW = "floor(extract(epoch from now()) * 1000)::bigint"
_PLAIN = ("CREATE TABLE bench (id bigserial PRIMARY KEY, value bytea NOT NULL)",)
_SCHEDULED = (
    "CREATE TABLE bench (id bigserial PRIMARY KEY, due bigint NOT NULL, value bytea NOT NULL)",
    "CREATE INDEX bench_due ON bench (due)",
)
_HEAD = struct.Struct(">cI")


class Postgres(Peer):
    name = "postgres"
    program = "postgres"
    package = "postgresql-15"
    durability = "fdatasync before each commit"
    notes = (
        "one table, default settings except for the connections; INSERT of 100 rows or of one, "
        "prepared, a transaction each, pipelined in the protocol; DELETE of up to the window's rows "
        "FOR UPDATE SKIP LOCKED, RETURNING, a transaction each; scheduled: an indexed due column, "
        "polled each ms"
    )

    def __init__(self) -> None:
        self._data: Path | None = None

    def executable(self) -> str | None:
        return shutil.which("postgres", path=str(LIBRARY))

    def prepare(self, directory: Path) -> None:
        """The database cluster that all servers of the run use: creating it takes seconds."""
        self._data = directory / "data"
        self._data.mkdir()
        command = []
        user = self._user()
        if user is not None:
            os.chown(self._data, *user)
            command = ["setpriv", f"--reuid={user[0]}", f"--regid={user[1]}", "--clear-groups", "--"]
        command += [str(LIBRARY / "initdb"), "-D", str(self._data)]
        command += ["-A", "trust", "-U", "postgres", "--no-locale", "-E", "UTF8"]
        made = subprocess.run(command, cwd=directory, capture_output=True, text=True)
        if made.returncode:
            raise PeerError(f"initdb: {made.stderr[-1000:]}")

    def _user(self) -> tuple[int, int] | None:
        if os.geteuid() != 0:
            return None
        for name in USERS:
            with contextlib.suppress(KeyError):
                entry = pwd.getpwnam(name)
                return entry.pw_uid, entry.pw_gid
        raise PeerError(f"it does not run as root, and there is none of the users {', '.join(USERS)}")

    @contextlib.contextmanager
    def serving(self, directory: Path) -> Iterator[tuple[int, int]]:
        port = server.free_port()
        options = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": ""}
        options |= {"max_connections": _CONNECTIONS, "fsync": "on", "synchronous_commit": "on"}
        words = [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        command = [str(self.executable()), "-D", str(self._data), *words]
        # SIGINT closes the connections without waiting for them.
        with server.running(command, directory, user=self._user(), stop=signal.SIGINT) as pid:
            server.wait_until_ready(self.client(port).ping, pid)
            yield pid, port

    def client(self, port: int) -> Client:
        return PostgresClient(port)


def message(kind: bytes, payload: bytes) -> bytes:
    return _HEAD.pack(kind, len(payload) + 4) + payload


def parse(name: str, sql: str) -> bytes:
    """Return the message that prepares a statement."""
    return message(b"P", f"{name}\0{sql}\0".encode() + b"\0\0")


def run(name: str, parameters: Sequence[bytes] = ()) -> bytes:
    """Return a prepared statement as a transaction of its own, with binary parameters and results."""
    values = b"".join([struct.pack(">I", len(one)) + one for one in parameters])
    bound = b"\0" + name.encode() + b"\0\0\1\0\1" + struct.pack(">H", len(parameters)) + values + b"\0\1\0\1"
    return message(b"B", bound) + message(b"E", b"\0\0\0\0\0") + message(b"S", b"")


class Messages:
    """Splits received bytes into messages."""

    def __init__(self) -> None:
        self._kept = b""

    def feed(self, data: bytes) -> list[tuple[bytes, bytes]]:
        """Return kinds and payloads. Raises PeerError for an error message."""
        data = self._kept + data
        at, found, head_at = 0, [], _HEAD.unpack_from
        while len(data) - at >= 5:
            kind, size = head_at(data, at)
            if len(data) - at <= size:
                break
            found.append((kind, data[at + 5 : at + 1 + size]))
            at += 1 + size
            if kind == b"E":
                raise PeerError(f"an error: {found[-1][1][:500]!r}")
        self._kept = data[at:]
        return found


class Session:
    """A connection that is logged in."""

    def __init__(self, port: int) -> None:
        self.socket = connect(port)
        self._messages = Messages()
        hello = b"\0\3\0\0user\0postgres\0database\0postgres\0\0"
        self.ask(struct.pack(">I", len(hello) + 4) + hello)

    def ask(self, request: bytes) -> list[tuple[bytes, bytes]]:
        """Return the messages until the server is ready for the next statement."""
        self.socket.sendall(request)
        found: list[tuple[bytes, bytes]] = []
        while not any(kind == b"Z" for kind, _ in found):
            data = self.socket.recv(REPLY_BYTES)
            if not data:
                raise PeerError("the server closed the connection")
            found += self._messages.feed(data)
        return found

    def query(self, sql: str) -> list[str]:
        """Return the first column of each row."""
        rows = [body for kind, body in self.ask(message(b"Q", sql.encode() + b"\0")) if kind == b"D"]
        return [row[6 : 6 + struct.unpack_from(">I", row, 2)[0]].decode() for row in rows]


class PostgresClient(Client):
    def ping(self) -> None:
        self._query("SELECT 1")

    def _query(self, *queries: str) -> list[str]:
        session = Session(self.port)
        found = [session.query(query) for query in queries]
        session.socket.close()
        return found[-1]

    def create(self, scheduled: bool) -> None:
        self._query("DROP TABLE IF EXISTS bench", *(_SCHEDULED if scheduled else _PLAIN), "CHECKPOINT")

    def link(self, at: int, size: int, scheduled: bool) -> Link:
        session = Session(self.port)
        session.ask(parse("put", insert(size, scheduled)) + message(b"S", b""))
        return PostgresLink(session.socket)

    def consumer(self, messages: int, scheduled: bool, window: int) -> Consumer:
        session = Session(self.port)
        session.ask(parse("take", take(scheduled, window)) + message(b"S", b""))
        return PostgresConsumer(session.socket)

    def stored(self) -> int:
        return int(self._query("SELECT count(*) FROM bench")[0])

    def syncs(self) -> int | None:
        return int(self._query("SELECT wal_sync FROM pg_stat_wal")[0])


def insert(size: int, scheduled: bool) -> str:
    """Return the INSERT of this many rows."""
    if scheduled:
        rows = ", ".join(f"(${2 * at + 1}, ${2 * at + 2})" for at in range(size))
        return f"INSERT INTO bench (due, value) VALUES {rows}"
    return f"INSERT INTO bench (value) VALUES {', '.join(f'(${at + 1})' for at in range(size))}"


def take(scheduled: bool, most: int) -> str:
    """Return the DELETE of the next rows, or of the next due rows, up to this number."""
    where = f"WHERE due <= {_NOW} ORDER BY due" if scheduled else "ORDER BY id"
    found = f"SELECT id FROM bench {where} FOR UPDATE SKIP LOCKED LIMIT {most}"
    return f"DELETE FROM bench WHERE id = ANY (ARRAY({found})) RETURNING value"


class PostgresLink(Link):
    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._messages = Messages()

    def request(self, number: int, values: Sequence[bytes], dues_ms: Sequence[int] | None) -> bytes:
        if dues_ms is None:
            return run("put", values)
        pairs = zip(dues_ms, values, strict=True)
        return run("put", [word for due_ms, value in pairs for word in (struct.pack(">q", due_ms), value)])

    def count(self, data: bytes) -> int:
        # A transaction ends with Z, not with the statement's C.
        return sum(kind == b"Z" for kind, _ in self._messages.feed(data))


class PostgresConsumer(Consumer):
    """Deletes and returns up to the window's rows, repeatedly."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(connection)
        self._messages = Messages()
        self._taken = 0

    def start(self) -> bytes:
        return run("take")

    def receive(self, data: bytes) -> bytes:
        for kind, payload in self._messages.feed(data):
            if kind == b"C":
                self._taken = int(payload[:-1].split()[-1])
            elif kind == b"Z":
                self.done += self._taken
                self.idle = not self._taken
                return self.start()
        self.idle = False
        return b""
