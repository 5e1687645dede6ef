"""The Python clients that people use with each peer, as their documents show it: one message after the other, each
awaited.

`make bench-peers` installs them (requirements-peers.lock).
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import ModuleType
from typing import Any, Final

import anyio

from benchmarks.peers import rabbitmq, redis, sandq_node
from benchmarks.peers.loop import TIMEOUT_S, Driven, value
from benchmarks.peers.nats import STREAM
from benchmarks.peers.peer import PeerError

PREFETCH: Final = 100
"""Number of messages that a consumer prefetches, if its client needs a number."""

Produce = Callable[[bytes], Awaitable[object]]
"""Send a message, and wait until it is stored."""


class Usual(ABC):
    """A connected client of a peer."""

    @abstractmethod
    async def producers(self, count: int) -> list[Produce]:
        """Return a send function for each task, over as many connections as is usual."""

    @abstractmethod
    async def consume(self, messages: int, workers: int) -> None:
        """Receive this many messages with this many workers; each worker acks a message before it takes its next."""


class SandqClient(Usual):
    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, port: int) -> AsyncIterator[Usual]:
        import sandq

        async with sandq.connect(f"127.0.0.1:{port}") as client:
            yield cls(client)

    async def producers(self, count: int) -> list[Produce]:
        async def produce(text: bytes) -> object:
            return await self._client.produce(sandq_node.TOPIC, text)

        return [produce] * count

    async def consume(self, messages: int, workers: int) -> None:
        if workers > 1:
            await self._work(messages, workers)
            return
        async with self._client.subscribe(sandq_node.TOPIC, group=sandq_node.GROUP) as subscription:
            async for message in subscription:
                await message.ack()
                messages -= 1
                if not messages:
                    return

    async def _work(self, messages: int, workers: int) -> None:
        async def handle(_: object) -> None:
            nonlocal messages
            messages -= 1
            if not messages:
                scope.cancel()

        with anyio.CancelScope() as scope:
            await self._client.run(sandq_node.TOPIC, sandq_node.GROUP, handle, concurrency=workers)


class RedisClient(Usual):
    """redis-py: XADD; XREADGROUP, and an XACK for each message."""

    def __init__(self, client: Any) -> None:
        self._client = client

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, port: int) -> AsyncIterator[Usual]:
        client = _package("redis.asyncio", "redis").Redis(host="127.0.0.1", port=port)
        try:
            yield cls(client)
        finally:
            await client.aclose()

    async def producers(self, count: int) -> list[Produce]:
        async def produce(text: bytes) -> object:
            return await self._client.xadd(redis.STREAM, {b"v": text})

        return [produce] * count

    async def consume(self, messages: int, workers: int) -> None:
        parts = shares(messages, workers)
        await asyncio.gather(*[self._work(f"c{at}", part, PREFETCH // workers) for at, part in enumerate(parts)])

    async def _work(self, name: str, messages: int, prefetch: int) -> None:
        while messages:
            streams, most = {redis.STREAM: ">"}, min(prefetch, messages)
            found = await self._client.xreadgroup(redis.GROUP, name, streams, count=most, block=int(TIMEOUT_S * 1000))
            for entry_id, _ in found[0][1]:
                await self._client.xack(redis.STREAM, redis.GROUP, entry_id)
                messages -= 1


class BeanstalkdClient(Usual):
    """greenstalk, which blocks: each task has a thread and a connection."""

    def __init__(self, port: int, stack: contextlib.ExitStack) -> None:
        self._port = port
        self._stack = stack

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, port: int) -> AsyncIterator[Usual]:
        with contextlib.ExitStack() as stack:
            yield cls(port, stack)

    def _client(self) -> Any:
        client = _package("greenstalk").Client(("127.0.0.1", self._port), encoding=None)
        return self._stack.enter_context(client)

    async def producers(self, count: int) -> list[Produce]:
        def one(client: Any) -> Produce:
            async def produce(text: bytes) -> object:
                return client.put(text) if count == 1 else await asyncio.to_thread(client.put, text)

            return produce

        return [one(self._client()) for _ in range(count)]

    async def consume(self, messages: int, workers: int) -> None:
        def work(client: Any, messages: int) -> None:
            for _ in range(messages):
                client.delete(client.reserve())

        works = [asyncio.to_thread(work, self._client(), part) for part in shares(messages, workers)]
        await asyncio.gather(*works)


class RabbitClient(Usual):
    """aio-pika: a channel with publisher confirms; for each worker, a channel with an iterator over the queue."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, port: int) -> AsyncIterator[Usual]:
        connection = await _package("aio_pika", "aio-pika").connect(host="127.0.0.1", port=port)
        async with connection:
            yield cls(connection)

    async def producers(self, count: int) -> list[Produce]:
        package = _package("aio_pika", "aio-pika")
        channel = await self._connection.channel()

        async def produce(text: bytes) -> object:
            message = package.Message(text, delivery_mode=package.DeliveryMode.PERSISTENT)
            return await channel.default_exchange.publish(message, routing_key=rabbitmq.QUEUE)

        return [produce] * count

    async def consume(self, messages: int, workers: int) -> None:
        await asyncio.gather(*[self._work(part, PREFETCH // workers) for part in shares(messages, workers)])
        await asyncio.sleep(
            rabbitmq.QUEUE_S
        )  # Acks have no response: without this, messages in flight would be redelivered.

    async def _work(self, messages: int, prefetch: int) -> None:
        channel = await self._connection.channel()
        await channel.set_qos(prefetch_count=prefetch)
        queue = await channel.get_queue(rabbitmq.QUEUE)
        async with queue.iterator() as incoming:
            async for message in incoming:
                await message.ack()
                messages -= 1
                if not messages:
                    break  # further messages return to the queue


class NatsClient(Usual):
    """nats-py: JetStream's publish; a pull consumer, and an ack for each message."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, port: int) -> AsyncIterator[Usual]:
        client = await _package("nats", "nats-py").connect(f"nats://127.0.0.1:{port}")
        try:
            yield cls(client.jetstream())
        finally:
            await client.drain()

    async def producers(self, count: int) -> list[Produce]:
        async def produce(text: bytes) -> object:
            return await self._stream.publish(f"{STREAM}.0", text)

        return [produce] * count

    async def consume(self, messages: int, workers: int) -> None:
        parts = shares(messages, workers)
        await asyncio.gather(*[self._work(part, PREFETCH // workers) for part in parts])

    async def _work(self, messages: int, prefetch: int) -> None:
        consumer = await self._stream.pull_subscribe(f"{STREAM}.*", durable="usual", stream=STREAM)
        while messages:
            for message in await consumer.fetch(min(prefetch, messages), timeout=TIMEOUT_S):
                await message.ack_sync()
                messages -= 1


class PostgresClient(Usual):
    """psycopg: a transaction for each message, a connection for each task."""

    def __init__(self, port: int, stack: contextlib.AsyncExitStack) -> None:
        self._port = port
        self._stack = stack

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, port: int) -> AsyncIterator[Usual]:
        async with contextlib.AsyncExitStack() as stack:
            yield cls(port, stack)

    async def _connection(self) -> Any:
        opened = await _package("psycopg").AsyncConnection.connect(
            f"host=127.0.0.1 port={self._port} user=postgres dbname=postgres", autocommit=True
        )
        return await self._stack.enter_async_context(opened)

    async def producers(self, count: int) -> list[Produce]:
        def one(connection: Any) -> Produce:
            async def produce(text: bytes) -> object:
                return await connection.execute("INSERT INTO bench (value) VALUES (%s)", (text,))

            return produce

        return [one(await self._connection()) for _ in range(count)]

    async def consume(self, messages: int, workers: int) -> None:
        await asyncio.gather(*[self._work(await self._connection(), part) for part in shares(messages, workers)])

    async def _work(self, connection: Any, messages: int) -> None:
        take = (
            "DELETE FROM bench WHERE id = (SELECT id FROM bench ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 1) "
            "RETURNING value"
        )
        for _ in range(messages):
            cursor = await connection.execute(take)
            if await cursor.fetchone() is None:
                raise PeerError("the table is empty before all were taken")


Opened = Callable[[int], contextlib.AbstractAsyncContextManager[Usual]]


def _package(module: str, name: str | None = None) -> ModuleType:
    """Import a client's module. Raises PeerError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        raise PeerError(f"its Python client {name or module} is not installed: make bench-peers installs it") from None


def shares(messages: int, workers: int) -> list[int]:
    """Return how many messages each worker takes."""
    return [len(range(at, messages, workers)) for at in range(workers)]


async def lock_step(opened: Opened, port: int, tasks: int, most: int, seconds: float) -> tuple[int, Driven]:
    """Let tasks send one message after the other, `most` in total, up to a time limit. Returns how many were stored
    before that, as warm-up, and the result."""
    driven = Driven()
    async with opened(port) as client:
        producers = await client.producers(tasks)
        for produce in producers:
            await produce(value())
        began = time.perf_counter()
        end = began + seconds

        async def send(produce: Produce, messages: int) -> None:
            for _ in range(messages):
                sent = time.perf_counter()
                if sent > end:
                    return
                await produce(value())
                driven.answer_s.append(time.perf_counter() - sent)

        await asyncio.gather(*[send(produce, most // tasks) for produce in producers])
        driven.seconds = time.perf_counter() - began
    return len(producers), driven


async def take_all(opened: Opened, port: int, messages: int, workers: int) -> float:
    """Consume this many messages; return the seconds."""
    async with opened(port) as client:
        began = time.perf_counter()
        async with asyncio.timeout(TIMEOUT_S):
            await client.consume(messages, workers)
        return time.perf_counter() - began


CLIENTS: Final[Sequence[tuple[str, Opened]]] = (
    ("sandq", SandqClient.open),
    ("nats", NatsClient.open),
    ("redis", RedisClient.open),
    ("beanstalkd", BeanstalkdClient.open),
    ("rabbitmq", RabbitClient.open),
    ("postgres", PostgresClient.open),
)
"""Clients by the beginning of the peers' names."""


def opened_by(peer: str) -> Opened:
    """Return the usual client of a peer."""
    return next(opened for name, opened in CLIENTS if peer.startswith(name))
