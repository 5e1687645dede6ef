"""The leader is killed with kill -9 at the moment when many messages become due."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

import sandq
from sandq.errors import SandqError
from tests.support.processes.cluster import NAMES, ClusterProcess
from tests.support.processes.load import SETTINGS
from tests.support.waiting import until_answer, until_holds

MESSAGES = 20_000
LEAD_MS = 5_000
"""Time to store the messages, in ms. If storing takes longer, later messages are due at once, which is allowed."""
LONG_LEASE = {**SETTINGS, "lease": "10s"}


@dataclass
class Received:
    """Messages that a consumer received, and the outcomes of its acks."""

    due_ms: int
    values: set[bytes] = field(default_factory=set)
    acked: set[bytes] = field(default_factory=set)
    unsure: set[bytes] = field(default_factory=set)
    """Values of messages whose ack failed. The ack may have been applied."""
    faults: list[str] = field(default_factory=list)
    began: trio.Event = field(default_factory=trio.Event)

    def deliver(self, values: list[bytes]) -> None:
        early_ms = self.due_ms - 1 - time.time() * 1000
        if early_ms > 0:
            self.faults.append(f"{len(values)} were delivered {early_ms:.1f} ms early")
        if again := self.acked.intersection(values):
            self.faults.append(f"{len(again)} were acked, and delivered again")
        self.values.update(values)
        self.began.set()

    async def ack(self, batch: sandq.MessageBatch) -> None:
        values = batch.values
        try:
            await batch.ack()
        except SandqError:
            self.unsure.update(values)
        else:
            self.acked.update(values)


async def consume(client: sandq.Client, received: Received) -> None:
    async with client.subscribe("t", group="g") as subscription, trio.open_nursery() as nursery:
        async for batch in subscription.batches():
            received.deliver(batch.values)
            nursery.start_soon(received.ack, batch)


def test_burst_across_leader_kill_delivers_each_message(make_cluster: Callable[..., ClusterProcess]) -> None:
    cluster = make_cluster()
    cluster.start()
    values = [b"%05d" % number for number in range(MESSAGES)]

    async def scenario() -> None:
        async with cluster.connect() as client, trio.open_nursery() as nursery:
            await cluster.create(client, **LONG_LEASE)
            leader = await cluster.leader(client)
            received = Received(int(time.time() * 1000) + LEAD_MS)
            nursery.start_soon(consume, client, received)
            async with client.producer("t") as producer:
                await producer.send_many(values, deliver_at=received.due_ms)
                await producer.flush()
                await received.began.wait()
                await trio.to_thread.run_sync(cluster.kill, leader)
            await until_holds(lambda: received.values == set(values) == received.acked | received.unsure)
            # If the lag is 0, all redeliveries have happened.
            await until_answer(lambda: client.admin.groups("t"), lambda rows: [row["lag"] for row in rows] == [0])
            nursery.cancel_scope.cancel()
        assert received.faults == []
        assert len(received.acked) > len(values) // 2, "too few confirmed acks to test redelivery"
        await trio.to_thread.run_sync(cluster.start, leader)

    trio.run(scenario)
    assert [cluster.nodes[name].stop() for name in NAMES] == [0, 0, 0], cluster.output()
