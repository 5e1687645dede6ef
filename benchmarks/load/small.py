"""One request at a time, as programs are written: with the Python client, and over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import select
import socket
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import count, cycle, pairwise

import anyio
import anyio.abc

import sandq
from benchmarks.load.consume import GROUP, fill
from benchmarks.load.keys import TOPIC as KV_TOPIC
from benchmarks.load.work import Done, Ready
from benchmarks.process import cpu_s
from benchmarks.produce import TOPIC, VALUE
from benchmarks.result import CALLED, Latency, LoadResult
from benchmarks.wire import Wire

FILL = 1000
CREDIT = 1000
"""Credit of a consumer that acks one by one, in messages."""
KEYS = 100
PARTS = 10
SETTLE_S = 3.0
"""Time for long polls to begin waiting."""

Once = Callable[[], Awaitable[object]]


def produce(address: str, messages: int, clients: int) -> Ready:
    """Await `client.produce(...)` repeatedly, with this many clients."""
    return _lock_step(address, messages, clients, lambda client: lambda: client.produce(TOPIC, VALUE))


def kv_get(address: str, messages: int, clients: int) -> Ready:
    """Await `keys.get(...)` repeatedly, with this many clients."""
    return _each_key(address, messages, clients, lambda keys, key: keys.get(key))


def kv_put(address: str, messages: int, clients: int) -> Ready:
    """Await `keys.put(...)` of existing keys repeatedly, with this many clients."""
    return _each_key(address, messages, clients, lambda keys, key: keys.put(key, VALUE))


def _each_key(
    address: str, messages: int, clients: int, ask: Callable[[sandq.Keys, bytes], Awaitable[object]]
) -> Ready:
    """Let each client request one key after the other, of `KEYS` that have a value."""

    def of(client: sandq.Client) -> Once:
        keys, each = client.kv(KV_TOPIC), cycle([b"%d" % number for number in range(KEYS)])
        return lambda: ask(keys, next(each))

    async def prepare() -> None:
        async with sandq.connect(address) as client:
            for number in range(KEYS):
                await client.kv(KV_TOPIC).put(b"%d" % number, VALUE)

    anyio.run(prepare, backend="trio")
    return _lock_step(address, messages, clients, of, KV_TOPIC)


def _lock_step(
    address: str, messages: int, clients: int, once_of: Callable[[sandq.Client], Once], topic: str = TOPIC
) -> Ready:
    """Let each client call again after each response."""
    taken_s: list[float] = []

    async def again(once: Once) -> None:
        for _ in range(messages // clients):
            called_s = time.perf_counter()
            await once()
            taken_s.append(time.perf_counter() - called_s)

    async def loop() -> float:
        async with contextlib.AsyncExitStack() as stack:
            all_once = []
            for _ in range(clients):
                client = await stack.enter_async_context(sandq.connect(address))
                await client.admin.topic(topic)
                all_once.append(once_of(client))
            began_s = time.perf_counter()
            async with anyio.create_task_group() as tasks:
                for once in all_once:
                    tasks.start_soon(again, once)
            return time.perf_counter() - began_s

    def run(began_s: float) -> Done:
        seconds = anyio.run(loop, backend="trio")
        return Done(LoadResult(len(taken_s), seconds), partial(Latency.of, CALLED, taken_s))

    return Ready(run)


def consume(address: str, port: int, pid: int, messages: int, partitions: int, mode: str) -> Ready:
    """Consume all due messages in one of the `MODES`. Details: the node's CPU per message, in microseconds, in the
    second tenth (the first one warms up) and in the last."""
    wire = Wire(port)
    fill(wire, messages, FILL, partitions)
    wire.close()
    take = MODES[mode]

    left, rounds = messages, 0
    marks_s: list[float] = []
    """CPU time of the node after each tenth of the messages."""

    def enough(count: int) -> bool:
        nonlocal left, rounds
        left, rounds = left - count, rounds + 1
        while len(marks_s) <= (messages - left) * PARTS // messages:
            marks_s.append(cpu_s(pid))
        return left <= 0

    async def loop() -> float:
        async with sandq.connect(address) as client:
            await client.admin.topic(TOPIC)
            marks_s.append(cpu_s(pid))
            began_s = time.perf_counter()
            await take(client, enough)
            return time.perf_counter() - began_s

    def run(began_s: float) -> Done:
        seconds = anyio.run(loop, backend="trio")
        tenths_us = [(after - before) * 1e6 / (messages / PARTS) for before, after in pairwise(marks_s)]
        details = {
            "messages a turn": messages / rounds,
            "CPU us, second tenth": tenths_us[1],
            "CPU us, last tenth": tenths_us[-1],
        }
        return Done(LoadResult(messages, seconds, details=details))

    return Ready(run)


Enough = Callable[[int], bool]
"""Record how many were received; return whether these were the last."""


async def _by_message(client: sandq.Client, enough: Enough) -> None:
    async with client.subscribe(TOPIC, group=GROUP, credit=CREDIT) as subscription:
        async for message in subscription:
            await message.ack()
            if enough(1):
                break


async def _by_batch(client: sandq.Client, enough: Enough) -> None:
    async with client.subscribe(TOPIC, group=GROUP) as subscription:
        async for batch in subscription.batches():
            await batch.ack()
            if enough(len(batch)):
                break


async def _by_workers(client: sandq.Client, enough: Enough) -> None:
    """Run `client.run` with ten workers, whose handler does nothing."""

    async def handle(message: sandq.Message) -> None:
        if enough(1):
            scope.cancel()

    with anyio.CancelScope() as scope:
        await client.run(TOPIC, GROUP, handle, concurrency=10)


MODES: dict[str, Callable[[sandq.Client, Enough], Awaitable[None]]] = {
    "message": _by_message,
    "batch": _by_batch,
    "workers": _by_workers,
}


def post(http: str, messages: int, connections: int, size: int) -> Ready:
    """POST `size` messages repeatedly, over this many kept connections."""
    bodies = b",".join([b'{"text":"%s"}' % VALUE] * size)
    body = b'{"messages":[%s]}' % bodies if size > 1 else bodies
    rounds = messages // size // connections
    return _post(http, _request(http, f"/topics/{TOPIC}", body), connections, size, lambda: range(rounds))


def flood(http: str, topic: str, connections: int) -> Ready:
    """POST one message repeatedly, over this many kept connections, until this process is killed."""
    return _post(http, _request(http, f"/topics/{topic}", b'{"text":"%s"}' % VALUE), connections, 1, count)


def wait(http: str, polls: int) -> Ready:
    """Hold this many long polls, each on a connection of its own; report how many still wait at the end."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    host, _, port = http.rpartition(":")
    request = _request(http, f"/topics/{TOPIC}/groups/{GROUP}/lease", b'{"wait":"60s"}')
    waiting = [socket.create_connection((host, int(port))) for _ in range(polls)]
    for one in waiting:
        one.sendall(request)
    time.sleep(SETTLE_S)

    def run(began_s: float) -> Done:
        answered = select.poll()
        for one in waiting:
            answered.register(one, select.POLLIN)
        return Done(LoadResult(polls - len(answered.poll(0)), time.perf_counter() - began_s))

    return Ready(run)


def _request(http: str, path: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {http}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def _post(http: str, request: bytes, connections: int, size: int, rounds: Callable[[], Iterable[object]]) -> Ready:
    """Send a request of `size` messages repeatedly over each connection, once for each of `rounds()`."""
    host, _, port = http.rpartition(":")
    taken_s: list[float] = []

    async def again() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in rounds():
            called_s = time.perf_counter()
            writer.write(request)
            await _answer(reader)
            taken_s.append(time.perf_counter() - called_s)
        writer.close()

    async def loop() -> float:
        began_s = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(connections):
                tasks.create_task(again())
        return time.perf_counter() - began_s

    def run(began_s: float) -> Done:
        seconds = asyncio.run(loop())
        return Done(LoadResult(len(taken_s) * size, seconds), partial(Latency.of, CALLED, taken_s))

    return Ready(run)


async def _answer(reader: asyncio.StreamReader) -> None:
    """Read a response, which must be a success."""
    head = await reader.readuntil(b"\r\n\r\n")
    lines = head.lower().split(b"\r\n")
    length = next(int(line[15:]) for line in lines if line.startswith(b"content-length:"))
    body = await reader.readexactly(length)
    if not lines[0].startswith((b"http/1.1 200", b"http/1.1 201")):
        raise ValueError(f"{lines[0].decode()}: {body.decode()}")
