"""The scene with a file: sends its lines with their times. A worker receives each line when it is due.

The file is read while it is sent, so it may have any size. A few thousand lines are in flight in this process; the node
stores all others. If deliveries are late, sending waits for them.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

import anyio
import anyio.abc

import sandq
from demo.line_report import LineLedger
from demo.lines import Survey, read
from demo.node import POLL_S, START_S, Node
from demo.scenario import STALLED_S, now_ms
from sandq.errors import SandqError

TOPIC = "lines"
GROUP = "readers"
PARTITIONS = 4
LEASE = "5m"
SPREAD_S = 5.0
"""Lines without their own time are due within this time after they are sent."""
LONGEST_S = 30.0
"""Maximum delay of the latest line, in s. If the file has later times, all delays are shortened by one factor."""
LEAD_S = 0.25
"""Minimum delay of a line without its own time, in s, so that the line is stored before it is due."""
HELD_BYTES = 64 * 1024 * 1024
HELD = 2000
"""Maximum number of lines that the worker holds."""
UNCONFIRMED = 10_000
BEHIND_MS = 250.0
QUIET_S = 1.0
"""Time in s to wait at the end, to notice lines that are delivered a second time."""
_TOGETHER = 50
_WAITS = 50
_TICK_S = 0.02
_GOLDEN = 0.6180339887498949
"""Inverse of the golden ratio. The fractional parts of its multiples are spread evenly, for any number of multiples."""


@dataclass
class LineScene:
    """State of the demo with a file, for the view."""

    node: Node
    survey: Survey
    seconds: float | None
    ledger: LineLedger
    began: float = field(default_factory=time.monotonic)
    phase: str = "starting the node"
    notes: deque[str] = field(default_factory=deque)
    last_due_ms: float = 0.0
    clock_moved_ms: float = 0.0
    done: bool = False

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began

    @property
    def spread_s(self) -> float:
        """Time in s over which lines without their own time are spread."""
        return SPREAD_S if self.seconds is None else self.seconds

    @property
    def scale(self) -> float:
        """Factor, at most 1, by which delays are multiplied, so that the latest time in the file fits into the demo."""
        longest_ms = (LONGEST_S if self.seconds is None else self.seconds) * 1000
        return min(1.0, longest_ms / self.survey.latest_ms) if self.survey.latest_ms else 1.0

    def note(self, text: str) -> None:
        """Add a note about an event."""
        self.notes.append(f"{self.elapsed_s:5.1f} s  {text}")


async def play(scene: LineScene) -> None:
    """Run the whole scene. Raises NodeFailed if the node fails, and SandqError if a request fails."""
    await start(scene)
    scene.phase = "running"
    wall_ms, began = now_ms(), time.monotonic()
    async with (
        sandq.connect(scene.node.address, name="sender", delivery_timeout="60s") as client,
        anyio.create_task_group() as tasks,
    ):
        await client.admin.create_topic(TOPIC, partitions=PARTITIONS, lease=LEASE, max_attempts=None)
        await tasks.start(work, scene)
        async with anyio.create_task_group() as acts:
            acts.start_soon(send_all, scene, client)
            acts.start_soon(watch, scene, acts.cancel_scope)
        tasks.cancel_scope.cancel()
    scene.clock_moved_ms = now_ms() - wall_ms - (time.monotonic() - began) * 1000
    scene.phase = "done"


async def start(scene: LineScene) -> None:
    """Start the node, and wait until it accepts connections."""
    scene.node.start()
    while not scene.node.serves():
        if scene.elapsed_s > START_S:
            raise scene.node.too_slow()
        await anyio.sleep(POLL_S)
    scene.note(f"the node serves on {scene.node.address} (process {scene.node.pid})")


async def send_all(scene: LineScene, client: sandq.Client) -> None:
    """Read and send line after line; record the broker's response to each line."""
    ledger = scene.ledger
    sender, receiver = anyio.create_memory_object_stream[tuple[int, sandq.Receipt]](UNCONFIRMED)
    began_ms = now_ms()
    async with anyio.create_task_group() as tasks, client.producer(TOPIC) as producer:
        tasks.start_soon(confirm, ledger, receiver)
        for line in read(scene.survey.path):
            if line is None:
                ledger.skip()
                continue
            if not ledger.sent % _TOGETHER:
                await keep_pace(ledger)
            sent_ms = int(now_ms())
            if line.delay_ms is not None:
                due_ms = sent_ms + round(line.delay_ms * scene.scale)
            elif line.at_ms is not None:
                after_ms = line.at_ms - began_ms
                due_ms = line.at_ms if scene.scale == 1 else round(began_ms + max(0.0, after_ms) * scene.scale)
            else:
                share = line.number * _GOLDEN % 1
                due_ms = sent_ms + round((LEAD_S + share * max(0.0, scene.spread_s - LEAD_S)) * 1000)
            scene.last_due_ms = max(scene.last_due_ms, due_ms)
            ledger.send(line, max(due_ms, sent_ms))
            try:
                receipt = await producer.send(
                    line.value, key=line.key, headers={"line": line.number}, deliver_at=due_ms
                )
            except SandqError as error:
                ledger.failed[line.number] = error.message
                continue
            await sender.send((line.number, receipt))
        sender.close()


async def keep_pace(ledger: LineLedger) -> None:
    """Let other tasks run. If deliveries are late but still arriving, wait for them."""
    await anyio.lowlevel.checkpoint()
    for _ in range(_WAITS):
        if ledger.last_lateness_ms <= BEHIND_MS or now_ms() - ledger.last_delivered_ms > BEHIND_MS:
            return
        await anyio.sleep(_TICK_S)


async def confirm(ledger: LineLedger, receiver: anyio.abc.ObjectReceiveStream[tuple[int, sandq.Receipt]]) -> None:
    """Record the broker's response to each line."""
    async for number, receipt in receiver:
        try:
            await receipt
        except SandqError as error:
            ledger.failed[number] = error.message
        else:
            ledger.confirmed += 1


async def work(scene: LineScene, *, task_status: anyio.abc.TaskStatus[None]) -> None:
    """Receive lines when they are due, and ack each line."""
    credit = max(1, min(HELD, HELD_BYTES // max(1, scene.survey.longest_bytes)))
    async with (
        sandq.connect(scene.node.address, name="worker") as client,
        client.subscribe(TOPIC, group=GROUP, credit=credit) as subscription,
    ):
        task_status.started()
        async for message in subscription:
            arrived_ms = now_ms()
            scene.ledger.deliver(message.headers.get("line"), message.value, message.key, arrived_ms)
            message.ack()


async def watch(scene: LineScene, acts: anyio.CancelScope) -> None:
    """End the scene once every line was delivered and then nothing came for `QUIET_S`, or if the demo stalls."""
    ledger = scene.ledger
    events, moved_at = ledger.events, time.monotonic()
    while True:
        await anyio.sleep(_TICK_S)
        scene.node.check()
        if ledger.events != events:
            events, moved_at = ledger.events, time.monotonic()
        still_s = time.monotonic() - moved_at
        if ledger.sent >= ledger.planned and ledger.complete and still_s > QUIET_S:
            break
        if now_ms() >= scene.last_due_ms and still_s > STALLED_S:
            scene.note(f"nothing has happened for {STALLED_S:g} s: what is missing counts as lost")
            break
    acts.cancel()
