"""Simulate a compacted partition on three nodes, and check its final state."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sandq.broker.replication import raft_group as group_host
from sandq.metadata.records import Topic
from sandq.model.batch import Batch, Column
from sandq.model.names import COMPACTED
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.view import View
from sandq.partition.kv import compaction, key_table
from sandq.partition.kv.compacted import CompactedPartition
from sandq.partition.kv.key_table import Value
from sandq.partition.log.appends import Stored
from sandq.partition.reader.pieces import MessageReader
from sandq.raft import core
from sandq.storage.stores import MemoryStores
from tests.support.simulation import linearizable
from tests.support.simulation.cluster_node import ClusterNode, topic_of
from tests.support.simulation.cluster_world import HEALED_MS, NAMES, ClusterWorld
from tests.support.simulation.key_clients import BRIEF, KEYS, KeyClients, versions_of
from tests.support.simulation.stepped import SteppedEvent

ALL = 1 << 40
Writes = dict[bytes, tuple[bytes, bytes | None]]
"""Version -> key and value."""


class KeysWorld(ClusterWorld):
    clients: KeyClients
    replayed: CompactedPartition
    """Partition that results from all committed entries; set by `heal`."""
    _alone: str | None = None
    """Name of the leader that is cut off."""
    _alone_until_ms = 0
    led_twice = 0
    """Number of steps in which two nodes claimed to lead."""

    def make_topic(self) -> Topic:
        rng = self.rng
        self._crash_probability = rng.choice((0.0, 0.001, 0.005))
        self.set(group_host, "trio", SimpleNamespace(Event=SteppedEvent))
        for module, name, values in (
            (core, "LEADER_FALLBACK_S", (2.0, 10.0)),  # a leader that is cut off and does not step down must do no harm
            (compaction, "STEP_ROWS", (3, 50)),
            (compaction, "STEP_MESSAGES", (5, 200)),
            (compaction, "LOOK_MS", (100,)),
            (compaction, "IDLE_MS", (200, 1000)),
            (compaction, "NEW_LEAST", (5, 40)),
            (compaction, "AGAIN_MS", (500,)),
            (key_table, "SWEEP_KEYS", (1, 1000)),
        ):
            self.set(module, name, rng.choice(values))
        history, retention = rng.choice(("0s", "1s")), rng.choice(("0s", "1s"))
        settings = {"lease": "1s", "history": history, "tombstone_retention": retention}
        return topic_of(NAMES, parse_settings(settings, COMPACTED).record(), COMPACTED)

    def make_clients(self) -> KeyClients:
        clients = self.rng.choice((3, 5, 8))
        return KeyClients(self.rng, self.clock, self.nodes, clients=clients)

    def disturb(self) -> None:
        """Disturb the world, and cut off a leader for a while more often than other worlds do.

        Such a leader does not know that it is cut off, so it might give outdated answers."""
        super().disturb()
        rng, network = self.rng, self.network
        leader = self.clients.leader()
        if self._alone is not None and self.clock.ms > self._alone_until_ms:
            self._alone = None
            network.stalled.clear()
        elif self._alone is None and leader is not None and rng.random() < 0.006:
            self._alone, self._alone_until_ms = leader.name, self.clock.ms + rng.choice((1000, 3000, 5000))
        if self._alone is not None:
            network.stalled |= {pair for pair in network.pairs if self._alone in pair}
        if rng.random() < 0.05:
            network.link(*rng.sample(NAMES, 2))

    def check_invariants(self) -> None:
        super().check_invariants()
        self.led_twice += sum([node.host.ready for node in self.nodes.values()]) > 1

    def is_settled(self, node: ClusterNode) -> bool:
        """Return whether the log is compacted, so that it has only the last value of each key."""
        return bool(node.host.status.messages == table_of(node).live)

    def heal(self) -> None:
        """Heal, read all keys again, and check the answers and the state."""
        super().heal()
        healed = next(self.clients.events)
        self.clients.read_all()
        until_ms = self.clock.ms + HEALED_MS
        while not (self.clients.is_done and self._is_even()):
            assert self.clock.ms < until_ms, f"not done after reading everything: {self._describe_pending()}"
            self.step(calm=True)
            self.clients.finish()
        self.compare()
        for key in KEYS:
            assert any(op.invoked > healed for op in self.clients.histories[key]), "no client could read after healing"
        linearizable.check(self.clients.histories)
        self._check_state(self._replay())

    # -- a replay -------------------------------------------------------------------------------------------------

    def _replay(self) -> Writes:
        """Apply all committed entries to an empty partition. Return the stored writes, without deletions by the
        partition."""
        stores = MemoryStores()
        view = View(stores)
        self.replayed = machine = CompactedPartition(0, dict(self.topic.settings))
        stored: Writes = {}
        for index, entry in sorted(self._canon.items()):
            commands = c.Entry.decode(entry) if entry else c.Entry(0, ())
            results = machine.apply(index, commands, view)
            for command, result in zip(commands.commands, results, strict=True):
                if isinstance(command, c.Append) and isinstance(result, (tuple, Stored)):
                    stored |= _writes_of(command, result)
            machine.write_state(view)
            stores.write(view.drain())
        return stored

    def _check_state(self, stored: Writes) -> None:
        values = [value for _, value in stored.values() if value is not None]
        assert len(values) == len(set(values)), "a write was stored twice"
        for key, history in self.clients.histories.items():
            for op in history:
                if op.answered is not None and not op.reads:
                    assert op.version in stored, f"an acknowledged write was never stored: {op}"
                    assert stored[op.version] == (key, op.value), f"another value was stored: {op}"
        last = {key: (version, value) for version, (key, value) in sorted(stored.items())}
        expected = {key: each for key, each in last.items() if each[1] is not None}
        for node in self.nodes.values():
            found = {key: Value.load(row) for key, row in self._table(node)}
            assert {key: (value.version, value.value) for key, value in found.items() if key != BRIEF} == {
                key: each for key, each in expected.items() if key != BRIEF
            }, f"{node.name} holds other values than the last writes"
            assert table_of(node).live == self.replayed.keys.live and table_of(node).bytes == self.replayed.keys.bytes
            log = log_of(node)
            assert log == sorted(log), "out of order"
            told = {key: (version, value) for version, key, value in log}
            assert {key: each for key, each in told.items() if each[1] is not None} == {
                key: (value.version, value.value) for key, value in found.items()
            }, f"a reader of the whole log of {node.name} gets other values"

    def _table(self, node: ClusterNode) -> list[tuple[bytes, bytes]]:
        return [row for part, _ in node.replica.scan(b"", None, ALL, ALL) for row in part]


def table_of(node: ClusterNode) -> key_table.KeyTable:
    machine = node.replica.machine
    assert isinstance(machine, CompactedPartition)
    return machine.keys


def log_of(node: ClusterNode) -> list[tuple[bytes, bytes, bytes | None]]:
    """Return (version, key, value) of all messages in the log."""
    view = View(node.replica._rows)
    entries = [rows.log_entry(*row) for row in view.scan(*rows.tag_bounds(rows.LOG), limit=ALL, max_bytes=ALL)]
    ranges = [rows.Range(entry.first, entry.length) for entry in entries]
    messages = MessageReader().messages(view, ranges, None)
    return [(m.offset, m.fields[Column.KEY], m.fields.get(Column.VALUE)) for m in messages]


def _writes_of(command: c.Append, result: Any) -> Writes:
    batch = Batch.parse(command.batch)
    keys, values = batch.bytes_column(Column.KEY), batch.values()
    assert keys is not None
    refused = {at for at, _ in result.refused} if isinstance(result, Stored) else set()
    return {
        version: (key or b"", value)
        for at, (version, key, value) in enumerate(zip(versions_of(result), keys, values, strict=True))
        if at not in refused
    }
