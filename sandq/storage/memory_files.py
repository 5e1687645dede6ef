"""`Files` in memory, for tests and simulation. On a crash, it loses data that a real disk may lose.

There are three ways to end it. The first two return a new tree, from which the next process starts:

- `crash(rng)`: power loss. Each unsynced write survives, is lost, or is torn at 512-byte sectors (each sector
  independently), in any combination. Each create, remove and rename whose directory was not synced survives or is lost.
- `kill()`: the process dies and the machine continues. All writes are still visible, and still not synced.
- `crash_after(n)`: the n-th mutating operation from now raises `Crashed`, and so do all later operations.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from sandq.model.errors import DataDirInUse
from sandq.storage.files import TEMPORARY, Buffer

SECTOR_BYTES = 512


class Crashed(BaseException):
    """The simulated machine has lost power. The class is no `Exception`, so that no handler catches it."""


def _put(content: bytearray, offset: int, data: Buffer) -> None:
    if offset > len(content):
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class _Node:
    """A file's content: the visible bytes, the bytes on the disk, and the unsynced writes between the two."""

    __slots__ = ("disk", "pending", "visible")

    def __init__(self) -> None:
        self.visible = bytearray()
        self.disk = bytearray()
        self.pending: list[tuple[int, bytes]] = []

    def sync(self) -> None:
        for offset, data in self.pending:
            _put(self.disk, offset, data)
        self.pending.clear()

    def copy(self) -> _Node:
        copied = _Node()
        copied.visible[:] = self.visible
        copied.disk[:] = self.disk
        copied.pending = list(self.pending)
        return copied

    def after_power_loss(self, rng: random.Random) -> _Node:
        copied = _Node()
        copied.disk[:] = self.disk
        for offset, data in self.pending:
            fate = rng.randrange(3)
            if fate == 0:
                _put(copied.disk, offset, data)
            elif fate == 1:
                _put_torn(copied.disk, offset, data, rng)
        copied.visible[:] = copied.disk
        return copied


def _put_torn(content: bytearray, offset: int, data: bytes, rng: random.Random) -> None:
    at, end = offset, offset + len(data)
    while at < end:
        stop = min(end, (at // SECTOR_BYTES + 1) * SECTOR_BYTES)
        if rng.random() < 0.5:
            _put(content, at, data[at - offset : stop - offset])
        at = stop


class MemoryFile:
    """An open file of `MemoryFiles`."""

    def __init__(self, files: MemoryFiles, node: _Node) -> None:
        self._files = files
        self._node = node

    def write_at(self, offset: int, data: Buffer) -> None:
        content = bytes(data)

        def write() -> None:
            _put(self._node.visible, offset, content)
            self._node.pending.append((offset, content))

        self._files._mutate(write)

    def read_at(self, offset: int, size: int) -> bytes:
        self._files._check_power()
        return bytes(self._node.visible[offset : offset + size])

    def sync(self) -> None:
        self._files._mutate(self._node.sync, partly=False)

    def forget_unsynced(self) -> None:
        """Simulate a failed fsync: mark the unsynced writes as clean.

        The writes stay visible, but reach the disk only if they are written again."""
        self._node.pending.clear()

    def size(self) -> int:
        self._files._check_power()
        return len(self._node.visible)

    def close(self) -> None:
        pass


class MemoryLock:
    """A lock of `MemoryFiles`."""

    def __init__(self, held: set[str], name: str) -> None:
        self._held = held
        self._name = name

    def close(self) -> None:
        self._held.discard(self._name)

    def keep(self) -> None:
        self._held = set()


_Change = Callable[[dict[str, _Node]], None]


class MemoryFiles:
    """A directory tree in memory."""

    def __init__(self, *, capacity_bytes: int = 1 << 40) -> None:
        self.operations = 0
        """Number of mutating operations so far."""
        self._capacity_bytes = capacity_bytes
        self._names: dict[str, _Node] = {}
        self._durable_names: dict[str, _Node] = {}
        self._pending_names: dict[str, list[_Change]] = {}
        self._directories = {""}
        self._locks: set[str] = set()
        self._crash_at: int | None = None
        self._crash_inside = False
        self._crashed = False

    # crashes

    def crash_after(self, operations: int, *, inside: bool = False) -> None:
        """Lose power at the n-th mutating operation from now. 1: the next operation.

        Power is lost before the operation. With `inside`, power is lost during the operation: `crash` then decides at
        random whether its effect survives."""
        self._crash_at = self.operations + operations
        self._crash_inside = inside

    def crash(self, rng: random.Random) -> MemoryFiles:
        """Return the tree that the next start would find after a power loss now."""
        after = MemoryFiles(capacity_bytes=self._capacity_bytes)
        names = dict(self._durable_names)
        for changes in self._pending_names.values():
            for change in changes:
                if rng.random() < 0.5:
                    change(names)
        nodes: dict[int, _Node] = {}
        for name, node in sorted(names.items()):
            if id(node) not in nodes:
                nodes[id(node)] = node.after_power_loss(rng)
            after._names[name] = nodes[id(node)]
        after._durable_names = dict(after._names)
        after._directories = set(self._directories)
        return after

    def kill(self) -> MemoryFiles:
        """Return the tree that the next process finds if only this process dies. A planned crash stays planned."""
        after = MemoryFiles(capacity_bytes=self._capacity_bytes)
        nodes = {id(node): node.copy() for names in (self._names, self._durable_names) for node in names.values()}
        after._names = {name: nodes[id(node)] for name, node in self._names.items()}
        # Treat unsynced names as durable here: `crash` on the original tree already covers lost names.
        after._durable_names = dict(after._names)
        after._directories = set(self._directories)
        after.operations, after._crash_at, after._crash_inside = (
            self.operations,
            self._crash_at,
            self._crash_inside,
        )
        return after

    def _check_power(self) -> None:
        if self._crashed:
            raise Crashed

    def _mutate(self, change: Callable[[], None], *, partly: bool = True) -> None:
        """Do one mutating operation, or crash at it. `partly`: the operation may take effect without being synced."""
        self._check_power()
        self.operations += 1
        if self._crash_at is not None and self.operations >= self._crash_at:
            self._crashed = True
            if self._crash_inside and partly:
                change()
            raise Crashed
        change()

    # the interface `Files`

    def open(self, name: str, *, create_bytes: int | None = None) -> MemoryFile:
        self._check_power()
        if create_bytes is None:
            return MemoryFile(self, self._node(name))
        if name in self._names:
            raise FileExistsError(name)
        node = self._create(name)
        file = MemoryFile(self, node)
        file.write_at(0, bytes(create_bytes))
        file.sync()
        self.sync_dir(_directory(name))
        return file

    def read(self, name: str) -> bytes:
        self._check_power()
        return bytes(self._node(name).visible)

    def replace(self, name: str, data: bytes) -> None:
        temporary = name + TEMPORARY
        node = self._create(temporary)
        file = MemoryFile(self, node)
        file.write_at(0, data)
        file.sync()

        def rename(names: dict[str, _Node]) -> None:
            names[name] = node
            if names.get(temporary) is node:
                del names[temporary]

        self._mutate(lambda: self._change_names(_directory(name), rename))
        self.sync_dir(_directory(name))

    def remove(self, name: str) -> None:
        self._check_power()
        node = self._node(name)

        def unlink(names: dict[str, _Node]) -> None:
            if names.get(name) is node:
                del names[name]

        self._mutate(lambda: self._change_names(_directory(name), unlink))
        self.sync_dir(_directory(name))

    def list(self, directory: str) -> list[str]:
        self._check_power()
        if directory not in self._directories:
            raise FileNotFoundError(directory)
        prefix = directory + "/" if directory else ""
        inside = {name[len(prefix) :].split("/")[0] for name in self._names if name.startswith(prefix)}
        inside |= {d[len(prefix) :].split("/")[0] for d in self._directories if d.startswith(prefix) and d != prefix}
        return sorted(inside - {""})

    def exists(self, name: str) -> bool:
        self._check_power()
        return name in self._names or name in self._directories

    def make_dir(self, directory: str) -> None:
        self._check_power()
        parts = directory.split("/")
        for depth in range(1, len(parts) + 1):
            path = "/".join(parts[:depth])
            if path not in self._directories:
                self._mutate(lambda path=path: self._directories.add(path), partly=False)  # type: ignore[misc]

    def sync_dir(self, directory: str) -> None:
        def sync() -> None:
            for change in self._pending_names.pop(directory, []):
                change(self._durable_names)

        self._mutate(sync, partly=False)

    def lock(self, name: str) -> MemoryLock:
        self._check_power()
        if name in self._locks:
            raise DataDirInUse(f"another process uses this tree (lock {name})", path=name)
        self._locks.add(name)
        return MemoryLock(self._locks, name)

    def free_bytes(self) -> int:
        self._check_power()
        return max(0, self._capacity_bytes - sum(len(node.visible) for node in self._names.values()))

    # helpers

    def _node(self, name: str) -> _Node:
        node = self._names.get(name)
        if node is None:
            raise FileNotFoundError(name)
        return node

    def _create(self, name: str) -> _Node:
        if _directory(name) not in self._directories:
            raise FileNotFoundError(_directory(name))
        node = _Node()

        def link(names: dict[str, _Node]) -> None:
            names[name] = node

        self._mutate(lambda: self._change_names(_directory(name), link))
        return node

    def _change_names(self, directory: str, change: _Change) -> None:
        change(self._names)
        self._pending_names.setdefault(directory, []).append(change)


def _directory(name: str) -> str:
    return name.rpartition("/")[0]
