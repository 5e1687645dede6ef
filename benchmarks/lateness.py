"""How late messages are: idle, beside a producer that keeps the node busy, and with very many due.

Lateness is the moment at which the frame was received minus the time in the message's offset, by the one wall clock
of the machine. Early is anything below 0.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.consume import offsets_of, settle, subscribe
from benchmarks.process import Where, cpu_s, running
from benchmarks.produce import TOPIC, VALUE, frames_of
from benchmarks.result import Goal, Result
from benchmarks.wire import Flow, Wire, drive
from demo.node import ROOT
from sandq.model.batch import Column, encode, peek
from sandq.model.offsets import deliver_ms
from sandq.protocol.frames import Type
from sandq.protocol.replies import Deliver

LEAD_MS = 1000
"""Between the last of the preparation and the first that is due."""
BUSY_TOPIC = "busy"


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    what: str
    goal: Goal
    due_per_s: int
    seconds: int
    busy_per_s: int = 0


KINDS = (
    Kind("lateness_idle", "200 due a second, nothing else", Goal(3, "ms", at_least=False), 200, 10),
    Kind(
        "lateness_loaded",
        "200 due a second, while another process produces 50,000 a second",
        Goal(10, "ms", at_least=False),
        200,
        10,
        busy_per_s=50_000,
    ),
    Kind("lateness_dense", "20,000 due a second", Goal(10, "ms", at_least=False), 20_000, 5),
)


def lateness(kind: Kind, where: Where, quick: bool) -> Result:
    """Schedule, wait, receive; p99 is what the goal is about."""
    seconds = 1 if quick else kind.seconds
    messages = kind.due_per_s * seconds
    with running(where, kind.name) as node:
        assert node.pid is not None
        wire = Wire(node.port)
        wire.create_topic(TOPIC, lease="60s")
        wire.create_topic(BUSY_TOPIC)
        with _busy(node.port, kind.busy_per_s):
            _schedule(wire, messages, kind.due_per_s)
            before_s = cpu_s(node.pid)
            found = sorted(_receive(wire, messages))
            used_s = cpu_s(node.pid) - before_s
        wire.close()
    p99 = found[max(0, -(-len(found) * 99 // 100) - 1)]
    result = Result(kind.name, kind.what, "raw", messages, p99, "ms p99", kind.goal)
    if not kind.busy_per_s:
        result.cpu_us = used_s * 1e6 / messages
    result.details = {
        "p50 ms": found[len(found) // 2],
        "max ms": found[-1],
        "least ms": found[0],
        "early": sum(value < 0 for value in found),
    }
    return result


def _schedule(wire: Wire, messages: int, per_s: int) -> None:
    """Messages evenly over time, from LEAD_MS (or a little more, for many) from now on."""
    first_ms = int(time.time() * 1000) + LEAD_MS + messages // 50
    times = [first_ms + at * 1000 // per_s for at in range(messages)]
    batches = [
        encode({Column.VALUE: [VALUE] * len(part), Column.DELIVER_MS: part})
        for part in (times[at : at + 1000] for at in range(0, messages, 1000))
    ]
    drive([Flow(wire, frames_of(batches, 0), 4)])
    wire.socket.setblocking(True)


def _receive(wire: Wire, messages: int) -> list[float]:
    """The lateness of each message, ms."""
    subscribe(wire)
    late: list[float] = []
    acks = 1
    while len(late) < messages:
        frames = wire.receive()
        now_ms = time.time() * 1000
        out = []
        for frame in frames:
            if frame[0] != Type.DELIVER:
                continue
            delivery = Deliver.parse(frame)
            late += [now_ms - deliver_ms(offset) for offset in offsets_of(delivery, peek(delivery.batch).count)]
            acks += 1
            out.append(settle(frame, acks, each=True)[0])
        if out:
            wire.socket.sendall(b"".join(out))
    return late


@contextlib.contextmanager
def _busy(port: int, per_s: int) -> Iterator[None]:
    """Another process produces at this rate meanwhile."""
    if not per_s:
        yield
        return
    command = [sys.executable, "-m", "benchmarks.busy", str(port), BUSY_TOPIC, str(per_s)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as process:
        try:
            yield
            if process.poll() is not None:
                raise RuntimeError("the busy producer ended too soon")
        finally:
            process.kill()
