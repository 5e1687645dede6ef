"""A real node is killed with kill -9 while messages are cancelled and moved. The test records the answers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import trio

import sandq
from sandq.errors import NotFound, SandqError, TooLate
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, until_holds

SHORT, LONG = 2, 6
A_LIFE = (200, 800)
"""Minimum and maximum number of messages to store before the node is killed again."""
ROUNDS_AT_ONCE = 8
"""Maximum number of unfinished rounds of messages. On a slow machine, more rounds would delay cancels and moves."""
OF_EACH = 21
"""Minimum number of messages to cancel, to move, and to change too late."""
MESSAGES = 1000
EARLY_MS = 1
"""Tolerance in ms, because the clocks of two processes are read one after the other."""


@dataclass
class Fate:
    """Answers about one message.

    `id` is the acknowledged copy of the message. If the answer to a batch is lost, the batch is resent and may be
    stored twice."""

    value: bytes
    due_ms: int
    id: str = ""
    earliest_ms: int = 0
    """Earliest permitted delivery, in ms: the minimum of all delivery times that the message may have had."""
    cancelled: bool = False
    cancelled_at_ms: float = 0.0
    moved_ms: int | None = None
    """Delivery time that an acknowledged move has set, in ms."""
    moved_at_ms: float = 0.0
    """Time of the acknowledgement of the move, in ms.

    An earlier delivery is allowed: the message may have been delivered, and given back by a lost consumer."""
    sure: bool = True
    """False if a produce or a cancel of this message failed, but may have been applied."""


@dataclass
class Record:
    fates: dict[bytes, Fate] = field(default_factory=dict)
    delivered_ms: dict[str, list[float]] = field(default_factory=dict)
    """Delivery times, by id."""
    acked: set[str] = field(default_factory=set)
    ack_unsure: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)
    producing: bool = True
    stored: int = 0
    cancelled: int = 0
    moved: int = 0
    too_late: int = 0
    unsure: int = 0

    def deliver(self, message: sandq.Message) -> None:
        fate = self.fates[message.value]
        now_ms = time.time() * 1000
        self.delivered_ms.setdefault(message.id, []).append(now_ms)
        if now_ms < fate.earliest_ms - EARLY_MS and (message.id == fate.id or now_ms < fate.due_ms - EARLY_MS):
            self.faults.append(f"{fate.value!r} came {fate.earliest_ms - now_ms:.1f} ms early")
        if message.id in self.acked:
            self.faults.append(f"{fate.value!r} was acked, and delivered again")

    def has_enough_events(self) -> bool:
        """Return whether enough events of each kind have happened."""
        return min(self.cancelled, self.moved, self.too_late) >= OF_EACH and self.stored >= MESSAGES

    def settled(self) -> bool:
        """Return whether every stored message was cancelled or acked."""
        done = self.acked | self.ack_unsure
        return not self.producing and all(
            fate.cancelled or fate.id in done or not fate.sure for fate in self.fates.values() if fate.id
        )

    def judge(self) -> None:
        """Check all answers to cancels and moves against the deliveries."""
        for fate in self.fates.values():
            came_ms = self.delivered_ms.get(fate.id, [])
            if fate.cancelled and came_ms and came_ms[-1] > fate.cancelled_at_ms:
                self.faults.append(f"{fate.value!r} was cancelled, and delivered afterwards")
            for at_ms in came_ms:
                if fate.moved_ms is not None and fate.moved_at_ms < at_ms < fate.moved_ms - EARLY_MS:
                    self.faults.append(f"{fate.value!r} came {fate.moved_ms - at_ms:.1f} ms before its new time")


async def produce(client: sandq.Client, record: Record, rng: random.Random, stop: trio.Event) -> None:
    number = 0
    rounds = trio.CapacityLimiter(ROUNDS_AT_ONCE)
    async with client.producer("t") as producer, trio.open_nursery() as nursery:
        while not stop.is_set():
            async with rounds:
                pass
            sent: list[tuple[Fate, sandq.Receipt]] = []
            for _ in range(30):
                due_ms = int(time.time() * 1000) + rng.choice((0, 50, 300, 600, 1500))
                fate = Fate(b"m%d" % number, due_ms, earliest_ms=due_ms)
                record.fates[fate.value] = fate
                # One message in three has a unique key, and so its own row.
                key = f"u{number}" if number % 3 == 0 else None
                sent.append((fate, await producer.send(fate.value, deliver_at=due_ms, unique_key=key)))
                number += 1
            nursery.start_soon(change, client, record, rng.random(), sent, rounds)
            await trio.sleep(0.02)


async def change(
    client: sandq.Client,
    record: Record,
    seed: float,
    sent: list[tuple[Fate, sandq.Receipt]],
    rounds: trio.CapacityLimiter,
) -> None:
    """Wait until the messages are stored. Then cancel some of them, move some, and leave the rest."""
    rng = random.Random(seed)
    async with rounds, trio.open_nursery() as nursery:
        for fate, receipt in sent:
            try:
                fate.id = await receipt
            except SandqError:
                # The message may be stored: for example, its first copy holds its unique key.
                fate.sure = False
                continue
            record.stored += 1
            match rng.randrange(4):
                case 0:
                    nursery.start_soon(cancel, client, record, fate, rng.uniform(0, 0.4))
                case 1:
                    nursery.start_soon(move, client, record, fate, rng.uniform(0, 0.4), rng.choice((-200, 200, 700)))


def named(fate: Fate) -> dict[str, str]:
    number = int(fate.value[1:])
    return {"unique_key": f"u{number}"} if number % 6 == 0 else {"id": fate.id}


async def cancel(client: sandq.Client, record: Record, fate: Fate, after_s: float) -> None:
    await trio.sleep(after_s)
    try:
        await client.messages("t").cancel(**named(fate))
    except (TooLate, NotFound):
        record.too_late += 1
    except SandqError:
        fate.sure = False
        record.unsure += 1
    else:
        fate.cancelled, fate.cancelled_at_ms = True, time.time() * 1000
        record.cancelled += 1


async def move(client: sandq.Client, record: Record, fate: Fate, after_s: float, by_ms: int) -> None:
    await trio.sleep(after_s)
    to_ms = fate.due_ms + by_ms
    fate.earliest_ms = min(fate.earliest_ms, to_ms)
    try:
        await client.messages("t").move(**named(fate), deliver_at=to_ms)
    except (TooLate, NotFound):
        record.too_late += 1
    except SandqError:
        record.unsure += 1
    else:
        fate.moved_ms = fate.earliest_ms = to_ms
        fate.moved_at_ms = time.time() * 1000
        record.moved += 1


async def consume(client: sandq.Client, record: Record) -> None:
    async with client.subscribe("t", group="g", credit=200) as subscription, trio.open_nursery() as nursery:
        async for message in subscription:
            record.deliver(message)
            nursery.start_soon(ack, message, record)


async def ack(message: sandq.Message, record: Record) -> None:
    try:
        await message.ack()
    except SandqError:
        record.ack_unsure.add(message.id)
    else:
        record.acked.add(message.id)


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, SHORT), *(pytest.param(seed, LONG, marks=pytest.mark.long) for seed in range(1, 8))]
)
def test_kills_keep_acknowledged_cancels_and_moves(
    seed: int, kills: int, make_node: Callable[..., NodeProcess]
) -> None:
    node = make_node(SANDQ_STORAGE__SEGMENT_BYTES="262144", SANDQ_STORAGE__CHECKPOINT_BYTES="400000")
    node.start()
    rng = random.Random(seed)
    record = Record()

    async def scenario() -> None:
        async with sandq.connect(node.address, timeout=PATIENCE_S) as client, trio.open_nursery() as nursery:
            await client.admin.create_topic(
                "t", partitions=2, lease="2s", backoff={"kind": "fixed", "first": "50ms"}, max_attempts=None
            )
            stop = trio.Event()
            for _ in range(2):
                nursery.start_soon(consume, client, record)
            async with trio.open_nursery() as producing:
                producing.start_soon(produce, client, record, rng, stop)
                for _ in range(kills):
                    until = record.stored + rng.randint(*A_LIFE)
                    await until_holds(lambda until=until: record.stored >= until)
                    await trio.to_thread.run_sync(node.kill)
                    await trio.to_thread.run_sync(node.start)
                await until_holds(record.has_enough_events)
                stop.set()
            record.producing = False
            await until_holds(record.settled)
            nursery.cancel_scope.cancel()

    trio.run(scenario)
    record.judge()
    fates = [fate for fate in record.fates.values() if fate.id]
    came = record.delivered_ms.keys()
    missing = [fate.value for fate in fates if fate.id not in came and not fate.cancelled and fate.sure]
    assert record.faults == [], f"seed {seed}"
    assert missing == [], f"seed {seed}: {len(missing)} of {len(fates)} messages were never delivered"
    assert record.unsure == 0, "requests with lost answers were repeated"
    assert node.stop() == 0, node.output()
