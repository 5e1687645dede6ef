"""Storage of a node: its identity and the files in its data directory. It opens first and closes last."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

from sandq.broker.bootstrap.bootstrap import mode_of
from sandq.node.context import Context
from sandq.node.started import STORES_NAME
from sandq.storage import identity
from sandq.storage.files import Files
from sandq.storage.identity import Identity
from sandq.storage.known_peers import KnownPeers
from sandq.storage.stores import Stores


@dataclasses.dataclass(slots=True, kw_only=True)
class Storage:
    """The data directory of a node. Its write-ahead log belongs to `Replication`."""

    files: Files
    own: Identity
    is_new: bool
    """True on the first start of the node.

    The first start creates missing files. On a later start, a missing file means data loss."""
    stores: Stores
    known: KnownPeers
    is_hanging: bool = False
    """True if a thread hangs in a disk operation. In this case, nothing may be closed."""

    def save_identity(self) -> None:
        """Record that the data directory is complete. Call it before this node contacts other nodes."""
        if self.is_new:
            identity.save(self.files, self.own)


@contextlib.contextmanager
def open_storage(context: Context) -> Iterator[Storage]:
    """Open the storage for the block. Raises StartupError (Corruption), StorageFailed."""
    files, config = context.started.files, context.config
    is_new = not files.exists(identity.NAME)
    if is_new:
        # A cluster of several nodes gets its UUID when it is formed.
        cluster_uuid = identity.new_uuid() if mode_of(config) == "alone" else None
        own = Identity(config.node.id, identity.new_uuid(), cluster_uuid)
    else:
        own = identity.open_identity(files, config.node.id)
    known = KnownPeers.open(files)
    stores = context.open_stores(context.started.data_dir / STORES_NAME, create=is_new)
    storage = Storage(files=files, own=own, is_new=is_new, stores=stores, known=known)
    try:
        yield storage
    finally:
        if not storage.is_hanging:
            stores.close()
