"""Which store holds which replica: the pointers and the store counter, one small file. PERSISTED.

Body (envelope: small_file.py, magic "SANDQPTR", version 1), msgpack::

    [next store number, metadata index, [[group, incarnation, store, S, term of S, [voters], [learners]], ...]]

Pointers are sorted by group. The metadata index: the latest by which replicas came or went here. After a crash this
node may know less of metadata than it has acted upon, and must not act again before it knows as much: it would make a
replica anew, empty, that it had deleted because it was to be elsewhere.

On a restart the pointer wins over the log: the store holds the group's state as of S or later, and the log of the group
goes on behind it. Store numbers begin at 1 and are never reused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sandq.model.errors import Corruption
from sandq.storage import small_file
from sandq.storage.files import Files

MAGIC = b"SANDQPTR"
VERSION = 1
FIRST_STORE = 1


@dataclass(frozen=True, slots=True)
class StorePointer:
    """The replica of `group` that is installed here. `snapshot_index` is S: the state it was installed
    with."""

    group: int
    incarnation: int
    store: int
    snapshot_index: int = 0
    snapshot_term: int = 0
    voters: tuple[str, ...] = ()
    learners: tuple[str, ...] = ()


def _pointer(
    group: int,
    incarnation: int,
    store: int,
    snapshot_index: int,
    snapshot_term: int,
    voters: list[str],
    learners: list[str],
) -> StorePointer:
    numbers = group, incarnation, store, snapshot_index, snapshot_term
    return StorePointer(*numbers, tuple(voters), tuple(learners))


class Pointers:
    """The file, read once and written through. Every method that changes it returns when the change is
    durable, or raises `StorageFailed` and has changed nothing that can be seen here.

    What a crash leaves may still be the change (`may_have_happened`). That is harmless for numbers that were minted and
    never used, for a group's first, empty store, in which nothing was promised, and for groups that are dropped: all of
    it is done again. It is not for a store that takes another's place: whoever goes on with the old one writes what the
    next start, which finds the new one, does not look for. Such a node must stop."""

    def __init__(
        self, files: Files, name: str, next_store: int, metadata_index: int, pointers: Iterable[StorePointer]
    ) -> None:
        self._files = files
        self._name = name
        self._next_store = next_store
        self.metadata_index = metadata_index
        self._pointers = {pointer.group: pointer for pointer in pointers}

    @classmethod
    def open(cls, files: Files, name: str = "stores", *, create: bool = True) -> Pointers:
        """Read the file. One that is missing is created, empty; with `create=False` (a directory that has
        been in use) that is `Corruption`, as is a damaged one."""
        if not files.exists(name):
            if not create:
                raise Corruption(f"{name} is missing: it says which store holds which replica", file=name)
            empty = cls(files, name, FIRST_STORE, 0, ())
            empty.update()
            return empty
        content = small_file.decode(files.read(name), MAGIC, VERSION, name)
        try:
            next_store, metadata_index, rows = content
            pointers = [_pointer(*row) for row in rows]
        except (TypeError, ValueError, IndexError) as error:
            raise Corruption(f"{name} holds no store pointers: {error}", file=name) from error
        return cls(files, name, next_store, metadata_index, pointers)

    def get(self, group: int) -> StorePointer | None:
        """The replica of a group installed here, None when there is none."""
        return self._pointers.get(group)

    def all(self) -> list[StorePointer]:
        """All replicas installed here, by group."""
        pointers = self._pointers  # replaced as a whole by `update`, maybe on another thread
        return [pointers[group] for group in sorted(pointers)]

    def mint(self, count: int = 1) -> range:
        """Store numbers that were never used before, and never will be again."""
        first = self._next_store
        self._replace(first + count, self.metadata_index, self._pointers)
        return range(first, first + count)

    def update(self, *, put: Sequence[StorePointer] = (), drop: Iterable[int] = (), metadata_index: int = 0) -> None:
        """Set and drop pointers, all or none. `drop`: groups; one without a pointer is fine. `metadata_index`: what
        metadata had applied that says so."""
        pointers = dict(self._pointers)
        for group in drop:
            pointers.pop(group, None)
        for pointer in put:
            if not FIRST_STORE <= pointer.store < self._next_store:
                raise ValueError(f"store {pointer.store} was not minted")
            pointers[pointer.group] = pointer
        self._replace(self._next_store, max(self.metadata_index, metadata_index), pointers)

    def _replace(self, next_store: int, metadata_index: int, pointers: dict[int, StorePointer]) -> None:
        rows = [
            [
                pointer.group,
                pointer.incarnation,
                pointer.store,
                pointer.snapshot_index,
                pointer.snapshot_term,
                list(pointer.voters),
                list(pointer.learners),
            ]
            for _, pointer in sorted(pointers.items())
        ]
        self._files.replace(self._name, small_file.encode(MAGIC, VERSION, [next_store, metadata_index, rows]))
        self._next_store, self.metadata_index, self._pointers = next_store, metadata_index, pointers
