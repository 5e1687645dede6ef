"""Tests of the cost of handshakes: those of one source wait for each other, and hardly delay other sources."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from sandq.model.errors import Overloaded
from sandq.tls import budget
from sandq.tls.budget import BURST_S, SHARE, SOURCE_HANDSHAKES, SOURCE_SHARE, Handshakes

STEP_S = 0.002


async def shake(handshakes: Handshakes, source: str, ended: list[tuple[str, float]]) -> None:
    async with handshakes.slot(source):
        await handshakes.wait_for_step(source)
        handshakes.spent(source, STEP_S)
    ended.append((source, trio.current_time()))


async def many(handshakes: Handshakes, source: str, count: int, ended: list[tuple[str, float]]) -> None:
    for _ in range(count):
        await shake(handshakes, source, ended)


async def test_handshakes_use_a_limited_share_of_a_core(autojump_clock: trio.testing.MockClock) -> None:
    handshakes, ended = Handshakes(), []  # type: ignore[var-annotated]
    began_s = trio.current_time()
    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(many, handshakes, f"s{number}", 100, ended)
    took_s = trio.current_time() - began_s
    assert handshakes.cpu_s == pytest.approx(2000 * STEP_S)
    assert took_s == pytest.approx((2000 * STEP_S - BURST_S) / SHARE, rel=0.05)
    assert not handshakes.in_progress


async def test_one_source_gets_half_of_the_budget(autojump_clock: trio.testing.MockClock) -> None:
    handshakes, ended = Handshakes(), []  # type: ignore[var-annotated]
    async with trio.open_nursery() as nursery:
        for _ in range(SOURCE_HANDSHAKES):
            nursery.start_soon(many, handshakes, "flood", 5, ended)
        await trio.sleep(1)  # the burst of the source is spent
        began_s = trio.current_time()
        await shake(handshakes, "other", ended)
        assert trio.current_time() - began_s <= STEP_S / SHARE
    took_s = ended[-1][1]
    total_s = SOURCE_HANDSHAKES * 5 * STEP_S
    assert took_s >= (total_s - BURST_S) / (SHARE * SOURCE_SHARE) - STEP_S


async def test_requests_beyond_the_limit_are_refused(autojump_clock: trio.testing.MockClock) -> None:
    handshakes = Handshakes()

    async def hold(source: str) -> None:
        async with handshakes.slot(source) as scope:
            handshakes.spent(source, 1000.0)
            await handshakes.wait_for_step(source, scope)  # no client is silent

    async with trio.open_nursery() as nursery:
        for _ in range(SOURCE_HANDSHAKES):
            nursery.start_soon(hold, "flood")
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Overloaded):
            async with handshakes.slot("flood"):
                raise AssertionError
        async with handshakes.slot("other"):
            assert handshakes.in_progress == SOURCE_HANDSHAKES + 1
        nursery.cancel_scope.cancel()
    assert handshakes.refused == 1 and not handshakes.in_progress


async def test_idle_sources_are_forgotten(autojump_clock: trio.testing.MockClock) -> None:
    handshakes, ended = Handshakes(), []  # type: ignore[var-annotated]
    for number in range(3 * budget.HANDSHAKES):
        await shake(handshakes, f"s{number}", ended)
        await trio.sleep(1)
    assert len(handshakes._sources) <= 2 * budget.HANDSHAKES + 1


async def test_new_client_replaces_the_longest_silent_one(
    autojump_clock: trio.testing.MockClock,
) -> None:
    handshakes, ended, refused = Handshakes(), [], []  # type: ignore[var-annotated]

    async def hold(source: str, number: int) -> None:
        try:
            async with handshakes.slot(source) as scope:
                if number < 2:
                    await trio.sleep(1)
                    await handshakes.wait_for_step(source, scope)  # the client has sent something
                await trio.sleep_forever()
        except Overloaded:
            refused.append(number)

    async with trio.open_nursery() as nursery:
        for number in range(SOURCE_HANDSHAKES):
            nursery.start_soon(hold, "a", number)
            await wait_all_tasks_blocked()
        await trio.sleep(2)
        for _ in range(3):
            await shake(handshakes, "a", ended)
            await wait_all_tasks_blocked()
            nursery.start_soon(hold, "a", SOURCE_HANDSHAKES)
            await wait_all_tasks_blocked()
        assert refused == [2, 3, 4] and len(ended) == 3 and handshakes.refused == 3
        await shake(handshakes, "b", ended)
        assert len(refused) == 3, "others have places"
        nursery.cancel_scope.cancel()
    assert not handshakes.in_progress and not handshakes._silent
