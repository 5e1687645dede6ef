"""The node and the cluster of a data directory, in one small file. PERSISTED.

Body (envelope: small_file.py, magic "SANDQIDN", version 2), msgpack map::

    {"node": node id, "store": store UUID, "cluster": cluster UUID or nil}

The store UUID is generated with the directory. The cluster UUID is nil until the node has formed or joined a cluster,
and never changes afterwards.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from sandq.model.errors import Corruption, StartupError
from sandq.storage import small_file
from sandq.storage.files import Files

MAGIC = b"SANDQIDN"
VERSION = 2
"""Version of the file's content. Version 1 belongs to development versions, whose data is not supported."""
NAME = "identity"


@dataclass(frozen=True, slots=True)
class Identity:
    """The owner of a data directory. `node`: the configured node id. UUIDs are text."""

    node: str
    store_uuid: str
    cluster_uuid: str | None = None


def new_uuid() -> str:
    """Return a random UUID as text."""
    return str(uuid.uuid4())


def load(files: Files, name: str = NAME) -> Identity | None:
    """Return the identity of a directory. None if the directory is new.

    Raise `Corruption` if the file is damaged, `StartupError` if another version of sandq wrote the data.
    """
    if not files.exists(name):
        return None
    data = files.read(name)
    found = small_file.version_of(data, MAGIC, name)
    if found != VERSION:
        raise StartupError(_refusal(found, name), expected=VERSION, found=found)
    content = small_file.decode(data, MAGIC, VERSION, name)
    try:
        node, store, cluster = content["node"], content["store"], content["cluster"]
    except (KeyError, TypeError) as error:
        raise Corruption(f"{name} holds no identity: {error!r}", file=name) from error
    return Identity(node, store, cluster)


def _refusal(version: int, name: str) -> str:
    said = f"file {name} has version {version}, and this version reads {VERSION}"
    if version > VERSION:
        return f"the data of this node was written by a newer version of sandq ({said}): start that version"
    return (
        f"the data of this node was written by a development version of sandq ({said}) and cannot be read any more: "
        "give the node an empty data directory"
    )


def save(files: Files, identity: Identity, name: str = NAME) -> None:
    """Replace the file. The change is durable when this returns."""
    content = {"node": identity.node, "store": identity.store_uuid, "cluster": identity.cluster_uuid}
    files.replace(name, small_file.encode(MAGIC, VERSION, content))


def open_identity(files: Files, node: str, *, mint: Callable[[], str] = new_uuid, name: str = NAME) -> Identity:
    """Return the identity of this directory; create it if the directory is new.

    Raise `StartupError` if the directory belongs to a different node. `mint` returns a new store UUID."""
    found = load(files, name)
    if found is None:
        found = Identity(node, mint())
        save(files, found, name)
    elif found.node != node:
        raise StartupError(
            f"this data directory belongs to node {found.node!r}, not to {node!r}",
            expected=node,
            found=found.node,
        )
    return found


def join_cluster(files: Files, identity: Identity, cluster_uuid: str, name: str = NAME) -> Identity:
    """Set the cluster UUID, durably, and return the new identity.

    Raise `StartupError` if the directory belongs to a different cluster. After `StorageFailed`, the caller retries. It
    is harmless if the failed write has taken effect (`may_have_happened`), because the UUID is correct in any case.
    """
    if identity.cluster_uuid not in (None, cluster_uuid):
        raise StartupError(
            f"this data directory belongs to cluster {identity.cluster_uuid}, not to {cluster_uuid}",
            expected=cluster_uuid,
            found=identity.cluster_uuid,
        )
    if identity.cluster_uuid is None:
        identity = dataclasses.replace(identity, cluster_uuid=cluster_uuid)
        save(files, identity, name)
    return identity
