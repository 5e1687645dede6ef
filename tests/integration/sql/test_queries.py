"""SQL over a broker: the content of tables, the requests to the cluster, and refused statements."""

from __future__ import annotations

import datetime
import random
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import sandq
import sandq.testing
from sandq.errors import SandqError, UnknownTopic
from sandq.sql import Budget, Ducks, Session, SqlError
from sandq.sql.bounds import Bounds
from sandq.sql.budget import Held
from sandq.sql.caller_view import CallerView
from sandq.sql.duck import Duck
from sandq.sql.errors import NOT_SUPPORTED, SYNTAX, TIMED_OUT, TOO_BIG_SELECT, UNKNOWN_COLUMN, UNKNOWN_TABLE
from sandq.sql.readers import read
from sandq.sql.scan import Scan
from sandq.sql.schema import MESSAGES
from tests.support.examples import seeds

NOW = datetime.datetime(2030, 1, 1)


class Bench:
    """A broker with a fixed clock, a client of it, and a session."""

    def __init__(self, client: sandq.Client, ducks: Ducks, broker: sandq.testing.AsyncBroker) -> None:
        self.client = client
        self.broker = broker
        self.session = Session(client, ducks, Budget(), now=lambda: NOW)

    async def rows(self, text: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (await self.session.run(text)).table.to_pylist()
        return found

    async def column(self, text: str) -> list[Any]:
        """The first column's cells."""
        return [next(iter(row.values())) for row in await self.rows(text)]

    async def refused(self, text: str) -> SqlError:
        with pytest.raises(SqlError) as caught:
            await self.session.run(text)
        return caught.value


@asynccontextmanager
async def benched() -> AsyncIterator[Bench]:
    async with sandq.testing.broker() as broker, sandq.connect(broker.address) as client:
        ducks = Ducks(Budget())
        yield Bench(client, ducks, broker)
        ducks.close()


async def filled(bench: Bench, kind: str = "timer", count: int = 60, seed: int = 0) -> None:
    """Fill topic `t` with messages of all kinds, in all states."""
    chance = random.Random(seed)
    settings: dict[str, Any] = {"delete_on_ack": False, "retention": "7d"}
    await bench.client.admin.create_topic("t", kind=kind, partitions=3, **settings)
    pairs = set[tuple[bytes, str]]()
    for number in range(count):
        key = chance.choice([None, b"ada", b"adam", b"\xff\x00", "köln".encode()])
        options: dict[str, Any] = {"delay": f"{chance.choice([0, 0, 1, 2, 3])}h"}
        if key is not None:
            options["key"] = key
            pair = key, f"u{number % 13}"
            if kind != "fair" and chance.random() < 0.5 and pair not in pairs:
                pairs.add(pair)
                options["unique_key"] = pair[1]
        elif kind != "fair" and chance.random() < 0.5:
            options["unique_key"] = f"u{number}"
        if kind in ("priority", "fair"):
            options["priority"] = chance.randrange(3)
        if kind == "fair":
            options["tenant"] = chance.choice(["a", "b"])
        value = chance.choice([b'{"n": %d}' % number, b"text %d" % number, b"\xff%d" % number])
        id = await bench.client.produce("t", value, headers=chance.choice([None, {"h": number}]), **options)
        if options["delay"] != "0h" and chance.random() < 0.3:
            await bench.client.messages("t").move(id, delay=f"{chance.choice([1, 4])}h")
    leases = bench.client.leases("t", "g")
    taken = await leases.take(12)
    await leases.ack(taken[:4])
    for one in taken[4:6]:
        await leases.nack([one], error="it did not work")
    for one in taken[6:8]:
        await leases.dead([one], error="never")


# ------------------------------------------------------------------------------------------------ messages


async def test_a_message_is_found_by_its_id() -> None:
    async with benched() as bench:
        await bench.client.admin.create_topic("t", partitions=3)
        id = await bench.client.produce(
            "t", b'{"who": "ada"}', key="k", headers={"a": 1, "b": b"\xff"}, delay="1h", ttl="2h"
        )
        (row,) = await bench.rows(f"SELECT * FROM messages WHERE topic = 't' AND id = '{id}'")
        assert row["deliver_at"] == row["due_at"] == NOW + datetime.timedelta(hours=1)
        assert (row["topic"], row["id"], row["offset"], row["state"]) == ("t", id, id, "delayed")
        assert (row["key"], row["key_bytes"], row["text"]) == ("k", b"k", '{"who": "ada"}')
        assert row["json"] == '{"who": "ada"}' and row["headers"] == '{"a": 1, "b": {"base64": "/w=="}}'
        assert (row["ttl_ms"], row["size"], row["moves"], row["moved_at"]) == (7_200_000, 14, 0, None)
        assert (row["max_attempts"], row["backoff"]) == (None, None)
        moved = await bench.client.messages("t").move(id, delay="2h")
        (row,) = await bench.rows(f"SELECT * FROM messages WHERE topic = 't' AND id = '{id}'")
        assert (row["offset"], row["moves"]) == (moved, 1)
        assert row["deliver_at"] - row["due_at"] == datetime.timedelta(hours=1)
        assert await bench.rows("SELECT * FROM messages WHERE topic = 't' AND id = 'no such id'") == []


@pytest.mark.parametrize("column", ["", ", state"])
async def test_a_message_shows_its_own_rules(column: str) -> None:
    """Without the state, whole pages of the log are read."""
    async with benched() as bench:
        await bench.client.admin.create_topic("t")
        await bench.client.produce("t", "a", delay="1h", max_attempts=20, backoff={"kind": "fixed", "first": "90s"})
        await bench.client.produce("t", "b", delay="2h", max_attempts="none")
        await bench.client.produce("t", "c", delay="3h", cost=1200)
        query = f"SELECT max_attempts, backoff->>'$.first' AS first, cost{column} FROM messages WHERE topic = 't'"
        rows = await bench.rows(f"{query} ORDER BY deliver_at LIMIT 9")
        found = [(row["max_attempts"], row["first"], row["cost"]) for row in rows]
        assert found == [(20, "1m30s", 1), (0, None, 1), (None, None, 1200)]


CONDITIONS = (
    "deliver_at > '2030-01-01 01:00:00'",
    "deliver_at >= '2030-01-01 01:00:00'",
    "deliver_at < '2030-01-01 02:00:00'",
    "deliver_at = '2030-01-01 02:00:00'",
    "deliver_at BETWEEN '2030-01-01 00:00:00' AND '2030-01-01 02:00:00'",
    "deliver_at IN ('2030-01-01 01:00:00', '2030-01-01 03:00:00')",
    "NOT deliver_at > '2030-01-01 01:00:00'",
    "deliver_at < '2030-01-01 01:00:00' OR deliver_at > '2030-01-01 02:00:00'",
    "deliver_at > '2030-01-01 00:59:59.999500'",
    '"partition" = 1',
    '"partition" IN (0, 2)',
    '"partition" <> 1',
    "\"key\" = 'ada'",
    "\"key\" LIKE 'ada%'",
    "\"key\" NOT LIKE 'ada%'",
    '"key" IS NULL',
    "\"key\" IN ('ada', 'köln')",
    '"key" = \'ada\' OR "partition" = 0',
    "unique_key = 'u7'",
    "unique_key = 'u1'",
    "unique_key IN ('u1', 'u3', 'u17')",
    "unique_key LIKE 'u1%'",
    "unique_key = 'u3' AND \"key\" = 'ada'",
    "unique_key IN ('u1', 'u3') AND \"key\" IN ('adam', 'köln')",
    "unique_key = 'u3' AND \"key\" LIKE 'ada%'",
    "state = 'delayed'",
    "state = 'ready'",
    "state IN ('leased', 'waiting')",
    "state <> 'delayed'",
    "state = 'dead' OR state = 'acked'",
    "state = 'no such state'",
    "text LIKE 'text%'",
    "size > 7",
    "moves > 0",
    "due_at = deliver_at",
    "priority >= 1",
    "tenant = 'a'",
    "\"offset\" >= '{offset}'",
    "\"offset\" < '{offset}'",
    "\"offset\" = '{offset}'",
    "\"offset\" BETWEEN '{offset}' AND '{other}'",
    "id = '{offset}'",
    "id IN ('{offset}', '{other}')",
    "id > '{offset}'",
    "topic = 't'",
    "topic > 's'",
    "created_at <= '2030-01-01'",
)
WANTED = (
    ("id", '"offset"'),
    ("id", "state", "moves"),
    ("id", "headers", "json", "due_at"),
    ("*",),
)


@pytest.mark.parametrize("kind", ["timer", "fair", "priority"])
@pytest.mark.parametrize("seed", seeds(1, 20))
async def test_pushed_down_conditions_lose_no_rows(kind: str, seed: int) -> None:
    """A query returns the rows that DuckDB finds among all rows, whichever conditions of WHERE were pushed down."""
    chance = random.Random(f"{kind} {seed}")
    async with benched() as bench:
        await filled(bench, kind, seed=seed)
        columns = tuple(
            column.name for column in MESSAGES.columns if column.made_of is None or column.name == "headers"
        )
        everything = await read(CallerView(bench.client, None), Scan(MESSAGES, Bounds(), columns), Held(Budget()))
        assert everything.num_rows >= 50
        offsets = everything["offset"].to_pylist()
        duck = Duck(Budget())
        await bench.session.run("SET sandq_allow_full_scan = 1")
        await bench.session.run("SET sql_mode = 'ANSI_QUOTES'")
        for _ in range(40):
            places = {"offset": chance.choice(offsets), "other": chance.choice(offsets)}
            parts = [part.format(**places) for part in chance.sample(CONDITIONS, chance.choice([1, 1, 2, 3]))]
            where = " AND ".join(f"({part})" for part in parts)
            wanted = ", ".join(chance.choice(WANTED))
            reference = duck.run(f'SELECT id FROM "m" WHERE {where}', {"m": everything})
            asked = f"SELECT {wanted} FROM messages WHERE {where}".replace('"', "`")
            found = (await bench.session.run(asked)).table
            assert sorted(found["id"].to_pylist()) == sorted(reference["id"].to_pylist()), (kind, seed, asked)
            if wanted == "*":  # the cells must be equal for both requests
                same = dict(zip(everything["id"].to_pylist(), everything.to_pylist(), strict=True))
                for row in found.to_pylist():
                    expected = same[row["id"]]
                    assert {name: row[name] for name in expected} == expected, (kind, seed, asked)
            if chance.random() < 0.7:
                continue
            most = chance.choice([1, 3, 7])
            few = (await bench.session.run(f"{asked} LIMIT {most}")).table["id"].to_pylist()
            assert len(few) == min(most, found.num_rows) and set(few) <= set(found["id"].to_pylist()), asked
            timed = await bench.session.run(f"{asked} ORDER BY deliver_at LIMIT {most}")
            ordered = duck.run(
                f'SELECT deliver_at FROM "m" WHERE {where} ORDER BY deliver_at LIMIT {most}', {"m": everything}
            )["deliver_at"].to_pylist()
            same_times = dict(zip(everything["id"].to_pylist(), everything["deliver_at"].to_pylist(), strict=True))
            assert [same_times[id] for id in timed.table["id"].to_pylist()] == ordered, (kind, seed, asked)


async def test_unique_keys_of_messages_with_and_without_keys() -> None:
    async with benched() as bench:
        client = bench.client
        await client.admin.create_topic("t", partitions=3)
        for key in ("ada", "bob", b"\xff", None):
            await client.produce("t", b"v", delay="1h", unique_key="i", **({} if key is None else {"key": key}))
        await client.produce("t", b"v", delay="1h", unique_key="i2")
        of = "SELECT key_bytes FROM messages WHERE topic = 't' AND unique_key"
        assert {*await bench.column(f"{of} = 'i'")} == {None, b"ada", b"bob", b"\xff"}
        assert await bench.column(f"{of} = 'i' AND `key` = 'bob'") == [b"bob"]
        assert await bench.column(f"{of} = 'i' AND `key` = 'eve'") == []
        assert len(await bench.column(f"{of} IN ('i', 'i2', '')")) == 5
        assert await bench.column(f"{of} = '{'x' * 2000}'") == []
        assert await bench.column(f"{of} = 'i' AND `key` = '{'x' * 70_000}'") == []
        assert len(await bench.column(f"{of} = 'i' LIMIT 3")) == 3
        for condition, request in (("`key` = 'bob'", "GET"), ("true", "GET, LIST")):
            (row,) = await bench.rows(f"EXPLAIN {of} = 'i' AND {condition}")
            assert row["request"] == request
        # A group still knows the id of a message that the log has released.
        await client.produce("t", b"now", unique_key="kept")
        leases = client.leases("t", "g")
        await leases.nack(await leases.take(1), delay="2h")
        assert await bench.column(f"{of} = 'kept'") == [None]


async def test_limits_are_enough_only_where_nothing_else_is_asked() -> None:
    async with benched() as bench:
        await filled(bench)
        assert len(await bench.rows("SELECT id FROM messages LIMIT 7")) == 7
        assert len(await bench.rows("SELECT id FROM messages WHERE topic = 't' LIMIT 5 OFFSET 3")) == 5
        times = await bench.column("SELECT deliver_at FROM messages WHERE topic = 't' ORDER BY deliver_at LIMIT 30")
        assert times == sorted(times) and times[0] == NOW
        assert await bench.rows("SELECT id FROM messages LIMIT 0") == []
        for condition in ("text LIKE '%7%'", "`key` = 'ada'", "state <> 'ready'", "deliver_at IS NOT NULL"):
            error = await bench.refused(f"SELECT id FROM messages WHERE topic = 't' AND {condition} LIMIT 5")
            assert error.number == TOO_BIG_SELECT, condition
        for query in (
            "SELECT COUNT(*) FROM messages LIMIT 1",
            "SELECT DISTINCT state FROM messages WHERE topic = 't' LIMIT 1",
            "SELECT id FROM messages WHERE topic = 't' ORDER BY size LIMIT 1",
            "SELECT id FROM messages WHERE topic = 't' ORDER BY deliver_at DESC LIMIT 1",
            "SELECT a.id FROM messages a JOIN messages b ON a.id = b.id WHERE a.topic = 't' LIMIT 1",
            "SELECT state, COUNT(*) FROM messages WHERE topic = 't' GROUP BY state LIMIT 1",
            "SELECT id FROM (SELECT * FROM messages WHERE topic = 't') m LIMIT 1",
        ):
            assert (await bench.refused(query)).number == TOO_BIG_SELECT, query


async def test_a_limit_is_of_the_rows_that_are_asked_for_and_of_no_others() -> None:
    async with benched() as bench:
        await bench.client.admin.create_topic("t", delete_on_ack=False)
        for number in range(30):  # all messages of one millisecond
            await bench.client.produce("t", b"%d" % number, delay="1h")
        await bench.client.produce("t", b"later", delay="2h")
        await bench.client.produce("t", b"last", delay="3h")
        offsets = await bench.column("SELECT `offset` FROM messages WHERE topic = 't' ORDER BY `offset` LIMIT 50")
        of_t = "FROM messages WHERE topic = 't' AND"
        for wanted in ("id", "id, state"):
            after = f"SELECT {wanted} {of_t} `offset` > '{offsets[19]}' ORDER BY `offset` LIMIT 5"
            assert await bench.column(after) == offsets[20:25]
            before = f"SELECT {wanted} {of_t} `offset` < '{offsets[3]}' LIMIT 5"
            assert sorted(await bench.column(before)) == offsets[:3]
            between = f"SELECT {wanted} {of_t} `offset` BETWEEN '{offsets[4]}' AND '{offsets[6]}' LIMIT 9"
            assert sorted(await bench.column(between)) == offsets[4:7]
        await bench.session.run("SET sandq_allow_full_scan = 1")
        assert await bench.column(f"SELECT id {of_t} id > '{offsets[29]}' LIMIT 1") == [offsets[30]]
        times = "'2030-01-01 01:00:00', '2030-01-01 03:00:00'"
        assert len(await bench.column(f"SELECT id {of_t} deliver_at IN ({times}) LIMIT 31")) == 31
        both = f"SELECT * {of_t} id = '{offsets[3]}' AND id > '{offsets[4]}'"
        assert await bench.rows(both) == []
        flipped = "SELECT -UNIX_TIMESTAMP(deliver_at) AS deliver_at, text FROM messages WHERE topic = 't'"
        assert [row["text"] for row in await bench.rows(f"{flipped} ORDER BY deliver_at LIMIT 2")] == ["last", "later"]


async def test_a_dead_message_is_found_among_those_that_are_not() -> None:
    async with benched() as bench:
        await bench.client.admin.create_topic("t", delete_on_ack=False)
        for number in range(9):
            await bench.client.produce("t", b"%d" % number)
        leases = bench.client.leases("t", "g")
        taken = await leases.take(9)
        await leases.dead([taken[8]])
        await bench.session.run("SET sandq_allow_full_scan = 1")
        states = await bench.column("SELECT state FROM messages WHERE topic = 't' AND state = 'dead' LIMIT 1")
        assert states == ["dead"]


async def test_names_of_with_clauses_resolve_as_in_mysql() -> None:
    async with benched() as bench:
        await filled(bench, count=10)
        bounded = "SELECT id, topic FROM messages WHERE topic = 't' AND deliver_at >= NOW()"
        assert await bench.column(f"WITH messages AS ({bounded}) SELECT COUNT(*) FROM messages") == [10]
        assert await bench.column(f"WITH t0 AS (SELECT 'x' AS topic) SELECT COUNT(*) FROM ({bounded}) m") == [10]
        assert await bench.column(f"WITH a AS ({bounded}), b AS (SELECT * FROM a) SELECT COUNT(*) FROM b") == [10]
        for name in ("duckdb_columns", "duckdb_settings", "sqlite_master", "pragma_database_list"):
            for query in (
                f"WITH {name} AS (SELECT * FROM {name}) SELECT * FROM {name}",
                f"WITH a AS (SELECT * FROM {name}), {name} AS (SELECT 1) SELECT * FROM a",
            ):
                assert (await bench.refused(query)).number == UNKNOWN_TABLE, query


async def test_join_conditions_bound_a_table_only_if_valid() -> None:
    async with benched() as bench:
        await bench.client.admin.create_topic("a", partitions=2)
        await bench.client.admin.create_topic("b")
        left = "SELECT topics.topic FROM topics LEFT JOIN partitions p ON topics.topic = p.topic AND topics.topic = 'a'"
        assert sorted(set(await bench.column(left))) == ["a", "b"]
        assert await bench.column("SELECT COUNT(*) FROM topics STRAIGHT_JOIN partitions USING (topic)") == [3]
        # A natural join uses all common columns, also those that the query does not name: topic, messages,
        # bytes and more.
        assert await bench.column("SELECT COUNT(*) FROM topics NATURAL JOIN partitions") == [3]
        for kind in ("ANTI", "SEMI", "ASOF"):
            query = f"SELECT topics.topic FROM topics {kind} JOIN nodes ON topics.topic = 'a'"
            assert (await bench.refused(query)).number == NOT_SUPPORTED, kind


async def test_comparison_with_another_type_sets_no_bound() -> None:
    async with benched() as bench:
        await bench.client.admin.create_topic("kv", kind="compacted")
        await bench.client.kv("kv").put("5", b"x")
        await bench.session.run("SET sandq_allow_full_scan = 1")
        assert await bench.column("SELECT `key` FROM `keys` WHERE topic = 'kv' AND `key` = 5") == ["5"]
        await bench.client.admin.create_topic("t")
        await bench.client.produce("t", b"x", delay="1h")
        for bound in ("deliver_at < 'infinity'", "deliver_at > '-infinity'", "deliver_at > CAST('2030-01-01' AS DATE)"):
            assert await bench.column(f"SELECT COUNT(*) FROM messages WHERE topic = 't' AND {bound}") == [1], bound


async def test_an_offset_of_one_partition_bounds_the_others() -> None:
    async with benched() as bench:
        await bench.client.admin.create_topic("t", partitions=3)
        at = NOW.replace(tzinfo=datetime.UTC) + datetime.timedelta(hours=1)
        await bench.client.produce_many("t", [{"value": b"%d" % number, "deliver_at": at} for number in range(30)])
        of_t = "SELECT `offset` FROM messages WHERE topic = 't'"
        offsets = await bench.column(f"{of_t} ORDER BY `offset` LIMIT 50")
        assert len(offsets) == 30
        for place in (0, 7, 8, 9, 28, 29):
            for comparison, expected in ((">", offsets[place + 1 :]), (">=", offsets[place:])):
                asked = f"{of_t} AND `offset` {comparison} '{offsets[place]}'"
                assert sorted(await bench.column(asked)) == expected, (place, comparison)
                assert await bench.column(f"{asked} ORDER BY `offset` LIMIT 4") == expected[:4]
            assert sorted(await bench.column(f"{of_t} AND `offset` < '{offsets[place]}'")) == offsets[:place]
            assert await bench.column(f"{of_t} AND `offset` = '{offsets[place]}'") == [offsets[place]]


async def test_condition_that_is_never_true_returns_no_rows() -> None:
    async with benched() as bench:
        await bench.client.admin.create_topic("t")
        for query in (
            "SELECT id FROM leases WHERE topic = 't' AND deliver_at = NULL",
            "SELECT id FROM dead_letters WHERE topic = 't' AND dead_at IN (NULL)",
            "SELECT id FROM messages WHERE topic = 't' AND `offset` > '7ZZZZZZZZZZZZZZZZZZZZZZZZZ' LIMIT 1",
        ):
            assert await bench.rows(query) == [], query
        assert (await bench.refused("SHOW CREATE")).number == SYNTAX


async def test_functions_answer_as_mysql_does() -> None:
    async with benched() as bench:
        for expression, value in (
            ("LENGTH('köln')", 5),
            ("CHAR_LENGTH('köln')", 4),
            ("OCTET_LENGTH('köln')", 5),
            (r"'axb' LIKE 'a\_b'", False),
            (r"'a_b' LIKE 'a\_b'", True),
            ("'a|b' LIKE 'a||b' ESCAPE '|'", True),
            ("1 / 0", None),
            ("1 % 0", None),
            ("1 DIV 0", None),
            ("7 DIV 2", 3),
            ("TIMESTAMPDIFF(HOUR, '2030-01-01 10:59:00', '2030-01-01 11:01:00')", 0),
            ("TIMESTAMPDIFF(DAY, '2030-01-03', '2030-01-01')", -2),
            ("SUBSTRING_INDEX('a.b.c', '.', 2)", "a.b"),
            ("SUBSTRING_INDEX(SUBSTRING_INDEX('a.b.c', '.', 2), '.', -1)", "b"),
        ):
            assert await bench.column(f"SELECT {expression}") == [value], expression
        found = await bench.column(r"SHOW TABLES LIKE 'dead\_letters'")
        assert found == ["dead_letters"]


async def test_a_statement_that_becomes_too_large_is_refused_at_once() -> None:
    async with benched() as bench:
        for query in (
            "SELECT " + "CHAR(" * 28 + "1" + ")" * 28,
            "SELECT " + "GREATEST(" * 28 + "1" + ", 2)" * 28,
            "SELECT " + "SUBSTRING_INDEX(" * 28 + "'a'" + ", '.', 1)" * 28,
            "SELECT " + "LOCATE('a', " * 28 + "'b'" + ", 1)" * 28,
            "SELECT " + " XOR ".join("1" * 60),
            "SELECT REPEAT('a', 4000000000)",
            "SELECT REPEAT(REPEAT('a', 60000), 60000)",
            "SELECT LEVENSHTEIN('a', 'b')",
            "SET @a = 'x'; SET @b = @a",
            "SET @a = CONCAT(REPEAT('x', 60000), REPEAT('x', 60000))",
        ):
            await bench.refused(query)
        for number in range(100):
            await bench.session.run(f"SET @v{number} = 1")
        await bench.session.run("SET @v7 = 2")
        await bench.refused("SET @more = 1")
        assert len(bench.session.variables.own) == 100


async def test_columns_of_a_statement_are_described_within_its_timeout() -> None:
    async with benched() as bench:
        schema = await bench.session.columns("SELECT id, size + 1 AS more FROM messages WHERE topic = NULL LIMIT 1")
        assert schema.names == ["id", "more"]
        await bench.session.run("SET max_execution_time = 300")
        endless = "WITH RECURSIVE x AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM x WHERE n > 0) SELECT COUNT(*) FROM x"
        with pytest.raises(SqlError) as caught:
            await bench.session.run(endless)
        assert caught.value.number == TIMED_OUT
        try:
            await bench.session.columns(endless)  # the statement ends, whether it needs its rows or not
        except SqlError as error:
            assert error.number == TIMED_OUT


async def test_forecast_is_complete_or_an_error() -> None:
    async with benched() as bench:
        await bench.client.admin.create_topic("t")
        await bench.client.produce("t", b"x", delay="5h")
        of = "SELECT SUM(messages) FROM forecast WHERE topic = 't' AND starts_at < NOW() + INTERVAL 1 DAY"
        assert await bench.column(of) == [1]
        assert (await bench.refused(f"{of} AND unit = 'second'")).number == TOO_BIG_SELECT


async def test_full_scan_is_refused_unless_allowed() -> None:
    async with benched() as bench:
        await filled(bench, count=10)
        for query in (
            "SELECT * FROM messages",
            "SELECT * FROM messages WHERE topic = 't'",
            "SELECT * FROM messages WHERE deliver_at > NOW()",
            "SELECT * FROM messages WHERE topic = 't' AND state = 'delayed'",
            "SELECT * FROM dead_letters",
            "SELECT * FROM `keys`",
            "SELECT * FROM z4.task WHERE queue = 't'",
            "SELECT 1 WHERE EXISTS (SELECT 1 FROM messages)",
        ):
            error = await bench.refused(query)
            assert error.number == TOO_BIG_SELECT and "sandq_allow_full_scan" in error.message, query
        assert await bench.column("SELECT COUNT(*) FROM messages WHERE topic = 't' AND deliver_at >= NOW()") == [10]
        await bench.session.run("SET sandq_allow_full_scan = 1")
        assert await bench.column("SELECT COUNT(*) FROM messages") == [10]


async def test_a_query_has_a_budget() -> None:
    async with benched() as bench:
        await filled(bench, count=40)
        query = "SELECT * FROM messages WHERE topic = 't' AND deliver_at >= NOW()"
        for budget in (Budget(scan_rows=39), Budget(scan_bytes=500), Budget(result_rows=39)):
            session = Session(bench.client, Ducks(budget), budget, now=lambda: NOW)
            with pytest.raises(SqlError) as caught:
                await session.run(query)
            assert caught.value.number == TOO_BIG_SELECT
        assert len(await bench.rows(query)) == 40


async def test_explain_shows_the_requests_to_the_cluster() -> None:
    async with benched() as bench:
        await filled(bench, count=5)
        query = "SELECT text FROM messages WHERE topic = 't' AND deliver_at > '2030-01-01' AND `key` = 'ada'"
        (row,) = await bench.rows(f"EXPLAIN {query}")
        assert (row["table"], row["request"], row["refused"]) == ("messages", "FETCH", None)
        assert row["pushed"].startswith("topic = t; deliver_at > ")
        assert row["columns"] == "topic, deliver_at, key, text"
        (row,) = await bench.rows("EXPLAIN SELECT * FROM messages WHERE topic = 't' AND id = 'x'")
        assert row["request"] == "GET"
        (row,) = await bench.rows("EXPLAIN SELECT * FROM messages")
        assert "all of messages" in row["refused"]


async def test_tables_are_joined_and_aggregated() -> None:
    async with benched() as bench:
        await filled(bench)
        (row,) = await bench.rows(
            "SELECT t.kind, COUNT(*) AS n, SUM(m.json->'$.n' >= 0) AS numbers FROM messages m "
            "JOIN topics t ON m.topic = t.topic "
            "WHERE m.topic = 't' AND m.deliver_at >= NOW() GROUP BY t.kind"
        )
        assert row["kind"] == "timer" and row["n"] == 60 and 0 < row["numbers"] < 60
        slots = await bench.rows(
            "SELECT UNIX_TIMESTAMP(deliver_at) DIV 3600 * 3600 AS time_sec, state AS metric, COUNT(*) AS value "
            "FROM messages WHERE topic = 't' AND deliver_at BETWEEN FROM_UNIXTIME(1893456000) AND "
            "FROM_UNIXTIME(1893470400) GROUP BY 1, 2 ORDER BY 1"
        )
        assert sum(slot["value"] for slot in slots) == 60
        assert {slot["time_sec"] % 3600 for slot in slots} == {0}
        both = await bench.column(
            "WITH late AS (SELECT id FROM messages WHERE topic = 't' AND deliver_at > '2030-01-01 01:00:00') "
            "SELECT COUNT(*) FROM late UNION ALL SELECT COUNT(*) FROM messages "
            "WHERE topic = 't' AND deliver_at <= '2030-01-01 01:00:00'"
        )
        assert sum(both) == 60


async def test_unknown_topics_are_reported() -> None:
    async with benched() as bench:
        with pytest.raises(SqlError, match="nope"):
            await bench.session.run("SELECT * FROM messages WHERE topic = 'nope' LIMIT 1")
        assert (await bench.refused("SELECT * FROM nope")).number == UNKNOWN_TABLE
        assert (await bench.refused("SELECT nope FROM topics")).number == UNKNOWN_COLUMN
        assert issubclass(UnknownTopic, SandqError)


# ------------------------------------------------------------------------------------------------ other tables


async def test_dead_letters_and_leases_have_their_groups() -> None:
    async with benched() as bench:
        await filled(bench)
        dead = await bench.rows("SELECT * FROM dead_letters WHERE topic = 't'")
        assert [(row["group"], row["reason"], row["error"]) for row in dead] == [("g", "rejected", "never")] * 2
        assert dead[0]["attempts"] == 1 and '"never"' in dead[0]["history"]
        assert await bench.rows("SELECT id FROM dead_letters WHERE topic = 't' AND `group` = 'no'") == []
        assert len(await bench.rows("SELECT id FROM dead_letters WHERE topic = 't' AND dead_at = '2030-01-01'")) == 2
        assert await bench.rows("SELECT id FROM dead_letters WHERE topic = 't' AND dead_at > '2030-01-01'") == []
        leases = await bench.rows("SELECT * FROM leases WHERE topic = 't' ORDER BY state")
        assert [row["state"] for row in leases] == ["leased"] * 4 + ["waiting"] * 2
        assert leases[0]["lease_until"] > NOW and leases[0]["lease_token"] and leases[0]["attempt"] == 1
        assert leases[-1]["error"] == "it did not work" and leases[-1]["retry_at"] > NOW
        assert len(await bench.rows("SELECT id FROM leases WHERE topic = 't' AND state = 'waiting'")) == 2


async def test_keys_of_compacted_topics_are_rows() -> None:
    async with benched() as bench:
        await bench.client.admin.create_topic("kv", kind="compacted", partitions=3)
        for number in range(30):
            await bench.client.kv("kv").put(f"user/{number:02}", b'{"n": %d}' % number)
        await bench.client.kv("kv").put(b"\xff", b"x")
        rows = await bench.rows(
            "SELECT `key`, json->'$.n' AS n FROM `keys` WHERE topic = 'kv' AND `key` LIKE 'user/1%'"
        )
        assert sorted(row["key"] for row in rows) == [f"user/{number}" for number in range(10, 20)]
        by_name = await bench.rows("SELECT * FROM `keys` WHERE topic = 'kv' AND `key` IN ('user/05', 'none')")
        assert [(row["key"], row["size"]) for row in by_name] == [("user/05", 8)]
        ranged = "SELECT `key` FROM `keys` WHERE topic = 'kv' AND `key` > 'user/05' AND `key` <= 'user/08'"
        assert sorted(await bench.column(ranged)) == ["user/06", "user/07", "user/08"]
        assert len(await bench.rows("SELECT key_bytes FROM `keys` WHERE topic = 'kv' LIMIT 4")) == 4
        await bench.session.run("SET sandq_allow_full_scan = 1")
        assert await bench.column("SELECT COUNT(*) FROM `keys`") == [31]


async def test_tables_of_the_cluster_have_current_rows() -> None:
    async with benched() as bench:
        await filled(bench)
        await bench.client.schedules("t").create("daily", b"x", cron="0 8 * * *")
        (group,) = await bench.rows("SELECT * FROM `groups` WHERE topic = 't'")
        assert (group["group"], group["leased"], group["waiting"], group["dead"]) == ("g", 4, 2, 2)
        assert group["lag"] == group["ready"] + 6
        (topic,) = await bench.rows("SELECT * FROM topics")
        assert (topic["topic"], topic["partitions"], topic["dead"]) == ("t", 3, 2) and topic["messages"] >= 60
        assert len(await bench.rows("SELECT * FROM partitions WHERE topic = 't' AND leader = 'node1'")) == 3
        (node,) = await bench.rows("SELECT * FROM nodes")
        assert node["up"] == node["metadata_leader"] == 1
        (schedule,) = await bench.rows("SELECT * FROM schedules WHERE topic = 't' AND name = 'daily'")
        assert (schedule["cron"], schedule["state"]) == ("0 8 * * *", "active")
        hours = await bench.rows(
            "SELECT * FROM forecast WHERE topic = 't' AND unit = 'hour' AND starts_at < '2030-01-02'"
        )
        delayed = await bench.column("SELECT COUNT(*) FROM messages WHERE topic='t' AND deliver_at > '2030-01-01'")
        assert sum(row["messages"] for row in hours if row["starts_at"] > NOW) == delayed[0]


# ------------------------------------------------------------------------------------------------------- z4


async def test_z4_queries_work() -> None:
    async with benched() as bench:
        await filled(bench)
        await bench.session.run("USE z4")
        tasks = await bench.rows("SELECT * FROM task WHERE queue = 't' AND deliver_at <= '2030-01-01 02:00:00'")
        assert tasks and all(NOW < row["deliver_at"] <= NOW + datetime.timedelta(hours=2) for row in tasks)
        assert set(tasks[0]) == {"queue", "id", "deliver_at", "last_retry", "metadata", "payload"}
        exactly = await bench.rows("SELECT id FROM task WHERE queue = 't' AND deliver_at = '2030-01-01 01:00:00'")
        assert (
            {row["id"] for row in exactly}
            == {row["id"] for row in tasks if row["deliver_at"] == NOW + datetime.timedelta(hours=1)}
            != set()
        )
        with_header = await bench.rows(
            "SELECT metadata FROM task WHERE queue = 't' AND deliver_at > '2030-01-01' "
            "AND JSON_EXTRACT(metadata, '$.h') >= 0 LIMIT 2"
        )
        assert len(with_header) == 2
        one = tasks[0]["id"]
        assert len(await bench.rows(f"SELECT * FROM task WHERE queue = 't' AND id = '{one}'")) == 1
        (queue,) = await bench.rows("SELECT * FROM queue WHERE id = 't'")
        assert queue["ack_deadline"] == 30 and '"g"' in queue["positions"]


README_QUERY = (
    "SELECT * FROM tasks WHERE queue = 'orders' AND deliver_at BETWEEN '2030-01-01 00:30:00' AND '2030-01-01 01:30:00' "
    "AND JSON_EXTRACT(metadata, '$.user_id') = '{}'"
)


@pytest.mark.parametrize("database", ["z4", "sandq"])
async def test_query_of_z4s_readme_finds_tasks_of_a_user(database: str) -> None:
    async with benched() as bench:
        client = bench.client
        await client.admin.create_topic("orders", partitions=2)
        for user in ("ada", "bob", 'a "b"', "ada"):
            await client.produce("orders", b"x", headers={"user_id": user}, delay="1h")
        await client.produce("orders", b"x", headers={"user_id": 10}, delay="1h")
        await client.produce("orders", b"x", delay="1h")
        await client.produce("orders", b"late", headers={"user_id": "ada"}, delay="2h")
        await bench.session.run(f"USE {database}")
        assert len(await bench.rows(README_QUERY.format("ada"))) == 2
        assert len(await bench.rows(README_QUERY.format('a "b"'))) == 1
        assert await bench.rows(README_QUERY.format("10")) == []  # a number is not a text
        assert len(await bench.rows(README_QUERY.format("10").replace("'10'", "10"))) == 1
        counted = await bench.rows(
            "SELECT JSON_EXTRACT(metadata, '$.user_id') AS user, COUNT(*) AS n FROM tasks WHERE queue = 'orders' "
            "AND deliver_at > '2030-01-01' GROUP BY 1 ORDER BY n DESC, user"
        )
        assert list(counted[0].values()) == ['"ada"', 3]
        assert (await bench.rows("SELECT id FROM queues")) == (await bench.rows("SELECT id FROM queue"))
        described = await bench.rows("DESCRIBE tasks")
        assert [row["Field"] for row in described][:3] == ["queue", "id", "deliver_at"]


async def test_refused_count_of_a_topic_names_the_table_that_has_it() -> None:
    async with benched() as bench:
        await filled(bench)
        error = await bench.refused("SELECT COUNT(*) FROM messages WHERE topic = 't'")
        assert error.number == TOO_BIG_SELECT and "SELECT messages FROM topics" in error.message
        await bench.session.run("SET sandq_allow_full_scan = 1")
        counted = await bench.column("SELECT COUNT(*) FROM messages WHERE topic = 't'")
        assert await bench.column("SELECT messages FROM topics WHERE topic = 't'") == counted == [60]


async def test_json_columns_are_compared_as_json_through_queries_and_joins() -> None:
    async with benched() as bench:
        client = bench.client
        await client.admin.create_topic("orders", partitions=2)
        await client.admin.create_topic("users", kind="compacted", partitions=1)
        await client.kv("users").put("ada", b'{"name": "Ada", "level": 9}')
        await client.kv("users").put("bob", b'{"name": "Bob", "level": 10}')
        for who, amount in (("ada", 5), ("bob", 100), ("ada", 20)):
            await client.produce("orders", b'{"who": "%s", "amount": %d}' % (who.encode(), amount), delay="1h")
        await client.produce("orders", b"no JSON", delay="1h")
        where = "topic = 'orders' AND deliver_at > '2030-01-01'"
        joined = await bench.rows(
            "SELECT u.json->>'$.name' AS name, o.json->'$.amount' AS amount FROM messages o JOIN `keys` u "
            "ON o.json->'$.who' = u.`key` WHERE o.topic = 'orders' AND o.deliver_at > '2030-01-01' "
            "AND u.topic = 'users' AND u.`key` IN ('ada', 'bob') ORDER BY o.json->'$.amount'"
        )
        assert [(row["name"], row["amount"]) for row in joined] == [("Ada", "5"), ("Ada", "20"), ("Bob", "100")]
        inner = f"(SELECT json AS doc, json->'$.who' AS who FROM messages WHERE {where}) x"
        assert await bench.column(f"SELECT COUNT(*) FROM {inner} WHERE who = 'ada'") == [2]
        assert await bench.column(f"SELECT COUNT(*) FROM {inner} WHERE doc->'$.amount' BETWEEN 10 AND 99") == [1]
        named = f"WITH x AS (SELECT json AS doc FROM messages WHERE {where})"
        assert await bench.column(f"{named} SELECT MAX(doc->'$.amount') FROM x") == ["100"]
        assert await bench.column(f"{named} SELECT COUNT(*) FROM x WHERE x.doc->'$.who' IN ('ada', 'bob')") == [3]
        assert await bench.column(f"SELECT COUNT(*) FROM messages WHERE {where} AND NOT json->'$.who' = 'ada'") == [1]


# ---------------------------------------------------------------------------------------------- what tools ask


async def test_tools_can_explore_the_schema() -> None:
    async with benched() as bench:
        assert "messages" in await bench.column("SHOW TABLES")
        assert await bench.column("SHOW DATABASES") == ["sandq", "z4", "information_schema"]
        assert await bench.column("SHOW TABLES FROM z4") == ["task", "tasks", "queue", "queues"]
        assert await bench.column("SHOW TABLES LIKE 'part%'") == ["partitions"]
        assert "deliver_at" in await bench.column("DESCRIBE messages")
        assert await bench.column("SHOW FULL COLUMNS FROM messages LIKE 'TOPIC'") == ["topic"]
        assert await bench.rows("SHOW VARIABLES LIKE 'version'") == [
            {"Variable_name": "version", "Value": "8.4.0-sandq"}
        ]
        assert await bench.column("SHOW VARIABLES WHERE Variable_name = 'autocommit'") == ["autocommit"]
        assert "`deliver_at` datetime(3)" in (await bench.rows("SHOW CREATE TABLE messages"))[0]["Create Table"]
        columns = await bench.column(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'sandq' "
            "AND table_name = 'topics' ORDER BY ordinal_position"
        )
        assert columns[:2] == ["topic", "kind"]
        assert await bench.rows("SELECT @@version_comment, @@session.autocommit, @nothing, DATABASE()") == [
            {
                "@@version_comment": "sandq, a topic broker: read-only",
                "@@session.autocommit": 1,
                "@nothing": None,
                "SCHEMA()": "sandq",
            }
        ]
        for text in ("SET NAMES utf8mb4", "SET autocommit = 0", "START TRANSACTION", "COMMIT", "SET @a = 1 + 1"):
            assert (await bench.session.run(text)).table is None
        assert await bench.column("SELECT @a") == [2]
        assert await bench.rows("SHOW WARNINGS") == await bench.rows("SHOW KEYS FROM messages") == []


async def test_unsupported_assignments_are_reported() -> None:
    async with benched() as bench:
        for text in (
            "SET GLOBAL read_only = 0",
            "SET @@global.read_only = 0",
            "SET no_such_variable = 1",
            "SET time_zone = 'Europe/Vienna'",
            "SET version = '9'",
            "SET max_execution_time = -1",
            f"SET max_execution_time = {'9' * 400}",
        ):
            await bench.refused(text)
        await bench.session.run("SET time_zone = '+00:00', max_execution_time = 5000")
        assert bench.session.variables.seconds(Budget()) == 5


async def test_a_query_ends_by_its_deadline_and_when_it_is_killed() -> None:
    async with benched() as bench:
        await filled(bench, count=40)
        await bench.session.run("SET sandq_allow_full_scan = 1")
        many = "abcdefghi"
        tables, sizes = ", ".join(f"messages {name}" for name in many), " + ".join(f"{name}.size" for name in many)
        endless = f"SELECT COUNT(*) FROM {tables} WHERE {sizes} = -1"
        await bench.session.run("SET max_execution_time = 1")
        assert (await bench.refused(endless)).number == 3024
        await bench.session.run("SET max_execution_time = 0")

        import trio

        async with trio.open_nursery() as nursery:

            async def kill() -> None:
                while True:
                    await trio.testing.wait_all_tasks_blocked()
                    bench.session.kill()
                    await trio.sleep(0.01)

            nursery.start_soon(kill)
            assert (await bench.refused(endless)).number == 1317
            nursery.cancel_scope.cancel()
        assert await bench.column("SELECT 1") == [1]


async def test_a_message_that_is_looked_up_is_shown_as_duckdb_shows_it() -> None:
    """The result is the same with DuckDB and without: a single message's columns do not need it."""
    async with benched() as bench:
        await filled(bench, count=20)
        ids = await bench.column("SELECT id FROM messages WHERE topic = 't' AND deliver_at >= NOW()")
        for id in [*ids, "01Q3DT2VG00000000020000000", "no id"]:
            where = f"WHERE topic = 't' AND id = '{id}'"
            alone = await bench.session.run(f"SELECT *, json AS j, `key` FROM messages {where}")
            asked = await bench.session.run(f"SELECT *, json AS j, `key` FROM messages {where} ORDER BY id")
            assert [list(row.values()) for row in alone.table.to_pylist()] == [
                list(row.values()) for row in asked.table.to_pylist()
            ]
        twice = f"SELECT id FROM messages WHERE topic = 't' AND id = '{ids[0]}' AND (id = '{ids[1]}' OR size > 0)"
        assert await bench.column(twice) == [ids[0]]
        assert await bench.column(f"SELECT COUNT(*) FROM messages WHERE topic = 't' AND id = '{ids[0]}'") == [1]
        assert await bench.rows(f"SELECT id FROM messages WHERE topic = 't' AND id = '{ids[0]}' LIMIT 0") == []


STATEMENTS = (
    "SELECT state, COUNT(*) FROM messages m WHERE m.topic IN ('t','u') AND deliver_at BETWEEN '2030-01-01' AND NOW() "
    "GROUP BY state HAVING COUNT(*) > 1 ORDER BY 2 DESC",
    "WITH a AS (SELECT 1 AS n) SELECT * FROM a JOIN topics ON 1=1",
    "SELECT json->>'$.a', JSON_EXTRACT(json,'$.b') FROM messages WHERE topic='t' AND id='x' LIMIT 5",
    "EXPLAIN SELECT * FROM `keys` WHERE topic='kv' AND `key` LIKE 'a%'",
    "SHOW FULL COLUMNS FROM messages LIKE 'x%'",
    "SET NAMES utf8, @a = 1, max_execution_time = 5000",
    "SELECT (SELECT COUNT(*) FROM topics), CASE WHEN 1 THEN DATE_FORMAT(NOW(),'%Y') END, @@port, @y FROM nodes",
    "SELECT * FROM z4.task WHERE queue='t' AND deliver_at='2030-01-01' UNION ALL SELECT * FROM z4.task WHERE queue='t' "
    "AND id='1'",
    "SELECT SUBSTRING_INDEX('a.b','.',1), TIMESTAMPDIFF(SECOND, deliver_at, NOW()), FROM_UNIXTIME(1e30) FROM messages "
    "WHERE topic='t' AND `offset` > '0' AND `partition` = 99999999999999999999 AND deliver_at < '20000-01-01'",
)
WORDS = (
    "( ) , NULL '' -1 1e400 0x ` ' LATERAL VALUES ROW INTERVAL UNNEST PIVOT OVER DISTINCT * NOT EXISTS JSON_TABLE ? :a "
    "\x00 é { } [ ] -> DIV XOR COLLATE INTO CROSS NATURAL USING LIMIT OFFSET"
)


@pytest.mark.parametrize("seed", seeds(1, 20))
async def test_random_statements_are_answered_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    words = [*" ".join(STATEMENTS).split(), *WORDS.split(" ")]
    async with benched() as bench:
        await bench.client.admin.create_topic("t", partitions=2)
        await bench.client.admin.create_topic("kv", kind="compacted")
        await bench.client.produce("t", b"x")
        answered = 0
        for _ in range(150):
            parts = chance.choice(STATEMENTS).split()
            for _ in range(chance.randrange(4)):
                at, what = chance.randrange(len(parts)), chance.randrange(3)
                parts[at : at + (what != 0)] = [] if what == 2 and len(parts) > 1 else [chance.choice(words)]
            text = " ".join(parts)
            try:
                await bench.session.columns(text)
                await bench.session.run(text)
            except SqlError:
                continue
            except Exception as error:
                raise AssertionError(f"seed {seed}: {text}") from error
            answered += 1
        assert answered > 20


@pytest.mark.parametrize(
    "text",
    [
        "SELECT REPEAT('a', '²')",
        "SELECT LPAD('a', '²', 'b')",
        "SELECT SPACE('²')",
        "SELECT SUBSTRING_INDEX('a', 'b', '²')",
        f"SELECT SUBSTRING_INDEX('a.b', '.', {'9' * 5000})",
        "KILL '²'",
        f"KILL {'9' * 5000}",
    ],
)
async def test_number_that_python_cannot_read_is_refused(text: str) -> None:
    async with benched() as bench:
        assert (await bench.refused(text)).number
        assert await bench.column("SELECT 1") == [1]


async def test_limit_and_execution_time_with_too_many_digits_bound_nothing() -> None:
    async with benched() as bench:
        assert await bench.column(f"SELECT topic FROM topics LIMIT {'9' * 5000}") == []
        assert await bench.column(f"SELECT /*+ MAX_EXECUTION_TIME({'9' * 5000}) */ 1") == [1]
        assert await bench.column("SELECT /*+ MAX_EXECUTION_TIME(²) */ 1") == [1]


async def test_pairs_of_names_are_counted_before_they_are_made() -> None:
    async with benched() as bench:
        await bench.client.admin.create_topic("t")
        names = ", ".join([f"'{number}'" for number in range(1000)])
        tracemalloc.start()
        try:
            error = await bench.refused(
                f"SELECT id FROM messages WHERE topic = 't' AND unique_key IN ({names}) AND `key` IN ({names})"
            )
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert error.number == TOO_BIG_SELECT and "names 1,000,000 messages" in str(error)
    assert peak_bytes < 100 << 20


async def test_rules_of_a_message_that_is_found_by_its_id() -> None:
    async with benched() as bench:
        await bench.client.admin.create_topic("t")
        id = await bench.client.produce(
            "t", "a", max_attempts="none", backoff={"kind": "fixed", "first": "90s"}, cost=7
        )
        query = (
            f"SELECT max_attempts, backoff->>'$.first' AS first, cost FROM messages WHERE topic = 't' AND id = '{id}'"
        )
        (row,) = await bench.rows(query)
        assert row == {"max_attempts": 0, "first": "1m30s", "cost": 7}
