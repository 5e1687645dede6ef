"""Tests of the slots for statements: no caller holds all slots, and no slot is lost."""

from __future__ import annotations

from contextlib import AsyncExitStack

import anyio
import pytest
from anyio.lowlevel import checkpoint

from sandq.sql.slots import StatementSlots


async def hold(slots: StatementSlots, owner: str, log: list[str], name: str, until: anyio.Event) -> None:
    async with slots.one(owner):
        log.append(name)
        await until.wait()


async def settle() -> None:
    for _ in range(10):
        await checkpoint()


@pytest.mark.parametrize("count", [2, 3, 5])
async def test_caller_with_a_slot_does_not_get_the_last_free_one(count: int) -> None:
    slots, log, free = StatementSlots(count), list[str](), anyio.Event()
    async with anyio.create_task_group() as tasks:
        for number in range(count + 1):
            tasks.start_soon(hold, slots, "ada", log, f"ada{number}", free)
        await settle()
        assert len(log) == count - 1
        tasks.start_soon(hold, slots, "bob", log, "bob", free)
        await settle()
        assert "bob" in log and len(log) == count
        free.set()
    assert sorted(log) == sorted([*[f"ada{number}" for number in range(count + 1)], "bob"])


async def test_single_slot_is_given_to_one_caller_after_another() -> None:
    slots, log = StatementSlots(1), list[str]()
    ends = {name: anyio.Event() for name in ("a", "b", "c")}
    async with anyio.create_task_group() as tasks:
        for name, end in ends.items():
            tasks.start_soon(hold, slots, name, log, name, end)
            await settle()
        for name in ("a", "b", "c"):
            assert log[-1] == name
            ends[name].set()
            await settle()


async def test_caller_that_leaves_while_waiting_frees_its_slot() -> None:
    slots, log, free = StatementSlots(2), list[str](), anyio.Event()
    async with AsyncExitStack() as stack, anyio.create_task_group() as tasks:
        await stack.enter_async_context(slots.one("ada"))
        await stack.enter_async_context(slots.one("bob"))
        with anyio.CancelScope() as scope:
            tasks.start_soon(hold, slots, "ada", log, "waits", free)
            async with anyio.create_task_group() as leaving:
                leaving.start_soon(hold, slots, "carl", log, "left", free)
                await settle()
                leaving.cancel_scope.cancel()
        assert not scope.cancelled_caught and log == []
        free.set()
        tasks.start_soon(hold, slots, "dora", log, "dora", free)
        await stack.aclose()
    assert sorted(log) == ["dora", "waits"]
