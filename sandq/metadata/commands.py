"""Commands of the metadata group and the Raft entry that carries them. PERSISTED: type numbers and field orders.

Entry: msgpack `[version=1, now_ms, [command, ...]]`, command `[type, fields...]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import msgpack

from sandq.model.errors import Corruption

ENTRY_VERSION = 1


@dataclass(frozen=True, slots=True)
class RegisterNode:
    """A node with its store UUID and the addresses it serves (`{"client": "host:port", ...}`)."""

    type: ClassVar[int] = 1
    node_id: str
    store_uuid: str
    addresses: dict[str, str]

    def fields(self) -> tuple[Any, ...]:
        return (self.node_id, self.store_uuid, self.addresses)


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """`placement`: for each partition the ids of the nodes that hold it. `settings`: a settings record."""

    type: ClassVar[int] = 2
    name: str
    kind: str
    placement: Sequence[Sequence[str]]
    settings: dict[str, Any]

    def fields(self) -> tuple[Any, ...]:
        return (self.name, self.kind, self.placement, self.settings)


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    type: ClassVar[int] = 3
    name: str

    def fields(self) -> tuple[Any, ...]:
        return (self.name,)


@dataclass(frozen=True, slots=True)
class UpdateTopic:
    """`settings`: the whole settings record."""

    type: ClassVar[int] = 4
    name: str
    settings: dict[str, Any]

    def fields(self) -> tuple[Any, ...]:
        return (self.name, self.settings)


@dataclass(frozen=True, slots=True)
class FormCluster:
    """Give the cluster its UUID; the first one stays."""

    type: ClassVar[int] = 5
    cluster_uuid: str

    def fields(self) -> tuple[Any, ...]:
        return (self.cluster_uuid,)


Command = RegisterNode | CreateTopic | DeleteTopic | UpdateTopic | FormCluster
_CLASSES: dict[int, type[Any]] = {c.type: c for c in (RegisterNode, CreateTopic, DeleteTopic, UpdateTopic, FormCluster)}


@dataclass(frozen=True, slots=True)
class Entry:
    now_ms: int
    commands: Sequence[Command]

    def encode(self) -> bytes:
        body: bytes = msgpack.packb((ENTRY_VERSION, self.now_ms, [(c.type, *c.fields()) for c in self.commands]))
        return body

    @classmethod
    def decode(cls, data: bytes) -> Entry:
        try:
            version, now_ms, commands = msgpack.unpackb(data, raw=False)
            if version != ENTRY_VERSION:
                raise Corruption(f"a metadata entry has version {version}, this program knows {ENTRY_VERSION}")
            return cls(now_ms, [_CLASSES[c[0]](*c[1:]) for c in commands])
        except (ValueError, TypeError, KeyError, IndexError, msgpack.UnpackException) as error:
            raise Corruption(f"a metadata entry cannot be read: {error!r}") from error
