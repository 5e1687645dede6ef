"""The process of a load: `python -m benchmarks.peers.driver TASK`. Both TASK and its output are JSON."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Final

from benchmarks.peers.loop import Flow, drain, drive, value
from benchmarks.peers.peer import Client, PeerError
from benchmarks.peers.registry import PEERS
from benchmarks.peers.server import cpu_s
from benchmarks.peers.usual import lock_step, opened_by, take_all
from benchmarks.peers.workloads import (
    BY_NAME,
    DUE_PER_S,
    FILL,
    FILL_DUE,
    FILL_FEW,
    FILL_S,
    LEAD_MS,
    PRODUCE_S,
    QUICK_S,
    Kind,
    Workload,
)

COUNT_S: Final = 15.0
"""How long the peer's own count may lag behind."""
_COUNT_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class Task:
    """One load, for a running server."""

    peer: str
    workload: str
    port: int
    pid: int
    quick: bool


@dataclass(slots=True)
class Sample:
    """Result of one measurement. Times in seconds, of all processes of the server; p50, p99 and max in milliseconds."""

    messages: int
    seconds: float
    server_s: float
    client_s: float
    times_ms: list[float] | None = None
    """p50, p99 and max of response times or lateness."""
    early: int | None = None
    syncs: int | None = None


def percentiles(values: Sequence[float]) -> list[float]:
    """Return p50, p99 (the least value that 99 of 100 do not exceed) and max."""
    ordered = sorted(values)
    return [ordered[-(-len(ordered) * part // 100) - 1] for part in (50, 99, 100)]


class Meter:
    """Measures CPU time of the server and of this process, from its creation on."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._server_s = cpu_s(pid)
        self._client_s = time.process_time()

    def read(self) -> tuple[float, float]:
        """Return the CPU time of the server and of the client."""
        client_s = time.process_time() - self._client_s
        return cpu_s(self._pid) - self._server_s, client_s


def flows_of(client: Client, workload: Workload, messages: int, rng: random.Random) -> list[Flow]:
    """Open connections with their prepared requests; one request warms each."""
    limit = max(1, messages // workload.connections // workload.size)
    prepared = limit if workload.scheduled else min(limit, workload.window)
    now_ms = int(time.time() * 1000)
    flows = []
    for at in range(workload.connections):
        link = client.link(at, workload.size, workload.scheduled)
        requests = []
        for number in range(prepared + 1):
            dues_ms = None
            values = [value()] * workload.size
            if workload.scheduled:
                first = (at * (prepared + 1) + number) * workload.size
                dues_ms = [now_ms + workload.soon_ms + rng.randrange(workload.within_ms) for _ in values]
                values = [value(due_ms, first + place) for place, due_ms in enumerate(dues_ms)]
            requests.append(link.request(number + 1, values, dues_ms))
        drive([Flow(link, requests[:1], 1, 1)])
        flows.append(Flow(link, requests[1:], limit, workload.window))
    return flows


def check_count(counted: Callable[[], int], expected: int) -> None:
    """Raise PeerError unless the peer's count reaches this number."""
    deadline = time.monotonic() + COUNT_S
    while (found := counted()) != expected:
        if time.monotonic() > deadline:
            raise PeerError(f"by its own count it has {found} messages, {expected} were to be there")
        time.sleep(_COUNT_POLL_S)


def produce(client: Client, workload: Workload, task: Task, seconds: float, messages: int) -> Sample:
    flows = flows_of(client, workload, messages, random.Random(1))
    syncs = client.syncs()
    meter = Meter(task.pid)
    driven = drive(flows, seconds)
    server_s, client_s = meter.read()
    for flow in flows:
        flow.link.socket.close()
    answered = sum(flow.sent for flow in flows) * workload.size
    # plus the request of each connection that warmed it
    check_count(client.stored, answered + len(flows) * workload.size)
    sample = Sample(answered, driven.seconds, server_s, client_s)
    if driven.answer_s:
        sample.times_ms = [seconds * 1000 for seconds in percentiles(driven.answer_s)]
    if syncs is not None:
        sample.syncs = (client.syncs() or 0) - syncs
    return sample


def consume(client: Client, workload: Workload, task: Task) -> Sample:
    """Fill the peer; once the messages are due, consume them all."""
    fill = FILL_DUE if workload.scheduled else FILL if workload.window > 1 else FILL_FEW
    due_s = time.time() + fill.soon_ms / 1000
    filled = produce(client, fill, task, QUICK_S if task.quick else FILL_S, _messages(workload, task))
    messages = filled.messages + fill.connections * fill.size
    if workload.scheduled:
        if time.time() > due_s:
            raise PeerError("the preparation took too long: messages were due before all were stored")
        time.sleep(due_s + (fill.within_ms + LEAD_MS) / 1000 - time.time())
    consumer = client.consumer(messages, workload.scheduled, workload.window)
    meter = Meter(task.pid)
    seconds = drain(consumer, messages)
    server_s, client_s = meter.read()
    consumer.close()
    check_count(client.unconsumed, 0)
    return Sample(messages, seconds, server_s, client_s)


def usual_produce(client: Client, workload: Workload, task: Task) -> Sample:
    """Produce with the peer's usual client."""
    opened, seconds = opened_by(task.peer), QUICK_S if task.quick else PRODUCE_S
    syncs = client.syncs()
    meter = Meter(task.pid)
    before, driven = asyncio.run(lock_step(opened, task.port, workload.connections, _messages(workload, task), seconds))
    server_s, client_s = meter.read()
    answered = len(driven.answer_s)
    check_count(client.stored, before + answered)
    times_ms = [answer_s * 1000 for answer_s in percentiles(driven.answer_s)]
    sample = Sample(answered, driven.seconds, server_s, client_s, times_ms)
    if syncs is not None:
        sample.syncs = (client.syncs() or 0) - syncs
    return sample


def usual_consume(client: Client, workload: Workload, task: Task) -> Sample:
    """Fill the peer in the common way; then consume with the peer's usual client."""
    filled = produce(client, FILL_FEW, task, QUICK_S if task.quick else FILL_S, _messages(workload, task))
    messages = filled.messages + FILL_FEW.connections * FILL_FEW.size
    meter = Meter(task.pid)
    seconds = asyncio.run(take_all(opened_by(task.peer), task.port, messages, workload.connections))
    server_s, client_s = meter.read()
    return Sample(messages, seconds, server_s, client_s)


def lateness(client: Client, workload: Workload, task: Task) -> Sample:
    """Schedule all messages, then receive them."""
    messages = _messages(workload, task)
    if not client.put_paced(messages):
        first_ms = int(time.time() * 1000) + LEAD_MS
        dues_ms = [first_ms + at * 1000 // DUE_PER_S for at in range(messages)]
        link = client.link(0, messages, scheduled=True)
        values = [value(due_ms, number) for number, due_ms in enumerate(dues_ms)]
        drive([Flow(link, [link.request(1, values, dues_ms)], 1, 1)])
    consumer = client.consumer(messages, True, workload.window)
    late_ms: list[float] = []
    meter = Meter(task.pid)
    seconds = drain(consumer, messages, late_ms)
    server_s, client_s = meter.read()
    if len(late_ms) != messages:
        raise PeerError(f"{len(late_ms)} of {messages} messages had their due time in them")
    return Sample(messages, seconds, server_s, client_s, percentiles(late_ms), sum(late < 0 for late in late_ms))


def _messages(workload: Workload, task: Task) -> int:
    return workload.quick_messages if task.quick else workload.messages


def measure(task: Task) -> Sample:
    """Run one load."""
    workload = BY_NAME[task.workload]
    client = PEERS[task.peer].client(task.port)
    client.create(workload.scheduled)
    if workload.kind is Kind.CONSUME:
        return consume(client, workload, task)
    if workload.kind is Kind.LATENESS:
        return lateness(client, workload, task)
    if workload.kind is Kind.USUAL_PRODUCE:
        return usual_produce(client, workload, task)
    if workload.kind is Kind.USUAL_CONSUME:
        return usual_consume(client, workload, task)
    return produce(client, workload, task, QUICK_S if task.quick else PRODUCE_S, _messages(workload, task))


if __name__ == "__main__":
    try:
        print(json.dumps(asdict(measure(Task(**json.loads(sys.argv[1]))))))
    except PeerError as error:
        sys.exit(str(error))
