"""Common parts of backup and restore: abandonable threads, progress, rate limits and concurrent partitions."""

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
"""Timeout of one step at a location (opening a file, writing a block), in seconds."""
AT_ONCE: Final = 2
"""Number of partitions that are read or restored at the same time."""
QUEUED: Final = 4
"""Number of pieces between reader and writer; this many, and two more, are in memory for each partition."""


@dataclass(slots=True)
class Progress:
    """The progress of a backup or restore."""

    partitions: int = 0
    partitions_done: int = 0
    bytes: int = 0
    """Estimated total size of the rows."""
    bytes_done: int = 0
    topic: str = ""
    """Topic of the partition that was finished last."""


class Pace:
    """A limit on bytes per second, over all partitions; None for no limit. It leaves capacity for the cluster's other
    work."""

    def __init__(self, bytes_per_s: int | None) -> None:
        """Check the rate. Raises InvalidRequest."""
        if bytes_per_s is not None and bytes_per_s < 1:
            raise InvalidRequest("a rate is a number of bytes a second above 0")
        self._bytes_per_s = bytes_per_s
        self._free_s = 0.0
        """Time at which the next bytes may be processed."""

    async def take(self, size: int) -> None:
        """Wait until `size` more bytes may be processed."""
        if self._bytes_per_s is None:
            return
        now_s = anyio.current_time()
        begin_s = max(self._free_s, now_s)
        self._free_s = begin_s + size / self._bytes_per_s
        await anyio.sleep(begin_s - now_s)


OnProgress = Callable[[Progress], None]


async def in_thread(step: Callable[[], T], shown: str) -> T:
    """Run a blocking step in a thread.

    Raises StorageFailed if a disk refuses it, or if it takes longer than `STEP_S`; then its thread is abandoned.
    """
    try:
        with anyio.move_on_after(STEP_S):
            return await anyio.to_thread.run_sync(step, abandon_on_cancel=True)
    except OSError as error:
        raise StorageFailed(f"{shown}: {error.strerror or error}") from error
    raise StorageFailed(f"{shown}: it has taken more than {STEP_S:.0f} s")


async def several(work: Callable[[K], Awaitable[None]], items: Iterable[K], at_once: int) -> None:
    """Run `work` for each item, `at_once` at a time; the first error cancels the others and is raised."""
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
