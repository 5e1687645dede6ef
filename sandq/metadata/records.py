"""What metadata keeps of nodes, topics and partitions, and how a row holds it. PERSISTED: see `state.py`.

An assignment is what is wanted: which nodes are to hold a partition. The configuration of its Raft group is what is,
and follows one member at a time. `epoch` counts assignments; `settled` is the last one that the group had become, as
its leader reported. Those that were wanted once may still take part, until it reports that they do not: they are
`former`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import msgpack

from sandq.model.features import Levels
from sandq.model.members import member_id, node_of, own_member

IN = "in"
"""It takes part."""
DRAINING = "draining"
"""It is to hold nothing, and stays registered."""
REMOVING = "removing"
"""It is to hold nothing, and is forgotten then."""


@dataclass(frozen=True, slots=True)
class Partition:
    group: int
    """Raft group number."""
    first: tuple[str, ...]
    """The members that it was founded with, as voters: `node id#incarnation`."""
    members: tuple[str, ...]
    """Those that it is to have; the first one is to lead it."""
    former: tuple[str, ...] = ()
    """Others that it may still have."""
    epoch: int = 0
    settled: int = 0

    @property
    def nodes(self) -> tuple[str, ...]:
        """Those that are to hold it."""
        return tuple([node_of(member) for member in self.members])

    @property
    def moving(self) -> bool:
        return self.settled < self.epoch

    def wanted_on(self, node: str) -> str | None:
        """The member that is to be on a node."""
        return own_member(node, self.members)

    def may_have(self, node: str, incarnation: int) -> bool:
        """Whether the group may count on this member: what it holds must be kept."""
        member = member_id(node, incarnation)
        return member in self.members or member in self.former

    def row(self, topic: str, at: int) -> bytes:
        row: bytes = msgpack.packb((topic, at, self.first, self.members, self.former, self.epoch, self.settled))
        return row

    @classmethod
    def load(cls, group: int, row: bytes) -> tuple[str, int, Partition]:
        """With its topic, and its number there."""
        topic, at, first, members, former, epoch, settled = msgpack.unpackb(row)
        return topic, at, cls(group, tuple(first), tuple(members), tuple(former), epoch, settled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    name: str
    number: int
    kind: str
    initial_partitions: int
    replicas: int
    """How many nodes are to hold each partition; while there are fewer, as many as there are."""
    settings: dict[str, Any]
    created_ms: int
    partitions: tuple[Partition, ...]
    first_settings: dict[str, Any]
    """Those it was created with: each replica begins with them, whenever that is, and learns of others by its log."""
    owner: str | None = None
    """The principal that created it, for whose quota it counts."""

    def row(self) -> bytes:
        """Without its partitions, which have rows of their own."""
        row: bytes = msgpack.packb(
            (
                self.number,
                self.kind,
                self.initial_partitions,
                self.replicas,
                self.settings,
                self.created_ms,
                self.first_settings,
                self.owner,
            )
        )
        return row

    @classmethod
    def load(cls, name: str, row: bytes, partitions: Mapping[int, Partition]) -> Topic:
        number, kind, initial, replicas, settings, created_ms, first_settings, owner = msgpack.unpackb(row)
        placed = tuple([partition for _, partition in sorted(partitions.items())])
        return cls(
            name=name,
            number=number,
            kind=kind,
            initial_partitions=initial,
            replicas=replicas,
            settings=settings,
            created_ms=created_ms,
            partitions=placed,
            first_settings=first_settings,
            owner=owner,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    node_id: str
    store_uuid: str
    addresses: dict[str, str]
    zone: str
    weight: int
    incarnation: int
    """Of its member of the metadata group."""
    standing: str
    failed_since_ms: int | None
    """None: it is there."""
    lowest_level: int
    highest_level: int

    @property
    def levels(self) -> Levels:
        """The feature levels that its version knows, as it said last."""
        return Levels(self.lowest_level, self.highest_level)

    def row(self) -> bytes:
        row: bytes = msgpack.packb(
            (
                self.store_uuid,
                self.addresses,
                self.zone,
                self.weight,
                self.incarnation,
                self.standing,
                self.failed_since_ms,
                *self.levels,
            )
        )
        return row

    @classmethod
    def load(cls, node_id: str, row: bytes) -> NodeRecord:
        names = [each.name for each in fields(cls)]
        return cls(**dict(zip(names, (node_id, *msgpack.unpackb(row)), strict=True)))


@dataclass(frozen=True, slots=True)
class RemovedNode:
    """A name that was in use. Who comes under it is another member than all that came before."""

    node_id: str
    incarnation: int
    """The greatest that it had."""
    stores: tuple[str, ...]
    """Data directories that must not come back."""

    def row(self) -> bytes:
        row: bytes = msgpack.packb((self.incarnation, self.stores))
        return row

    @classmethod
    def load(cls, node_id: str, row: bytes) -> RemovedNode:
        incarnation, stores = msgpack.unpackb(row)
        return cls(node_id, incarnation, tuple(stores))


@dataclass(frozen=True, slots=True)
class IdentityRecord:
    """Who may do what. `principal`: `token:NAME`, `jwt:SUBJECT` or `cert:NAME`."""

    principal: str
    grants: tuple[str, ...]
    """As `model.access` reads them."""
    secret_hash: bytes | None = field(repr=False)
    """SHA-256 of a token; None: it shows something else."""
    created_ms: int
    expires_ms: int | None
    quota: dict[str, int]
    """As `model.quotas` has it."""
    note: str

    def row(self) -> bytes:
        row: bytes = msgpack.packb(
            (self.grants, self.secret_hash, self.created_ms, self.expires_ms, self.quota, self.note)
        )
        return row

    @classmethod
    def load(cls, principal: str, row: bytes) -> IdentityRecord:
        grants, *rest = msgpack.unpackb(row)
        return cls(principal, tuple(grants), *rest)
