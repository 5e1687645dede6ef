"""The scene of the demo: schedule and deliver reminders, kill a leader, continue, restart it, give a fourth node its
share, and wait until everything has settled.

Apart from starting and killing nodes, it is an ordinary program that uses `sandq.connect`.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field

import anyio
import anyio.abc

import sandq
from demo.cluster import NAMES, Cluster
from demo.node import POLL_S, START_S, Node, NodeFailed
from demo.placement import Placement, named
from demo.reminders import Plan, Reminder
from demo.report import Failover, Join, Ledger
from sandq.errors import SandqError

TOPIC = "reminders"
GROUP = "senders"
WORKERS = ("worker-1", "worker-2")
PARTITIONS = 4
REPLICAS = 3
LEASE = "3s"
CREDIT = 200
HANDLING_S = 0.02
"""Time that a worker takes for a reminder. Because of it, workers are handling reminders when a leader is killed."""
KILL_PART = 1 / 3
"""A leader is killed once this share of the reminders was delivered."""
AWAY_PART = 0.1
"""Time until the killed node starts again, as a share of the demo's time. Counts from the new leaders on."""
FOURTH = "node4"
JOIN_PART = 1 / 2
"""The fourth node starts once this share of the reminders was delivered, and the killed node is back."""
SETTLE_S = 60.0
"""Time limit for the fourth node to get its share."""
LOOK_S = 0.1
"""Time between two polls of nodes and leaders."""
STALLED_S = 12.0
"""If nothing happens for this time, in s, missing reminders count as lost. Longer than leases and back-offs."""
_TICK_S = 0.02


def now_ms() -> float:
    """Return the wall clock in epoch milliseconds."""
    return time.time() * 1000


@dataclass
class Scene:
    """State of the demo, for the view."""

    cluster: Cluster
    reminders: list[Reminder]
    plan: Plan
    kill: bool
    ledger: Ledger
    began: float = field(default_factory=time.monotonic)
    phase: str = "starting three nodes"
    sent: int = 0
    notes: deque[str] = field(default_factory=deque)
    """Notes about events."""
    last_due_ms: float = 0.0
    clock_moved_ms: float = 0.0
    """Time in ms by which the wall clock was changed during the demo. Lateness is measured by this clock."""
    done: bool = False
    placement: Placement = field(default_factory=Placement)
    """The placement that the cluster last reported."""
    starting: int = 0
    """Number of started nodes that do not accept clients yet."""
    played: bool = False
    """True once the killed node is back, and the fourth node holds its share or is out of time."""

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    def note(self, text: str) -> None:
        """Add a note about an event."""
        self.notes.append(f"{self.elapsed_s:5.1f} s  {text}")


async def play(scene: Scene) -> None:
    """Run the whole scene. Raises NodeFailed if a node fails, and SandqError if a request fails."""
    nodes = len(NAMES) + 1
    scene.ledger.join = join = Join(FOURTH, PARTITIONS * REPLICAS // nodes, PARTITIONS // nodes)
    async with anyio.create_task_group() as starting:
        for node in scene.cluster.nodes.values():
            starting.start_soon(start_node, scene, node)
    scene.phase = "running"
    scene.placement.new.update(NAMES)
    wall_ms, began = now_ms(), time.monotonic()
    async with sandq.connect(*scene.cluster.addresses, name="scheduler", delivery_timeout="30s") as client:
        await form(scene, client)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look, see_partitions, scene, client)
            tasks.start_soon(look, see_nodes, scene, client)
            for worker in WORKERS:
                await tasks.start(work, scene, worker)
            async with anyio.create_task_group() as acts:
                acts.start_soon(schedule, scene, client)
                acts.start_soon(accidents, scene, join)
                acts.start_soon(watch, scene, acts.cancel_scope)
            tasks.cancel_scope.cancel()
    scene.clock_moved_ms = now_ms() - wall_ms - (time.monotonic() - began) * 1000
    scene.phase = "done"


async def start_node(scene: Scene, node: Node) -> None:
    """Start a node, and wait until it accepts connections."""
    began = time.monotonic()
    node.start()
    scene.starting += 1
    while not node.serves():
        if time.monotonic() - began > START_S:
            raise node.too_slow()
        await anyio.sleep(POLL_S)
    scene.starting -= 1
    scene.note(f"{node.name} serves on {node.address} (process {node.pid}, {time.monotonic() - began:.2f} s to start)")


async def form(scene: Scene, client: sandq.Client) -> None:
    """Create the topic once all nodes have found each other, with a replica on each."""
    began = time.monotonic()
    while not scene.placement.are_up(NAMES):
        if time.monotonic() - began > START_S:
            missing = [name for name in NAMES if not scene.placement.are_up([name])]
            raise NodeFailed(f"{', '.join(missing)}: not in the cluster after {START_S:g} s")
        await anyio.sleep(POLL_S)
        await see_nodes(scene, client)
    scene.placement.new.clear()
    founder, *others = NAMES
    scene.note(f"a cluster: {founder} has founded it, {' and '.join(others)} have found it by gossip")
    await client.admin.create_topic(
        TOPIC,
        partitions=PARTITIONS,
        replicas=REPLICAS,
        lease=LEASE,
        backoff={"kind": "fixed", "first": "200ms"},
        max_attempts=None,
    )
    await see_partitions(scene, client)
    scene.note(f"a topic: {PARTITIONS} partitions, {REPLICAS} replicas of each, led by {who_leads(scene)}")


# Nodes and leaders.


async def look(see: Callable[[Scene, sandq.Client], Awaitable[None]], scene: Scene, client: sandq.Client) -> None:
    """Poll the cluster repeatedly."""
    while True:
        await anyio.sleep(LOOK_S)
        with suppress(SandqError):  # for example, the node that was asked has been killed
            await see(scene, client)


async def see_partitions(scene: Scene, client: sandq.Client) -> None:
    scene.placement.see_partitions((await client.admin.topic(TOPIC)).partitions)


async def see_nodes(scene: Scene, client: sandq.Client) -> None:
    scene.placement.see_nodes((await client.admin.cluster())["nodes"])


def who_leads(scene: Scene) -> str:
    leads = {name: ", ".join(map(str, sorted(scene.placement.led_by(name)))) for name in scene.cluster.nodes}
    return ", ".join(f"{name} ({partitions})" for name, partitions in leads.items() if partitions)


async def until_delivered(scene: Scene, part: float) -> None:
    """Wait until this share of all reminders was delivered."""
    while len(scene.ledger.delivered) < part * len(scene.reminders):  # noqa: ASYNC110
        await anyio.sleep(POLL_S)


# The producer.


async def schedule(scene: Scene, client: sandq.Client) -> None:
    """Send the reminders evenly over the planned time, each with its delivery time. Keep the receipts."""
    plan, ledger = scene.plan, scene.ledger
    sender, receiver = anyio.create_memory_object_stream[tuple[str, sandq.Receipt]](len(scene.reminders))
    async with anyio.create_task_group() as tasks, client.producer(TOPIC) as producer:
        tasks.start_soon(confirm, ledger, receiver)
        began = anyio.current_time()
        for number, reminder in enumerate(scene.reminders):
            wait_s = began + plan.schedule_s * number / len(scene.reminders) - anyio.current_time()
            if wait_s > 0:
                await anyio.sleep(max(wait_s, _TICK_S))  # reminders that become due meanwhile follow at once
            due_ms = int(now_ms()) + round(reminder.delay_ms * plan.scale)
            ledger.due_ms[reminder.id] = due_ms
            scene.last_due_ms = max(scene.last_due_ms, due_ms)
            receipt = await producer.send(reminder.value, key=reminder.key, deliver_at=due_ms)
            sender.send_nowait((reminder.id, receipt))
            scene.sent += 1
        sender.close()


async def confirm(ledger: Ledger, receiver: anyio.abc.ObjectReceiveStream[tuple[str, sandq.Receipt]]) -> None:
    """Record the broker's response to each reminder."""
    async for reminder, receipt in receiver:
        try:
            ledger.confirm(reminder, await receipt, now_ms())
        except SandqError as error:
            ledger.failed[reminder] = error.message


# The workers.


async def work(scene: Scene, worker: str, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Receive reminders of the group when they are due. Handle many reminders concurrently."""
    async with (
        sandq.connect(*scene.cluster.addresses, name=worker) as client,
        client.subscribe(TOPIC, group=GROUP, credit=CREDIT) as subscription,
        anyio.create_task_group() as tasks,
    ):
        task_status.started()
        async for message in subscription:
            arrived_ms = now_ms()
            reminder: str = json.loads(message.value)["id"]
            scene.ledger.deliver(worker, reminder, message.id, arrived_ms)
            tasks.start_soon(handle, scene.ledger, message)


async def handle(ledger: Ledger, message: sandq.Message) -> None:
    """Handle a reminder, then ack it. If the ack arrives too late, the reminder is redelivered."""
    await anyio.sleep(HANDLING_S)
    try:
        await message.ack()
    except SandqError:
        ledger.acks_lost += 1
    else:
        ledger.ack(message.id)


# The kill, and the fourth node.


async def accidents(scene: Scene, join: Join) -> None:
    """Kill a leader, then let a new node join."""
    if scene.kill:
        await until_delivered(scene, KILL_PART)
        await kill_a_leader(scene)
    await until_delivered(scene, JOIN_PART)
    await grow(scene, join)
    scene.played = True


async def kill_a_leader(scene: Scene) -> None:
    """Kill the node that leads the most partitions. Later start a new process with the data of this node."""
    ledger, placement = scene.ledger, scene.placement
    while not all(placement.leaders.values()):  # noqa: ASYNC110 - during an election, some partitions have no leader
        await anyio.sleep(POLL_S)
    victim = scene.cluster.nodes[max(scene.cluster.nodes, key=lambda name: len(placement.led_by(name)))]
    failover = Failover(victim.name, placement.led_by(victim.name), now_ms())
    ledger.failovers.append(failover)
    others = scene.cluster.nodes.keys() - {victim.name}
    waiting, handled = len(ledger.open) - ledger.in_flight, ledger.in_flight
    victim.kill()
    scene.phase = f"{victim.name} is dead"
    scene.note(
        f"kill -9 of {victim.name}, leader of {named(failover.partitions)}: {waiting:,} reminders wait in the cluster, "
        f"{handled} are being handled by workers"
    )
    while not all(placement.leaders.get(partition) in others for partition in failover.partitions):  # noqa: ASYNC110
        await anyio.sleep(POLL_S)
    failover.led_ms = now_ms()
    scene.note(
        f"{failover.led_ms - failover.killed_ms:.0f} ms after the kill all partitions are led by {who_leads(scene)}: "
        "two of three continue"
    )
    await anyio.sleep(scene.plan.total_s * AWAY_PART)
    await start_node(scene, victim)
    scene.note(f"{victim.name} is back over its own data, and catches up with the others")
    scene.phase = "running"


async def grow(scene: Scene, join: Join) -> None:
    """Start a new node once all other nodes are up. Wait until it holds its share."""
    placement = scene.placement
    while not placement.are_up(scene.cluster.nodes):  # noqa: ASYNC110
        await anyio.sleep(POLL_S)
    join.before = dict(placement.replicas())
    node = scene.cluster.add(join.node)
    placement.new.add(node.name)
    join.started_ms = now_ms()
    scene.phase = f"{node.name} joins"
    await start_node(scene, node)
    with anyio.move_on_after(SETTLE_S):
        while not _settled(scene, join):  # noqa: ASYNC110
            await anyio.sleep(POLL_S)
    if join.settled_ms is None:
        scene.note(f"after {SETTLE_S:g} s {node.name} has not got its share")
        return
    placement.new.discard(node.name)
    scene.note(
        f"{(join.settled_ms - join.started_ms) / 1000:.1f} s after its start {node.name} holds {join.after[node.name]} "
        f"replicas and leads {named(join.led)}: its share"
    )
    scene.phase = "running"


def _settled(scene: Scene, join: Join) -> bool:
    """Record the progress of the new node; return whether it holds its share."""
    placement = scene.placement
    join.after, join.led = dict(placement.replicas()), placement.led_by(join.node)
    if join.joined_ms is None and placement.are_up([join.node]):
        join.joined_ms = now_ms()
        scene.note(f"{join.node} has found the cluster and joined it")
    if join.joined_ms is not None and placement.has_taken(join.node, join.replicas, join.leads):
        join.settled_ms = now_ms()
    return join.settled_ms is not None


async def watch(scene: Scene, acts: anyio.CancelScope) -> None:
    """End the scene once everything has settled, or if nothing happens any more."""
    ledger = scene.ledger
    seen, moved_at = (0, 0), time.monotonic()
    while True:
        await anyio.sleep(_TICK_S)
        scene.cluster.check()
        events = ledger.events, scene.placement.changes
        if events != seen or scene.starting:
            seen, moved_at = events, time.monotonic()
        all_sent = scene.sent == len(scene.reminders) == len(ledger.receipts) + len(ledger.failed)
        if all_sent and not ledger.open and scene.played:
            break
        waits_for_due = now_ms() < scene.last_due_ms
        if not waits_for_due and time.monotonic() - moved_at > STALLED_S:
            scene.note(f"nothing has happened for {STALLED_S:g} s: what is missing counts as lost")
            break
    acts.cancel()


__all__ = ["NodeFailed", "Scene", "play"]
