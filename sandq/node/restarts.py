"""Serve until a stop is requested. If a full disk stopped the node, restart it once the disk has space again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

import trio

from sandq.model.errors import StorageFailed
from sandq.model.logger import get_logger
from sandq.storage.files import is_full

if TYPE_CHECKING:
    from sandq.node.running import Serving

log = get_logger("sandq.node")

RETRY_S: Final = 5.0
"""Interval between attempts to restart while the disk is too full, in seconds."""


async def serve_until(
    stop: trio.Event, run: Callable[[], AbstractAsyncContextManager[Serving]], on_ready: Callable[[Serving], None]
) -> None:
    """Run nodes one after the other on the same data, until `stop` is set. Call `on_ready` for each node that serves.

    Raises the errors of `run`, except in one case: if the disk is too full to restart a node that has served before,
    the start is attempted again later."""
    served = False
    while not stop.is_set():
        try:
            async with run() as node:
                on_ready(node)
                served = True
                await _first_of(stop, node.restart)
                if not stop.is_set():
                    log.warning("the disk has space again: restarting")
        except (StorageFailed, ExceptionGroup) as error:
            full = [leaf for leaf in _leaves(error) if isinstance(leaf, StorageFailed) and is_full(leaf)]
            if not served or len(full) < len(list(_leaves(error))):
                raise
            log.error("the disk is too full to restart the node", error=full[0].message)
            with trio.move_on_after(RETRY_S):
                await stop.wait()


async def _first_of(*events: trio.Event) -> None:
    async def wait(event: trio.Event) -> None:
        await event.wait()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for event in events:
            nursery.start_soon(wait, event)


def _leaves(error: Exception) -> Iterator[Exception]:
    """Yield the errors that ended a node. Nurseries wrap them in groups."""
    if not isinstance(error, ExceptionGroup):
        yield error
        return
    for inner in error.exceptions:
        yield from _leaves(inner)
