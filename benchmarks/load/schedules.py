"""Schedules over a raw connection."""

from __future__ import annotations

import time
from functools import partial
from itertools import count as numbers
from typing import Any

from benchmarks.load.consume import offsets_of, subscribe, take
from benchmarks.load.work import Done, Ready
from benchmarks.produce import TOPIC, VALUE
from benchmarks.result import DUE, HANDED, Latency, LoadResult
from benchmarks.wire import Flow, Wire, drive
from sandq.model.batch import Column, encode, peek
from sandq.model.offsets import deliver_ms
from sandq.protocol.replies import Deliver
from sandq.protocol.requests_schedules import SchedulePut

PART = 1000
WINDOW = 2
MADE_PER_MS = 5
"""Assumed minimum speed of creating schedules, in schedules per ms."""
LEAD_MS = 2_000


def _flow(wire: Wire, settings: list[dict[str, Any]]) -> Flow:
    batch, ids = encode({Column.VALUE: [VALUE]}), numbers(1)
    items = [[f"schedule-{at:07}", None, one, batch, False] for at, one in enumerate(settings)]
    parts = [items[at : at + PART] for at in range(0, len(items), PART)]
    return Flow(wire, [SchedulePut(TOPIC, 0, part).frame(next(ids)) for part in parts], WINDOW)


def create(port: int, count: int, is_far: bool = False) -> Ready:
    """Create schedules with cron expressions. `is_far`: they are not due before the first day of a month."""
    day = "1" if is_far else "*"
    flow = _flow(Wire(port), [{"cron": f"{at % 60} {at // 60 % 24} {day} * *"} for at in range(count)])

    def run(began_s: float) -> Done:
        driven = drive([flow])
        return Done(LoadResult(count, driven.seconds), lambda: Latency.of(HANDED, driven.answer_s))

    return Ready(run)


def fire(port: int, count: int, every_ms: int, is_spread: bool) -> Ready:
    """Receive two occurrences of each schedule, and report the lateness of the second, which is negative if it is
    early. `is_spread`: the schedules are due evenly over the interval; otherwise all at the same time."""
    wire = Wire(port)
    first_ms = int(time.time() * 1000) + LEAD_MS + count // MADE_PER_MS
    starts = [first_ms + (at * every_ms // count if is_spread else 0) for at in range(count)]
    drive([_flow(wire, [{"every_ms": every_ms, "start_ms": start, "count": 2} for start in starts])])
    wire.socket.setblocking(True)

    def run(began_s: float) -> Done:
        subscribe(wire)
        if time.time() * 1000 >= first_ms:
            raise TimeoutError("the preparation took too long: schedules fired before they were waited for")
        late_s: list[float] = []

        def seen(now_s: float, delivery: Deliver) -> None:
            column = offsets_of(delivery, peek(delivery.batch).count)
            late_s.extend([now_s - deliver_ms(offset) / 1000 for offset in column])

        take(wire, 2 * count, each=True, seen=seen, clock=time.time)
        result = LoadResult(2 * count, time.perf_counter() - began_s)
        result.errors = early = sum(value < 0 for value in late_s)
        result.details = {"least ms": min(late_s) * 1000, "early": early}
        return Done(result, partial(Latency.of, DUE, late_s[count:]))

    return Ready(run)
