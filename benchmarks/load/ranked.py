"""Messages with priorities and tenants over a raw connection."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from functools import partial
from itertools import count

import anyio

import sandq
from benchmarks.load.consume import subscribe, take
from benchmarks.load.work import Done, Ready
from benchmarks.process import cpu_s
from benchmarks.produce import TOPIC, VALUE, frames_of
from benchmarks.result import ACKED, HANDED, Latency, LoadResult
from benchmarks.wire import Flow, Wire, drive
from sandq.model.batch import Column, encode
from sandq.protocol.fields import OFFSET_BYTES
from sandq.protocol.replies import Offsets
from sandq.protocol.requests_messages import BY_ID, Move

PRIORITIES = 10
WINDOW = 8
CHANGE_WINDOW = 64


def batches_of(number: int, size: int, tenants: int, rng: random.Random) -> list[bytes]:
    """Return batches whose messages have one of ten priorities each, or one of `tenants`."""
    found = []
    for _ in range(number):
        columns: dict[int, list[bytes] | list[int]] = {Column.VALUE: [VALUE] * size}
        if not tenants:
            columns[Column.PRIORITY] = [rng.randrange(PRIORITIES) for _ in range(size)]
        else:
            columns[Column.TENANT] = [b"t%05d" % rng.randrange(tenants) for _ in range(size)]
        found.append(encode(columns))
    return found


def produce(port: int, messages: int, size: int, tenants: int) -> Ready:
    """Produce messages."""
    flow = Flow(Wire(port), frames_of(batches_of(messages // size, size, tenants, random.Random(1)), 0), WINDOW)

    def run(began_s: float) -> Done:
        driven = drive([flow])
        return Done(LoadResult(messages, driven.seconds), lambda: Latency.of(HANDED, driven.answer_s))

    return Ready(run)


def consume(port: int, messages: int, size: int, tenants: int) -> Ready:
    """Consume all messages of a topic."""
    wire = Wire(port)
    _fill(wire, batches_of(messages // size, size, tenants, random.Random(1)))

    def run(began_s: float) -> Done:
        subscribe(wire)
        taken_s = take(wire, messages, each=True)
        return Done(LoadResult(messages, time.perf_counter() - began_s), partial(Latency.of, ACKED, taken_s))

    return Ready(run)


def backlog(port: int, pid: int, behind: int, messages: int, size: int) -> Ready:
    """Consume the first `messages` while `behind` other messages are ready and already ranked. The detail is the node's
    CPU time per consumed message."""
    wire = Wire(port)
    rng = random.Random(1)
    _fill(wire, batches_of(behind // size, size, 0, rng))
    subscribe(wire)
    take(wire, size, each=True)  # all due messages are ranked by now
    _fill(Wire(port), [_urgent(size)] * (messages // size))

    def run(began_s: float) -> Done:
        before_s = cpu_s(pid)
        taken_s = take(wire, messages, each=True)
        used_us = (cpu_s(pid) - before_s) * 1e6 / messages
        result = LoadResult(messages, time.perf_counter() - began_s, details={"us": used_us})
        return Done(result, partial(Latency.of, ACKED, taken_s))

    return Ready(run)


def change(port: int, messages: int, size: int) -> Ready:
    """Change the priority of ready messages, each by its own request."""
    wire = Wire(port)
    ids: list[bytes] = []
    wire.socket.setblocking(True)
    numbers = count(1)
    for batch in batches_of(messages // size, size, 0, random.Random(1)):
        (frame,) = frames_of([batch], 0)
        column = Offsets.parse(wire.call(lambda number, frame=frame: frame)).column
        assert column is not None, "messages of several priorities are stored one by one"
        ids += [column[at : at + OFFSET_BYTES] for at in range(0, len(column), OFFSET_BYTES)]
    frames = [Move(TOPIC, 0, [[[BY_ID, one], None, False, 3]]).frame(next(numbers)) for one in ids]
    flow = Flow(wire, frames, CHANGE_WINDOW)

    def run(began_s: float) -> Done:
        driven = drive([flow])
        return Done(LoadResult(messages, driven.seconds), lambda: Latency.of(HANDED, driven.answer_s))

    return Ready(run)


def change_all(address: str, port: int, messages: int, size: int) -> Ready:
    """Change the priority of all ready messages, by one bulk job."""
    _fill(Wire(port), batches_of(messages // size, size, 0, random.Random(1)))

    async def work() -> sandq.JobResult:
        async with sandq.connect(address) as client:
            return await client.messages(TOPIC).move_all(priority=PRIORITIES)

    def run(began_s: float) -> Done:
        found = anyio.run(work, backend="trio")
        return Done(LoadResult(messages, time.perf_counter() - began_s, errors=messages - found.done))

    return Ready(run)


def _urgent(size: int) -> bytes:
    return encode({Column.VALUE: [VALUE] * size, Column.PRIORITY: [-1] * size})


def _fill(wire: Wire, batches: Sequence[bytes]) -> None:
    drive([Flow(wire, frames_of(batches, 0), WINDOW)])
    wire.socket.setblocking(True)
