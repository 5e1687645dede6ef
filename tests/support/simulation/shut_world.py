"""Simulate a partition on three nodes with entries that replicas cannot apply: on one node, once, or on all nodes.

Meanwhile nodes crash, leaders change and snapshots arrive. The world handles shut replicas as `ShutReplicas` does, and
an operator skips entries that shut the replicas of all nodes. In the end all replicas are open and equal, and hold all
acknowledged messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from sandq.broker.health.entry_skips import replacement_of
from sandq.broker.health.shut_replicas import _report
from sandq.broker.replication.applier import Apply
from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.replication.shut import Step
from sandq.model.batch import Column, encode
from sandq.model.errors import SandqError
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.view import View
from sandq.partition.reader.pieces import MessageReader
from sandq.raft import Skip
from sandq.raft.skip import SKIP_ID_BYTES
from sandq.raft.wire import REGULAR
from tests.support.simulation.cluster_node import ClusterNode, topic_of
from tests.support.simulation.cluster_snapshots import Transfer
from tests.support.simulation.cluster_world import NAMES, ClusterWorld

STEPS = (b"decode", b"first", b"last", b"status", b"drain")
WHERE = (b"all", b"once", *[name.encode() for name in NAMES])
"""Replicas that fail at an entry: all replicas, one replica once, or the replicas of one node."""
POISON_CHANCE = 0.03
OPERATOR_CHANCE = 0.05


class Planted(MemoryError):
    """The planted fault."""


class PlainClients:
    """Clients that only store messages, and remember the acknowledged ones."""

    def __init__(self, world: ShutWorld) -> None:
        self._world = world
        self._rng = world.rng
        self._number = 0
        self.acknowledged: set[bytes] = set()
        self.is_calm = False
        """Whether to send only entries that can be applied."""

    def leader(self) -> ClusterNode | None:
        ready = [node for node in self._world.nodes.values() if node.host.ready]
        return self._rng.choice(ready) if ready else None

    def act(self) -> None:
        if self._rng.random() < 0.3:
            self.produce()

    def produce(self) -> None:
        node = self.leader()
        for _ in range(self._rng.randint(1, 3) if node is not None else 0):
            self._number += 1
            value = b"%d" % self._number
            if not self.is_calm and self._rng.random() < POISON_CHANCE:
                where = self._rng.choice(WHERE)
                # Errors of status and rows are attributed to the last entry: if all replicas fail, a skip may not help.
                value += b" poison:%s:%s:" % (where, self._rng.choice(STEPS if where == b"once" else STEPS[:3]))
            self._send(node, value)

    def _send(self, node: Any, value: bytes) -> None:
        def done(result: Any) -> None:
            if not isinstance(result, SandqError):
                self.acknowledged.add(value)

        split = self._rng.random() < 0.3
        columns: dict[int, Any] = {Column.VALUE: [value]}
        if split:
            columns[Column.UNIQUE_KEY] = [b"u" + value]
        node.call(c.Append(encode(columns), split=split), done, messages=1)

    def finish(self) -> None:
        self.is_calm = True

    def gone(self, node: ClusterNode) -> None:
        pass

    @property
    def is_done(self) -> bool:
        return all(node.host.shut is None for node in self._world.nodes.values())

    def describe_pending(self) -> Any:
        return [(node.name, node.host.shut, node.host.reopens) for node in self._world.nodes.values()]


class ShutWorld(ClusterWorld):
    def __init__(self, seed: int) -> None:
        self.skips = self.shut = self.reopened = self.restored = 0
        self._once: set[bytes] = set()
        """Entries that fail once and have failed already."""
        self._struck: dict[int, bytes] = {}
        """By the id of a replica: the step ("status" or "drain") at which it fails next."""
        self._current: PartitionReplica | None = None
        super().__init__(seed, moments=False)
        self.clocks_go_wrong = False

    def make_topic(self) -> Any:
        settings = {"retention": "30d", "dedup_window": self.rng.choice(("0s", "10m"))}
        return topic_of(NAMES, parse_settings(settings).record())

    def make_clients(self) -> Any:
        return PlainClients(self)

    def is_settled(self, node: ClusterNode) -> bool:
        return True

    def applied(self, name: str, task: Apply) -> None:
        """Accept any entry: replicas may apply different ones because of a SKIP. `compare` checks the result."""

    def compare(self) -> None:
        for node in self.nodes.values():
            node.node_log.applier.write()  # which may shut a replica
        super().compare()

    # -- faults ---------------------------------------------------------------------------------------------------

    def _fault(self, replica: PartitionReplica, command: bytes) -> bytes | None:
        """Return the step at which an entry fails here; None if it does not."""
        name = next((node.name for node in self.nodes.values() if node.host.replica is replica), None)
        at = command.find(b" poison:")
        if at < 0 or name is None:
            return None
        _, where, step, _ = command[at:].split(b":", 3)
        if where == b"once":
            if command in self._once:
                return None
            self._once.add(command)
        return step if where in (b"all", b"once", name.encode()) else None

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Let entries fail until the world is closed."""
        apply, put = PartitionReplica.apply, View.put
        status, drain = PartitionReplica.status, PartitionReplica.drain

        def planted_apply(replica: PartitionReplica, index: int, command: bytes, *others: Any) -> Any:
            step = self._fault(replica, command)
            if step == b"decode":
                raise Planted("decode")
            self._current = replica if step == b"first" else None
            try:
                results = apply(replica, index, command, *others)
            finally:
                self._current = None
            if step == b"last":
                raise Planted("last")
            if step in (b"status", b"drain"):
                self._struck[id(replica)] = step
            return results

        def planted_put(view: View, key: bytes, value: bytes) -> None:
            put(view, key, value)
            if self._current is not None and self._current._view is view:
                raise Planted("first")

        def strike(replica: PartitionReplica, step: bytes) -> None:
            if replica.failure is None and self._struck.get(id(replica)) == step:
                del self._struck[id(replica)]
                raise Planted(step.decode())

        def planted_status(replica: PartitionReplica) -> Any:
            strike(replica, b"status")
            return status(replica)

        def planted_drain(replica: PartitionReplica) -> Any:
            strike(replica, b"drain")
            return drain(replica)

        with (
            patch.object(PartitionReplica, "apply", planted_apply),
            patch.object(View, "put", planted_put),
            patch.object(PartitionReplica, "status", planted_status),
            patch.object(PartitionReplica, "drain", planted_drain),
        ):
            yield

    # -- nodes and the operator -----------------------------------------------------------------------------------

    def step(self, *, calm: bool = False) -> None:
        super().step(calm=calm)
        shut = [node for node in self.nodes.values() if node.host.shut is not None]
        self.shut += len(shut)
        for node in shut:
            if node.host.reopens:
                if node.records is None and not self._is_receiving(node):
                    self._reopen(node)
            elif node.host.group.is_leader:
                self._hand_over(node)
                if self.rng.random() < OPERATOR_CHANCE:
                    self._skip(node)
        self._restore_shut()

    def _is_receiving(self, node: ClusterNode) -> bool:
        return any(transfer.target is node for transfer in self._transfers)

    def _reopen(self, node: ClusterNode) -> None:
        node.node_log.suspend_shut(node.host)
        node.run([node.tasks.popleft() for _ in range(len(node.tasks))])
        node.node_log.reopen(node.host, *node.node_log.load(node.host.number, node.replica.store))
        self.reopened += 1

    def _hand_over(self, node: ClusterNode) -> None:
        group = node.host.group
        fit = [other for other in self.nodes.values() if other.host.shut is None and other is not node]
        fit = fit or [other for other in self.nodes.values() if reached(other) > reached(node)]
        if fit and self.rng.random() < 0.2 and group.transfer(fit[0].host.group.member):
            node.node_log.group_commit.mark(group)

    def _skip(self, node: ClusterNode) -> None:
        """Skip the entry, or one of its commands, as `EntrySkips` does."""
        host = node.host
        failure = host.shut
        assert failure is not None
        if failure.step is Step.SKIPPED or failure.index is None or len(self.nodes) < len(NAMES):
            return
        for other in self.nodes.values():
            if other.host.shut is None or reached(other) >= failure.index:
                return
        journal, index = host.group.journal, failure.index
        term = journal.term_at(index)
        if term is None or host.is_skipping(index):
            return
        stored = journal[index - journal.first_index][0]
        assert stored[0] == REGULAR
        command = journal.replacement(index, host.group.commit_index) or stored[1:]
        skip_id = self.rng.randbytes(SKIP_ID_BYTES)
        positions = (failure.command,) if failure.command is not None and self.rng.random() < 0.5 else None
        try:
            replacement, _ = replacement_of(host.number, skip_id, command, positions, failure)
        except SandqError:
            return  # the complete entry is skipped already
        host._skips.propose(host.group, Skip(index, term, skip_id, replacement), lambda at, error: self._skipped(error))
        node.node_log.group_commit.mark(host.group)

    def _skipped(self, error: Any) -> None:
        self.skips += error is None

    def _restore_shut(self) -> None:
        """If the leader has applied the entry that shut a member, send that member a snapshot."""
        for node in list(self.nodes.values()):
            if not node.host.ready:
                continue
            for other in self.nodes.values():
                failure = other.host.shut
                if failure is None or other is node or self._is_receiving(other):
                    continue
                applied = node.host.status.applied_index >= (failure.index or failure.rows_index)
                if applied and self.network.joins(node.name, other.name) and self.rng.random() < 0.2:
                    self.restored += 1
                    self._transfers.append(Transfer(node, other, self.network.joins, self.rng, self._pin_bytes))

    # -- the end --------------------------------------------------------------------------------------------------

    def check_stored(self) -> None:
        """Check that all acknowledged messages are stored on each node."""
        clients: PlainClients = self.clients
        for node in self.nodes.values():
            assert node.host.shut is None
            values = set(stored_values(node))
            assert clients.acknowledged <= values, f"{node.name} lost {sorted(clients.acknowledged - values)[:5]}"


def reached(node: ClusterNode) -> int:
    """Return the index of the last entry that a shut replica may have acknowledged, as in `ShutReport`."""
    assert node.host.shut is not None
    return _report(node.host, node.host.shut).reached


def stored_values(node: ClusterNode) -> Iterator[bytes]:
    """Yield the values of a partition's messages."""
    node.node_log.applier.write()
    view = View(node.replica._rows)
    for row in view.scan(*rows.tag_bounds(rows.LOG), limit=1 << 30, max_bytes=1 << 40):
        entry = rows.log_entry(*row)
        for message in MessageReader().messages(view, [rows.Range(entry.first, entry.length)]):
            yield message.fields[Column.VALUE]
