"""The pointers from each replica to its store, and the store counter, in one small file. PERSISTED.

Body (envelope: small_file.py, magic "SANDQPTR", version 1), msgpack::

    [next store number, metadata index, [[group, incarnation, store, S, term of S, [voters], [learners]], ...]]

Pointers are sorted by group. The metadata index is the index of the latest metadata entry for which this node created
or deleted replicas. After a crash, the node may have applied less metadata than it had acted on. It must not act again
before it has applied metadata up to this index. Otherwise it could create an empty replica in place of one that had
moved to another node.

On a restart, the pointer takes precedence over the log: the store has the group's state as of S or later, and the
group's log continues from there. Store numbers begin at 1 and are never reused.
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
    """The replica of `group` that is installed on this node. `snapshot_index` is S: the index of its initial state."""

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
    """The content of the file, which every change rewrites.

    A method that changes the content returns once the change is durable. If it raises `StorageFailed`, this object is
    unchanged, but the change may still be in the file after a crash (`may_have_happened`).

    This is harmless in three cases: a store number that is never used; a group's first, empty store, in which nothing
    was acknowledged; and a dropped group. These steps are repeated. It is harmful if a store replaces an older one. If
    the node continued with the old store, it would write rows to the old store, and lose them at its next start, which
    finds the pointer to the new store. Such a node must stop."""

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
        """Read the file, or create an empty one if it is missing.

        Raise `Corruption` if the file is damaged, or missing with `create=False` (a directory that has been in use)."""
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
        """Return the pointer of a group's replica on this node. None if there is none."""
        return self._pointers.get(group)

    def all(self) -> list[StorePointer]:
        """Return the pointers of all replicas on this node, sorted by group."""
        pointers = self._pointers  # `update` replaces it as a whole, possibly on a different thread
        return [pointers[group] for group in sorted(pointers)]

    def mint(self, count: int = 1) -> range:
        """Reserve `count` new store numbers, durably. A number is returned only once."""
        first = self._next_store
        self._replace(first + count, self.metadata_index, self._pointers)
        return range(first, first + count)

    def update(self, *, put: Sequence[StorePointer] = (), drop: Iterable[int] = (), metadata_index: int = 0) -> None:
        """Set and drop pointers, all or none.

        `drop`: groups, with or without a pointer. `metadata_index`: index of the metadata entry that requires the
        change."""
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
