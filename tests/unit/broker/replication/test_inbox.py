"""Calls from threads run on the loop in order, and no call is lost."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from sandq.broker.replication.inbox import Inbox
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
    threads, each = 3, 1000

    def record_call(thread: int, number: int) -> None:
        heard.append((thread, number))
        if len(heard) == threads * each:
            ended.set()

    def put(thread: int) -> None:
        for number in range(each):
            inbox.put(record_call, thread, number)

    async with running(inbox):
        putting = [threading.Thread(target=put, args=(thread,)) for thread in range(threads)]
        for thread in putting:
            thread.start()
        await ended.wait()
    for number in range(threads):
        assert [at for thread, at in heard if thread == number] == [*range(each)]


async def test_calls_added_while_calls_run_wait_for_the_next_iteration() -> None:
    inbox, heard, ended = Inbox(), [], trio.Event()

    def put_another() -> None:
        inbox.put(heard.append, "later")
        inbox.put(ended.set)

    inbox.put(put_another)
    inbox.put(heard.append, "now")
    inbox.during(bool)
    assert heard == ["now"]
    async with running(inbox):
        await ended.wait()
    assert heard == ["now", "later"]


async def test_inline_result_is_delivered_in_this_iteration_after_earlier_calls() -> None:
    inbox, heard = Inbox(), []

    def work() -> str:
        inbox.put(heard.append, "mine")
        inbox.put(nested)
        assert heard == []
        return "done"

    def nested() -> None:
        assert inbox.during(again) == "again"
        heard.append("not within it")  # the report of a sync must not run during the work of another sync

    def again() -> str:
        inbox.put(heard.append, "within")
        return "again"

    inbox.put(heard.append, "before")
    assert inbox.during(work) == "done"
    assert heard == ["before", "mine", "not within it", "within"]
    # The inbox wakes again for calls from here on.
    ended = trio.Event()
    inbox.put(ended.set)
    async with running(inbox):
        await ended.wait()


async def test_a_closed_inbox_has_run_all_and_takes_nothing() -> None:
    inbox, heard = Inbox(), []
    inbox.put(inbox.put, heard.append, "last")
    inbox.close()
    assert heard == ["last"]
    inbox.put(heard.append, "late")  # a thread that hung in a disk operation
    inbox.close()
    assert heard == ["last"]
    await inbox.run()  # ends at once
