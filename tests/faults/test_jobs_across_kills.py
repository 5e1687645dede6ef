"""A node is killed in the middle of bulk work: the job goes on where it was, and its totals are right."""

from __future__ import annotations

from collections.abc import Callable

import trio

import sandq
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S

MakeNode = Callable[..., NodeProcess]
MESSAGES = 12_000


async def restart(node: NodeProcess) -> None:
    await trio.to_thread.run_sync(node.kill)
    await trio.to_thread.run_sync(node.start)


class Killer:
    """Kills the node each time a job has done a further share of its work, up to so many times."""

    def __init__(self, node: NodeProcess, nursery: trio.Nursery, at: list[int]) -> None:
        self._node = node
        self._nursery = nursery
        self._at = at
        self._down = False
        self.seen: list[sandq.JobResult] = []

    def progress(self, result: sandq.JobResult) -> None:
        assert not self.seen or result >= self.seen[-1], "what was done stays done"
        self.seen.append(result)
        if self._at and result.done >= self._at[0] and not self._down:
            self._at = [at for at in self._at if at > result.done]
            self._down = True
            self._nursery.start_soon(self._kill)

    async def _kill(self) -> None:
        await restart(self._node)
        self._down = False


async def schedule(client: sandq.Client, count: int, start_ms: int) -> list[str]:
    async with client.producer("t") as producer:
        receipts = [await producer.send(b"%d" % n, deliver_at=start_ms + n * 10, key=f"k{n % 4}") for n in range(count)]
        return [await receipt for receipt in receipts]


def test_cancelling_and_moving_go_on(make_node: MakeNode) -> None:
    node = make_node()
    node.start()

    async def scenario() -> None:
        async with sandq.connect(node.address, timeout=PATIENCE_S) as client, trio.open_nursery() as nursery:
            await client.admin.create_topic("t", partitions=2)
            start_ms = int((await client.admin.clock())["guarded_ms"]) + 86_400_000
            ids = await schedule(client, MESSAGES, start_ms)
            messages = client.messages("t")

            killer = Killer(node, nursery, [1, MESSAGES // 4, MESSAGES // 2])
            with trio.fail_after(PATIENCE_S):
                result = await messages.move_all(shift="1h", progress=killer.progress)
            assert result == (MESSAGES, MESSAGES, 0)
            assert len({seen.done for seen in killer.seen}) > 2, "it was seen at work"
            found = {message.id: message async for message in messages.list()}
            assert {message_id: message.deliver_at_ms for message_id, message in found.items()} == {
                message_id: start_ms + number * 10 + 3_600_000 for number, message_id in enumerate(ids)
            }
            assert {message.moves for message in found.values()} == {1}, "nothing was moved twice"

            killer = Killer(node, nursery, [1, MESSAGES // 4])
            with trio.fail_after(PATIENCE_S):
                result = await messages.cancel_all(key_prefix="k1", progress=killer.progress)
            assert result == (MESSAGES // 4, MESSAGES // 4, 0)
            assert sum(row["messages"] for row in await client.admin.stats("t")) == MESSAGES * 3 // 4
            keys = {message.key async for message in messages.list()}
            assert keys == {b"k0", b"k2", b"k3"}

    trio.run(scenario)
    assert node.stop() == 0, node.output()


def test_a_slow_redrive_keeps_its_pace(make_node: MakeNode) -> None:
    """At twenty a second the kill surely comes in the middle; who was redriven is not redriven again."""
    node = make_node()
    node.start()

    async def scenario() -> None:
        async with sandq.connect(node.address, timeout=PATIENCE_S) as client, trio.open_nursery() as nursery:
            await client.admin.create_topic("t", max_attempts=1)
            async with client.producer("t") as producer:
                receipts = [await producer.send(b"%d" % number) for number in range(50)]
                ids = [await receipt for receipt in receipts]
            async with client.subscribe("t", group="g", credit=100) as subscription:
                count = 0
                async for message in subscription:
                    message.nack(error="no")
                    count += 1
                    if count == 50:
                        break
            begun_ms = int((await client.admin.clock())["guarded_ms"])
            killer = Killer(node, nursery, [5, 25])
            with trio.fail_after(PATIENCE_S):
                assert await client.dead("t", "g").redrive(rate=20, progress=killer.progress) == (50, 50, 0)
            assert int((await client.admin.clock())["guarded_ms"]) - begun_ms >= 49_000 / 20
            got: list[str] = []
            async with client.subscribe("t", group="g", credit=100) as subscription:
                with trio.fail_after(PATIENCE_S):
                    async for message in subscription:
                        if message.value == b"last":
                            break
                        got.append(message.id)
                        await message.ack()
                        if len(got) == 50:
                            await client.produce("t", b"last")
            assert sorted(got) == sorted(ids)
            assert await client.dead("t", "g").counts() == {}

    trio.run(scenario)
    assert node.stop() == 0, node.output()
