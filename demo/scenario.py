"""What happens in the demo: schedule, deliver, kill, restart, and wait until everything is settled.

All of it is an ordinary program with `sandq.connect`; only starting and killing the node is not.
"""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass, field

import anyio
import anyio.abc

import sandq
from demo.node import POLL_S, START_S, Node, NodeFailed
from demo.reminders import Plan, Reminder
from demo.report import Ledger, Outage
from sandq.errors import SandqError

TOPIC = "reminders"
GROUP = "senders"
WORKERS = ("worker-1", "worker-2")
PARTITIONS = 4
LEASE = "3s"
CREDIT = 200
HANDLING_S = 0.02
"""What a worker takes for a reminder, so that some are in its hands when the node is killed."""
DOWN_S = 0.5
"""Between the kill and the restart."""
STALLED_S = 12.0
"""Nothing happens any more although something is missing: it is lost. Longer than leases and back-offs."""
_TICK_S = 0.02


def now_ms() -> float:
    """The wall clock, epoch milliseconds."""
    return time.time() * 1000


@dataclass
class Scene:
    """The state of the demo, for whoever shows it."""

    node: Node
    reminders: list[Reminder]
    plan: Plan
    kill: bool
    ledger: Ledger
    began: float = field(default_factory=time.monotonic)
    phase: str = "starting the node"
    sent: int = 0
    notes: deque[str] = field(default_factory=deque)
    """Lines about what happened."""
    last_due_ms: float = 0.0
    clock_moved_ms: float = 0.0
    """How far the wall clock went astray during the demo; lateness is told by it."""
    done: bool = False
    half_way: anyio.Event = field(default_factory=anyio.Event)
    back: anyio.Event = field(default_factory=anyio.Event)
    """A worker was given something after the kill."""

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def note(self, text: str) -> None:
        """Tell what happened."""
        self.notes.append(f"{self.elapsed_s:5.1f} s  {text}")


async def play(scene: Scene) -> None:
    """The whole scene; NodeFailed when the node lets us down, SandqError when a request does."""
    await start_node(scene, "the node serves")
    scene.phase = "running"
    wall_ms, began = now_ms(), time.monotonic()
    async with sandq.connect(scene.node.address, name="scheduler", delivery_timeout="30s") as client:
        await client.admin.create_topic(
            TOPIC, partitions=PARTITIONS, lease=LEASE, backoff={"kind": "fixed", "first": "200ms"}, max_attempts=None
        )
        async with anyio.create_task_group() as tasks:
            for worker in WORKERS:
                await tasks.start(work, scene, worker)
            async with anyio.create_task_group() as acts:
                acts.start_soon(schedule, scene, client)
                if scene.kill:
                    acts.start_soon(kill_half_way, scene)
                acts.start_soon(watch, scene, acts.cancel_scope)
            tasks.cancel_scope.cancel()
    scene.clock_moved_ms = now_ms() - wall_ms - (time.monotonic() - began) * 1000
    scene.phase = "done"


async def start_node(scene: Scene, what: str) -> None:
    """Start the node and wait until it takes connections."""
    began = time.monotonic()
    scene.node.start()
    while not scene.node.serves():
        if time.monotonic() - began > START_S:
            raise scene.node.too_slow()
        await anyio.sleep(POLL_S)
    scene.note(f"{what} on {scene.node.address} (process {scene.node.pid}, {time.monotonic() - began:.2f} s to start)")


# The producer.


async def schedule(scene: Scene, client: sandq.Client) -> None:
    """Send the reminders, evenly over the planned time, each with its moment; keep the receipts."""
    plan, ledger = scene.plan, scene.ledger
    sender, receiver = anyio.create_memory_object_stream[tuple[str, sandq.Receipt]](len(scene.reminders))
    async with anyio.create_task_group() as tasks, client.producer(TOPIC) as producer:
        tasks.start_soon(confirm, ledger, receiver)
        began = anyio.current_time()
        for number, reminder in enumerate(scene.reminders):
            wait_s = began + plan.schedule_s * number / len(scene.reminders) - anyio.current_time()
            if wait_s > 0:
                await anyio.sleep(max(wait_s, _TICK_S))  # then a few at once
            due_ms = int(now_ms()) + round(reminder.delay_ms * plan.scale)
            ledger.due_ms[reminder.id] = due_ms
            scene.last_due_ms = max(scene.last_due_ms, due_ms)
            receipt = await producer.send(reminder.value, key=reminder.key, deliver_at=due_ms)
            sender.send_nowait((reminder.id, receipt))
            scene.sent += 1
        sender.close()


async def confirm(ledger: Ledger, receiver: anyio.abc.ObjectReceiveStream[tuple[str, sandq.Receipt]]) -> None:
    """Note what the broker says about each."""
    async for reminder, receipt in receiver:
        try:
            ledger.confirm(reminder, await receipt, now_ms())
        except SandqError as error:
            ledger.failed[reminder] = error.message


# The workers.


async def work(scene: Scene, worker: str, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Take reminders of the group, as they come due, and handle many at a time."""
    async with (
        sandq.connect(scene.node.address, name=worker) as client,
        client.subscribe(TOPIC, group=GROUP, credit=CREDIT) as subscription,
        anyio.create_task_group() as tasks,
    ):
        task_status.started()
        async for message in subscription:
            arrived_ms = now_ms()
            reminder: str = json.loads(message.value)["id"]
            scene.ledger.deliver(worker, reminder, message.id, arrived_ms)
            if len(scene.ledger.delivered) * 2 >= len(scene.reminders):
                scene.half_way.set()
            if scene.ledger.recovered:
                scene.back.set()
            tasks.start_soon(handle, scene.ledger, message)


async def handle(ledger: Ledger, message: sandq.Message) -> None:
    """Remind somebody, then ack. When the ack does not get through in time, the reminder comes again."""
    await anyio.sleep(HANDLING_S)
    try:
        await message.ack()
    except SandqError:
        ledger.acks_lost += 1
    else:
        ledger.ack(message.id)


# The accident.


async def kill_half_way(scene: Scene) -> None:
    """SIGKILL when half of the reminders were delivered; then a new process over the same data."""
    ledger, node = scene.ledger, scene.node
    await scene.half_way.wait()
    outage = Outage(now_ms())
    ledger.outages.append(outage)
    waiting, handled = len(ledger.open) - ledger.in_flight, ledger.in_flight
    node.kill()
    scene.note(f"kill -9: {waiting:,} reminders were waiting in the node, {handled} being handled by the workers")
    scene.phase = "the node is down"
    await anyio.sleep(DOWN_S)
    await start_node(scene, "started again over the same data: it serves")
    outage.served_ms = now_ms()
    scene.phase = "running"
    await scene.back.wait()
    scene.note(f"the first reminder after the kill was delivered {now_ms() - outage.killed_ms:.0f} ms after it")


async def watch(scene: Scene, acts: anyio.CancelScope) -> None:
    """End the scene when all is settled, or when nothing moves any more."""
    ledger = scene.ledger
    events, moved_at = ledger.events, time.monotonic()
    while True:
        await anyio.sleep(_TICK_S)
        if scene.phase == "running":
            scene.node.check()
        if ledger.events != events:
            events, moved_at = ledger.events, time.monotonic()
        all_sent = scene.sent == len(scene.reminders) == len(ledger.receipts) + len(ledger.failed)
        restarted = any(outage.served_ms is not None for outage in ledger.outages)
        if all_sent and not ledger.open and (restarted or not scene.kill):
            break
        waits_for_due = now_ms() < scene.last_due_ms
        if not waits_for_due and time.monotonic() - moved_at > STALLED_S:
            scene.note(f"nothing has happened for {STALLED_S:g} s: what is missing counts as lost")
            break
    acts.cancel()


__all__ = ["NodeFailed", "Scene", "play"]
