"""What backing up and restoring have in common: threads that may hang, how far it is, several partitions at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from sandq.model.errors import InvalidRequest, SandqError, StorageFailed

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


class Pace:
    """So many bytes a second, of all partitions together; None: as fast as it goes. What else goes on in the cluster
    has the rest of its time."""

    def __init__(self, bytes_per_s: int | None) -> None:
        """Raises InvalidRequest."""
        if bytes_per_s is not None and bytes_per_s < 1:
            raise InvalidRequest("a rate is a number of bytes a second above 0")
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0
        """When what was taken so far is over."""

    async def take(self, size: int) -> None:
        """Wait until so many more bytes may go."""
        if self._bytes_per_s is None:
            return
        now_s = anyio.current_time()
        begin_s = max(self._free_s, now_s)
        self._free_s = begin_s + size / self._bytes_per_s
        await anyio.sleep(begin_s - now_s)


OnProgress = Callable[[Progress], None]


async def in_thread(step: Callable[[], T], what: str) -> T:
    """Run a step that blocks. Raises StorageFailed when a disk refuses it, as it is full; and when it takes longer than
    `STEP_S`: it is left behind."""
    try:
        with anyio.move_on_after(STEP_S):
            return await anyio.to_thread.run_sync(step, abandon_on_cancel=True)
    except OSError as error:
        raise StorageFailed(f"{what}: {error.strerror or error}") from error
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
