"""kill -9 of a real node under load, twenty times; what was acknowledged is kept here, outside of the broker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import trio

import sandq
from sandq.errors import SandqError
from tests.faults.node_process import NodeProcess

KILLS = 20
WORKERS = 2
DRAIN_S = 60.0


@dataclass
class Record:
    """What clients were told."""

    stored: dict[bytes, str] = field(default_factory=dict)
    """Payload -> offset, of produces that were acknowledged."""
    due_ms: dict[bytes, int] = field(default_factory=dict)
    delivered: dict[bytes, set[str]] = field(default_factory=dict)
    acked: set[str] = field(default_factory=set)
    """Ids whose ack was confirmed."""
    unsure: set[str] = field(default_factory=set)
    """Ids of which an ack failed: it may have been applied, its answer lost with the connection and its lease over."""
    faults: list[str] = field(default_factory=list)
    redelivered: int = 0
    produced: bool = False
    done: trio.Event = field(default_factory=trio.Event)

    def deliver(self, message: sandq.Message) -> None:
        value = message.value or b""
        now_ms = time.time() * 1000
        if now_ms < self.due_ms[value] - 1:
            self.faults.append(f"{value!r} came {self.due_ms[value] - now_ms:.1f} ms early")
        if message.id in self.acked:
            self.faults.append(f"{value!r} was acked and came again")
        self.redelivered += message.id in self.delivered.setdefault(value, set())
        self.delivered[value].add(message.id)

    def settled(self) -> bool:
        return all(offset in self.acked or offset in self.unsure for offset in self.stored.values())


async def produce(client: sandq.Client, record: Record, rng: random.Random, stop: trio.Event) -> None:
    async with client.producer("t") as producer:
        number = 0
        pending: list[tuple[bytes, sandq.Receipt]] = []
        while not stop.is_set():
            for _ in range(rng.choice((1, 5, 50))):
                value = b"m%d" % number
                number += 1
                delay_ms = rng.choice((0, 0, 20, 300))
                record.due_ms[value] = int(time.time() * 1000) + delay_ms
                pending.append((value, await producer.send(value, deliver_at=record.due_ms[value])))
            await trio.sleep(0.01)
            for value, receipt in pending[:40]:
                record.stored[value] = await receipt
            del pending[:40]
        for value, receipt in pending:
            record.stored[value] = await receipt


async def consume(client: sandq.Client, record: Record) -> None:
    async with client.subscribe("t", group="g", credit=100) as subscription, trio.open_nursery() as nursery:
        async for message in subscription:
            record.deliver(message)
            nursery.start_soon(ack, message, record)


async def ack(message: sandq.Message, record: Record) -> None:
    try:
        await message.ack()
    except SandqError:
        record.unsure.add(message.id)  # it comes again, unless the ack was applied
    else:
        record.acked.add(message.id)
    if record.produced and record.settled():
        record.done.set()


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 8))])
def test_nothing_acknowledged_is_lost_over_twenty_kills(seed: int, make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(SANDQ_STORAGE__SEGMENT_BYTES="262144", SANDQ_STORAGE__CHECKPOINT_BYTES="400000")
    node.start()
    rng = random.Random(seed)
    record = Record()

    async def scenario() -> None:
        async with sandq.connect(node.address) as client, trio.open_nursery() as nursery:
            await client.admin.create_topic(
                "t", lease="2s", backoff={"kind": "fixed", "first": "50ms"}, max_attempts=None
            )
            stop = trio.Event()
            for _ in range(WORKERS):
                nursery.start_soon(consume, client, record)
            async with trio.open_nursery() as producing:
                producing.start_soon(produce, client, record, rng, stop)
                for _ in range(KILLS):
                    await trio.sleep(rng.uniform(0.1, 0.7))
                    await trio.to_thread.run_sync(node.kill)
                    await trio.to_thread.run_sync(node.start)
                stop.set()
            record.produced = True
            with trio.move_on_after(DRAIN_S):
                if not record.settled():
                    await record.done.wait()
            nursery.cancel_scope.cancel()

    trio.run(scenario)
    lost = [value for value, offset in record.stored.items() if offset not in record.acked | record.unsure]
    unseen = [value for value, offset in record.stored.items() if offset not in record.delivered.get(value, set())]
    assert record.faults == [], f"seed {seed}"
    assert unseen == [], f"seed {seed}: {len(unseen)} of {len(record.stored)} acknowledged messages never came"
    assert lost == [], f"seed {seed}: {len(lost)} of {len(record.stored)} acknowledged messages were never acked"
    assert len(record.stored) > 1000
    assert node.stop() == 0, node.output()
