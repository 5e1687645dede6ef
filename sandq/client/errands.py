"""Cancels and moves of single messages: those asked for at the same time share frames.

A caller leaves its errand; one turn of the event loop later whatever was left for a partition goes out, at most 1,000
in a frame. An errand whose caller was cancelled before that is not sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import anyio
import anyio.abc

from sandq.client.calls import call_leader
from sandq.client.cluster import Cluster
from sandq.client.connection import Build
from sandq.client.options import again
from sandq.model.errors import ClosedError, SandqError
from sandq.protocol.replies_messages import Outcome, outcomes
from sandq.protocol.requests_messages import PAGE_MAX, Cancel, Move


class Counter(NamedTuple):
    """Where errands are gathered: one kind of request to one partition."""

    request: type[Cancel] | type[Move]
    topic: str
    partition: int


class _Errand:
    """One item, and what came of it."""

    __slots__ = ("done", "error", "item", "outcome", "wanted")

    def __init__(self, item: Sequence[Any]) -> None:
        self.item = item
        self.done = anyio.Event()
        self.wanted = True
        self.outcome: Outcome | None = None
        self.error: SandqError | None = None


class Errands:
    """The errands of a client."""

    def __init__(self, cluster: Cluster, tasks: anyio.abc.TaskGroup) -> None:
        self._cluster = cluster
        self._tasks = tasks
        self._left: dict[Counter, list[_Errand]] = {}

    async def run(self, counter: Counter, item: Sequence[Any]) -> Outcome:
        """What came of one item."""
        self._cluster.check_open()
        errand = _Errand(item)
        left = self._left.get(counter)
        if left is None:
            self._left[counter] = [errand]
            self._tasks.start_soon(self._send_all, counter)
        else:
            left.append(errand)
        try:
            await errand.done.wait()
        finally:
            errand.wanted = False
        if errand.error is not None:
            raise again(errand.error)
        assert errand.outcome is not None
        return errand.outcome

    async def _send_all(self, counter: Counter) -> None:
        errands = self._left[counter]
        try:
            await anyio.lowlevel.checkpoint()  # those who are about to ask in this turn of the loop come along
            del self._left[counter]
            wanted = [errand for errand in errands if errand.wanted]
            for start in range(0, len(wanted), PAGE_MAX):
                self._tasks.start_soon(self._send, counter, wanted[start : start + PAGE_MAX])
        except BaseException:
            self._left.pop(counter, None)
            _fail(errands, _closed())
            raise

    async def _send(self, counter: Counter, errands: list[_Errand]) -> None:
        request = counter.request(counter.topic, counter.partition, [errand.item for errand in errands])
        build: Build = request.frame
        try:
            frame = await call_leader(self._cluster, counter.topic, counter.partition, build)
            found = outcomes(frame, len(errands))
        except SandqError as error:
            _fail(errands, error)
        except BaseException:
            _fail(errands, _closed())
            raise
        else:
            for errand, outcome in zip(errands, found, strict=True):
                errand.outcome = outcome
                errand.done.set()


def _fail(errands: list[_Errand], error: SandqError) -> None:
    for errand in errands:
        errand.error = error
        errand.done.set()


def _closed() -> ClosedError:
    return ClosedError("the client was closed before the answer came; it may have been done")
