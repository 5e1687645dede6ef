"""The loads of `sandctl bench`: produce, consume, or wait for messages to become due."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio

from sandctl.output.measurement import Measured
from sandctl.output.progress import Progress
from sandctl.output.results import counted
from sandctl.pacing import Pacer

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream

    from sandq.client import Client, Producer

FILL_BATCH = 1000
UNCONFIRMED = 1000
"""Maximum number of unconfirmed sends, and maximum number of unconfirmed acks."""
CREDIT = 10_000
LEAD_S = 1.0
FILL_PER_S = 10_000
"""Messages per second that even a slow client can schedule. No message may be due before all are stored."""
GRACE_S = 10.0
CLEAN_UP_S = 5.0
TRIM_LOOK_S = 0.05


@dataclass(frozen=True)
class Plan:
    """Options of a measurement. `topic` None: create a topic, and delete it at the end. `batch`: number of messages per
    call of the client."""

    topic: str | None
    partitions: int
    messages: int
    size: int
    batch: int
    rate: float | None
    duration_s: float


_Waiting = tuple[float, int, Awaitable[Any]]
"""Start (monotonic seconds), number of messages, and the receipt to await."""


class Load:
    """One measurement. `measured` has the results, even if the measurement fails."""

    def __init__(self, what: str, plan: Plan) -> None:
        self.plan = plan
        self.topic = plan.topic or f"bench-{secrets.token_hex(6)}"
        self.group = f"bench-{secrets.token_hex(6)}"
        self.measured = Measured(what, self.topic, plan.size, plan.messages)
        self._began_s = 0.0
        self._cpu_s = 0.0

    async def run(self, client: Client) -> None:
        """Run the measurement. Raise the errors of the cluster, and InvalidRequest if it would consume existing
        messages of a topic."""
        async with self._topic(client):
            with Progress(self.measured.what, self.plan.messages) as progress:
                if self.measured.what == "produce":
                    await self._produce(client, progress)
                elif self.measured.what == "consume":
                    await self._consume(client, progress)
                else:
                    await self._lateness(client, progress)

    @asynccontextmanager
    async def _topic(self, client: Client) -> AsyncIterator[None]:
        consumes = self.measured.what != "produce"
        if self.plan.topic is None:
            await client.admin.create_topic(self.topic, partitions=self.plan.partitions, lease="60s")
        elif consumes:
            await self._check_empty(client)
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLEAN_UP_S):
                await self._clean_up(client, consumes)

    async def _check_empty(self, client: Client) -> None:
        from sandq.errors import Conflict

        held = await self._held(client)
        if held:
            raise Conflict(
                f"topic {self.topic} holds {counted(held, 'message')}, which this would consume: "
                "name an empty one, or none (then one is made, and deleted at the end)"
            )

    async def _clean_up(self, client: Client, consumes: bool) -> None:
        from sandq.errors import NotFound

        if self.plan.topic is None:
            await client.admin.delete_topic(self.topic)
        elif consumes:
            # Acked messages are deleted only if a group acked them; without a group they would stay.
            with anyio.move_on_after(CLEAN_UP_S / 2):
                while await self._held(client):  # noqa: ASYNC110 - there is no event for this
                    await anyio.sleep(TRIM_LOOK_S)
            with suppress(NotFound):  # the measurement ended before its group was created
                await client.admin.delete_group(self.topic, self.group, force=True)

    async def _held(self, client: Client) -> int:
        return sum(int(row.get("messages") or 0) for row in await client.admin.stats(self.topic))

    def _begin(self) -> None:
        self._began_s, self._cpu_s = time.monotonic(), time.process_time()

    def _note(self, messages: int, progress: Progress) -> None:
        """Count completed messages."""
        measured = self.measured
        measured.messages += messages
        measured.seconds = time.monotonic() - self._began_s
        measured.cpu_s = time.process_time() - self._cpu_s
        progress.at(measured.messages)

    # produce

    async def _produce(self, client: Client, progress: Progress) -> None:
        plan = self.plan
        async with client.producer(self.topic) as producer, anyio.create_task_group() as tasks:
            sender, receiver = anyio.create_memory_object_stream[_Waiting](max(1, UNCONFIRMED // plan.batch))
            tasks.start_soon(self._confirm, receiver, progress)
            pacer = None if plan.rate is None else Pacer(plan.rate, slip=False)
            self._begin()
            left = plan.messages
            with sender:
                while left and time.monotonic() - self._began_s < plan.duration_s:
                    count = min(plan.batch, left)
                    since_s = time.monotonic() if pacer is None else await pacer.wait(count)
                    await sender.send((since_s, count, await self._send(producer, count)))
                    left -= count

    async def _send(self, producer: Producer, count: int) -> Awaitable[Any]:
        value = b"x" * self.plan.size
        return await producer.send(value) if count == 1 else await producer.send_many([value] * count)

    async def _confirm(self, receiver: MemoryObjectReceiveStream[_Waiting], progress: Progress) -> None:
        """Record the latency of each message when it is confirmed.

        With a rate, latency begins at the planned time of the message, otherwise when it was sent."""
        with receiver:
            async for since_s, count, receipt in receiver:
                await receipt
                self.measured.samples.add(round((time.monotonic() - since_s) * 1e6), count)
                self._note(count, progress)

    # consume

    async def _consume(self, client: Client, progress: Progress) -> None:
        plan = self.plan
        async with client.producer(self.topic) as producer:
            for first in range(0, plan.messages, plan.batch):
                await producer.send_many([b"x" * plan.size] * min(plan.batch, plan.messages - first))
        self._begin()
        with anyio.move_on_after(plan.duration_s):
            subscription = client.subscribe(self.topic, group=self.group, credit=CREDIT)
            async with subscription, anyio.create_task_group() as tasks:
                sender, receiver = anyio.create_memory_object_stream[_Waiting](UNCONFIRMED)
                tasks.start_soon(self._confirm_acks, receiver, progress)
                left = plan.messages
                with sender:
                    async for batch in subscription.batches():
                        await sender.send((time.monotonic(), len(batch), batch.ack()))
                        left -= len(batch)
                        if left <= 0:
                            break

    async def _confirm_acks(self, receiver: MemoryObjectReceiveStream[_Waiting], progress: Progress) -> None:
        with receiver:
            async for since_s, count, settlement in receiver:
                await settlement
                self.measured.samples.add(round((time.monotonic() - since_s) * 1e6))
                self._note(count, progress)

    # lateness

    async def _lateness(self, client: Client, progress: Progress) -> None:
        plan = self.plan
        assert plan.rate is not None
        async with client.subscribe(self.topic, group=self.group, credit=CREDIT) as subscription:
            first_ms = time.time() * 1000 + (LEAD_S + plan.messages / FILL_PER_S) * 1000
            async with client.producer(self.topic) as producer:
                for at in range(plan.messages):
                    due_ms = int(first_ms + at * 1000 / plan.rate)
                    await producer.send(str(due_ms).encode().ljust(plan.size), deliver_at=due_ms)
            lasts_s = first_ms / 1000 - time.time() + min(plan.messages / plan.rate, plan.duration_s)
            self._begin()
            with anyio.move_on_after(lasts_s + GRACE_S):
                left = plan.messages
                async for message in subscription:
                    late_us = time.time_ns() // 1000 - int(message.value) * 1000
                    message.ack()
                    self.measured.samples.add(late_us)
                    self._note(1, progress)
                    left -= 1
                    if not left:
                        break
