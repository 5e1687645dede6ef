"""Tests of restarts: a node that met a full disk is restarted, and no other node is."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from sandq.model.errors import StorageFailed
from sandq.node.restarts import RETRY_S, serve_until

FULL = StorageFailed("no room", errno="ENOSPC")
BROKEN = StorageFailed("a failed sync", errno="EIO")


class Node:
    def __init__(self, number: int) -> None:
        self.number = number
        self.restart = trio.Event()


class Bed:
    """Nodes that meet these errors at consecutive starts. None: the node serves."""

    def __init__(self, *starts: Exception | None) -> None:
        self._starts: Sequence[Exception | None] = starts
        self.stop = trio.Event()
        self.tried_s: list[float] = []
        self.ready: list[Node] = []
        self.ended: list[int] = []

    @contextlib.asynccontextmanager
    async def _run(self) -> AsyncIterator[Node]:
        number = len(self.tried_s)
        self.tried_s.append(trio.current_time())
        error = self._starts[number]
        if error is not None:
            raise error
        yield Node(number)
        self.ended.append(number)

    def _on_ready(self, node: Node) -> None:
        self.ready.append(node)
        if len(self.tried_s) == len(self._starts):
            self.stop.set()
        else:
            node.restart.set()

    async def serve(self) -> None:
        run: Any = self._run
        on_ready: Any = self._on_ready
        await serve_until(self.stop, run, on_ready)


async def test_process_is_restarted_on_its_request() -> None:
    bed = Bed(None, None, None)
    await bed.serve()
    assert [node.number for node in bed.ready] == bed.ended == [0, 1, 2]


async def test_node_waits_when_there_is_no_space_to_start(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed(None, FULL, FULL, None)
    await bed.serve()
    assert [node.number for node in bed.ready] == [0, 3]
    assert [later - bed.tried_s[1] for later in bed.tried_s[2:]] == [RETRY_S, 2 * RETRY_S]


async def test_node_waiting_for_space_stops_on_request(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed(None, FULL, None)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.serve)
        await trio.sleep(RETRY_S / 2)
        bed.stop.set()
    assert len(bed.tried_s) == 2


async def test_full_disk_in_a_group_is_waited_for(autojump_clock: trio.testing.MockClock) -> None:
    """The nurseries of a node wrap what its start raises."""
    bed = Bed(None, ExceptionGroup("outer", [ExceptionGroup("inner", [FULL])]), None)
    await bed.serve()
    assert [node.number for node in bed.ready] == [0, 2]


@pytest.mark.parametrize(
    "starts",
    [(FULL,), (BROKEN,), (None, BROKEN), (None, ExceptionGroup("both", [FULL, BROKEN]))],
    ids=["first start", "broken", "broken later", "broken as well"],
)
async def test_error_that_space_does_not_fix_is_raised(starts: tuple[Exception | None, ...]) -> None:
    bed = Bed(*starts)
    with pytest.raises((StorageFailed, ExceptionGroup)) as raised:
        await bed.serve()
    assert raised.value is starts[-1]
