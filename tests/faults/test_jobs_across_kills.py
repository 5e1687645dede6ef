"""A node is killed in the middle of a job. The job continues where it stopped, and its totals are right."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

import sandq
from tests.support.processes.node import NodeProcess
from tests.support.processes.steered_node import read_kills, write_kills
from tests.support.waiting import PATIENCE_S

MakeNode = Callable[..., NodeProcess]
STEERED = ("-m", "tests.support.processes.steered_node")
MESSAGES = 12_000
"""Number of messages in two partitions. A step of a job handles at most 1,000 messages of one partition."""


class Lives:
    """Restarts the node each time it dies in a job."""

    def __init__(self, node: NodeProcess) -> None:
        self._node = node
        self._last: sandq.JobResult | None = None

    def progress(self, result: sandq.JobResult) -> None:
        assert self._last is None or result >= self._last, "the progress of a job never decreases"
        self._last = result

    @asynccontextmanager
    async def until(self, *kills: tuple[str, int]) -> AsyncIterator[None]:
        """Kill the node at these steps of jobs. The block must not end before all kills have happened."""
        write_kills(self._node.directory, list(kills))
        self._last = None
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._run, len(kills))
            yield
            assert read_kills(self._node.directory) == [], "the job ended before all kills"

    async def _run(self, kills: int) -> None:
        for _ in range(kills):
            await trio.to_thread.run_sync(self._node.ended, abandon_on_cancel=True)
            # Do not wait until the node serves. It may die before, because jobs continue once a partition is open.
            self._node.start(wait=False)


async def schedule(client: sandq.Client, count: int, start_ms: int) -> list[str]:
    async with client.producer("t") as producer:
        receipts = [await producer.send(b"%d" % n, deliver_at=start_ms + n * 10, key=f"k{n % 4}") for n in range(count)]
        return [await receipt for receipt in receipts]


def test_cancel_and_move_jobs_across_kills_finish(make_node: MakeNode) -> None:
    node = make_node(program=STEERED)
    lives = Lives(node)
    node.start()

    async def scenario() -> None:
        async with sandq.connect(node.address, timeout=PATIENCE_S) as client:
            await client.admin.create_topic("t", partitions=2)
            start_ms = int((await client.admin.clock())["guarded_ms"]) + 86_400_000
            ids = await schedule(client, MESSAGES, start_ms)
            messages = client.messages("t")

            with trio.fail_after(PATIENCE_S):
                async with lives.until(("move", 1), ("move", MESSAGES // 4), ("move", MESSAGES // 3)):
                    result = await messages.move_all(shift="1h", progress=lives.progress)
            assert result == (MESSAGES, MESSAGES, 0)
            found = {message.id: message async for message in messages.list()}
            assert {message_id: message.deliver_at_ms for message_id, message in found.items()} == {
                message_id: start_ms + number * 10 + 3_600_000 for number, message_id in enumerate(ids)
            }
            assert {message.moves for message in found.values()} == {1}, "no message was moved twice"

            with trio.fail_after(PATIENCE_S):
                async with lives.until(("cancel", 1), ("cancel", MESSAGES // 16)):
                    result = await messages.cancel_all(key_prefix="k1", progress=lives.progress)
            assert result == (MESSAGES // 4, MESSAGES // 4, 0)
            assert sum(row["messages"] for row in await client.admin.stats("t")) == MESSAGES * 3 // 4
            keys = {message.key async for message in messages.list()}
            assert keys == {b"k0", b"k2", b"k3"}

    trio.run(scenario)
    assert node.stop() == 0, node.output()


def test_slow_redrive_across_kills_keeps_its_rate(make_node: MakeNode) -> None:
    """No message is redriven twice, although the node is killed during the job."""
    node = make_node(program=STEERED)
    lives = Lives(node)
    node.start()

    async def scenario() -> None:
        async with sandq.connect(node.address, timeout=PATIENCE_S) as client:
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
            with trio.fail_after(PATIENCE_S):
                async with lives.until(("redrive", 5), ("redrive", 25)):
                    assert await client.dead("t", "g").redrive(rate=20, progress=lives.progress) == (50, 50, 0)
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
