"""One connection of MySQL's protocol: greeting, authentication, then commands one after another.

While a statement runs, the connection also reads from its socket, to cancel the statement if the client disconnects.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from anyio.abc import ByteStream
from anyio.streams.tls import TLSAttribute, TLSStream
from sqlglot.dialects import MySQL
from sqlglot.errors import SqlglotError

from sandq.client import Client
from sandq.model.errors import SandqError
from sandq.model.sources import source_of
from sandq.sql.budget import STATEMENT_BYTES, Budget
from sandq.sql.caller_view import access_from_cluster
from sandq.sql.duck import Ducks
from sandq.sql.errors import (
    ACCESS_DENIED,
    NO_RESOURCES,
    NOT_SUPPORTED,
    SYNTAX,
    TLS_REQUIRED,
    TOO_LARGE,
    TOO_MANY_STATEMENTS,
    UNKNOWN,
    UNKNOWN_COMMAND,
    UNKNOWN_STATEMENT,
    WRONG_ARGUMENTS,
    SqlError,
    as_sql,
)
from sandq.sql.session import Answer, Session
from sandq.sql.variables import VERSION
from sandq.sql.wire import packets, rows
from sandq.sql.wire.packets import Can, Command, Hello, Malformed, Reader, Statement

log = logging.getLogger("sandq.sql")

PACKET_BYTES: Final = STATEMENT_BYTES * 4 + 4096
"""Maximum bytes of a packet: a statement in UTF-8."""
STATEMENTS: Final = 100
"""Maximum number of prepared statements of a connection."""
PREPARED_CHARS: Final = 2 * STATEMENT_BYTES
"""Maximum number of characters of all prepared statements of a connection."""
LONG_DATA_BYTES: Final = STATEMENT_BYTES
"""Maximum bytes of all parameters of a statement that are sent with COM_STMT_SEND_LONG_DATA."""
PASSWORD_BYTES: Final = 16 * 1024
GREETING_BYTES: Final = 64 * 1024
"""Maximum bytes of a packet from a client that has not authenticated yet."""
HELLO_S: Final = 10.0
"""Maximum time for a client to authenticate, in seconds."""
SEND_S: Final = 60.0
"""Maximum time for a client to receive one part of its rows, in seconds."""
IDLE_S: Final = 8 * 3600.0
"""Time without a command after which a connection is closed, in seconds."""
_RECEIVE: Final = 64 * 1024

Connect = Callable[[str | None], AbstractAsyncContextManager[Client]]
"""Opens a client of the cluster with this token."""


@dataclass
class Settings:
    """Settings of all connections of a server.

    `tls` returns the TLS context for the next connection. `needs_tls`: connections without TLS are refused.
    """

    connect: Connect
    ducks: Ducks
    budget: Budget
    tls: Callable[[], ssl.SSLContext] | None = None
    needs_tls: bool = False
    find: Callable[[int], Connection | None] = field(default=lambda number: None)
    """Returns the connection with this number; None if there is none."""
    connections: Callable[[], Sequence[Connection]] = field(default=tuple)
    sending_bytes: int = 0
    """Bytes of results that are being sent to clients. The limit is `result_bytes * queries` of the budget."""


class Left(Exception):
    """The client has disconnected, or is too slow."""


class Connection:
    """Serves one client: authenticates it, then runs its commands one after another."""

    def __init__(self, stream: ByteStream, number: int, settings: Settings, peer: str = "") -> None:
        self.number = number
        self.user = ""
        self.peer = peer
        self.owner = b""
        """Digest of the token. A connection may kill and list only connections with the same token."""
        self.is_authenticated = False
        """Whether the cluster has accepted the token."""
        self.doing = "Connect"
        """State of the connection for SHOW PROCESSLIST: Connect, Sleep or Query."""
        self._stream = stream
        self._settings = settings
        self._received = bytearray()
        self._sequence = 0
        self._capabilities = Can(0)
        self._session: Session | None = None
        self._statements: dict[int, Statement] = {}
        self._last_statement = 0
        self._scope = anyio.CancelScope()
        self._tls: TLSStream | None = None

    async def run(self) -> None:
        """Serve until the client disconnects, is killed, or violates the protocol."""
        with self._scope:
            try:
                await self._serve()
            except (
                Left,
                anyio.BrokenResourceError,
                anyio.ClosedResourceError,
                anyio.EndOfStream,
                ssl.SSLError,
                OSError,
            ):
                return
            except Malformed as error:
                await self._say(SqlError(WRONG_ARGUMENTS, f"Malformed packet: {error}"))

    def kill(self, *, only_query: bool) -> None:
        """Cancel the statement that runs; without `only_query`, also close the connection."""
        if self._session is not None:
            self._session.kill()
        if not only_query:
            self._scope.cancel()

    def process(self) -> tuple[Any, ...]:
        """Return the connection's row of SHOW PROCESSLIST."""
        database = None if self._session is None else self._session.database
        return (self.number, self.user, self.peer, database, self.doing, None, "", None)

    # -------------------------------------------------------------------------------------------- authentication

    async def _serve(self) -> None:
        """Authenticate the client and run its commands, until it disconnects."""
        try:
            with anyio.fail_after(HELLO_S):
                hello, token = await self._begin()
        except TimeoutError:
            return
        except SqlError as error:
            await self._say(error)
            return
        self.user = hello.user
        self.owner = b"" if token is None else hashlib.sha256(token.encode()).digest()
        try:
            async with self._session_of(hello, token) as session:
                self._session = session
                self.is_authenticated = True
                await self._send([packets.ok()])
                await self._commands(session)
        except* SandqError as group:
            first = _first(group)
            assert isinstance(first, SandqError)
            await self._say(as_sql(first))

    @asynccontextmanager
    async def _session_of(self, hello: Hello, token: str | None) -> AsyncIterator[Session]:
        """Open a client of the cluster with the token, and yield a session that uses the client."""
        async with self._settings.connect(token) as client:
            ask_access = access_from_cluster(client)
            access = await ask_access()
            yield Session(
                client,
                self._settings.ducks,
                self._settings.budget,
                database=hello.database,
                user=f"{hello.user}@{self.peer}",
                connection=self.number,
                status=self._status,
                processes=self._processes,
                ask_access=ask_access,
                owner=source_of(self.peer) if access is None else access.principal,
            )

    async def _begin(self) -> tuple[Hello, str | None]:
        """Send the greeting, start TLS if the client wants it, and return the client's hello and its token.

        The token is the password.
        """
        nonce = _nonce()
        can = packets.SERVER_CAN | (Can.SSL if self._settings.tls is not None else Can(0))
        await self._send([packets.greeting(self.number, nonce, VERSION, can)])
        hello = packets.read_hello(await self._packet(GREETING_BYTES))
        if hello.wants_tls:
            if self._settings.tls is None:
                raise SqlError(TLS_REQUIRED, "this server does not support TLS (docs/sql.md)")
            self._tls = await TLSStream.wrap(
                self._stream, server_side=True, ssl_context=self._settings.tls(), standard_compatible=False
            )
            self._stream = self._tls
            hello = packets.read_hello(await self._packet(GREETING_BYTES))
            if hello.wants_tls:
                raise Malformed("TLS within TLS")
        elif self._settings.needs_tls:
            raise SqlError(TLS_REQUIRED, "Connections using insecure transport are prohibited: connect by TLS")
        self._capabilities = hello.capabilities
        return hello, await self._password(hello, nonce)

    async def _password(self, hello: Hello, nonce: bytes) -> str | None:
        """Return the password of a client; None if it has none.

        Without TLS, a password is refused. Over TLS, ask for the password itself: the client's first reply has only a
        digest of it.
        """
        auth = hello.auth
        if hello.plugin != packets.CACHING_SHA2 and hello.plugin is not None:
            await self._send([packets.auth_switch(nonce)])
            auth = await self._packet(PASSWORD_BYTES)
        if auth in (b"", b"\0"):
            return None
        if self._tls is None:
            raise SqlError(
                TLS_REQUIRED,
                "a password is a token, which is not accepted without TLS: connect with TLS (--ssl-mode=REQUIRED), or "
                "without a password if the cluster does not require one",
            )
        await self._send([packets.FULL_AUTHENTICATION])
        password = await self._packet(PASSWORD_BYTES)
        try:
            token = password.rstrip(b"\0").decode("ascii")
        except UnicodeDecodeError:
            raise SqlError(ACCESS_DENIED, f"Access denied for user '{hello.user}': a token is ASCII") from None
        return token or None

    # --------------------------------------------------------------------------------------------- commands

    async def _commands(self, session: Session) -> None:
        """Run commands one after the other, until the client quits or sends none for `IDLE_S`."""
        while True:
            self.doing = "Sleep"
            self._sequence = 0
            with anyio.move_on_after(IDLE_S) as idle:
                data = await self._packet()
            if idle.cancelled_caught:
                return
            if not data or data[0] == Command.QUIT:
                return
            self.doing = "Query"
            try:
                await self._command(session, data[0], data[1:])
            except SqlError as error:
                await self._send([packets.error(error)])
            except (Malformed, Left):
                raise
            except SandqError as error:
                await self._send([packets.error(as_sql(error))])
            except (OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream, ssl.SSLError):
                raise
            except Exception:
                # An unexpected error in one statement must not end the connection. The log has the traceback.
                log.exception("a statement was not answered")
                await self._send(
                    [packets.error(SqlError(UNKNOWN, "an internal error of sandq; its log has the details"))]
                )

    async def _command(self, session: Session, command: int, data: bytes) -> None:
        """Execute a command of the client. Raise SqlError if there is no such command."""
        known = self._HANDLERS.get(command)
        if known is None:
            raise SqlError(UNKNOWN_COMMAND, f"Unknown command {command}")
        await known(self, session, data)

    async def _query(self, session: Session, data: bytes) -> None:
        """Run a statement, and send its rows as text."""
        table = await self._answer(session, _text(data))
        await self._send_rows(table, rows.text_rows)

    async def _answer(self, session: Session, text: str) -> Any:
        """Run a statement and return its rows in the form in which they are sent; None if it has no rows."""
        answer: Answer = await self._while_here(lambda: session.run(text))
        if answer.kill is not None:
            self._kill(*answer.kill)
        return None if answer.table is None else rows.shortened(answer.table)

    async def _while_here(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Return the result of `work`. If the client disconnects, cancel `work` and raise Left."""
        found: list[Any] = []
        failed: list[SqlError] = []
        has_left = False
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                """Wait until the client disconnects or sends something."""
                nonlocal has_left
                try:
                    if not self._received:
                        await self._receive()
                except (Left, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError):
                    has_left = True
                    tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            try:
                found.append(await work())
            except SqlError as error:
                failed.append(error)
            tasks.cancel_scope.cancel()
        if has_left:
            raise Left
        if failed:
            raise failed[0]
        return found[0]

    def _kill(self, number: int, only_query: bool) -> None:
        """Cancel the statement of a connection with the same token, or close that connection."""
        other = self._settings.find(number)
        if other is None or not hmac.compare_digest(other.owner, self.owner):
            raise SqlError(1094, f"Unknown thread id: {number}; you may end only your own connections")
        other.kill(only_query=only_query)

    async def _send_rows(self, table: Any, encode: Callable[[Any], Any]) -> None:
        """Send the rows of a result; OK if `table` is None.

        Raise SqlError if results of too many bytes are being sent at the same time. A single result is always accepted.
        """
        if table is None:
            await self._send([packets.ok()])
            return
        settings, size = self._settings, table.nbytes
        most = settings.budget.result_bytes * settings.budget.queries
        if settings.sending_bytes and settings.sending_bytes + size > most:
            raise SqlError(
                NO_RESOURCES,
                f"results of {settings.sending_bytes:,} bytes are still being sent to clients: try again later",
            )
        settings.sending_bytes += size
        try:
            await self._send_table(table, encode)
        finally:
            settings.sending_bytes -= size

    async def _send_table(self, table: Any, encode: Callable[[Any], Any]) -> None:
        """Send the definitions of columns, the rows in batches, and the end."""
        ends = not self._capabilities & Can.DEPRECATE_EOF
        columns = rows.columns_of(table.schema)
        head = [packets.lenenc(len(columns)), *[column.definition() for column in columns]]
        await self._send([*head, packets.eof()] if ends else head)
        for payloads in encode(table):
            await self._send(payloads)
        await self._send([packets.eof() if ends else packets.ok(is_end=True)])

    async def _init_db(self, session: Session, data: bytes) -> None:
        """Change the default database."""
        session.use(_text(data))
        await self._send([packets.ok()])

    async def _ping(self, session: Session, data: bytes) -> None:
        """Send OK."""
        await self._send([packets.ok()])

    async def _reset(self, session: Session, data: bytes) -> None:
        """Reset the session, and drop its prepared statements."""
        session.reset()
        self._statements.clear()
        await self._send([packets.ok()])

    async def _statistics(self, session: Session, data: bytes) -> None:
        """Send the number of connections."""
        await self._send([f"Threads: {len(self._settings.connections())}".encode()])

    async def _process_kill(self, session: Session, data: bytes) -> None:
        """End another connection."""
        self._kill(Reader(data).number(4), False)
        await self._send([packets.ok()])

    async def _set_option(self, session: Session, data: bytes) -> None:
        """Accept that each request has one statement; refuse several statements in one request."""
        if Reader(data).number(2) == 0:
            raise SqlError(NOT_SUPPORTED, "several statements in one request are not supported")
        await self._send([packets.eof()])

    async def _field_list(self, session: Session, data: bytes) -> None:
        """Send the definitions of a table's columns (COM_FIELD_LIST)."""
        table = _text(Reader(data).until_null()).replace("`", "")
        answer: Answer = await self._while_here(lambda: session.run(f"SELECT * FROM `{table}` LIMIT 0"))
        columns = rows.columns_of(rows.shortened(answer.table).schema)
        await self._send([*[column.definition() + b"\xfb" for column in columns], packets.eof()])

    # ----------------------------------------------------------------------------------- prepared statements

    async def _prepare(self, session: Session, data: bytes) -> None:
        """Store a statement, and send its number and the definitions of its parameters and columns."""
        if len(self._statements) >= STATEMENTS:
            raise SqlError(TOO_MANY_STATEMENTS, f"more than {STATEMENTS} prepared statements: close some")
        held = sum(statement.chars for statement in self._statements.values())
        if held and held + len(data) > PREPARED_CHARS:
            raise SqlError(
                TOO_MANY_STATEMENTS, f"prepared statements of more than {PREPARED_CHARS:,} characters: close some"
            )
        self._last_statement += 1
        statement = Statement(self._last_statement, parts_of(_text(data)))
        columns = await self._columns(session, statement)
        self._statements[statement.number] = statement
        ends = [] if self._capabilities & Can.DEPRECATE_EOF else [packets.eof()]
        found = [packets.prepared(statement.number, len(columns), statement.parameters)]
        if statement.parameters:
            parameter = packets.column("?", packets.Type.VAR_STRING, packets.UTF8MB4, 65535, 0)
            found += [parameter] * statement.parameters + ends
        if columns:
            found += [column.definition() for column in columns] + ends
        await self._send(found)

    async def _columns(self, session: Session, statement: Statement) -> list[rows.WireColumn]:
        """Return the columns of a statement, with NULL for each parameter; [] if they depend on the parameters."""
        text = _joined(statement, [None] * statement.parameters)
        schema = await self._while_here(lambda: session.columns(text))
        return [] if schema is None else rows.columns_of(schema)

    def _statement(self, reader: Reader) -> Statement:
        """Return the prepared statement whose number is next in the request."""
        number = reader.number(4)
        statement = self._statements.get(number)
        if statement is None:
            raise SqlError(UNKNOWN_STATEMENT, f"Unknown prepared statement handler ({number})")
        return statement

    async def _execute(self, session: Session, data: bytes) -> None:
        """Run a prepared statement with the parameters in the request."""
        reader = Reader(data)
        statement = self._statement(reader)
        text = _joined(statement, packets.read_execute(statement, reader))
        statement.long_data.clear()
        await self._send_rows(await self._answer(session, text), rows.binary_rows)

    async def _long_data(self, session: Session, data: bytes) -> None:
        """Store a part of a parameter. This command has no reply, so errors are reported at the execution."""
        reader = Reader(data)
        statement = self._statements.get(reader.number(4))
        parameter = reader.number(2)
        if statement is None or parameter >= statement.parameters:
            return
        held = sum(map(len, statement.long_data.values()))
        if held + reader.left > LONG_DATA_BYTES:
            raise Malformed(f"parameters of more than {LONG_DATA_BYTES} bytes")
        statement.long_data.setdefault(parameter, bytearray()).extend(reader.rest())

    async def _close(self, session: Session, data: bytes) -> None:
        """Forget a prepared statement."""
        self._statements.pop(Reader(data).number(4), None)

    async def _reset_statement(self, session: Session, data: bytes) -> None:
        """Drop the long parameters of a prepared statement."""
        self._statement(Reader(data)).long_data.clear()
        await self._send([packets.ok()])

    _HANDLERS: Final[dict[int, Callable[[Connection, Session, bytes], Awaitable[None]]]] = {
        Command.QUERY: _query,
        Command.INIT_DB: _init_db,
        Command.PING: _ping,
        Command.RESET_CONNECTION: _reset,
        Command.STATISTICS: _statistics,
        Command.PROCESS_KILL: _process_kill,
        Command.SET_OPTION: _set_option,
        Command.FIELD_LIST: _field_list,
        Command.STMT_PREPARE: _prepare,
        Command.STMT_EXECUTE: _execute,
        Command.STMT_SEND_LONG_DATA: _long_data,
        Command.STMT_CLOSE: _close,
        Command.STMT_RESET: _reset_statement,
    }

    # ---------------------------------------------------------------------------------------------- packets

    async def _packet(self, most: int = PACKET_BYTES) -> bytes:
        """Return the next payload. Raises Malformed, or Left if the client disconnects or the packet is too large."""
        found = b""
        while True:
            await self._have(4)
            length = int.from_bytes(self._received[:3], "little")
            if len(found) + length > most:
                await self._say(SqlError(TOO_LARGE, f"the packet is too large; the limit is {most:,} bytes"))
                raise Left
            sequence = self._received[3]
            if sequence != self._sequence:
                raise Malformed(f"packet {self._sequence} is expected, not {sequence}")
            self._sequence = sequence + 1 & 0xFF
            await self._have(4 + length)
            found += bytes(self._received[4 : 4 + length])
            del self._received[: 4 + length]
            if length < packets.MAX_PAYLOAD:
                return found

    async def _have(self, count: int) -> None:
        """Receive until the buffer has at least `count` bytes."""
        while len(self._received) < count:
            # Until the client is authenticated, read no more than the packet: the next bytes may belong to TLS.
            await self._receive(_RECEIVE if self._session is not None else count - len(self._received))

    async def _receive(self, most: int = _RECEIVE) -> None:
        """Receive further bytes. Raise Left if the client has disconnected."""
        try:
            self._received += await self._stream.receive(most)
        except anyio.EndOfStream:
            raise Left from None

    async def _send(self, payloads: Sequence[bytes]) -> None:
        """Send packets. Raise Left if the client does not accept them within `SEND_S`."""
        data, self._sequence = rows.framed(list(payloads), self._sequence)
        with anyio.move_on_after(SEND_S) as slow:
            await self._stream.send(data)
        if slow.cancelled_caught:
            raise Left

    async def _say(self, error: SqlError) -> None:
        """Send an error before the connection is closed; ignore that the client may have disconnected."""
        try:
            await self._send([packets.error(error)])
        except (Left, OSError, anyio.BrokenResourceError, anyio.ClosedResourceError, ssl.SSLError):
            return

    def _status(self) -> Sequence[tuple[str, str]]:
        """Return the rows of SHOW STATUS."""
        cipher = version = ""
        if self._tls is not None:
            found = self._tls.extra(TLSAttribute.cipher)
            cipher, version = found[0], found[1]
        return [
            ("Ssl_cipher", cipher),
            ("Ssl_version", version),
            ("Threads_connected", str(len(self._settings.connections()))),
        ]

    def _processes(self) -> list[tuple[Any, ...]]:
        """Return the rows of SHOW PROCESSLIST: the connections with the same token."""
        return [one.process() for one in self._settings.connections() if hmac.compare_digest(one.owner, self.owner)]


def _nonce() -> bytes:
    """Return random bytes without zeros, because a zero would end the nonce in the greeting."""
    return bytes(byte % 255 + 1 for byte in secrets.token_bytes(packets.NONCE_BYTES))


def _text(data: bytes) -> str:
    """Return the text of a statement. Raise SqlError if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SqlError(SYNTAX, "the statement is not UTF-8") from None


def parts_of(text: str) -> tuple[str, ...]:
    """Return the parts of a statement between its parameters (?). Raises SqlError."""
    if len(text) > STATEMENT_BYTES:
        raise SqlError(
            TOO_LARGE, f"the statement has {len(text):,} characters; at most {STATEMENT_BYTES:,} are allowed"
        )
    try:
        tokens = MySQL().tokenize(text)
    except SqlglotError as error:
        raise SqlError(SYNTAX, f"You have an error in your SQL syntax: {error}") from None
    found, start = [], 0
    for token in tokens:
        if token.token_type.name == "PLACEHOLDER":
            found.append(text[start : token.start])
            start = token.end + 1
    return (*found, text[start:])


def _joined(statement: Statement, values: Sequence[Any]) -> str:
    """Return the text of a prepared statement with these values as literals."""
    parts = [statement.parts[0]]
    for value, part in zip(values, statement.parts[1:], strict=True):
        parts += [packets.literal(value), part]
    return "".join(parts)


def _first(group: BaseExceptionGroup[Any]) -> BaseException:
    """Return the first error in a group, and in the groups within it."""
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
