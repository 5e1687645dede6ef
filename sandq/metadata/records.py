"""The records of nodes, topics, partitions and identities, and their encoding in rows. PERSISTED: see `state.py`.

An assignment is the desired state: the nodes that should hold a partition. The configuration of its Raft group is the
actual state, which changes one member at a time until it matches. `epoch` counts assignments. `settled` is the last
assignment that the group has reached, as its leader reported. `former` are the members of
earlier assignments that may still be in the Raft group, until its leader reports that they are not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import msgpack

from sandq.model.features import Levels
from sandq.model.members import member_id, node_of, own_member

IN = "in"
"""Standing of a node that may hold partitions."""
DRAINING = "draining"
"""Standing of a node that gives up all partitions, and stays registered."""
REMOVING = "removing"
"""Standing of a node that gives up all partitions, and is then deleted."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition and its assignment."""

    group: int
    """Raft group number."""
    first: tuple[str, ...]
    """Members of the group when it was created, all of them voters: `node id#incarnation`."""
    members: tuple[str, ...]
    """Members of the current assignment. The first member should lead."""
    former: tuple[str, ...] = ()
    """Members of earlier assignments that may still take part."""
    epoch: int = 0
    """Number of the current assignment."""
    settled: int = 0
    """Number of the last assignment that the group has reached."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes of the current assignment."""
        return tuple([node_of(member) for member in self.members])

    @property
    def moving(self) -> bool:
        """True if the group has not reached its current assignment."""
        return self.settled < self.epoch

    def wanted_on(self, node: str) -> str | None:
        """Return the group's member on a node by the current assignment; None if there is no such member."""
        return own_member(node, self.members)

    def may_have(self, node: str, incarnation: int) -> bool:
        """Return whether the group may still count on this member, so that its data must be kept."""
        member = member_id(node, incarnation)
        return member in self.members or member in self.former

    def row(self, topic: str, at: int) -> bytes:
        row: bytes = msgpack.packb((topic, at, self.first, self.members, self.former, self.epoch, self.settled))
        return row

    @classmethod
    def load(cls, group: int, row: bytes) -> tuple[str, int, Partition]:
        """Decode a row. Return the topic, the partition's number in the topic, and the partition."""
        topic, at, first, members, former, epoch, settled = msgpack.unpackb(row)
        return topic, at, cls(group, tuple(first), tuple(members), tuple(former), epoch, settled)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic with its partitions."""

    name: str
    number: int
    kind: str
    initial_partitions: int
    replicas: int
    """Number of nodes that should hold each partition; all nodes, if there are fewer."""
    settings: dict[str, Any]
    created_ms: int
    partitions: tuple[Partition, ...]
    first_settings: dict[str, Any]
    """The settings at creation. Each new replica starts with them, and learns later settings from its log."""
    owner: str | None = None
    """The principal that created the topic and whose quota it counts towards."""

    def row(self) -> bytes:
        """Encode the topic without its partitions, which have rows of their own."""
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
    """A registered node."""

    node_id: str
    store_uuid: str
    addresses: dict[str, str]
    zone: str
    weight: int
    incarnation: int
    """Incarnation of this node as a member of the metadata group."""
    standing: str
    """IN, DRAINING or REMOVING."""
    failed_since_ms: int | None
    """Time in ms at which the node became unavailable; None if it is available."""
    lowest_level: int
    highest_level: int

    @property
    def levels(self) -> Levels:
        """The feature levels that the node's version supports, as it last reported."""
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
    """The name of a removed node. A node that joins with this name again becomes a new member."""

    node_id: str
    incarnation: int
    """The highest incarnation that the name has had."""
    stores: tuple[str, ...]
    """Store UUIDs of data directories that must not join again."""

    def row(self) -> bytes:
        row: bytes = msgpack.packb((self.incarnation, self.stores))
        return row

    @classmethod
    def load(cls, node_id: str, row: bytes) -> RemovedNode:
        incarnation, stores = msgpack.unpackb(row)
        return cls(node_id, incarnation, tuple(stores))


@dataclass(frozen=True, slots=True)
class IdentityRecord:
    """A principal and its permissions. `principal`: `token:NAME`, `jwt:SUBJECT` or `cert:NAME`."""

    principal: str
    grants: tuple[str, ...]
    """Grants in the syntax of `model.access`."""
    secret_hash: bytes | None = field(repr=False)
    """SHA-256 of the token; None if the principal authenticates differently."""
    created_ms: int
    expires_ms: int | None
    quota: dict[str, int]
    """Quota values by name, see `model.quotas`."""
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
