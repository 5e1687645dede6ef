"""A wall clock that jumps an hour either way makes nothing early, late or lost."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from sandq.broker.clock import GuardedClock
from sandq.node import Serving, run_node
from sandq.protocol.frames import Type
from tests.scenarios.conftest import Dial
from tests.support.nodes.raw_client import values_of
from tests.support.nodes.small_node import small_config
from tests.support.waiting import PATIENCE_S

HOUR_S = 3600.0


class Wall:
    """A wall clock that somebody sets."""

    def __init__(self) -> None:
        self.off_s = 0.0

    def __call__(self) -> float:
        return time.time() + self.off_s


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
async def guarded(tmp_path: Path, wall: Wall) -> AsyncIterator[Serving]:
    async with run_node(small_config(tmp_path), clock=GuardedClock(wall=wall)) as serving:
        yield serving


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_a_jump_is_not_followed(guarded: Serving, dial: Dial, wall: Wall, jump_s: float) -> None:
    client = await dial(guarded)
    await client.create()
    await client.subscribe()
    due_ms = guarded.broker.clock.now_ms() + 300
    await client.produce(b"pending", deliver_ms=[due_ms])
    await client.produce(b"far", deliver_ms=[due_ms + 1_800_000])
    wall.off_s = jump_s
    await client.produce(b"now")
    with trio.fail_after(PATIENCE_S):
        got = [value for _ in range(2) for value in values_of(await client.push())]
    assert sorted(got) == [b"now", b"pending"]
    assert 0 <= guarded.broker.clock.now_ms() - due_ms < HOUR_S * 500, "by the clock that did not jump"
    status = (await client.call(Type.CLUSTER_CLOCK, "show"))[2]
    assert status["alarm"] is True
    assert abs(status["drift_ms"] - jump_s * 1000) < 1000
    assert (await client.call(Type.CLUSTER_INFO))[2]["clock_alarm"] is True
    assert client.pushed == [], "what is half an hour away does not come"


async def test_an_accepted_jump_forward_makes_due_what_is_due_by_it(guarded: Serving, dial: Dial, wall: Wall) -> None:
    client = await dial(guarded)
    await client.create()
    await client.subscribe()
    await client.produce(b"later", deliver_ms=[int(time.time() * 1000) + 1_800_000])
    wall.off_s = HOUR_S
    status = (await client.call(Type.CLUSTER_CLOCK, "accept"))[2]
    assert (status["alarm"], abs(status["drift_ms"]) <= 1) == (False, True)
    with trio.fail_after(PATIENCE_S):
        assert values_of(await client.push()) == [b"later"]


async def test_an_accepted_jump_back_makes_nothing_early(guarded: Serving, dial: Dial, wall: Wall) -> None:
    client = await dial(guarded)
    await client.create()
    await client.subscribe()
    due_ms = int(time.time() * 1000) + 60_000
    await client.produce(b"later", deliver_ms=[due_ms])
    wall.off_s = -HOUR_S
    await client.call(Type.CLUSTER_CLOCK, "accept")
    wall.off_s = 120 - HOUR_S  # it is over, but for the hour
    await client.call(Type.CLUSTER_CLOCK, "accept")
    for _ in range(20):  # timers look again at once when a clock is accepted, and what comes is sent in their order
        await client.call(Type.PING)
    assert client.pushed == [], "an hour early by the accepted clock"
    wall.off_s = 120.0
    await client.call(Type.CLUSTER_CLOCK, "accept")
    with trio.fail_after(PATIENCE_S):
        assert values_of(await client.push()) == [b"later"]
