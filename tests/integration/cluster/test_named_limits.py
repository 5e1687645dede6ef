"""A limit of tokens holds over two topics of three nodes while the leader of its home stops.

How much of the limit is used is measured in virtual time (`tests/simulation/test_limits_world.py`)."""

from __future__ import annotations

from pathlib import Path

import trio

import sandq
from tests.support.nodes.three import ThreeNodes, three_nodes
from tests.support.waiting import PATIENCE_S, until_holds

RATE, BURST = 600, 600
"""Tokens in a second."""
COSTS = (1, 20, 150, 40)
TOPICS = ("chat", "mail")
MESSAGES = 24
"""Number of messages of each topic. The tokens of all of them are those of a few seconds."""


class Workers:
    """Consumers of both topics. They count the cost of each message when it arrives, and ack it."""

    def __init__(self) -> None:
        self.went: list[tuple[float, int]] = []
        """Time of receipt and cost of each message."""
        self.done: set[tuple[str, str]] = set()
        """Topic and id of each message."""

    async def work(self, client: sandq.Client, topic: str) -> None:
        async with client.subscribe(topic, group="g", credit=50) as subscription:
            async for message in subscription:
                self.went.append((trio.current_time(), int(message.value)))
                self.done.add((topic, f"{message.partition} {message.id}"))
                await message.ack()


async def filled(nodes: ThreeNodes, client: sandq.Client) -> None:
    await until_holds(lambda: len(nodes.running) == 3)
    await client.admin.set_limit("llm", rate=RATE, burst=BURST, unit="tokens")
    for topic in TOPICS:
        await client.admin.create_topic(topic, partitions=3, replicas=3, lease="1h")
        await client.admin.limit_group(topic, "g", limit="llm")
        async with client.producer(topic) as producer:
            for number in range(MESSAGES):
                cost = COSTS[number % len(COSTS)]
                await producer.send(b"%d" % cost, partition=number % 3, cost=cost)


async def test_limit_of_tokens_is_never_exceeded_while_the_home_stops(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await filled(nodes, client)
        workers = Workers()
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as nursery:
                began_s = trio.current_time()
                for topic in TOPICS:
                    nursery.start_soon(workers.work, client, topic)
                await until_holds(lambda: len(workers.done) >= MESSAGES // 4)
                await nodes.stop(await nodes.until_led(topic="sandq.limits", partition=0))
                await until_holds(lambda: len(workers.done) == len(TOPICS) * MESSAGES)
                nursery.cancel_scope.cancel()
        # All messages were leased since the beginning, so a late receipt does not matter.
        total = 0
        for at, cost in workers.went:
            total += cost
            assert total <= max(BURST, *COSTS) + RATE * (at - began_s), (at - began_s, total)
