"""Detect when all other tasks of an event loop are blocked."""

from __future__ import annotations

import asyncio

import sniffio
import trio.testing

_ROUNDS = 3
"""Number of idle iterations of an asyncio loop to wait for. Data from sockets wakes a task in the second iteration."""


async def others_blocked() -> None:
    """Wait until every other task of this event loop is blocked."""
    if sniffio.current_async_library() == "trio":
        await trio.testing.wait_all_tasks_blocked()
        return
    this = asyncio.current_task()
    quiet = 0
    while quiet < _ROUNDS:
        await asyncio.sleep(0)
        quiet = 0 if any(_is_ready(task) for task in asyncio.all_tasks() if task is not this) else quiet + 1


def _is_ready(task: asyncio.Task[object]) -> bool:
    waits_for = getattr(task, "_fut_waiter", None)
    return waits_for is None or waits_for.done()
