"""`sandq recover`: continue with one node in groups that have lost their majority for good.

This is the last resort. Acknowledged data is on a majority of the members. If the other members of a group are lost,
the data that this node has not received is lost, too. An entry of a new term, which is only in the log of this node,
removes the lost members from the group's configuration. So a lost node must never return: it could have other entries
at the same indexes. `KnownPeers.remove` bans the stores of the lost nodes permanently.

The log is processed twice: first for the metadata group, then for the partitions that the metadata lists.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import METADATA_GROUP
from sandq.model.config import NodeConfig
from sandq.model.errors import InvalidRequest, StartupError
from sandq.model.members import node_of
from sandq.node import LOCK_NAME
from sandq.raft import Members
from sandq.raft.wire import MEMBERSHIP
from sandq.storage import identity
from sandq.storage.files import Files, RealFiles
from sandq.storage.known_peers import KnownPeers
from sandq.storage.stores import LevelStores

CATCH_UP_S: Final = 60.0
"""Time limit in s for applying the metadata's log after this node has become its only voter."""


@dataclass(frozen=True, slots=True)
class Found:
    """A group with a replica on this node, and the decision about the group."""

    group: int
    topic: str | None
    """The topic's name; None for the metadata group."""
    partition: int
    members: Members
    is_forced: bool
    """Whether the group has no majority without the lost nodes, so that this node continues the group alone."""

    def text(self) -> str:
        """Return one line for the terminal."""
        group = "metadata" if self.topic is None else f"{self.topic}/{self.partition}"
        decision = "continues here alone" if self.is_forced else "keeps its majority"
        return f"{group}: {', '.join(sorted(map(node_of, self.members.voters)))}: {decision}"


def recover(config: NodeConfig, lost: Collection[str], *, dry_run: bool = False) -> list[Found]:
    """Remove the lost nodes from all groups that have no majority without them. `dry_run`: only return these groups.

    Raises StorageFailed. Raises InvalidRequest if this node cannot decide alone. Raises StartupError if the data
    directory is in use, damaged, or belongs to another node or another version of sandq. The version is checked before
    LevelDB is opened, because opening it deletes its logs.
    """
    data_dir = Path(config.node.data_dir).absolute()
    files = RealFiles(data_dir)
    if identity.load(files) is None:
        raise StartupError(f"node.data_dir {data_dir} has no data of a node")
    lock = files.lock(LOCK_NAME)
    try:
        own = identity.open_identity(files, config.node.id).node
        if own in lost:
            raise InvalidRequest(f"{own} is this node")
        with _opened(files, data_dir, config, own) as node_log:
            metadata = _judge(node_log.open_metadata(), own, lost, None, 0)
            if dry_run and metadata.is_forced:
                return [metadata, *_partitions(node_log, own, lost)]
            if metadata.is_forced:
                _force(node_log, METADATA_GROUP)
        with _opened(files, data_dir, config, own) as node_log:
            host = node_log.open_metadata()
            if host.group.is_only_voter and not dry_run:  # this includes earlier calls that were interrupted
                _catch_up(node_log, host)
            found = _partitions(node_log, own, lost)
            if not dry_run:
                for each in found:
                    if each.is_forced:
                        _force(node_log, each.group)
                _shut_out(files, host, lost)
        return [metadata, *found]
    finally:
        lock.close()


@contextmanager
def _opened(files: Files, data_dir: Path, config: NodeConfig, own: str) -> Iterator[NodeLog]:
    stores = LevelStores(data_dir / "stores.level", create=False)
    try:
        node_log = NodeLog(
            files,
            stores,
            node_id=own,
            now_ms=lambda: time.time_ns() // 1_000_000,
            publish=lambda news: node_log.published(news),
            limits=config.limits,
            segment_bytes=config.storage.segment_bytes,
            create=False,
        )
        if node_log.pointers.get(METADATA_GROUP) is None:
            raise InvalidRequest(f"{own} has never been part of a cluster: there is nothing to recover")
        try:
            yield node_log
        finally:
            node_log.wal.close()
    finally:
        stores.close()


def _judge(host: RaftGroup, own: str, lost: Collection[str], topic: str | None, partition: int) -> Found:
    members = host.group.journal.members
    left = [voter for voter in members.voters if node_of(voter) not in lost]
    if 2 * len(left) > len(members.voters):
        return Found(host.number, topic, partition, members, False)
    others = [node_of(voter) for voter in left if node_of(voter) != own]
    if others:
        group = "the metadata group" if topic is None else f"partition {partition} of topic {topic!r}"
        raise InvalidRequest(
            f"{group} keeps only {', '.join([own, *others])}, which are no majority: this node cannot know which of "
            "them has the newest data. `sandq recover` is for groups of which one member is left"
        )
    return Found(host.number, topic, partition, members, True)


def _partitions(node_log: NodeLog, own: str, lost: Collection[str]) -> list[Found]:
    found = []
    for topic in node_log.hosts[METADATA_GROUP].status.topics.values():
        for at, partition in enumerate(topic.partitions):
            if node_log.pointers.get(partition.group) is not None:
                found.append(_judge(node_log.open_partition(topic, at), own, lost, topic.name, at))
    return found


def _force(node_log: NodeLog, group: int) -> None:
    """Make this node the only member, durably: begin a new term without a vote, and add a membership entry in this
    term."""
    raft = node_log.hosts[group].group
    journal, term = raft.journal, raft.journal.getCurrentTerm() + 1
    journal.setCurrentTerm(term, None)
    journal.add(bytes([MEMBERSHIP]) + Members((raft.member,)).encode(), journal.last_index + 1, term)
    node_log.commit(node_log.group_commit.records)
    node_log.group_commit.records.clear()


def _catch_up(node_log: NodeLog, host: RaftGroup) -> None:
    """Apply the whole log. The group's only voter commits all of its entries."""
    end_s = time.monotonic() + CATCH_UP_S
    last = host.group.journal.last_index
    while not host.ready or host.status.applied_index < last:
        if time.monotonic() > end_s:
            raise StartupError(f"the log of the metadata was not applied within {CATCH_UP_S:g} s")
        _step(node_log)


def _step(node_log: NodeLog) -> None:
    records, tasks = node_log.tick()
    node_log.applier.run(list(tasks))
    node_log.commit(records)
    node_log.applier.run(list(node_log.synced()))


def _shut_out(files: Files, metadata: RaftGroup, lost: Collection[str]) -> None:
    known = KnownPeers.open(files)
    for node in lost:
        record = metadata.status.nodes.get(node)
        if record is not None and not known.is_removed(record.store_uuid):
            known.remove(node, record.store_uuid)
