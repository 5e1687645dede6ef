"""Measure SQL: one message by its id, and a hundred thousand within a span of time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import anyio
import pymysql
from pymysql.cursors import SSCursor

import sandq
from benchmarks.driver import node_with
from benchmarks.process import Meter, MeteredNode
from benchmarks.result import CALLED, Goal, Latency, Measured, Row, Setting
from demo.node import free_port

TOPIC = "t"
PARTITIONS = 4
MESSAGES, QUICK_MESSAGES = 100_000, 500
LOOKS, QUICK_LOOKS = 1000, 10
ROUNDS = 3
AT_ONCE = 5000
START_S = 1_893_456_000
"""First due time: 2030-01-01."""
CONNECT_S = 30.0
ONE = Goal(10, "ms", at_least=False)
RANGE = Goal(2, "s", at_least=False)


async def _filled(node: MeteredNode, messages: int) -> list[str]:
    """Store this many messages, due within an hour; return their ids."""
    ids: list[str] = []
    async with sandq.connect(f"127.0.0.1:{node.port}", timeout="60s", delivery_timeout="120s") as client:
        while len(ids) < messages:
            count = min(messages - len(ids), AT_ONCE)
            due_ms = START_S * 1000 + len(ids) * 3_600_000 // messages
            batch = [
                {"value": b'{"n": %d, "who": "ada"}' % number, "key": "ada", "deliver_at": due_ms + number}
                for number in range(count)
            ]
            ids += await (await client.produce_many(TOPIC, batch))
    return ids


@contextlib.contextmanager
def _asking(node: MeteredNode, port: int) -> Iterator[Any]:
    """Connect to the node's SQL; its process takes a second to start."""
    ends_s = time.monotonic() + CONNECT_S
    while True:
        try:
            connection = pymysql.connect(
                host="127.0.0.1", port=port, user="bench", database="sandq", cursorclass=SSCursor
            )
            break
        except pymysql.Error:
            if time.monotonic() > ends_s:
                raise
            time.sleep(0.05)
    with connection:
        yield connection


def by_id(setting: Setting) -> Measured:
    """Read one message by its id, all columns, repeatedly."""
    looks = setting.count(LOOKS, QUICK_LOOKS)
    with _serving(setting) as (node, port):
        ids = anyio.run(_filled, node, looks, backend="trio")
        with _asking(node, port) as connection, connection.cursor() as cursor:
            _one(cursor, ids[0])
            meter = Meter(node.metered)
            times_s = [_one(cursor, id) for id in ids]
            used = meter.stop()
    latency = Latency.of(CALLED, times_s)
    assert latency is not None
    return Measured(looks, latency.at(0.5), cpu_us=used.cpu_s * 1e6 / looks, latency=latency)


def _one(cursor: Any, id: str) -> float:
    began_s = time.perf_counter()
    cursor.execute("SELECT * FROM messages WHERE topic = %s AND id = %s", (TOPIC, id))
    rows = cursor.fetchall()
    assert len(list(rows)) == 1
    return time.perf_counter() - began_s


def of_range(setting: Setting) -> Measured:
    """Read all columns of messages due within an hour; the least of several times counts."""
    messages = setting.count(MESSAGES, QUICK_MESSAGES)
    query = (
        f"SELECT * FROM messages WHERE topic = '{TOPIC}' "
        f"AND deliver_at BETWEEN FROM_UNIXTIME({START_S}) AND FROM_UNIXTIME({START_S + 7200})"
    )
    with _serving(setting) as (node, port):
        anyio.run(_filled, node, messages, backend="trio")
        with _asking(node, port) as connection, connection.cursor() as cursor:
            meter = Meter(node.metered)
            times_s = []
            for _ in range(ROUNDS):
                began_s = time.perf_counter()
                cursor.execute(query)
                connection._result.unbuffered_active = False  # rows are read but not examined
                while not connection._read_packet().is_eof_packet():
                    pass
                times_s.append(time.perf_counter() - began_s)
            used = meter.stop()
    return Measured(messages, min(times_s), cpu_us=used.cpu_s * 1e6 / messages / ROUNDS)


@contextlib.contextmanager
def _serving(setting: Setting) -> Iterator[tuple[MeteredNode, int]]:
    port = free_port()
    with node_with(setting, TOPIC, PARTITIONS, node_settings={"LISTEN__SQL": f"127.0.0.1:{port}"}) as node:
        yield node, port


ROWS = (
    Row("sql_by_id", "sql", "one message by its id, all columns: p50", by_id, "ms", ONE, "client"),
    Row(
        "sql_range", "sql", "100,000 messages that are due within an hour, all columns", of_range, "s", RANGE, "client"
    ),
)
