"""The other nodes that this node knows, with the store UUID of each, in one small file. PERSISTED.

Body (envelope: small_file.py, magic "SANDQKNP", version 1), msgpack, both sorted::

    [{node id: store UUID, ...}, [store UUID that was removed, ...]]

A node that rejoins with a different store has lost its disk. It may have voted and acknowledged entries with the lost
disk, so it must not continue under its old name: it would have forgotten its votes and entries. Once the node is
removed from the cluster, it may join with a different store, but never again with the old store.
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
    """The content of the file, which every change rewrites. Reads never block. `pin` may be called from any thread."""

    def __init__(self, files: Files, name: str, stores: Mapping[str, str], removed: Collection[str] = ()) -> None:
        self._files = files
        self._name = name
        self._stores = dict(stores)
        self._removed = frozenset(removed)
        self._writing = threading.Lock()

    @classmethod
    def open(cls, files: Files, name: str = NAME) -> KnownPeers:
        """Read the file. If it is missing, no node is known. Raise `Corruption` if it is damaged."""
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
        """Return the store UUID that is pinned for a node. None if the node is not known."""
        return self._stores.get(node)

    def all(self) -> Mapping[str, str]:
        """Return the store UUID of each known node, by node id."""
        return MappingProxyType(self._stores)

    def is_removed(self, store_uuid: str) -> bool:
        return store_uuid in self._removed

    def check(self, node: str, store_uuid: str) -> None:
        """Raise `Conflict` if the node is known with a different store, or if this store was removed."""
        if store_uuid in self._removed:
            raise Conflict(
                f"{node} was removed from the cluster: with its old data directory (store {store_uuid}) it takes part "
                "in nothing; with an empty one it may join again",
                node=node,
                found=store_uuid,
            )
        pinned = self._stores.get(node)
        if pinned not in (None, store_uuid):
            raise Conflict(
                f"{node} returned with another data directory (store {store_uuid} instead of {pinned}): "
                "it takes part in nothing until it is added again",
                node=node,
                expected=pinned,
                found=store_uuid,
            )

    def pin(self, node: str, store_uuid: str) -> None:
        """Remember the store of a node, durably. Raise `Conflict` if the node is known with a different store.

        After `StorageFailed`, this object does not know the node. It is harmless if the file does
        (`may_have_happened`): the node has proved its identity, so the content is true, and no messages were exchanged
        with it yet.
        """
        with self._writing:
            self.check(node, store_uuid)
            if node not in self._stores:
                self._write({**self._stores, node: store_uuid}, self._removed)

    def correct(self, node: str, store_uuid: str) -> None:
        """Replace the store known for a node, durably, without checking for a conflict."""
        with self._writing:
            self._write({**self._stores, node: store_uuid}, self._removed)

    def remove(self, node: str, store_uuid: str) -> None:
        """Ban this store, and forget it for the node, durably, so that the node can join with a different store."""
        with self._writing:
            stores = {known: store for known, store in self._stores.items() if (known, store) != (node, store_uuid)}
            self._write(stores, self._removed | {store_uuid})

    def _write(self, stores: Mapping[str, str], removed: frozenset[str]) -> None:
        content = [dict(sorted(stores.items())), sorted(removed)]
        self._files.replace(self._name, small_file.encode(MAGIC, VERSION, content))
        self._stores, self._removed = dict(stores), removed
