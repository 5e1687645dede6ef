"""Limits of a group hold over the partitions of three nodes, while other nodes come to lead them, stop and return."""

from __future__ import annotations

from pathlib import Path

import trio

import sandq
from sandq.broker.replication.replica import PartitionReplica
from tests.support.nodes.three import NAMES, ThreeNodes, three_nodes
from tests.support.waiting import PATIENCE_S, until_answer, until_holds

PARTITIONS = 4
MOST = 3
MESSAGES = 160


async def limited(nodes: ThreeNodes, client: sandq.Client, **limits: int | str) -> None:
    """Create topic "t" with messages in all partitions, and limit group "g"."""
    await until_holds(lambda: len(nodes.running) == 3)
    await client.admin.create_topic("t", partitions=PARTITIONS, replicas=3, lease="1h")
    await client.admin.limit_group("t", "g", **limits)  # type: ignore[arg-type]
    async with client.producer("t") as producer:
        for number in range(MESSAGES):
            await producer.send(b"%d" % number, partition=number % PARTITIONS)


class Workers:
    """Consumers that hold each message for a moment and count the messages in flight."""

    def __init__(self) -> None:
        self.held: set[str] = set()
        self.done: set[str] = set()
        self.most = 0

    async def work(self, client: sandq.Client) -> None:
        async with client.subscribe("t", group="g", credit=20) as subscription, trio.open_nursery() as nursery:
            async for message in subscription:
                self.held.add(message.id)
                self.most = max(self.most, len(self.held))
                nursery.start_soon(self._handle, message)

    async def _handle(self, message: sandq.Message) -> None:
        await trio.sleep(0.005)
        self.held.discard(message.id)
        await message.ack()
        self.done.add(message.id)


async def test_group_limit_holds_while_leaders_change(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client, nodes.connect() as other:
        await limited(nodes, client, max_in_flight=MOST)
        workers = Workers()
        async with trio.open_nursery() as nursery:
            for at in (client, other):
                nursery.start_soon(workers.work, at)
            for step in range(6):
                await until_holds(lambda step=step: len(workers.done) >= 20 * (step + 1))  # type: ignore[misc]
                partition = step % 2 and step % PARTITIONS
                leader = await nodes.until_led(partition=partition)
                await nodes.hand_over(*[name for name in NAMES if name != leader], partition=partition)
            await until_holds(lambda: len(workers.done) == MESSAGES)
            nursery.cancel_scope.cancel()
        assert 1 <= workers.most <= MOST


async def test_group_limit_holds_while_a_node_is_away(tmp_path: Path) -> None:
    """The stopped node led the home partition."""
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await limited(nodes, client, max_in_flight=MOST)
        workers = Workers()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(workers.work, client)
            await until_holds(lambda: len(workers.done) >= 20)
            home = await nodes.until_led(partition=0)
            await nodes.stop(home)
            await until_holds(lambda: len(workers.done) >= 100)
            await nodes.start(home)
            await until_holds(lambda: len(workers.done) == MESSAGES)
            nursery.cancel_scope.cancel()
        assert 1 <= workers.most <= MOST


async def test_a_rate_holds_over_partitions_of_three_nodes(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await limited(nodes, client, rate=100, burst=2)
        leased_ms: list[int] = []
        partitions: set[int] = set()
        with trio.fail_after(PATIENCE_S):
            async with client.subscribe("t", group="g", credit=100) as subscription:
                async for message in subscription:
                    partitions.add(message.partition)
                    await message.ack()
                    leased_ms.append(await _leased_ms(nodes, message))
                    # A partition without a leader gives nothing for a moment.
                    if len(leased_ms) >= 60 and len(partitions) == PARTITIONS:
                        break
        leased_ms.sort()
        for at, first_ms in enumerate(leased_ms):
            for count, then_ms in enumerate(leased_ms[at:], 1):
                assert count <= 2 + (then_ms - first_ms) / 10


async def _leased_ms(nodes: ThreeNodes, message: sandq.Message) -> int:
    """Return the time of the lease of a message, which was just acked."""
    leader = await nodes.until_led(partition=message.partition)
    replica = nodes.host(leader, partition=message.partition).replica
    assert isinstance(replica, PartitionReplica)
    lease = replica.machine.leases.by_token[int(message.lease_token.rpartition(".")[2])]
    return lease.leased_ms


async def test_lowered_limit_counts_messages_that_are_still_held(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await limited(nodes, client, max_in_flight=12)
        leases = client.leases("t", "g")
        held: list[sandq.LeasedMessage] = []
        while len(held) < 12:
            held += await leases.take(12, wait="1m")
        await client.admin.limit_group("t", "g", max_in_flight=4)

        async def limit_row() -> dict[str, int]:
            row = next(row for row in await client.admin.groups("t") if row["partition"] == 0)
            found: dict[str, int] = row["limits"] | {"leased": row["leased"]}
            return found

        found = await until_answer(limit_row, lambda now: now.get("unheard") == [])
        assert found["max_in_flight"] == 4 and found["given"] + found["leased"] == 12
        assert await leases.take(12) == []
        assert await leases.ack(held[:9]) == []
        more: list[sandq.LeasedMessage] = []
        while not more:
            more = await leases.take(12, wait="1m")
        assert len(more) == 1, "three messages are still held"


async def test_rate_with_a_unit_holds_while_leaders_change(tmp_path: Path) -> None:
    """Some messages cost more than the burst. The node of the home partition stops in between."""
    rate, burst = 400, 40
    costs = [(7 * number) % 50 + 1 for number in range(60)]
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await until_holds(lambda: len(nodes.running) == 3)
        await client.admin.create_topic("t", partitions=PARTITIONS, replicas=3, lease="1h")
        await client.admin.limit_group("t", "g", rate=rate, burst=burst, unit="tokens")
        async with client.producer("t") as producer:
            for number, cost in enumerate(costs):
                await producer.send(b"%d" % number, partition=number % PARTITIONS, cost=cost)
        received: list[int] = []
        began_s = trio.current_time()
        async with client.subscribe("t", group="g", credit=20) as subscription:
            home = await nodes.until_led(partition=0)
            while len(received) < len(costs):
                with trio.fail_after(PATIENCE_S):
                    message = await anext(subscription)
                received.append(costs[int(message.value)])
                # All of these were leased since the beginning, so a late receipt does not matter.
                assert sum(received) <= rate * (trio.current_time() - began_s) + max(burst, *costs)
                await message.ack()
                if len(received) == 20:
                    await nodes.stop(home)
        assert sorted(received) == sorted(costs)
