"""Messages between partitions arrive exactly once, while leaders of both sides change, stop and return."""

from __future__ import annotations

from pathlib import Path

import trio

import sandq
from tests.support.nodes.three import NAMES, ThreeNodes, three_nodes
from tests.support.waiting import PATIENCE_S, until_answer, until_holds

PARTITIONS = 2
MESSAGES = 120


async def topics(nodes: ThreeNodes, client: sandq.Client) -> None:
    """Create topic "t", whose messages die after one attempt, and the topics that messages are sent to."""
    await until_holds(lambda: len(nodes.running) == 3)
    await client.admin.create_topic("failed", partitions=PARTITIONS, replicas=3)
    settings = {"max_attempts": 1, "dead_letter_topic": "failed"}
    await client.admin.create_topic("t", partitions=PARTITIONS, replicas=3, **settings)  # type: ignore[arg-type]


class Workers:
    """Consumers of "t" kill every other message and send a receipt for the rest; others count the arrivals."""

    def __init__(self) -> None:
        self.seen = 0
        self.arrived: list[str] = []

    async def work(self, client: sandq.Client) -> None:
        """Consume messages: nack every second one, and ack all others with a message to `failed`."""
        async with client.subscribe("t", group="g", credit=20) as subscription:
            async for message in subscription:
                self.seen += 1
                if self.seen % 2:
                    message.nack(error="boom")
                else:
                    message.ack(then=[sandq.Outgoing(message.value, "failed", key=message.key)])

    async def count(self, client: sandq.Client) -> None:
        async with client.subscribe("failed", group="g", credit=1000) as subscription:
            async for message in subscription:
                await message.ack()
                self.arrived.append(message.value.decode())


async def produce(client: sandq.Client) -> None:
    async with client.producer("t") as producer:
        for number in range(MESSAGES):
            await producer.send(b"%d" % number, key=f"k{number}", partition=number % PARTITIONS)


async def check(workers: Workers, client: sandq.Client) -> None:
    """Check that all messages have arrived, and that none arrives after a last one."""
    with trio.fail_after(PATIENCE_S):
        await until_holds(lambda: len(set(workers.arrived)) == MESSAGES)
    await until_answer(client.dead("t", "g").counts, lambda counts: counts == {})
    for partition in range(PARTITIONS):
        await client.produce("failed", f"last{partition}", partition=partition)
    await until_holds(lambda: {*workers.arrived} >= {f"last{partition}" for partition in range(PARTITIONS)})
    assert len(workers.arrived) == MESSAGES + PARTITIONS, "none came twice"


async def test_outbox_messages_arrive_once_while_leaders_change(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await topics(nodes, client)
        workers = Workers()
        async with trio.open_nursery() as nursery:
            for work in (workers.work, workers.count):
                nursery.start_soon(work, client)
            nursery.start_soon(produce, client)
            for step in range(8):
                await until_holds(lambda step=step: len(workers.arrived) >= 10 * step)  # type: ignore[misc]
                topic, partition = ("t", "failed")[step % 2], step // 2 % PARTITIONS
                leader = await nodes.until_led(topic, partition)
                await nodes.hand_over(*[name for name in NAMES if name != leader], topic=topic, partition=partition)
            await check(workers, client)
            nursery.cancel_scope.cancel()


async def test_outbox_messages_arrive_once_while_a_node_is_away(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await topics(nodes, client)
        workers = Workers()
        async with trio.open_nursery() as nursery:
            for work in (workers.work, workers.count):
                nursery.start_soon(work, client)
            nursery.start_soon(produce, client)
            for topic in ("failed", "t"):
                before = len(workers.arrived)
                await until_holds(lambda before=before: len(workers.arrived) >= before + 15)  # type: ignore[misc]
                away = await nodes.until_led(topic, 0)
                await nodes.stop(away)
                await until_holds(lambda before=before: len(workers.arrived) >= before + 30)  # type: ignore[misc]
                await nodes.start(away)
            await check(workers, client)
            nursery.cancel_scope.cancel()
