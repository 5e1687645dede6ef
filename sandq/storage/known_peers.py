"""The other nodes that this one has met, and the data directory of each, one small file. PERSISTED.

Body (envelope: small_file.py, magic "SANDQKNP", version 1), msgpack map, sorted by node id::

    {node id: store UUID, ...}

A node that comes back with another store has lost its disk. It may have voted and acknowledged with the lost one, so
it must not take part under its old name as if nothing had been.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType

from sandq.model.errors import Conflict, Corruption

from . import small_file
from .files import Files

MAGIC = b"SANDQKNP"
VERSION = 1
NAME = "known-peers"


class KnownPeers:
    """The file, read once and written through. Reading never blocks; `pin` may be called from any thread."""

    def __init__(self, files: Files, name: str, stores: Mapping[str, str]) -> None:
        self._files = files
        self._name = name
        self._stores = dict(stores)
        self._writing = threading.Lock()

    @classmethod
    def open(cls, files: Files, name: str = NAME) -> KnownPeers:
        """Read the file; nobody is known while there is none. `Corruption` when it is damaged."""
        if not files.exists(name):
            return cls(files, name, {})
        stores = small_file.decode(files.read(name), MAGIC, VERSION, name)
        if not isinstance(stores, dict) or not all(isinstance(text, str) for pair in stores.items() for text in pair):
            raise Corruption(f"{name} holds no map of node ids to store UUIDs", file=name)
        return cls(files, name, stores)

    def get(self, node: str) -> str | None:
        """The store UUID that a node had when it was first met."""
        return self._stores.get(node)

    def all(self) -> Mapping[str, str]:
        """Node id -> store UUID."""
        return MappingProxyType(self._stores)

    def check(self, node: str, store_uuid: str) -> None:
        """`Conflict` when the node is known with another store."""
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
            if node in self._stores:
                return
            stores = dict(sorted({**self._stores, node: store_uuid}.items()))
            self._files.replace(self._name, small_file.encode(MAGIC, VERSION, stores))
            self._stores = stores
