"""Tests of the dump of current threads and tasks."""

from __future__ import annotations

import threading

import trio
import trio.testing

from sandq.server.debug.stacks import TASK_FRAMES, tasks, threads


def test_each_thread_with_its_stack() -> None:
    begun, over = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        over.wait()

    thread = threading.Thread(target=wait, name="a thread that waits")
    thread.start()
    try:
        begun.wait()
        (found,) = [row for row in threads() if row["name"] == "a thread that waits"]
    finally:
        over.set()
        thread.join()
    where = [place for place in found["stack"] if ".wait:" in place and "test_stacks" in place]
    assert len(where) == 1 and where[0].rsplit(":", 1)[1].isdecimal()
    assert not any("/" in place for place in found["stack"]), "places are modules, not files of this machine"


async def test_each_task_below_the_one_that_began_it() -> None:
    async def outer() -> None:
        async with trio.open_nursery() as inside:
            inside.start_soon(inner, name="inner one")

    async def inner() -> None:
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(outer, name="sandq.outer one")
        await trio.testing.wait_all_tasks_blocked()
        found, count = tasks()
        assert count == len(found)
        rows = {row["name"]: row for row in found}
        assert rows["inner one"]["depth"] == rows["outer one"]["depth"] + 1
        assert any(".inner:" in place for place in rows["inner one"]["stack"])
        assert rows["inner one"]["stack"][0].startswith("trio."), "the innermost frame must be first"
        assert [row["stack"] for row in found if "test_each_task" in row["name"]] == [[]], "it runs"
        few, all_of_them = tasks(1)
        assert len(few) == 1 and all_of_them == count
        nursery.cancel_scope.cancel()


async def test_deep_stacks_are_cut() -> None:
    async def deep(left: int) -> None:
        if left:
            await deep(left - 1)
        else:
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(deep, 100, name="deep one")
        await trio.testing.wait_all_tasks_blocked()
        (row,) = [row for row in tasks()[0] if row["name"] == "deep one"]
        assert len(row["stack"]) == TASK_FRAMES
        nursery.cancel_scope.cancel()
