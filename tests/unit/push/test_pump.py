"""Tests of the pump with a scripted client and HTTP client, in virtual time."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from sandq.model.errors import NotLeader, SandqError, UnknownTopic
from sandq.push.pump import AGAIN_S, PAUSE_S, PushCounts, UrlPump

PUSH = {"url": "https://example.com/", "secrets": ["whsec_x"], "concurrency": 3, "timeout_ms": 1000}


class FakeClient:
    """A client whose consumers fail with these errors in turn and then wait."""

    def __init__(self, errors: list[SandqError]) -> None:
        self.errors = errors
        self.runs = 0

    async def run(self, *_: Any, **__: Any) -> None:
        self.runs += 1
        if self.errors:
            raise self.errors.pop(0)
        await trio.sleep_forever()


class FakeHttp:
    async def check(self, target: object) -> None:
        await trio.lowlevel.checkpoint()


@pytest.fixture
def slots() -> trio.CapacityLimiter:
    return trio.CapacityLimiter(math.inf)


def pump_of(client: FakeClient, counts: PushCounts, slots: trio.CapacityLimiter, **push: Any) -> Any:
    return UrlPump(
        topic="t",
        group="g",
        push={**PUSH, **push},
        client=client,  # type: ignore[arg-type]
        http=FakeHttp(),  # type: ignore[arg-type]
        counts=counts,
        now_ms=lambda: 7,
        observe=print,
        agent="sandq",
        slots=slots,
        grace_s=10.0,
    )


async def test_consume_error_is_logged_when_it_changes(
    slots: trio.CapacityLimiter, autojump_clock: trio.testing.MockClock
) -> None:
    errors: list[SandqError] = [NotLeader("not yet")] * 50
    client = FakeClient([*errors, *[UnknownTopic("gone")] * 50])
    counts = PushCounts()
    pump = pump_of(client, counts, slots)
    pump.lead([0])
    with capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pump.run)
            await trio.sleep(200 * AGAIN_S)
            nursery.cancel_scope.cancel()
    assert client.runs == 101
    assert [entry["error"] for entry in logs] == ["not yet", "gone"]
    assert (counts.last_error, counts.last_error_ms) == ("gone", 7)


class StuckMessage:
    """A message whose pause gets no answer."""

    is_held = True

    def __init__(self) -> None:
        self.paused_for: list[str] = []

    async def pause_group(self, *, for_: str) -> int:
        self.paused_for.append(for_)
        await trio.sleep_forever()
        return 0


async def test_pause_without_answer_ends_after_the_time_limit(
    slots: trio.CapacityLimiter, autojump_clock: trio.testing.MockClock
) -> None:
    counts, message = PushCounts(), StuckMessage()
    await pump_of(FakeClient([]), counts, slots, on_429="pause_group")._pause_others(message, 7200)
    assert trio.current_time() == PAUSE_S and message.paused_for == ["3600000ms"]
    assert counts.last_error == "pause_group: the pause did not hold in all partitions within 10 s"
