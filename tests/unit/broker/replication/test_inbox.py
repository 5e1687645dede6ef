"""Calls of threads run on the loop, in their order, and none is forgotten."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from sandq.broker.replication.inbox import AT_ONCE, Inbox
from tests.support.waiting import PATIENCE_S


@asynccontextmanager
async def running(inbox: Inbox) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(inbox.run)
        with trio.fail_after(PATIENCE_S):
            yield
        nursery.cancel_scope.cancel()
    inbox.close()


async def test_calls_of_each_thread_run_in_its_order() -> None:
    inbox, heard, ended = Inbox(), [], trio.Event()
    threads, each = 3, 4 * AT_ONCE

    def hear(thread: int, number: int) -> None:
        heard.append((thread, number))
        if len(heard) == threads * each:
            ended.set()

    def put(thread: int) -> None:
        for number in range(each):
            inbox.put(hear, thread, number)

    async with running(inbox):
        putting = [threading.Thread(target=put, args=(thread,)) for thread in range(threads)]
        for thread in putting:
            thread.start()
        await ended.wait()
    for number in range(threads):
        assert [at for thread, at in heard if thread == number] == [*range(each)]


async def test_others_have_a_turn_between_many_calls() -> None:
    inbox, heard, ended = Inbox(), [], trio.Event()
    for number in range(2 * AT_ONCE):
        inbox.put(heard.append, number)
    inbox.put(ended.set)
    assert inbox.during(lambda: True)
    assert heard == [*range(AT_ONCE)]
    async with running(inbox):
        await ended.wait()
    assert heard == [*range(2 * AT_ONCE)]


async def test_what_is_done_in_the_place_of_a_thread_is_told_at_once_behind_what_came_before() -> None:
    inbox, heard = Inbox(), []
    inbox.put(heard.append, "before")

    def work() -> bool:
        inbox.put(heard.append, "mine")
        inbox.put(inbox.during, nested)
        assert heard == []
        return True

    def nested() -> bool:
        inbox.put(heard.append, "within")
        return False

    assert inbox.during(work)
    assert heard == ["before", "mine", "within"]
    # It wakes again what comes from here on.
    ended = trio.Event()
    inbox.put(ended.set)
    async with running(inbox):
        await ended.wait()


async def test_a_closed_inbox_has_run_all_and_takes_nothing() -> None:
    inbox, heard = Inbox(), []
    for number in range(AT_ONCE + 1):
        inbox.put(heard.append, number)
    inbox.close()
    assert len(heard) == AT_ONCE + 1
    inbox.put(heard.append, "late")  # a thread that hung in the disk
    inbox.close()
    assert len(heard) == AT_ONCE + 1
    await inbox.run()  # ends at once
