"""What backing up and restoring have in common: threads that may hang, how far it is, several partitions at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from sandq.model.errors import SandqError, StorageFailed

T = TypeVar("T")
K = TypeVar("K")

STEP_S: Final = 300.0
"""So long one step may take at a place: a file opened, a block written."""
AT_ONCE: Final = 2
"""Partitions that are read, or restored, at a time."""
QUEUED: Final = 4
"""Pieces between who reads and who writes: so many, and two more, are in memory for each partition."""


@dataclass(slots=True)
class Progress:
    """How far it is."""

    partitions: int = 0
    partitions_done: int = 0
    bytes: int = 0
    """Of rows, about what there will be."""
    bytes_done: int = 0
    topic: str = ""
    """Of which a partition was done last."""


OnProgress = Callable[[Progress], None]


async def in_thread(step: Callable[[], T], what: str) -> T:
    """Run a step that blocks. Raises StorageFailed when it takes longer than `STEP_S`: it is left behind."""
    with anyio.move_on_after(STEP_S):
        return await anyio.to_thread.run_sync(step, abandon_on_cancel=True)
    raise StorageFailed(f"{what}: it has taken more than {STEP_S:.0f} s")


async def several(work: Callable[[K], Awaitable[None]], items: Iterable[K], at_once: int) -> None:
    """Do it for each, so many at a time; the first error ends the others and is raised as it is."""
    errors: list[SandqError] = []
    limiter = anyio.CapacityLimiter(at_once)

    async def one(item: K) -> None:
        async with limiter:
            try:
                await work(item)
            except SandqError as error:
                errors.append(error)
                tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        for item in items:
            tasks.start_soon(one, item)
    if errors:
        raise errors[0]
