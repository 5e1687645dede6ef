"""Cancels and deliveries of the same messages at the same time: each message has one fate, and both sides know it."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import trio

import sandq
from sandq.errors import TooLate
from sandq.node.running import Serving
from tests.support.nodes.working import connected
from tests.support.waiting import PATIENCE_S

LATE = -1.0
"""Marks a cancel that is sent only after the delivery of its message."""
MESSAGES = 600


@pytest.mark.parametrize("partitions", [1, 4])
async def test_every_message_is_cancelled_or_delivered(node: Serving, api: sandq.Client, partitions: int) -> None:
    rng = random.Random(partitions)
    await api.admin.create_topic("t", partitions=partitions, lease="1h")
    delivered: Counter[str] = Counter()
    cancelled: set[str] = set()
    too_late: Counter[object] = Counter()
    over = trio.Event()

    async def consume() -> None:
        async with connected(node) as client, client.subscribe("t", group="g", credit=200) as subscription:
            async for message in subscription:
                assert node.broker.clock.now_ms() >= message.deliver_at_ms, "early"
                if message.value == b"last":
                    over.set()
                else:
                    delivered[message.id] += 1
                message.ack()

    async def cancel(message_id: str, unique_key: str | None, after_s: float) -> None:
        await trio.sleep(max(after_s, 0.0))
        while after_s == LATE and message_id not in delivered:  # noqa: ASYNC110 - many tasks have a part in it
            await trio.sleep(0.01)
        try:
            if unique_key is None:
                answer = await messages.cancel(message_id)
            else:
                answer = await messages.cancel(unique_key=unique_key)
        except TooLate as error:
            too_late[error.details["state"]] += 1
        else:
            assert answer == message_id
            cancelled.add(message_id)

    messages = api.messages("t")
    start_ms = node.broker.clock.now_ms() + 200
    ids: list[tuple[str, str | None]] = []
    async with api.producer("t") as producer:
        receipts = []
        for number in range(MESSAGES):
            # Half of the messages are ready before the consumers subscribe, and share batch rows.
            due_ms = None if number % 2 else start_ms + rng.randrange(200)
            key = f"u{number}" if number % 3 == 0 else None
            receipts.append((await producer.send(b"%d" % number, deliver_at=due_ms, unique_key=key), key))
        ids = [(await receipt, key) for receipt, key in receipts]
    with trio.fail_after(2 * PATIENCE_S):
        async with trio.open_nursery() as before:
            for message_id, key in ids[::10]:
                before.start_soon(cancel, message_id, key, 0.0)
        async with trio.open_nursery() as consuming:
            async with trio.open_nursery() as cancelling:
                for number, (message_id, key) in enumerate(ids):
                    if number % 10:
                        # Some cancels follow the delivery of their message, most run during other deliveries.
                        after_s = LATE if number % 10 == 1 else rng.uniform(0, 0.4)
                        cancelling.start_soon(cancel, message_id, key, after_s)
                for _ in range(2):
                    consuming.start_soon(consume)
            everything = {message_id for message_id, _ in ids}
            while delivered.keys() | cancelled != everything:  # noqa: ASYNC110 - many tasks have a part in it
                await trio.sleep(0.01)
            await api.produce("t", b"last")
            await over.wait()
            consuming.cancel_scope.cancel()
    assert not delivered.keys() & cancelled, "both"
    assert set(delivered.values()) == {1}
    assert sum(too_late.values()) == len(delivered), "a cancel may be refused only for a delivered message"
    assert set(too_late) <= {"leased", "acked", "gone"}
    assert min(len(cancelled), len(delivered)) >= MESSAGES // 10, "there were both"
    assert [message async for message in messages.list(state="delayed")] == []
