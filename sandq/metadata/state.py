"""The state of the metadata group: topics, nodes, identities, and counters whose numbers are never reused.

Rows (relative to the metadata store), values msgpack. PERSISTED::

    "h" topic 0 group  {url, secrets, concurrency, timeout_ms} of a group with a push (`model.push`)
    "i" principal   [[grant, ...], SHA-256 of its token | nil, created_ms, expires_ms | nil, {quota: value}, note]
    "n" node id     [store uuid, {name: address}, zone, weight, incarnation, standing, failed since ms | nil,
                     lowest feature level, highest feature level]
    "p" group u64   [topic, partition, [first member, ...], [member, ...], [former member, ...], epoch, settled]
    "r" name        [grant, ...] of a role
    "s"             [version=1, applied_index, next_topic, next_group, next_incarnation, cluster uuid | nil,
                     [node id, ...] of the balanced nodes, feature level,
                     [[skip id, digest], ...] of skipped commands (omitted if none)]
    "t" name        [number, kind, initial_partitions, replicas, settings, created_ms, settings at creation,
                     owner (omitted if none)]
    "x" node id     [incarnation, [store uuid, ...]] of a removed node
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

import msgpack

from sandq.metadata import commands as c
from sandq.metadata.records import DRAINING, IN, REMOVING, IdentityRecord, NodeRecord, Partition, RemovedNode, Topic
from sandq.model.access import parse_grant
from sandq.model.errors import (
    Conflict,
    InvalidRequest,
    NotFound,
    QuotaExceeded,
    StartupError,
    TopicExists,
    UnknownTopic,
)
from sandq.model.features import FIRST_LEVEL, KNOWN, Levels
from sandq.model.limits import FIXED
from sandq.model.members import member_id, own_member
from sandq.model.names import check_new_topic
from sandq.model.quotas import Quota

STATE_KEY = b"s"
_VERSION = 1
FIRST_GROUP = 1
"""Raft group 0 is the metadata group itself."""
SKIPS_KEPT: Final = 64
"""Maximum number of skipped commands that are remembered. The oldest is dropped first."""

Put = Callable[[bytes, bytes | None], None]


def check_level(level: int, known: Levels) -> None:
    """Raise StartupError if `level`, the feature level of data or a log, is not among the supported ones (`known`)."""
    if level not in known:
        raise StartupError(
            f"the data of this node is of feature level {level}, and this version supports {known}: "
            f"start a version that supports {level}"
        )


class MetadataState:
    """The metadata in memory. Commands change it and the rows together."""

    def __init__(self) -> None:
        self.applied_index = 0
        self.cluster_uuid: str | None = None
        self.feature_level = FIRST_LEVEL
        """The cluster's feature level: see `model.features`."""
        self.topics: dict[str, Topic] = {}
        self.nodes: dict[str, NodeRecord] = {}
        self.removed: dict[str, RemovedNode] = {}
        self.pushes: dict[tuple[str, str], dict[str, Any]] = {}
        """Push settings by (topic, group)."""
        self.identities: dict[str, IdentityRecord] = {}
        """Identities by principal."""
        self.roles: dict[str, tuple[str, ...]] = {}
        """Grants of user-defined roles, by name."""
        self.balanced: tuple[str, ...] = ()
        """Nodes of the last `Balance` command; empty while partitions are not evenly spread."""
        self.partition_of_group: dict[int, tuple[str, int]] = {}
        """(topic, partition) by Raft group."""
        self.skips: dict[bytes, bytes] = {}
        """By id of an operator's decision: digest of the last command that the decision skipped (ADR 46)."""
        self.results: list[Any] = []
        """Results of the entry that is being applied. After an error, their number tells which command failed."""
        self._next_topic = 1
        self.next_group = FIRST_GROUP
        """Number of the next raft group: no group has this number or a higher one."""
        self._next_incarnation = 1

    @classmethod
    def load(cls, rows: list[tuple[bytes, bytes]], known: Levels = KNOWN) -> MetadataState:
        """Load the state from all rows of the metadata store.

        Raise StartupError if their feature level is not among the supported ones (`known`)."""
        self = cls()
        # Check the feature level first: at a different level, other rows may have a different format.
        self._load_counters(dict(rows).get(STATE_KEY), known)
        partitions: dict[str, dict[int, Partition]] = {}
        for key, value in sorted(rows):  # partitions come before topics
            if key == STATE_KEY:
                continue
            if key[:1] == b"p":
                topic, at, partition = Partition.load(int.from_bytes(key[1:], "big"), value)
                partitions.setdefault(topic, {})[at] = partition
                continue
            name = key[1:].decode()
            if key[:1] == b"h":
                topic, _, group = name.partition("\0")
                self.pushes[topic, group] = msgpack.unpackb(value)
            elif key[:1] == b"i":
                self.identities[name] = IdentityRecord.load(name, value)
            elif key[:1] == b"r":
                self.roles[name] = tuple(msgpack.unpackb(value))
            elif key[:1] == b"t":
                self._keep(Topic.load(name, value, partitions[name]))
            elif key[:1] == b"n":
                self.nodes[name] = NodeRecord.load(name, value)
            elif key[:1] == b"x":
                self.removed[name] = RemovedNode.load(name, value)
        return self

    def _load_counters(self, row: bytes | None, known: Levels) -> None:
        if row is None:
            return  # nothing was applied yet
        _, applied_index, topic, group, incarnation, cluster_uuid, balanced, feature_level, *rest = msgpack.unpackb(row)
        check_level(feature_level, known)  # before the rest, whose format may differ at a different level
        (skips,) = rest
        self.applied_index = applied_index
        self._next_topic, self.next_group, self._next_incarnation = topic, group, incarnation
        self.cluster_uuid = cluster_uuid
        self.balanced = tuple(balanced)
        self.feature_level = feature_level
        self.skips = dict(skips)

    def write_state(self, put: Put) -> None:
        counters = (self._next_topic, self.next_group, self._next_incarnation)
        rest = (self.cluster_uuid, self.balanced, self.feature_level, list(self.skips.items()))
        put(STATE_KEY, msgpack.packb((_VERSION, self.applied_index, *counters, *rest)))

    def apply(self, index: int, entry: c.Entry, put: Put) -> list[Any]:
        """Apply an entry. Return a result per command: the changed record, or the SandqError that rejected it."""
        if index <= self.applied_index:
            return []
        self.results = results = []
        for command in entry.commands:
            try:
                results.append(self._apply(command, entry.now_ms, put))
            except (NotFound, Conflict, InvalidRequest, QuotaExceeded) as refusal:
                results.append(refusal)
        self.applied_index = index
        self.results = []
        return results

    def _apply(self, command: c.Command, now_ms: int, put: Put) -> Any:
        match command:
            case c.RegisterNode():
                return self._register(command, put)
            case c.CreateTopic():
                return self._create(command, now_ms, put)
            case c.DeleteTopic():
                return self._delete(command, put)
            case c.UpdateTopic():
                return self._update(command, put)
            case c.FormCluster():
                self.cluster_uuid = self.cluster_uuid or command.cluster_uuid
                return self.cluster_uuid
            case c.MarkNode():
                node = self._node(command.node_id)
                return self._put_node(replace(node, failed_since_ms=command.failed_since_ms), put)
            case c.ChangeStanding():
                return self._change_standing(command, put)
            case c.RemoveNode():
                return self._remove(command, put)
            case c.Assign():
                return self._assign(command, put)
            case c.Settle():
                return self._settle(command, put)
            case c.Balance():
                self.balanced = tuple(command.nodes)
                return self.balanced
            case c.RaiseFeatureLevel():
                return self._raise_level(command)
            case c.SetPush():
                return self._set_push(command, put)
            case c.PutIdentity():
                return self._put_identity(command, now_ms, put)
            case c.DeleteIdentity():
                return self._delete_identity(command, put)
            case c.PutRole():
                return self._put_role(command, put)
            case c.DeleteRole():
                return self._delete_role(command, put)
            case c.Skipped():
                self.skips[command.skip_id] = command.command_digest
                for oldest in list(self.skips)[:-SKIPS_KEPT]:
                    del self.skips[oldest]
                raise Conflict("this request was skipped by an operator, because it could not be applied")

    # -- nodes ----------------------------------------------------------------------------------------------------

    def _node(self, node_id: str) -> NodeRecord:
        record = self.nodes.get(node_id)
        if record is None:
            raise NotFound(f"no node {node_id!r} is registered", node=node_id)
        return record

    def _put_node(self, node: NodeRecord, put: Put) -> NodeRecord:
        self.nodes[node.node_id] = node
        put(b"n" + node.node_id.encode(), node.row())
        return node

    def _register(self, command: c.RegisterNode, put: Put) -> NodeRecord:
        known, removed = self.nodes.get(command.node_id), self.removed.get(command.node_id)
        if known is not None and known.store_uuid != command.store_uuid:
            raise Conflict(f"node {command.node_id!r} is registered with another data directory", node=command.node_id)
        if removed is not None and command.store_uuid in removed.stores:
            raise Conflict(f"the data directory of {command.node_id!r} was removed", node=command.node_id)
        levels = Levels(command.lowest_level, command.highest_level)
        if self.feature_level not in levels:
            raise Conflict(
                f"the version of {command.node_id!r} knows feature level {levels}, the cluster is at "
                f"{self.feature_level}",
                node=command.node_id,
            )
        node = NodeRecord(
            node_id=command.node_id,
            store_uuid=command.store_uuid,
            addresses=command.addresses,
            zone=command.zone,
            weight=command.weight,
            incarnation=command.incarnation,
            standing=known.standing if known is not None else IN,
            failed_since_ms=known.failed_since_ms if known is not None else None,
            lowest_level=levels.lowest,
            highest_level=levels.highest,
        )
        return self._put_node(node, put)

    def _raise_level(self, command: c.RaiseFeatureLevel) -> int:
        """Raise the feature level, and return it. Do nothing if the cluster has reached it already."""
        if command.level > self.feature_level:
            unable = [node.node_id for node in self.nodes.values() if command.level not in node.levels]
            if unable:
                raise Conflict(f"{unable[0]} does not know feature level {command.level}", node=unable[0])
            self.feature_level = command.level
        return self.feature_level

    def _change_standing(self, command: c.ChangeStanding, put: Put) -> NodeRecord:
        node = self._node(command.node_id)
        if command.standing not in (IN, DRAINING, REMOVING):
            raise InvalidRequest(f"{command.standing!r} is no standing of a node")
        if node.standing == REMOVING and command.standing != REMOVING:
            raise Conflict(f"node {command.node_id!r} is being removed", node=command.node_id)
        return self._put_node(replace(node, standing=command.standing), put)

    def _remove(self, command: c.RemoveNode, put: Put) -> NodeRecord:
        node = self._node(command.node_id)
        if node.standing != REMOVING or node.store_uuid != command.store_uuid:
            raise Conflict(f"node {command.node_id!r} is not being removed", node=command.node_id)
        for topic in self.topics.values():
            for partition in topic.partitions:
                if own_member(node.node_id, (*partition.members, *partition.former)) is not None:
                    raise Conflict(f"node {command.node_id!r} holds a partition of {topic.name!r}", node=node.node_id)
        before = self.removed.get(node.node_id)
        stores = (*(before.stores if before is not None else ()), node.store_uuid)
        removed = self.removed[node.node_id] = RemovedNode(node.node_id, node.incarnation, stores)
        del self.nodes[node.node_id]
        put(b"x" + node.node_id.encode(), removed.row())
        put(b"n" + node.node_id.encode(), None)
        return node

    # -- topics ---------------------------------------------------------------------------------------------------

    def _keep(self, topic: Topic) -> None:
        self.topics[topic.name] = topic
        self.partition_of_group.update(
            {partition.group: (topic.name, at) for at, partition in enumerate(topic.partitions)}
        )

    def _put_topic(self, topic: Topic, new: Sequence[Partition], put: Put) -> Topic:
        """Store a topic. `new`: its last partitions, whose rows do not exist yet."""
        self._keep(topic)
        put(b"t" + topic.name.encode(), topic.row())
        for at, partition in enumerate(new, len(topic.partitions) - len(new)):
            put(_partition_key(partition.group), partition.row(topic.name, at))
        return topic

    def _topic(self, name: str) -> Topic:
        topic = self.topics.get(name)
        if topic is None:
            raise UnknownTopic(f"there is no topic {name!r}", topic=name)
        return topic

    def _create(self, command: c.CreateTopic, now_ms: int, put: Put) -> Topic:
        check_new_topic(command.name, may_be_internal=True)
        if command.name in self.topics:
            raise TopicExists(f"there is a topic {command.name!r} already", topic=command.name)
        self._check_registered(command.name, command.placement)
        self._check_quota(command.owner, 1, len(command.placement))
        topic = Topic(
            name=command.name,
            number=self._next_topic,
            kind=command.kind,
            initial_partitions=len(command.placement),
            replicas=command.replicas,
            settings=command.settings,
            created_ms=now_ms,
            partitions=self._new_partitions(command.placement),
            first_settings=command.settings,
            owner=command.owner,
        )
        self._next_topic += 1
        return self._put_topic(topic, topic.partitions, put)

    def _check_registered(self, name: str, placement: Sequence[Sequence[str]]) -> None:
        unknown = sorted({node for nodes in placement for node in nodes} - self.nodes.keys())
        if unknown:
            raise InvalidRequest(f"topic {name!r} is placed on {unknown[0]!r}, which is not registered")

    def _check_quota(self, owner: str | None, topics: int, partitions: int) -> None:
        """Raise QuotaExceeded if these additional topics and partitions exceed the owner's quota."""
        record = self.identities.get(owner) if owner is not None else None
        if owner is None or record is None or not record.quota:
            return
        quota = Quota.of(record.quota)
        owned = [topic for topic in self.topics.values() if topic.owner == owner]
        there = sum([len(topic.partitions) for topic in owned])
        if topics:
            quota.check("topics", owner, len(owned) + topics)
        quota.check("partitions", owner, there + partitions)

    def _new_partitions(self, placement: Sequence[Sequence[str]]) -> tuple[Partition, ...]:
        """Create partitions: assign a Raft group to each, and a new member on each of its nodes.

        `placement`: the nodes of each new partition.
        """
        partitions = []
        for nodes in placement:
            members = tuple([self._mint(node) for node in nodes])
            partitions.append(Partition(self.next_group, members, members))
            self.next_group += 1
        return tuple(partitions)

    def _mint(self, node: str) -> str:
        """Return a new member on a node, with an incarnation that was never used."""
        member = member_id(node, self._next_incarnation)
        self._next_incarnation += 1
        return member

    def _update(self, command: c.UpdateTopic, put: Put) -> Topic:
        """Replace the settings and the replica count of a topic, and add partitions. `command.partitions`: number of
        partitions for which the added ones were planned."""
        topic = self._topic(command.name)
        if command.added and command.partitions != len(topic.partitions):
            raise Conflict(f"topic {command.name!r} has {len(topic.partitions)} partitions by now", topic=command.name)
        self._check_registered(command.name, command.added)
        if command.added:
            self._check_quota(topic.owner, 0, len(command.added))
        added = self._new_partitions(command.added)
        partitions = (*topic.partitions, *added)
        changed = replace(topic, settings=command.settings, replicas=command.replicas, partitions=partitions)
        return self._put_topic(changed, added, put)

    def _delete(self, command: c.DeleteTopic, put: Put) -> Topic:
        topic = self._topic(command.name)
        del self.topics[command.name]
        for partition in topic.partitions:
            del self.partition_of_group[partition.group]
            put(_partition_key(partition.group), None)
        put(b"t" + command.name.encode(), None)
        for name, group in [pushed for pushed in self.pushes if pushed[0] == command.name]:
            del self.pushes[name, group]
            put(_push_key(name, group), None)
        return topic

    # -- pushes ---------------------------------------------------------------------------------------------------

    def _set_push(self, command: c.SetPush, put: Put) -> dict[str, Any] | None:
        """Set or remove the push of a group. Return its settings, None if it was removed."""
        self._topic(command.topic)
        pushed = command.topic, command.group
        if command.push is None:
            if self.pushes.pop(pushed, None) is not None:
                put(_push_key(*pushed), None)
            return None
        if pushed not in self.pushes and len(self.pushes) >= FIXED.pushed_groups:
            raise InvalidRequest(
                f"{len(self.pushes)} groups are pushed, and no more may be (pushed_groups, which is fixed)",
                limit="pushed_groups",
                maximum=FIXED.pushed_groups,
            )
        push = self.pushes[pushed] = dict(command.push)
        put(_push_key(*pushed), msgpack.packb(push))
        return push

    # -- identities and roles -------------------------------------------------------------------------------------

    def _put_identity(self, command: c.PutIdentity, now_ms: int, put: Put) -> IdentityRecord:
        principal, before = command.principal, self.identities.get(command.principal)
        if command.is_new and before is not None:
            raise Conflict(f"there is an identity {principal!r} already", principal=principal)
        if before is None and not command.is_new:
            raise _no_identity(principal)
        if before is None and len(self.identities) >= FIXED.identities:
            raise _full("identities", len(self.identities))
        unknown = _roles_of(command.grants) - self.roles.keys()
        if unknown:
            raise NotFound(f"there is no role {min(unknown)!r}", role=min(unknown))
        created_ms = before.created_ms if before is not None else now_ms
        record = self.identities[principal] = IdentityRecord(
            principal,
            tuple(command.grants),
            command.secret_hash,
            created_ms,
            command.expires_ms,
            dict(command.quota),
            command.note,
        )
        put(b"i" + principal.encode(), record.row())
        return record

    def _delete_identity(self, command: c.DeleteIdentity, put: Put) -> IdentityRecord:
        record = self.identities.pop(command.principal, None)
        if record is None:
            raise _no_identity(command.principal)
        put(b"i" + command.principal.encode(), None)
        return record

    def _put_role(self, command: c.PutRole, put: Put) -> tuple[str, ...]:
        if command.name not in self.roles and len(self.roles) >= FIXED.roles:
            raise _full("roles", len(self.roles))
        grants = self.roles[command.name] = tuple(command.grants)
        put(b"r" + command.name.encode(), msgpack.packb(grants))
        return grants

    def _delete_role(self, command: c.DeleteRole, put: Put) -> None:
        if command.name not in self.roles:
            raise NotFound(f"there is no role {command.name!r}", role=command.name)
        having = sorted(who for who, record in self.identities.items() if command.name in _roles_of(record.grants))
        if having:
            raise Conflict(f"{len(having)} identities have the role {command.name!r}, the first is {having[0]!r}")
        del self.roles[command.name]
        put(b"r" + command.name.encode(), None)

    # -- assignments ----------------------------------------------------------------------------------------------

    def _partition(self, group: int) -> tuple[Topic, int, Partition]:
        found = self.partition_of_group.get(group)
        if found is None:
            raise NotFound(f"no partition is that of group {group}")
        topic = self.topics[found[0]]
        return topic, found[1], topic.partitions[found[1]]

    def _put_partition(self, topic: Topic, at: int, partition: Partition, put: Put) -> Partition:
        partitions = (*topic.partitions[:at], partition, *topic.partitions[at + 1 :])
        self.topics[topic.name] = replace(topic, partitions=partitions)
        put(_partition_key(partition.group), partition.row(topic.name, at))
        return partition

    def _assign(self, command: c.Assign, put: Put) -> Partition:
        """Assign a partition to nodes, as a new epoch. Return the changed partition."""
        topic, at, old = self._partition(command.group)
        nodes = tuple(command.nodes)
        if command.epoch != old.epoch:
            raise Conflict(f"partition {at} of topic {topic.name!r} was reassigned in the meantime", topic=topic.name)
        if not nodes or len(set(nodes)) < len(nodes):
            raise InvalidRequest(f"a partition is held by different nodes, not by {list(nodes)}")
        self._check_registered(topic.name, [nodes])
        # Reuse a member that the group may still have: a node has at most one replica of a group.
        there = (*old.members, *old.former)
        members = tuple([own_member(node, there) or self._mint(node) for node in nodes])
        former = tuple([member for member in there if member not in members])
        epoch = old.epoch + 1
        # If only the leader or the order changes, the Raft group has the right members already: it is settled.
        only_order = sorted(members) == sorted(old.members) and not old.moving
        settled = epoch if only_order else old.settled
        new = replace(old, members=members, former=former, epoch=epoch, settled=settled)
        return self._put_partition(topic, at, new, put)

    def _settle(self, command: c.Settle, put: Put) -> Partition:
        """Record that a group has no former members. If `whole`, also record that it has reached its assignment."""
        topic, at, old = self._partition(command.group)
        if command.epoch != old.epoch:
            raise Conflict(f"partition {at} of topic {topic.name!r} was reassigned in the meantime", topic=topic.name)
        settled = old.epoch if command.whole else old.settled
        return self._put_partition(topic, at, replace(old, former=(), settled=settled), put)


def _roles_of(grants: Iterable[str]) -> set[str]:
    """Return the user-defined roles among these grants."""
    return {grant.name for grant in map(parse_grant, grants) if not grant.is_of_known_name}


def _no_identity(principal: str) -> NotFound:
    return NotFound(f"there is no identity {principal!r}", principal=principal)


def _full(what: str, count: int) -> InvalidRequest:
    return InvalidRequest(
        f"there are {count} {what}, and no more may be ({what}, which is fixed)", limit=what, maximum=count
    )


def _partition_key(group: int) -> bytes:
    return b"p" + group.to_bytes(8, "big")


def _push_key(topic: str, group: str) -> bytes:
    return b"h" + topic.encode() + b"\0" + group.encode()


def holds(topics: Iterable[Topic], node: str) -> int:
    """Return the number of replicas that are, or may still be, on a node."""
    return sum(
        own_member(node, (*partition.members, *partition.former)) is not None
        for topic in topics
        for partition in topic.partitions
    )
