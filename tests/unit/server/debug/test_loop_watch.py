"""Tests of the detection of event loop stalls and their causes."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from sandq.server.debug import loop_watch
from sandq.server.debug.loop_watch import BEAT_S, KEPT, STALL_S, LoopWatch


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_stall_is_reported_with_its_cause() -> None:
    clock = Clock()
    watch = LoopWatch(clock, lambda: 1_700_000_000.0 + clock.now_s)
    watch._thread = threading.get_ident()
    clock.now_s += STALL_S - 0.01
    watch.check()
    clock.now_s += 0.01
    assert watch.stalls() == []

    def held() -> None:
        clock.now_s += 1.0
        look = threading.Thread(target=watch.check)
        look.start()
        look.join()

    with capture_logs() as logged:
        held()
        watch.check()  # the first found place counts
        clock.now_s += 0.5
        watch.beat()
    (stall,) = watch.stalls()
    assert (stall["at_ms"], stall["seconds"]) == (1_700_000_102_000, 2.0)
    assert any(".held:" in place for place in stall["stack"]), stall
    assert [(line["event"], line["seconds"]) for line in logged] == [("the event loop stood still", 2.0)]
    clock.now_s += BEAT_S
    watch.beat()
    assert watch.count == 1


def test_stall_of_the_whole_process_has_no_stack_and_the_latest_are_kept() -> None:
    clock = Clock()
    watch = LoopWatch(clock, clock)
    for _ in range(KEPT + 3):
        clock.now_s += 5
        watch.beat()
    assert watch.count == KEPT + 3 and len(watch.stalls()) == KEPT
    assert watch.stalls()[-1] == {"at_ms": round(clock.now_s * 1000), "seconds": 5.0, "stack": []}


def test_samples_of_one_stall_are_not_reported_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    watch = LoopWatch(clock, clock)

    def continue_loop(frame: Any) -> list[str]:
        watch.beat()
        return ["of the first"]

    clock.now_s += STALL_S
    monkeypatch.setattr(loop_watch, "stack_of", continue_loop)
    watch.check()
    monkeypatch.setattr(loop_watch, "stack_of", lambda frame: ["of the second"])
    clock.now_s += STALL_S
    watch.check()
    watch.beat()
    assert [stall["stack"] for stall in watch.stalls()] == [[], ["of the second"]]


async def test_watch_runs_in_its_own_thread() -> None:
    watch = LoopWatch()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch.run)
        await trio.testing.wait_all_tasks_blocked()
        while not watch._seen:  # the loop does not continue
            time.sleep(0.01)  # noqa: ASYNC251
        watch.beat()
        nursery.cancel_scope.cancel()
    (stall,) = watch.stalls()
    assert any("test_watch_runs_in_its_own_thread" in place for place in stall["stack"])
