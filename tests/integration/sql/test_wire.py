"""MySQL clients work with the server: PyMySQL and SQLAlchemy here, others in `interop/`."""

from __future__ import annotations

import contextlib
import datetime
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeVar

import anyio
import pymysql
import pytest
import sqlalchemy as sa
import trio
from pymysql.cursors import SSCursor

import sandq
import sandq.testing
from sandq.client import connect_with
from sandq.client.options import Options
from sandq.sql import Budget
from sandq.sql.budget import STATEMENT_BYTES
from sandq.sql.wire import packets
from sandq.sql.wire.connection import STATEMENTS
from sandq.sql.wire.server import Server
from tests.support.certificates import Authority
from tests.support.waiting import until_holds

T = TypeVar("T")


class Served:
    """Serve SQL on a local port."""

    def __init__(self, port: int, address: str, server: Server) -> None:
        self.port = port
        self.address = address
        self.server = server

    def connect(self, **options: Any) -> Any:
        """A blocking connection of PyMySQL."""
        said = {"user": "ada", "database": "sandq", **options}
        return closing(pymysql.connect(host="127.0.0.1", port=self.port, **said))

    async def ask(self, *texts: str, **options: Any) -> Any:
        """Run statements in a thread; return the result of the last."""

        def work() -> Any:
            with self.connect(**options) as connection, connection.cursor() as cursor:
                for text in texts:
                    cursor.execute(text)
                return cursor.fetchall()

        return await trio.to_thread.run_sync(work)


@asynccontextmanager
async def served(budget: Budget | None = None, **options: Any) -> AsyncIterator[Served]:
    """Run a broker with a filled topic, and a MySQL server for it."""
    async with sandq.testing.broker() as broker:

        def connect(token: str | None) -> Any:
            return connect_with(Options(token=token), (broker.address,), "test")

        server = Server(connect, budget or Budget(), **options)
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with anyio.create_task_group() as tasks, sandq.connect(broker.address) as client:
            await client.admin.create_topic("t", partitions=2)
            for number in range(20):
                await client.produce("t", b'{"n": %d}' % number, key="k", delay=f"{number}m")
            listeners = getattr(listener, "listeners", [listener])
            await tasks.start(lambda *, task_status: server.serve(listeners, task_status=task_status))
            yield Served(port, broker.address, server)
            tasks.cancel_scope.cancel()


async def in_thread(work: Callable[[], T]) -> T:
    return await trio.to_thread.run_sync(work)


async def refused(work: Callable[[], Any]) -> tuple[int, str]:
    """Return the number and the text of the error that a client gets."""
    with pytest.raises(pymysql.Error) as caught:
        await in_thread(work)
    return caught.value.args[0], caught.value.args[1]


async def test_values_come_with_their_types() -> None:
    async with served() as sql:
        (row,) = await sql.ask(
            "SELECT topic, `partition`, deliver_at, text, value, json, size, 1.5, 1 > 0, NULL, SUM(size), "
            "CAST('2030-01-31' AS DATE) FROM messages WHERE topic = 't' AND deliver_at = '2030-01-01 00:05:00' "
            "GROUP BY topic, `partition`, deliver_at, text, value, json, size"
        )
        assert row[0] == "t" and row[1] in (0, 1) and row[2] == datetime.datetime(2030, 1, 1, 0, 5)
        assert row[3:9] == ('{"n": 5}', b'{"n": 5}', '{"n": 5}', 8, pytest.approx(1.5), 1)
        assert row[9] is None and row[10] == 8 and row[11] == datetime.date(2030, 1, 31)


async def test_large_results_are_complete_and_streamed() -> None:
    async with served() as sql:
        many = (
            "SELECT a.id, REPEAT('x', 300) FROM messages a, messages b, messages c "
            "WHERE a.topic = 't' AND b.topic = 't' AND c.topic = 't'"
        )
        rows = await sql.ask("SET sandq_allow_full_scan = 1", many)
        assert len(rows) == 8000 and all(len(row[1]) == 300 for row in rows)

        def streamed() -> int:
            with sql.connect(cursorclass=SSCursor) as connection, connection.cursor() as cursor:
                cursor.execute("SET sandq_allow_full_scan = 1")
                cursor.execute(many)
                return sum(1 for _ in cursor)

        assert await in_thread(streamed) == 8000


async def test_errors_leave_the_connection_as_it_is() -> None:
    async with served() as sql:

        def work() -> list[int]:
            numbers = []
            with sql.connect() as connection, connection.cursor() as cursor:
                for text in ("DELETE FROM messages", "SELECT * FROM nope", "SELEC", "SELECT * FROM messages"):
                    try:
                        cursor.execute(text)
                    except pymysql.Error as error:
                        numbers.append(error.args[0])
                connection.ping(reconnect=False)
                connection.select_db("z4")
                cursor.execute("SELECT DATABASE()")
                assert cursor.fetchall() == (("z4",),)
                try:
                    connection.select_db("nope")
                except pymysql.Error as error:
                    numbers.append(error.args[0])
            return numbers

        assert await in_thread(work) == [1290, 1146, 1064, 1104, 1049]


async def test_sqlalchemy_reflects_and_asks() -> None:
    async with served() as sql:

        def work() -> None:
            engine = sa.create_engine(f"mysql+pymysql://ada@127.0.0.1:{sql.port}/sandq")
            inspector = sa.inspect(engine)
            assert "messages" in inspector.get_table_names() and inspector.get_view_names() == []
            assert set(inspector.get_schema_names()) == {"sandq", "z4", "information_schema"}
            messages = sa.Table("messages", sa.MetaData(), autoload_with=engine)
            assert isinstance(messages.c.deliver_at.type, sa.DateTime) and isinstance(messages.c.json.type, sa.JSON)
            soon = datetime.datetime(2030, 1, 1, 0, 10)
            wanted = sa.select(messages.c.deliver_at, messages.c.json).where(
                messages.c.topic == "t", messages.c.deliver_at >= soon
            )
            with engine.connect() as connection:
                rows = connection.execute(wanted.order_by(messages.c.deliver_at).limit(3)).all()
                assert [row.json for row in rows] == [{"n": 10}, {"n": 11}, {"n": 12}]
                count = sa.select(sa.func.count()).select_from(wanted.subquery())
                assert connection.execute(sa.select(sa.func.count()).where(messages.c.topic == "t",
                    messages.c.deliver_at >= soon)).scalar() == 10  # fmt: skip
                assert connection.execute(count).scalar() == 10
                with pytest.raises(sa.exc.DBAPIError):
                    connection.execute(sa.delete(messages))
            engine.dispose()

        await in_thread(work)


# ------------------------------------------------------------------------------------------- who it is, TLS


async def test_a_password_is_not_taken_in_the_clear() -> None:
    async with served() as sql:
        number, text = await refused(lambda: sql.connect(password="secret").__enter__())
        assert number == 3159 and "TLS" in text


async def test_password_is_the_token_and_needs_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.node("node1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    tokens: list[str | None] = []
    async with served(tls=lambda: context, needs_tls=True) as sql:
        inner = sql.server._settings.connect

        def connect(token: str | None) -> Any:
            tokens.append(token)
            return inner(None)

        sql.server._settings.connect = connect
        client = ssl.create_default_context(cafile=authority.ca)
        client.check_hostname = False
        assert await sql.ask("SELECT 1", password="a-token", ssl=client) == ((1,),)
        assert await sql.ask("SELECT 1", ssl=client) == ((1,),)
        assert tokens == ["a-token", None]
        status = dict(await sql.ask("SHOW STATUS LIKE 'Ssl%'", ssl=client))
        assert status["Ssl_cipher"] and status["Ssl_version"].startswith("TLSv1")
        number, text = await refused(lambda: sql.connect(ssl_disabled=True).__enter__())
        assert number == 3159 and "TLS" in text


async def test_bytes_before_tls_are_not_taken_for_said_within_it(tmp_path: Path) -> None:
    pair = Authority(tmp_path).node("node1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    async with served(tls=lambda: context) as sql, await anyio.connect_tcp("127.0.0.1", sql.port) as stream:
        await stream.receive()
        can = packets.Can.PROTOCOL_41 | packets.Can.SSL
        wanted = int(can).to_bytes(4, "little") + bytes(28)
        await stream.send(b"\x20\0\0\x01" + wanted + b"\x05\0\0\0\x03SELECT")
        with pytest.raises((anyio.EndOfStream, anyio.BrokenResourceError)):  # an invalid handshake
            while True:
                answer = await stream.receive()
                assert answer[0] == 21, "an alert of TLS at most"


async def test_refused_login_is_explained() -> None:
    async with served() as sql:

        def connect(token: str | None) -> Any:
            @asynccontextmanager
            async def failing() -> AsyncIterator[Any]:
                raise sandq.errors.Unauthenticated("the token is not known")
                yield

            return failing()

        sql.server._settings.connect = connect
        assert await refused(lambda: sql.connect().__enter__()) == (1045, "the token is not known")


# ------------------------------------------------------------------------------------------ limits, leaving


_MANY = "abcdefghi"
_TOPICS = " AND ".join(f"{name}.topic = 't'" for name in _MANY)
ENDLESS = (
    f"SELECT COUNT(*) FROM {', '.join(f'messages {name}' for name in _MANY)} "
    f"WHERE {_TOPICS} AND {' + '.join(f'{name}.size' for name in _MANY)} = -1"
)


async def test_a_query_is_killed_by_its_own_user() -> None:
    async with served() as sql:
        failed: list[tuple[int, str]] = []
        async with trio.open_nursery() as nursery:

            async def endless() -> None:
                ask = sql.ask
                with pytest.raises(pymysql.Error) as caught:
                    await ask("SET sandq_allow_full_scan = 1", ENDLESS, user="endless")
                failed.append(caught.value.args)

            nursery.start_soon(endless)
            rows: Any = ()
            while not rows:
                rows = [row for row in await sql.ask("SHOW PROCESSLIST") if row[1] == "endless" and row[4] == "Query"]
            assert await refused(lambda: _kill(sql, 12345)) == (
                1094,
                "Unknown thread id: 12345; you may end only your own connections",
            )
            while not failed:
                with contextlib.suppress(pymysql.Error):  # the client has disconnected by now
                    await in_thread(lambda: _kill(sql, rows[0][0]))
                await trio.sleep(0.01)
        assert failed[0][0] == 1317


def _kill(sql: Served, number: int) -> None:
    with sql.connect() as connection, connection.cursor() as cursor:
        cursor.execute(f"KILL QUERY {number}")


async def test_a_query_ends_when_its_client_leaves() -> None:
    async with served(Budget(queries=1)) as sql:
        leaving = pymysql.connect(host="127.0.0.1", port=sql.port, user="ada", database="sandq", defer_connect=True)

        def begin() -> None:
            leaving.connect()
            with leaving.cursor() as cursor:
                cursor.execute("SET sandq_allow_full_scan = 1")
            leaving._execute_command(packets.Command.QUERY, ENDLESS)

        await in_thread(begin)
        await until_holds(lambda: any(one.doing == "Query" for one in sql.server.open_connections()))
        leaving._force_close()
        assert await sql.ask("SELECT COUNT(*) FROM topics") == ((1,),), "the only query slot must be free again"
        await until_holds(lambda: not sql.server.open_connections())


async def test_connections_and_prepared_statements_have_limits() -> None:
    async with served(connections=1) as sql:

        def work() -> tuple[int, int]:
            with sql.connect() as connection:
                with pytest.raises(pymysql.Error) as caught:
                    sql.connect().__enter__()
                for _ in range(STATEMENTS):
                    connection._execute_command(packets.Command.STMT_PREPARE, "SELECT 1")
                    for _ in range(3):
                        connection._read_packet()
                connection._execute_command(packets.Command.STMT_PREPARE, "SELECT 1")
                with pytest.raises(pymysql.Error) as too_many:
                    connection._read_packet()
                return caught.value.args[0], too_many.value.args[0]

        assert await in_thread(work) == (1040, 1461)


async def test_unauthenticated_connections_leave_slots_for_other_addresses() -> None:
    async with served(connections=8) as sql:
        silent = [await anyio.connect_tcp("127.0.0.1", sql.port) for _ in range(8)]
        greetings = [(await stream.receive())[4] for stream in silent]
        assert greetings == [10, 10, *[0xFF] * 6], "the reply must be a greeting or an error"
        number, text = await refused(lambda: sql.connect().__enter__())
        assert number == 1040 and "127.0.0.1" in text and "authenticated" in text
        async with await anyio.connect_tcp("127.0.0.1", sql.port, local_host="127.0.0.2") as other:
            assert (await other.receive())[4] == 10
        for stream in silent:
            await stream.aclose()
        await until_holds(lambda: not sql.server.open_connections())
        assert await sql.ask("SELECT 1") == ((1,),)


async def test_prepared_statements_have_a_size_together() -> None:
    async with served() as sql:

        def work() -> list[int]:
            with sql.connect() as connection:
                text, numbers = f"SELECT '{'x' * (STATEMENT_BYTES - 100)}'", []
                for _ in range(3):
                    connection._execute_command(packets.Command.STMT_PREPARE, text)
                    try:
                        for _ in range(3):
                            connection._read_packet()
                    except pymysql.Error as error:
                        numbers.append(error.args[0])
                connection.ping(reconnect=False)
                return numbers

        assert await in_thread(work) == [1461]


async def test_prepare_is_cancelled_when_the_client_disconnects() -> None:
    async with served(Budget(queries=1)) as sql:
        leaving = await in_thread(lambda: pymysql.connect(host="127.0.0.1", port=sql.port, user="ada"))
        holding = anyio.Event()
        free = anyio.Event()

        async def hold_the_only_slot() -> None:
            async with sql.server._ducks.one():
                holding.set()
                await free.wait()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hold_the_only_slot)
            await holding.wait()
            await in_thread(lambda: leaving._execute_command(packets.Command.STMT_PREPARE, "SELECT 1"))
            await until_holds(lambda: any(one.doing == "Query" for one in sql.server.open_connections()))
            leaving._force_close()
            await until_holds(lambda: not sql.server.open_connections())
            free.set()


async def test_packets_that_are_none_end_the_connection_alone() -> None:
    async with served() as sql:
        for data in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"\xff\xff\xff\x01",
            bytes(4),
            b"\x01\0\0\x07x",
            b"\x21\0\0\x01" + b"\xff" * 33,
        ):
            async with await anyio.connect_tcp("127.0.0.1", sql.port) as stream:
                await stream.receive()
                await stream.send(data)
                await stream.send_eof()
                with anyio.move_on_after(5):
                    while True:
                        try:
                            await stream.receive()
                        except (anyio.EndOfStream, anyio.BrokenResourceError):
                            break
        await until_holds(lambda: not sql.server.open_connections())
        assert await sql.ask("SELECT 1") == ((1,),)


async def test_a_statement_that_is_too_large_is_refused_by_its_length() -> None:
    async with served() as sql:
        number, _ = await refused(lambda: _one(sql, "SELECT '" + "x" * 300_000 + "'"))
        assert number == 1153
        with pytest.raises(pymysql.Error):
            await in_thread(lambda: _one(sql, "SELECT '" + "x" * 2_000_000 + "'"))
        assert await sql.ask("SELECT 1") == ((1,),)


def _one(sql: Served, text: str) -> None:
    with sql.connect() as connection, connection.cursor() as cursor:
        cursor.execute(text)


async def test_unread_results_are_limited_in_total() -> None:
    budget = Budget(result_bytes=1000, queries=2)
    async with served(budget) as sql:
        sql.server._settings.sending_bytes = 1990
        number, text = await refused(lambda: _one(sql, "SELECT 'a result of more than ten bytes'"))
        assert number == 1041 and "1,990 bytes" in text
        sql.server._settings.sending_bytes = 0
        assert await sql.ask("SELECT 1") == ((1,),)
        await until_holds(lambda: not sql.server.open_connections())
        assert sql.server._settings.sending_bytes == 0
