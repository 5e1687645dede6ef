"""The other nodes that this one has met, and the data directory of each, one small file. PERSISTED.

Body (envelope: small_file.py, magic "SANDQKNP", version 1), msgpack, both sorted::

    [{node id: store UUID, ...}, [store UUID that was removed, ...]]

A node that comes back with another store has lost its disk. It may have voted and acknowledged with the lost one, so
it must not take part under its old name as if nothing had been. Once it is removed it may come with another store, and
never again with the old one.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from types import MappingProxyType

from sandq.model.errors import Conflict, Corruption
from sandq.storage import small_file
from sandq.storage.files import Files

MAGIC = b"SANDQKNP"
VERSION = 1
NAME = "known-peers"


class KnownPeers:
    """The file, read once and written through. Reading never blocks; `pin` may be called from any thread."""

    def __init__(self, files: Files, name: str, stores: Mapping[str, str], removed: Collection[str] = ()) -> None:
        self._files = files
        self._name = name
        self._stores = dict(stores)
        self._removed = frozenset(removed)
        self._writing = threading.Lock()

    @classmethod
    def open(cls, files: Files, name: str = NAME) -> KnownPeers:
        """Read the file; nobody is known while there is none. `Corruption` when it is damaged."""
        if not files.exists(name):
            return cls(files, name, {})
        content = small_file.decode(files.read(name), MAGIC, VERSION, name)
        try:
            stores, removed = content
            texts = [*stores.keys(), *stores.values(), *removed]
        except (TypeError, ValueError, AttributeError) as error:
            raise Corruption(f"{name} holds no map of node ids to store UUIDs: {error}", file=name) from error
        if not all(isinstance(text, str) for text in texts):
            raise Corruption(f"{name} holds something that is no node id or store UUID", file=name)
        return cls(files, name, stores, removed)

    def get(self, node: str) -> str | None:
        """The store UUID that a node had when it was first met."""
        return self._stores.get(node)

    def all(self) -> Mapping[str, str]:
        """Node id -> store UUID."""
        return MappingProxyType(self._stores)

    def is_removed(self, store_uuid: str) -> bool:
        return store_uuid in self._removed

    def check(self, node: str, store_uuid: str) -> None:
        """`Conflict` when the node is known with another store, or this one was removed."""
        if store_uuid in self._removed:
            raise Conflict(
                f"{node} was removed from the cluster: with its old data directory (store {store_uuid}) it takes part "
                "in nothing; with an empty one it may join anew",
                node=node,
                found=store_uuid,
            )
        pinned = self._stores.get(node)
        if pinned not in (None, store_uuid):
            raise Conflict(
                f"{node} returned with another data directory (store {store_uuid} instead of {pinned}): "
                "it takes part in nothing until it is added anew",
                node=node,
                expected=pinned,
                found=store_uuid,
            )

    def pin(self, node: str, store_uuid: str) -> None:
        """Remember the store of a node, durably when this returns. `Conflict` when it is known with another one.

        After `StorageFailed` it is not known here. Whether the file has it (`may_have_happened`) does not matter:
        nothing was exchanged with the node yet, and what a crash may leave is true, for it has proved who it is.
        """
        with self._writing:
            self.check(node, store_uuid)
            if node not in self._stores:
                self._write({**self._stores, node: store_uuid}, self._removed)

    def correct(self, node: str, store_uuid: str) -> None:
        """It is this store that counts, whatever was met under the name first. Durable when this returns."""
        with self._writing:
            self._write({**self._stores, node: store_uuid}, self._removed)

    def remove(self, node: str, store_uuid: str) -> None:
        """The node may come with another store from now on, and not with this one. Durable when this returns."""
        with self._writing:
            stores = {known: store for known, store in self._stores.items() if (known, store) != (node, store_uuid)}
            self._write(stores, self._removed | {store_uuid})

    def _write(self, stores: Mapping[str, str], removed: frozenset[str]) -> None:
        content = [dict(sorted(stores.items())), sorted(removed)]
        self._files.replace(self._name, small_file.encode(MAGIC, VERSION, content))
        self._stores, self._removed = dict(stores), removed
