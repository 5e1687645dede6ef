"""A wall clock that jumps an hour in either direction makes no message early, late or lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from sandq.node import run_node
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.raw_client import values_of
from tests.support.nodes.small_node import small_config
from tests.support.waiting import PATIENCE_S

HOUR_S = 3600.0
LOOKS = 20


class Wall:
    """A wall clock that the test sets."""

    def __init__(self) -> None:
        self.off_s = 0.0


@pytest.fixture
def wall() -> Wall:
    return Wall()


@pytest.fixture
async def guarded(tmp_path: Path, wall: Wall, hand: HandClock) -> AsyncIterator[Serving]:
    """A node on a machine whose clocks are moved only by the test."""
    hand.hold()
    async with run_node(small_config(tmp_path), clock=hand.guarded(lambda: wall.off_s)) as serving:
        yield serving


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_a_jump_is_not_followed(guarded: Serving, dial: Dial, wall: Wall, hand: HandClock, jump_s: float) -> None:
    client = await dial(guarded)
    await client.create()
    await client.subscribe()
    due_ms = hand.now_ms() + 300
    await client.produce(b"pending", deliver_ms=[due_ms])
    await client.produce(b"far", deliver_ms=[due_ms + 1_800_000])
    wall.off_s = jump_s
    await client.produce(b"now")
    with trio.fail_after(PATIENCE_S):
        assert values_of(await client.push()) == [b"now"]
        hand.forward_to(due_ms)
        assert values_of(await client.push()) == [b"pending"], "the time must follow the clock that did not jump"
    status = (await client.call(Type.CLUSTER_CLOCK, "show"))[2]
    assert status["alarm"] is True
    assert status["drift_ms"] == jump_s * 1000
    assert (await client.call(Type.CLUSTER_INFO))[2]["clock_alarm"] is True
    for _ in range(LOOKS):
        await client.call(Type.PING)
    assert client.pushed == [], "a message due in half an hour must not be delivered"


async def test_accepted_jump_forward_makes_messages_due(
    guarded: Serving, dial: Dial, wall: Wall, hand: HandClock
) -> None:
    client = await dial(guarded)
    await client.create()
    await client.subscribe()
    await client.produce(b"later", deliver_ms=[hand.now_ms() + 1_800_000])
    wall.off_s = HOUR_S
    status = (await client.call(Type.CLUSTER_CLOCK, "accept"))[2]
    assert (status["alarm"], status["drift_ms"]) == (False, 0)
    with trio.fail_after(PATIENCE_S):
        assert values_of(await client.push()) == [b"later"]


async def test_accepted_jump_back_delivers_nothing_early(
    guarded: Serving, dial: Dial, wall: Wall, hand: HandClock
) -> None:
    client = await dial(guarded)
    await client.create()
    await client.subscribe()
    due_ms = hand.now_ms() + 60_000
    await client.produce(b"later", deliver_ms=[due_ms])
    wall.off_s = -HOUR_S
    await client.call(Type.CLUSTER_CLOCK, "accept")
    wall.off_s = 120 - HOUR_S  # without the jump, the lease would have ended
    await client.call(Type.CLUSTER_CLOCK, "accept")
    for _ in range(LOOKS):  # timers check at once when a clock is accepted, and messages are sent in order
        await client.call(Type.PING)
    assert client.pushed == [], "by the accepted clock, this is an hour early"
    wall.off_s = 120.0
    await client.call(Type.CLUSTER_CLOCK, "accept")
    with trio.fail_after(PATIENCE_S):
        assert values_of(await client.push()) == [b"later"]
