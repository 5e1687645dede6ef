"""Provide `Files` on top of other `Files`, with planned faults: a full disk, failing or slow syncs, flipped bits."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from sandq.model.errors import StorageFailed
from sandq.storage.files import Buffer, File, Files, Lock, failed
from sandq.storage.memory_files import MemoryFile


@dataclass
class Plan:
    """The planned faults. A test may change them at any time, because each operation reads them.

    `budget_bytes`: number of bytes that can still be written. Then writes fail with ENOSPC; the write that reaches the
    end still writes the part that fits. `full`: the disk is full now. `fail_sync_at`: number of the first sync that
    fails with EIO (1: the first sync from the start); all later syncs fail, too. Creating and removing a file count as
    one sync each. Replacing a file counts as two: sync of the file, then sync of its directory, when the new content
    exists already. `fail_writes`: every write fails with `write_errno`. `flips`: by file, the bits (offset in bits)
    that reads return flipped. `on_sync(name)`: called before each sync; it may block, count or raise.
    """

    budget_bytes: int | None = None
    full: bool = False
    fail_sync_at: int | None = None
    fail_writes: bool = False
    write_errno: int = errno.EIO
    flips: dict[str, set[int]] = field(default_factory=dict)
    on_sync: Callable[[str], None] | None = None
    syncs: int = 0

    def take(self, operation: str, name: str, size: int) -> int:
        """Spend `size` bytes and return how many of them fit. Raises if no byte may be written."""
        if self.fail_writes:
            raise failed(operation, name, OSError(self.write_errno, os.strerror(self.write_errno)))
        if self.full:
            return 0
        if self.budget_bytes is None:
            return size
        fits = min(size, self.budget_bytes)
        self.budget_bytes -= fits
        return fits

    def sync(self, name: str) -> None:
        """Count one sync. Raises if it must fail."""
        self.syncs += 1
        if self.on_sync is not None:
            self.on_sync(name)
        if self.fail_sync_at is not None and self.syncs >= self.fail_sync_at:
            raise failed("sync", name, OSError(errno.EIO, os.strerror(errno.EIO)))

    def read(self, name: str, offset: int, data: bytes) -> bytes:
        """Return these bytes as a read sees them."""
        bits = self.flips.get(name)
        if not bits:
            return data
        seen = bytearray(data)
        for bit in bits:
            at = bit // 8 - offset
            if 0 <= at < len(seen):
                seen[at] ^= 1 << bit % 8
        return bytes(seen)


def _no_space(operation: str, name: str) -> Exception:
    return failed(operation, name, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


class FaultyFile:
    """An open file of `FaultyFiles`."""

    def __init__(self, inner: File, name: str, plan: Plan) -> None:
        self._inner = inner
        self._name = name
        self._plan = plan

    def write_at(self, offset: int, data: Buffer) -> None:
        # A write into existing blocks of the file needs no free bytes on the disk.
        beyond = max(0, min(len(data), offset + len(data) - self._inner.size()))
        fits = len(data) - beyond + self._plan.take("write", self._name, beyond)
        if fits:
            self._inner.write_at(offset, memoryview(data)[:fits])
        if fits < len(data):
            raise _no_space("write", self._name)

    def read_at(self, offset: int, size: int) -> bytes:
        return self._plan.read(self._name, offset, self._inner.read_at(offset, size))

    def sync(self) -> None:
        try:
            self._plan.sync(self._name)
        except BaseException:
            if isinstance(self._inner, MemoryFile):
                self._inner.forget_unsynced()
            raise
        self._inner.sync()

    def size(self) -> int:
        return self._inner.size()

    def close(self) -> None:
        self._inner.close()


class FaultyFiles:
    """The files `inner`, with the faults of `plan`."""

    def __init__(self, inner: Files, plan: Plan) -> None:
        self.inner = inner
        self.plan = plan

    def open(self, name: str, *, create_bytes: int | None = None) -> FaultyFile:
        if create_bytes is not None:
            self._spend("create", name, create_bytes)
        return FaultyFile(self.inner.open(name, create_bytes=create_bytes), name, self.plan)

    def read(self, name: str) -> bytes:
        return self.plan.read(name, 0, self.inner.read(name))

    def replace(self, name: str, data: bytes) -> None:
        try:
            self._spend("replace", name, len(data))
        except StorageFailed as error:
            raise StorageFailed(error.message, **error.details | {"operation": "replace"}) from None
        self.inner.replace(name, data)
        self.plan.sync(name.rpartition("/")[0])

    def remove(self, name: str) -> None:
        self.plan.sync(name)
        self.inner.remove(name)

    def list(self, directory: str) -> list[str]:
        return self.inner.list(directory)

    def exists(self, name: str) -> bool:
        return self.inner.exists(name)

    def make_dir(self, directory: str) -> None:
        self.inner.make_dir(directory)

    def sync_dir(self, directory: str) -> None:
        self.plan.sync(directory)
        self.inner.sync_dir(directory)

    def lock(self, name: str) -> Lock:
        return self.inner.lock(name)

    def free_bytes(self) -> int:
        if self.plan.full:
            return 0
        free = self.inner.free_bytes()
        return free if self.plan.budget_bytes is None else min(free, self.plan.budget_bytes)

    def _spend(self, operation: str, name: str, size: int) -> None:
        if self.plan.take(operation, name, size) < size:
            raise _no_space(operation, name)
        self.plan.sync(name)
