"""Abusive clients of every kind, and a victim: it is served, and the node's memory stays bounded.

Tests of the single limits: tests/unit/server/test_connection_memory.py, test_memory_budget.py, http/test_guards.py,
test_peer_links.py, tests/property/test_gossip_hostile.py.
"""

from __future__ import annotations

import json
import statistics
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
import trio.lowlevel
from structlog.testing import capture_logs

from sandq.broker.event_loop import FIRST_WORK, SLICE_WORK
from sandq.broker.memory_budget import Held
from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.node.running import Serving
from sandq.protocol.frames import FrameReader, Type
from sandq.protocol.request import REQUESTS
from sandq.server.handlers.session import ClientSession
from tests.integration.conftest import Dial
from tests.support.nodes.mutated import Mutated, mutated
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.simulation.seeds import few_of
from tests.support.waiting import PATIENCE_S, until_holds

MB = 1 << 20
BATCHES, BATCH_BYTES = 8, 256 << 10
PING_ID = 2**40
CALLS = 8
ABUSERS = 3
SLACK_BYTES = 40 * MB
"""Tolerance on top of an account: a reply of one step for each thread, and the minimum of every connection."""
ABUSER_BYTES = 48 * MB
"""Memory that one abuser itself may use, in bytes: two copies of twenty batches of 1 MiB."""
PING_ROUNDS = 8
"""Maximum median of loop iterations per PING of the victim: receive, handle, send, receive. Small requests do not wait
in a queue."""
ROUND_FRAMES = (ABUSERS + 1) * FIRST_WORK + SLICE_WORK
"""Largest number of requests handled in one loop iteration: the first request of each connection, and a time slice of
the queue."""
ACCOUNTS = ("requests", "answers", "watchers", "http")
"""Memory accounts that clients fill."""


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Serving]:
    """Run a node with low limits."""
    config = small_config(
        tmp_path,
        LISTEN__HTTP="127.0.0.1:0",
        LIMITS__MEMORY_BYTES="256MiB",
        LIMITS__PARTITIONS_PER_TOPIC="24",
        LIMITS__PARTITIONS="64",
        LIMITS__HTTP_CONNECTIONS="40",
        LIMITS__HTTP_REQUESTS="40",
        LIMITS__HTTP_WAITING="40",
    )
    async with run_node(config) as serving:
        yield serving


@pytest.fixture
async def victim(node: Serving, dial: Dial) -> RawClient:
    client = await dial(node)
    assert (await client.create("victim"))[0] == Type.REPLY
    await _make_topics(client)
    return client


async def _make_topics(client: RawClient) -> None:
    for topic, kind in (("t", "timer"), ("keys", "compacted")):
        made = await client.call(Type.TOPIC_CREATE, topic, kind, 1, 1, {})
        assert made[0] == Type.REPLY or made[2] == "TOPIC_EXISTS"


def held(node: Serving) -> dict[str, Held]:
    accounts = node.broker.node_log.memory.accounts
    return {name: accounts[name] for name in ACCOUNTS}


async def until_nothing_is_held(node: Serving) -> None:
    await until_holds(lambda: all(account.bytes == 0 for account in held(node).values()))


# -- invalid frames ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", few_of(range(100), 1))
async def test_mutated_frames_of_every_type(node: Serving, victim: RawClient, dial: Dial, seed: int) -> None:
    with capture_logs() as entries, _replay(seed):
        raw = await dial(node)
        for at, one in enumerate(mutated(seed)):
            with _replay(f"{seed}, frame {at}: {one.what}"):
                if not await _survives(raw, one, at):
                    await trio.aclose_forcefully(raw.stream)
                    raw = await dial(node)
            if at % 50 == 0:
                await _make_topics(victim)
                assert (await victim.produce(b"x", topic="victim"))[0] == Type.REPLY
        await trio.aclose_forcefully(raw.stream)
        await until_nothing_is_held(node)
        assert (await victim.produce(b"x", topic="victim"))[0] == Type.REPLY
    faults = [entry for entry in entries if entry["log_level"] in ("error", "critical")]
    assert faults == [], f"seed {seed}"


class _replay:
    """A failure names the seed."""

    def __init__(self, seed: object) -> None:
        self._seed = seed

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception):
            error.add_note(f"seed {self._seed}")


async def _survives(raw: RawClient, one: Mutated, at: int) -> bool:
    """Send a request and a PING after it; return whether the connection answers the PING. The reply must not be a fault
    of the node."""
    ping_id = PING_ID + at
    with suppress(trio.BrokenResourceError):  # the connection was closed because of the first part
        await raw.send_bytes(one.data)
        if one.is_short:
            return False
        await raw.send(Type.PING, ping_id)
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                frame = await raw.receive()
            except (EOFError, trio.BrokenResourceError):
                return False
            if frame[0] == Type.ERROR:
                assert frame[2] != "INTERNAL", frame
            if frame[:2] == [Type.REPLY, ping_id]:
                return True


# -- clients that ask for too much --------------------------------------------------------------------------------

Abuse = Callable[[Serving, Dial], Awaitable[None]]


def _packed(*fields: Any) -> bytes:
    body = msgpack.packb(fields)
    return len(body).to_bytes(4, "big") + body


def never_reads(kind: Type, *fields: Any, count: int = 1000) -> Abuse:
    """Send requests repeatedly, without reading replies."""

    async def abuse(node: Serving, dial: Dial) -> None:
        raw = await dial(node)
        await raw.send_bytes(b"".join([_packed(int(kind), 10 + number, *fields) for number in range(count)]))
        await trio.sleep_forever()

    return abuse


def floods(kind: Type, *fields: Any, count: int = 50) -> Abuse:
    """Send requests repeatedly, and read the replies."""

    async def abuse(node: Serving, dial: Dial) -> None:
        raw = await dial(node)
        number = 10
        reader = FrameReader()
        while True:
            await raw.send_bytes(b"".join([_packed(int(kind), number + at, *fields) for at in range(count)]))
            number += count
            answered = 0
            while answered < count:
                data = await raw.stream.receive_some(1 << 20)
                if not data:
                    return
                answered += sum(frame[0] != Type.DELIVER for frame in reader.feed(data))

    return abuse


Asked = Callable[[int], list[tuple[Any, ...]]]
"""Function number -> requests (type, fields) that are sent together."""


def asks(requests: Asked, *, reads: bool = True, rounds: int = 20) -> Abuse:
    """Send the requests repeatedly, each time with a different number. Read all replies, or none."""

    async def abuse(node: Serving, dial: Dial) -> None:
        raw = await dial(node)
        request_id, reader = 10, FrameReader()
        for start in count(0, rounds):
            asked = [fields for number in range(start, start + rounds) for fields in requests(number)]
            await raw.send_bytes(
                b"".join([_packed(int(kind), request_id + at, *fields) for at, (kind, *fields) in enumerate(asked)])
            )
            request_id += len(asked)
            answered = 0
            while reads and answered < len(asked):
                data = await raw.stream.receive_some(1 << 20)
                if not data:
                    return
                answered += sum(frame[0] != Type.DELIVER for frame in reader.feed(data))

    return abuse


def half_a_frame(size: int, hello: bool = True) -> Abuse:
    """Return an abuse: send half of a frame of `size` bytes, and wait for the node's reaction."""

    async def abuse(node: Serving, dial: Dial) -> None:
        while True:
            raw = await dial(node, hello=hello)
            with suppress(trio.BrokenResourceError):
                await raw.send_bytes(size.to_bytes(4, "big") + bytes(size // 2))
            with suppress(trio.BrokenResourceError):
                while await raw.stream.receive_some(1 << 16):
                    pass
            if not hello:
                await trio.sleep_forever()

    return abuse


async def is_idle(node: Serving, dial: Dial) -> None:
    """Hold as many connections as possible, without sending."""
    for _ in range(40):
        await dial(node)
    await trio.sleep_forever()


async def proves_nothing(node: Serving, dial: Dial) -> None:
    """Send wrong proofs, and requests for other callers without a proof."""
    while True:
        for fields in ((Type.PROVE, bytes(32)), (Type.ON_BEHALF, None, "192.0.2.7")):
            raw = await dial(node)
            async with raw.stream:
                with suppress(trio.BrokenResourceError):
                    await raw.send_bytes(_packed(int(fields[0]), 0, *fields[1:]))
                    await raw.stream.receive_some(1 << 16)


async def asks_for_a_wide_topic(node: Serving, dial: Dial) -> None:
    raw = await dial(node)
    await raw.call(Type.TOPIC_CREATE, "wide", "timer", 24, 1, {})  # the first of these requests waits
    await never_reads(Type.METADATA, ["wide"])(node, dial)


async def a_byte_at_a_time(node: Serving, dial: Dial) -> None:
    raw = await dial(node)
    with suppress(trio.BrokenResourceError):
        for byte in _packed(int(Type.PING), 5, "x" * 2000):
            await raw.send_bytes(bytes([byte]))
            await trio.lowlevel.checkpoint()
    await trio.sleep_forever()


async def connects_and_leaves(node: Serving, dial: Dial) -> None:
    while True:
        stream = await trio.open_tcp_stream("127.0.0.1", node.client_port)
        await stream.send_all(_packed(int(Type.HELLO), 1, 2, "raw", {})[:7])
        await trio.aclose_forcefully(stream)


def http(head: str, body: bytes = b"", *, reads: bool = True, length: int | None = None) -> Abuse:
    """Send the same request repeatedly: one after the other, or on many connections without reading responses."""
    size = len(body) if length is None else length
    data = f"{head} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode() + body

    async def once(port: int) -> None:
        with suppress(OSError, trio.BrokenResourceError):
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(data)
                if not reads:
                    await trio.sleep_forever()
                while await stream.receive_some(1 << 16):
                    pass

    async def abuse(node: Serving, dial: Dial) -> None:
        assert node.http is not None
        if reads:
            while True:
                await once(node.http.port)
        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(once, node.http.port)

    return abuse


async def half_a_head(node: Serving, dial: Dial) -> None:
    """Send half of a request's head over many connections."""
    assert node.http is not None
    async with AsyncExitStack() as stack:
        for _ in range(20):
            stream = await stack.enter_async_context(await trio.open_tcp_stream("127.0.0.1", node.http.port))
            with suppress(trio.BrokenResourceError):
                await stream.send_all(b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX: ")
        await trio.sleep_forever()


_TWICE = ("{" + ",".join(f'"k{at}":0' for at in range(9000)) + ',"z":0,"z":0}').encode()
_UNKNOWN = json.dumps({"messages": [{f"k{at}": 0 for at in range(50)}] * 2000}).encode()
_VALUES = json.dumps({"messages": [{"text": "x" * 200}] * 2000}).encode()
_SCAN = ("keys", 0, False, b"", None, 1000, 8 * MB)
_WATCH = ("keys", 0, bytes(16), None, True, b"", None, 1000, MB, 30_000)
_WAITING = ("keys", 0, bytes(16), None, True, b"zz", None, 1000, MB, 30_000)
_FETCH = ("t", 0, offsets.FIRST, None, 1000, 16 * MB, True)
_LIST = ("t", 0, None, 0, 2**48 - 1, None, 1000, None, True)
_PRODUCE = ("t", 0, 0, 0, 0, 0, encode({Column.VALUE: [bytes(2000)]}))
_LARGE = ("t", 0, 0, 0, 0, 0, encode({Column.VALUE: [bytes(MB)]}))
_ACK = (1, 0, [[number, None] for number in range(1, 200)])
_SUBSCRIBE = (1, "t", "g", "c", 1000, None, "earliest", [])
_AT = ("t", 0, [0, offsets.FIRST])
_NACKED = [[number, None, 60_000, "no"] for number in range(1, 200)]
_SENDING = (Type.ACK_THEN, 1, 0, 5, None, [[None, None, False, {"value": b"x" * 10_000}]] * 100)
_PAUSED = [[1, offsets.FIRST, "group", 60_000, "g"]]
_EXTENDED = [[number, 30_000] for number in range(1, 200)]
_MOVED = [[[0, bytes([1, *bytes(12), number, 0, 0])], 60_000, True] for number in range(200)]
_CANCELLED = [target for target, *_ in _MOVED]
_LONG_NAMES = [[1, b"u", None, b"%060000d" % number] for number in range(30)]
_MOVE_ALL = {"from_ms": 0, "until_ms": 2**48 - 1, "dry_run": True, "to_ms": 2**47}


_SCHEDULED = encode({Column.VALUE: [bytes(2000)]})
_ROWS = msgpack.packb([b"m" + bytes(16), bytes(1000)] * 500)
_EVERY_SECOND = {"every_ms": 1000}


def _id(number: int) -> bytes:
    return number.to_bytes(16, "big")


ABUSES: dict[str, Abuse] = {
    "metadata, never read": never_reads(Type.METADATA, None),
    "cluster info, never read": never_reads(Type.CLUSTER_INFO),
    "dumps, never read": never_reads(Type.DEBUG_DUMP, count=200),
    "slo, never read": never_reads(Type.SLO),
    "fetch, never read": never_reads(Type.FETCH, *_FETCH, count=200),
    "scan, never read": never_reads(Type.KV_SCAN, *_SCAN, count=200),
    "get, never read": never_reads(Type.KV_GET, "keys", 0, False, [b"0", b"1", b"2"], count=500),
    "watch, never read": never_reads(Type.KV_WATCH, *_WATCH),
    "watch, nothing comes": never_reads(Type.KV_WATCH, *_WAITING),
    "list, never read": never_reads(Type.LIST, *_LIST, count=200),
    "forecast, never read": never_reads(Type.FORECAST, "t", "second", 3600, count=500),
    "groups, never read": never_reads(Type.GROUP_LIST, "t"),
    "leases that wait": never_reads(Type.LEASE, "t", "g", "c", 10, 60_000, None, "latest", False),
    "deliveries, never read": never_reads(Type.SUBSCRIBE, *_SUBSCRIBE, count=1),
    "produce, never read": never_reads(Type.PRODUCE, *_PRODUCE),
    "large batches, never read": never_reads(Type.PRODUCE, *_LARGE, count=20),
    "acks, never read": never_reads(Type.ACK, *_ACK, count=200),
    "get and why, never read": asks(lambda n: [(Type.GET, *_AT), (Type.WHY, *_AT)], reads=False),
    "dead ones, never read": never_reads(Type.DEAD_LIST, "t", 0, "g", None, 1000, None, True),
    "dead ones by id": asks(
        lambda n: [(kind, "t", 0, "g", [offsets.FIRST] * 1000) for kind in (Type.DEAD_REDRIVE, Type.DEAD_PURGE)]
    ),
    "stats, never read": never_reads(Type.TOPIC_STATS, "t"),
    "credit for nobody": asks(lambda n: [(Type.CREDIT, 1)] * 20, reads=False),
    "what nobody leased": asks(
        lambda n: [
            *((Type.NACK, 1, 0, _NACKED), (Type.EXTEND, 1, 0, _EXTENDED), (Type.LEASE_PAUSE, 1, 0, _PAUSED)),
            *(_SENDING, (Type.UNSUBSCRIBE, 7)),
        ]
    ),
    "moves and cancels": asks(lambda n: [(Type.MOVE, "t", 0, _MOVED), (Type.CANCEL, "t", 0, _CANCELLED)]),
    "cancels by long keys": asks(lambda n: [(Type.CANCEL, "t", 0, _LONG_NAMES)]),
    "cancels by long keys, never read": never_reads(Type.CANCEL, "t", 0, _LONG_NAMES, count=20),
    "jobs": asks(
        lambda n: [
            (Type.JOB_START, "t", 0, _id(n), "move", _MOVE_ALL),
            (Type.JOB_STATUS, "t", 0, _id(n)),
            (Type.JOB_STOP, "t", 0, _id(n)),
        ]
    ),
    "schedules": asks(
        lambda n: [
            (Type.SCHEDULE_PUT, "t", 0, [[f"s{n}.{at}", None, _EVERY_SECOND, _SCHEDULED, False] for at in range(20)]),
            (Type.SCHEDULE_CHANGE, "t", 0, "pause", [f"s{n}.{at}" for at in range(5)], _id(n)),
            (Type.SCHEDULE_CHANGE, "t", 0, "trigger", [f"s{n}.{at}" for at in range(5)], _id(n)),
            (Type.SCHEDULE_CHANGE, "t", 0, "delete", [f"s{n - 3}.{at}" for at in range(20)], _id(n)),
        ],
        rounds=4,
    ),
    "schedules, never read": never_reads(Type.SCHEDULE_LIST, "t", 0, "", 1000, None, count=200),
    "schedules by name, never read": never_reads(Type.SCHEDULE_GET, "t", 0, ["s0.0"] * 1000, count=200),
    "previews": floods(Type.SCHEDULE_PREVIEW, "s", {"cron": "0 0 29 2 MON#5"}, None, 1000, count=5),
    "measures": floods(Type.MEASURE, "t", 0, offsets.FIRST, None, None, True),
    "holds": asks(lambda n: [(Type.HOLD, "t", 0, f"h{n}", offsets.FIRST, 1000)]),
    "identities that come and go": asks(
        lambda n: [
            (Type.ROLE_PUT, f"r{n}", ["read:t*"] * 100),
            (Type.IDENTITY_PUT, f"token:i{n}", True, {"grants": [f"r{n}"], "secret_hash": 2 * _id(n)}),
            (Type.IDENTITY_LIST, None, 100),
            (Type.ROLE_LIST, None, 100),
            (Type.IDENTIFY, "sandq_nothing", None),
            (Type.AUDIT_LIST, 1000, None),
            (Type.AUDIT_NOTE, "GET /", {}, "FORBIDDEN", ""),
            (Type.IDENTITY_DELETE, f"token:i{n - 3}"),
            (Type.ROLE_DELETE, f"r{n - 3}"),
        ],
        rounds=4,
    ),
    "backups begun and left, restores of nothing": asks(
        lambda n: [
            (Type.BACKUP_TOPICS, None, 200),
            (Type.BACKUP_ACCESS, None, 200),
            (Type.BACKUP_BEGIN, "t", 0),
            (Type.BACKUP_READ, "t", 0, n, None),
            (Type.BACKUP_END, "t", 0, n),
            (Type.BACKUP_LOG, "t", 0, f"reader {n}", n, n, None, 1 << 20),
            (Type.BACKUP_LOG, "t", 0, "one", None, 1, None, 1 << 20),
            (Type.RESTORE_TOPIC, f"r{n}", "timer", 1, 1, 1, {}, None, "r"),
            (Type.RESTORE_BEGIN, f"r{n}", 0, "r", [[1, 1]] * 1000),
            (Type.RESTORE_ROWS, f"r{n}", 0, "r", 0, _ROWS),
            (Type.RESTORE_END, f"r{n}", 0, "r", 1),
            (Type.RESTORE_OPEN, f"r{n}", "r", None),
            (Type.TOPIC_DELETE, f"r{n - 1}"),
        ],
        rounds=4,
    ),
    "groups that come and go": asks(
        lambda n: [
            (Type.LEASE, "t", f"g{n}", "c", 1, 0, None, "latest", False),
            (Type.GROUP_UPDATE, "t", f"g{n}", {"max_attempts": 3}),
            (Type.GROUP_PAUSE, "t", f"g{n}", True),
            (Type.GROUP_LIMIT, "t", f"g{n}", {"max_in_flight": 5, "rate": 5}),
            (Type.GROUP_PUSH, "t", f"g{n}", {"url": "https://x.example/", "secrets": ["whsec_" + "A" * 32]}),
            (Type.PUSH_LIST, "t"),
            (Type.LIMIT_LIST, "t", "llm"),
            (Type.CONSUMER_LIST, "t", f"g{n}"),
            (Type.PAUSE_LIST, "t", f"g{n}"),
            (Type.OVERVIEW, None),
            (Type.TOPIC_HISTORY, "t"),
            (Type.GROUP_PUSH, "t", f"g{n}", None),
            (Type.GROUP_SEEK, "t", f"g{n}", "earliest"),
            (Type.GROUP_DELETE, "t", f"g{n - 3}"),
        ],
        rounds=4,
    ),
    "topics that come and go": asks(
        lambda n: [
            (Type.TOPIC_CREATE, f"t{n}", "timer", 4, 1, {}),
            (Type.TOPIC_ENSURE, f"t{n}"),
            (Type.TOPIC_UPDATE, f"t{n}", {"ttl": "1h"}, 6, None),
            (Type.TOPIC_DELETE, f"t{n - 3}"),
        ],
        rounds=4,
    ),
    "a wide topic, never read": asks_for_a_wide_topic,
    "what is for those who run it": asks(
        lambda n: [
            (Type.CLUSTER_CLOCK, "show"),
            (Type.CLUSTER_INIT,),
            (Type.NODE_CHANGE, f"x{n}", "drain"),
            (Type.TRANSFER, "t", 0, f"x{n}"),
            (Type.REBUILD, "t", 0, f"x{n}"),
            (Type.FINALIZE, bool(n % 2)),
            (Type.ENTRY_SKIP, ("t", None)[n % 2], 0, None, None, bool(n % 3), True),
            (Type.LOG_LEVEL, (None, "info")[n % 2], 1000),
            (Type.CLOCK_RESET, "nobody", 0),
        ]
    ),
    "proofs that are none": proves_nothing,
    "idle connections": is_idle,
    "pings": floods(Type.PING),
    "metadata": floods(Type.METADATA, None),
    "topics by patterns": floods(Type.TOPIC_NAMES, ["*a*b*c*[!x-z]?" * 17] * 20, 1000),
    "produce": floods(Type.PRODUCE, *_PRODUCE),
    "what is wrong": floods(Type.PRODUCE, "t", "0"),
    "subscriptions": floods(Type.SUBSCRIBE, 2, "t", "g", "c", 1, None, "earliest", [], count=100),
    "half of large frames": half_a_frame(8 * MB),
    "half of a first frame": half_a_frame(4000, hello=False),
    "half of a first frame that is large": half_a_frame(30 * MB, hello=False),
    "a byte at a time": a_byte_at_a_time,
    "connections": connects_and_leaves,
    "http, a name twice": http("POST /topics", _TWICE),
    "http, unknown members": http("POST /topics/t", _UNKNOWN),
    "http, many messages": http("POST /topics/t", _VALUES),
    "http, half a body": http("POST /topics/t", bytes(MB), reads=False, length=2 * MB),
    "http, half a head": half_a_head,
    "http, pages never read": http("GET /topics/t/0?limit=1000", reads=False),
    "http, leases that wait": http("POST /topics/t/groups/g2/lease", b'{"wait":"60s"}', reads=False),
}


@asynccontextmanager
async def abused(node: Serving, dial: Dial, abuse: Abuse) -> AsyncIterator[None]:
    """Check the memory while several clients are active. At the end none of them is connected."""

    async def until_refused() -> None:
        with suppress(EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
            await abuse(node, dial)

    async with trio.open_nursery() as nursery:
        for _ in range(ABUSERS):
            nursery.start_soon(until_refused)
        yield
        nursery.cancel_scope.cancel()


# Type of requests -> kind of abuse that sends it.
ABUSED: dict[Type, str] = {
    Type.HELLO: "pings",
    Type.METADATA: "metadata, never read",
    Type.TOPIC_NAMES: "topics by patterns",
    Type.TOPIC_ENSURE: "topics that come and go",
    Type.PRODUCE: "produce",
    Type.SUBSCRIBE: "subscriptions",
    Type.UNSUBSCRIBE: "what nobody leased",
    Type.CREDIT: "credit for nobody",
    Type.FETCH: "fetch, never read",
    Type.ACK: "acks, never read",
    Type.NACK: "what nobody leased",
    Type.EXTEND: "what nobody leased",
    Type.ACK_THEN: "what nobody leased",
    Type.LEASE_PAUSE: "what nobody leased",
    Type.GET: "get and why, never read",
    Type.LIST: "list, never read",
    Type.MOVE: "moves and cancels",
    Type.CANCEL: "moves and cancels",
    Type.WHY: "get and why, never read",
    Type.PING: "pings",
    Type.JOB_START: "jobs",
    Type.JOB_STATUS: "jobs",
    Type.JOB_STOP: "jobs",
    Type.FORECAST: "forecast, never read",
    Type.LEASE: "leases that wait",
    Type.MEASURE: "measures",
    Type.PROVE: "proofs that are none",
    Type.ON_BEHALF: "proofs that are none",
    Type.TOPIC_CREATE: "topics that come and go",
    Type.TOPIC_DELETE: "topics that come and go",
    Type.TOPIC_UPDATE: "topics that come and go",
    Type.TOPIC_STATS: "stats, never read",
    Type.GROUP_LIST: "groups, never read",
    Type.GROUP_SEEK: "groups that come and go",
    Type.GROUP_DELETE: "groups that come and go",
    Type.GROUP_UPDATE: "groups that come and go",
    Type.GROUP_PAUSE: "groups that come and go",
    Type.GROUP_LIMIT: "groups that come and go",
    Type.GROUP_PUSH: "groups that come and go",
    Type.PUSH_LIST: "groups that come and go",
    Type.LIMIT_LIST: "groups that come and go",
    Type.CONSUMER_LIST: "groups that come and go",
    Type.PAUSE_LIST: "groups that come and go",
    Type.OVERVIEW: "groups that come and go",
    Type.TOPIC_HISTORY: "groups that come and go",
    Type.DEAD_LIST: "dead ones, never read",
    Type.DEAD_REDRIVE: "dead ones by id",
    Type.DEAD_PURGE: "dead ones by id",
    Type.HOLD: "holds",
    Type.CLUSTER_INFO: "cluster info, never read",
    Type.SLO: "slo, never read",
    Type.CLUSTER_CLOCK: "what is for those who run it",
    Type.CLUSTER_INIT: "what is for those who run it",
    Type.NODE_CHANGE: "what is for those who run it",
    Type.TRANSFER: "what is for those who run it",
    Type.REBUILD: "what is for those who run it",
    Type.FINALIZE: "what is for those who run it",
    Type.ENTRY_SKIP: "what is for those who run it",
    Type.LOG_LEVEL: "what is for those who run it",
    Type.DEBUG_DUMP: "dumps, never read",
    Type.CLOCK_RESET: "what is for those who run it",
    **dict.fromkeys(
        (
            *(Type.IDENTIFY, Type.IDENTITY_PUT, Type.IDENTITY_DELETE, Type.IDENTITY_LIST),
            *(Type.ROLE_PUT, Type.ROLE_DELETE, Type.ROLE_LIST, Type.AUDIT_LIST, Type.AUDIT_NOTE),
        ),
        "identities that come and go",
    ),
    **dict.fromkeys(
        (
            *(Type.BACKUP_TOPICS, Type.BACKUP_ACCESS, Type.BACKUP_BEGIN, Type.BACKUP_READ, Type.BACKUP_END),
            *(
                Type.BACKUP_LOG,
                Type.RESTORE_TOPIC,
                Type.RESTORE_BEGIN,
                Type.RESTORE_ROWS,
                Type.RESTORE_END,
                Type.RESTORE_OPEN,
            ),
        ),
        "backups begun and left, restores of nothing",
    ),
    Type.KV_GET: "get, never read",
    Type.KV_SCAN: "scan, never read",
    Type.KV_WATCH: "watch, never read",
    Type.SCHEDULE_PUT: "schedules",
    Type.SCHEDULE_CHANGE: "schedules",
    Type.SCHEDULE_GET: "schedules by name, never read",
    Type.SCHEDULE_LIST: "schedules, never read",
    Type.SCHEDULE_PREVIEW: "previews",
}


def test_every_type_of_requests_is_abused_and_mutated() -> None:
    """Every type of requests has a kind of abuse. (The test of a kind asserts that its requests occur.)"""
    assert {*ABUSED} == {Type(kind) for kind in REQUESTS} and {*ABUSED.values()} <= {*ABUSES}
    assert {one.what.split()[0] for one in mutated(0)} == {Type(kind).name for kind in REQUESTS}


class Watch(trio.abc.Instrument):
    """Count the work of the node per loop iteration. The counts are the same on every machine."""

    def __init__(self, node: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rounds = self.steps = 0
        self.kinds: set[int] = set()
        """Costs of the handled frames."""
        self.most_frames = self._frames = 0
        """Frames handled in one iteration."""
        self.most_bytes = dict.fromkeys(ACCOUNTS, 0)
        """Maximum bytes of each account in any iteration."""
        self._accounts = held(node)
        handle = ClientSession.handle

        def counted(session: ClientSession, frame: list[Any]) -> Awaitable[None] | None:
            self.kinds.add(frame[0])
            self._frames += 1
            return handle(session, frame)

        monkeypatch.setattr(ClientSession, "handle", counted)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.steps += 1

    def before_io_wait(self, timeout: float) -> None:
        self.rounds += 1
        self.most_frames, self._frames = max(self.most_frames, self._frames), 0
        for name, account in self._accounts.items():
            self.most_bytes[name] = max(self.most_bytes[name], account.bytes)


@asynccontextmanager
async def watched(node: Serving, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Watch]:
    watch = Watch(node, monkeypatch)
    trio.lowlevel.add_instrument(watch)
    try:
        yield watch
    finally:
        trio.lowlevel.remove_instrument(watch)


async def victim_iterations(node: Serving, victim: RawClient, name: str, watch: Watch, dial: Dial) -> list[int]:
    """Let the victim send PINGs while others abuse the node; return the loop iterations that each took. (A produce
    would also wait for the disk, for an unknown number of iterations.)"""
    taken = []
    kinds = {kind for kind, by in ABUSED.items() if by == name} | ({Type.METADATA} if "wide" in name else set())
    async with abused(node, dial, ABUSES[name]):
        await until_holds(lambda: kinds <= watch.kinds)
        for _ in range(CALLS):
            assert (await victim.produce(b"x", topic="victim"))[0] == Type.REPLY
            before = watch.rounds
            assert (await victim.call(Type.PING))[0] == Type.REPLY
            taken.append(watch.rounds - before)
            if name.startswith("http"):
                assert b" 200 " in await answer_of(node, b"GET /healthz")
    return taken


async def answer_of(node: Serving, asked: bytes) -> bytes:
    """The first bytes of the reply."""
    assert node.http is not None
    async with await trio.open_tcp_stream("127.0.0.1", node.http.port) as stream:
        await stream.send_all(asked + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return bytes(await stream.receive_some(1 << 16))


async def filled(victim: RawClient) -> None:
    for topic in ("t", "keys"):
        for number in range(BATCHES):
            columns = {Column.VALUE: [bytes(BATCH_BYTES)], Column.KEY: [b"%d" % number]}
            answer = await victim.produce_batch(encode(columns), topic)  # type: ignore[arg-type]
            assert answer[0] == Type.REPLY, answer


@pytest.mark.parametrize("name", ABUSES)
async def test_client_is_served_despite_many_abusers(
    node: Serving, victim: RawClient, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[RawClient] = []

    async def dial(to: Serving, *, hello: bool = True) -> RawClient:
        made.append(await RawClient.connect(to.client_port, hello=hello))
        return made[-1]

    await filled(victim)
    with capture_logs() as entries, trio.fail_after(PATIENCE_S):
        async with watched(node, monkeypatch) as watch:
            taken = await victim_iterations(node, victim, name, watch, dial)
            for raw in made:
                await trio.aclose_forcefully(raw.stream)
            await until_nothing_is_held(node)
    assert [entry for entry in entries if entry["log_level"] in ("error", "critical")] == []
    steps = watch.steps / watch.rounds
    told = f"rounds {taken}, {steps:.1f} steps in one, {watch.most_frames} frames at most, {watch.most_bytes}"
    print(told)
    # Tolerate a few extra iterations: the system may deliver bytes late.
    assert statistics.median(taken) <= PING_ROUNDS, told
    assert watch.most_frames <= ROUND_FRAMES, told
    for account, most in watch.most_bytes.items():
        assert most <= held(node)[account].share_bytes + SLACK_BYTES, told


@pytest.mark.parametrize("name", few_of(["fetch, never read", *ABUSES], 1))
async def test_memory_is_bounded_despite_many_abusers(
    node: Serving, victim: RawClient, name: str, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All memory of Python, including memory outside the accounts and that of the abusers."""
    await filled(victim)
    tracemalloc.start()
    try:
        async with watched(node, monkeypatch) as watch:
            await victim_iterations(node, victim, name, watch, dial)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    print(f"{peak / MB:.0f} MB")
    assert peak <= node.broker.node_log.memory.limit_bytes + SLACK_BYTES + ABUSERS * ABUSER_BYTES
