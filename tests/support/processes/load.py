"""Produce and consume under faults, and record the replies that clients received."""

from __future__ import annotations

import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

import sandq
from sandq.errors import SandqError
from tests.support.waiting import PATIENCE_S, until_holds

WORKERS = 2
DRAIN_S = GOES_ON_S = PATIENCE_S
MORE = 100
PAUSE_S = 0.1
"""Pause between two bursts of messages, in seconds."""
SETTINGS = {"lease": "2s", "backoff": {"kind": "fixed", "first": "50ms"}, "max_attempts": None}
"""Settings of a topic under load. If a consumer loses a message by a fault, the message is redelivered soon and never
dies."""


@dataclass
class Record:
    """Replies that clients received, and facts that follow from these replies."""

    stored: dict[bytes, str] = field(default_factory=dict)
    """Offset by value, of acknowledged produces."""
    due_ms: dict[bytes, int] = field(default_factory=dict)
    delivered: dict[bytes, set[str]] = field(default_factory=dict)
    attempts: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)
    """By message id and consumer: attempt number and lease of the last delivery.

    Two consumers may see the attempts at a message in any order, so attempts are compared per consumer."""
    leases: set[tuple[str, str]] = field(default_factory=set)
    """Id and lease of each delivery.

    An attempt number may repeat under another lease, because a crash of the leader may leave the attempt unused."""
    acked: set[str] = field(default_factory=set)
    """Ids whose ack was confirmed."""
    unsure: set[str] = field(default_factory=set)
    """Ids whose ack failed. The ack may have been applied, because its reply may be lost."""
    faults: list[str] = field(default_factory=list)
    redelivered: int = 0
    least: int = 500
    """Minimum number of messages to store before the load ends, so that there is something to lose."""
    produced: bool = False
    done: trio.Event = field(default_factory=trio.Event)

    def deliver(self, message: sandq.Message, consumer: int) -> None:
        value = message.value or b""
        now_ms = time.time() * 1000
        if now_ms < self.due_ms[value] - 1:
            self.faults.append(f"{value!r} came {self.due_ms[value] - now_ms:.1f} ms early")
        if message.id in self.acked:
            self.faults.append(f"{value!r} was acked and came again")
        last, under = self.attempts.get((message.id, consumer), (0, ""))
        if message.attempt < last or (message.id, message.lease_token) in self.leases:
            this = f"attempt {message.attempt} ({message.lease_token})"
            self.faults.append(f"{value!r} came again as {this}, after attempt {last} ({under})")
        self.leases.add((message.id, message.lease_token))
        self.attempts[message.id, consumer] = message.attempt, message.lease_token
        self.redelivered += message.id in self.delivered.setdefault(value, set())
        self.delivered[value].add(message.id)

    def settled(self) -> bool:
        return all(offset in self.acked or offset in self.unsure for offset in self.stored.values())

    async def until_progress(self) -> None:
        """Wait until more messages are acknowledged, and more are delivered."""
        stored, acked = len(self.stored) + MORE, len(self.acked) + MORE
        with trio.fail_after(GOES_ON_S):
            while len(self.stored) < stored or len(self.acked) < acked:  # noqa: ASYNC110 - many tasks have a part in it
                await trio.sleep(0.02)

    def judge(self, seed: int) -> None:
        """Check that no acknowledged message is lost, early or duplicated, and that enough messages were stored."""
        lost = [value for value, offset in self.stored.items() if offset not in self.acked | self.unsure]
        unseen = [value for value, offset in self.stored.items() if offset not in self.delivered.get(value, set())]
        doubled = [value for value, ids in self.delivered.items() if len(ids) > 1]
        assert self.faults == [], f"seed {seed}: {self.faults}"
        assert unseen == [], (
            f"seed {seed}: {len(unseen)} of {len(self.stored)} acknowledged messages were not delivered"
        )
        assert lost == [], f"seed {seed}: {len(lost)} of {len(self.stored)} acknowledged messages were never acked"
        assert doubled == [], f"seed {seed}: a retry of the producer was stored twice"
        assert len(self.stored) >= self.least


async def produce(
    client: sandq.Client,
    record: Record,
    rng: random.Random,
    stop: trio.Event,
    pause_s: float = PAUSE_S,
    tenants: Sequence[str] = (),
) -> None:
    async with client.producer("t") as producer:
        number = 0
        pending: list[tuple[bytes, sandq.Receipt]] = []
        while not stop.is_set():
            for _ in range(rng.choice((1, 5, 50))):
                value = b"m%d" % number
                number += 1
                delay_ms = rng.choice((0, 0, 20, 300))
                record.due_ms[value] = int(time.time() * 1000) + delay_ms
                rank = {"tenant": rng.choice(tenants), "priority": rng.randint(0, 3)} if tenants else {}
                pending.append((value, await producer.send(value, deliver_at=record.due_ms[value], **rank)))
            await trio.sleep(pause_s)
            for value, receipt in pending[:40]:
                record.stored[value] = await receipt
            del pending[:40]
        for value, receipt in pending:
            record.stored[value] = await receipt


async def consume(client: sandq.Client, record: Record, consumer: int) -> None:
    async with client.subscribe("t", group="g", credit=100) as subscription, trio.open_nursery() as nursery:
        async for message in subscription:
            record.deliver(message, consumer)
            nursery.start_soon(ack, message, record)


async def ack(message: sandq.Message, record: Record) -> None:
    try:
        await message.ack()
    except SandqError:
        record.unsure.add(message.id)  # the message is redelivered unless the ack was applied
    else:
        record.acked.add(message.id)
    if record.produced and record.settled():
        record.done.set()


@asynccontextmanager
async def under_load(
    client: sandq.Client,
    rng: random.Random,
    *,
    pause_s: float = PAUSE_S,
    least: int = 500,
    tenants: Sequence[str] = (),
) -> AsyncIterator[Record]:
    """Produce to topic "t" and consume from it while the block runs; then wait until all stored messages are acked.

    `tenants`: tenants of a fair topic."""
    record = Record(least=least)
    async with trio.open_nursery() as consuming:
        for number in range(WORKERS):
            consuming.start_soon(consume, client, record, number)
        stop = trio.Event()
        async with trio.open_nursery() as producing:
            producing.start_soon(produce, client, record, rng, stop, pause_s, tenants)
            yield record
            await until_holds(lambda: len(record.stored) >= least)
            stop.set()
        record.produced = True
        with trio.move_on_after(DRAIN_S):
            if not record.settled():
                await record.done.wait()
        consuming.cancel_scope.cancel()
