"""Simulate a partition on three nodes: real engines, leaders and routes, over memory disks and fake connections.

One `random.Random(seed)` determines everything, so a seed reproduces its world. Raft and the brokers share one virtual
time; the wall clock of each node deviates a little. Clients outlive the nodes, and the oracle keeps their answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any

from sandq.broker.replication import node_log
from sandq.broker.replication.applier import Apply
from sandq.metadata.records import Topic
from sandq.model import offsets
from sandq.model.errors import StorageFailed
from sandq.model.features import FIRST_LEVEL
from sandq.model.members import node_of
from sandq.model.names import TIMER
from sandq.model.settings import parse_settings
from sandq.partition import clock_reset
from sandq.partition import commands as c
from sandq.partition.groups.group import Group as PartitionGroup
from sandq.partition.log import appends, trim
from sandq.raft import Group, core
from sandq.storage.memory_files import Crashed
from tests.support.nodes.next_level import NEXT
from tests.support.raft.library_time import replace_time
from tests.support.simulation import cluster_snapshots
from tests.support.simulation.cluster_clients import Clients
from tests.support.simulation.cluster_node import ClusterNode, topic_of
from tests.support.simulation.cluster_snapshots import Transfer
from tests.support.simulation.fake_links import Network
from tests.support.simulation.moments import WHOLE_MESSAGES, Moments
from tests.support.simulation.raft_node import Disk, check_matches
from tests.support.simulation.stepped import VirtualClock
from tests.support.storage.faulty_files import Plan

NAMES = ("n1", "n2", "n3")
DRIFT_MS = 100
"""Maximum deviation of a node's clock from the true time, in ms. Two nodes may differ by twice this value."""
RAISE_CHANCE = 0.002
"""Probability per step that the cluster reaches the next feature level. Most worlds reach it in the middle of a run."""
WRONG_CHANCE = 0.01
"""Probability per step that the clocks of all nodes become wrong by the same amount, if `clocks_go_wrong`."""
RIGHT_CHANCE = 0.02
HEALED_MS = 60_000
"""Time after the last fault within which everything must be done, in ms."""
FLOOR_AHEAD_MS = 2_000
"""Lead of a partition's floor over its leader's clock at which an operator sets it back, in ms."""
BUSY_STEPS = 400
"""Number of steps after healing in which clients still produce. In the middle of these steps, the leader changes."""


class ClusterWorld:
    def __init__(self, seed: int, *, moments: bool = True) -> None:
        """`moments`: whether all messages of some batches are due at one moment."""
        self.rng = rng = random.Random(seed)
        self.clock = VirtualClock()
        self.level_rng = random.Random(f"levels of {seed}")
        """Random numbers only for feature levels, so that they do not change the rest of the world."""
        self.level = self.level_rng.choice((FIRST_LEVEL, FIRST_LEVEL, NEXT.highest))
        """Feature level of the cluster. The nodes learn it at different times."""
        self.clock_rng = random.Random(f"clocks of {seed}")
        """Random numbers only for clocks, so that they do not change the rest of the world."""
        self._precision = random.Random(f"precision of {seed}").choice(("auto", "10ms", "100ms"))
        self._moments = Moments(seed) if moments else None
        self.wrong_ms = 0
        """Lead of the clocks of all nodes, in ms."""
        self.resets = 0
        undo_time = replace_time(lambda: self.clock.ms / 1000, rng)
        self._undo = [undo_time]
        self.set(core, "MAX_APPEND_BYTES", rng.choice((100, 1000, 1 << 20)))
        self.set(node_log, "KEPT_BYTES", rng.choice((100, 2000)))
        self.set(node_log, "LAG_BYTES", rng.choice((500, 5000, 1 << 20)))
        for limit in ("STEP_ROWS", "STEP_MESSAGES"):
            self.set(clock_reset, limit, self.clock_rng.choice((2, 1000)))
        if moments:
            self.set(appends, "WHOLE_MESSAGES", WHOLE_MESSAGES)
        self.set(trim, "PIN_MS", self.level_rng.choice((300, 2000, 60_000)))
        # In half of the worlds, each message that waits is spilled.
        self.set(PartitionGroup, "spill_from", PartitionGroup.spill_from if seed % 2 else 0)
        self._pin_bytes = rng.choice((0, 300, 1 << 20))
        self.set(node_log, "LAG_WAL_BYTES", rng.choice((20_000, 1 << 20)))
        self._pace = rng.choice((0.3, 0.6, 0.9))
        """Probability that a step delivers over a connection."""
        self._sync_pace = rng.choice((0.3, 0.8))
        self._crash_probability = rng.choice((0.001, 0.005, 0.02))
        self.topic = self.make_topic()
        self.clocks_go_wrong = self.topic.kind == TIMER and self.clock_rng.random() < 0.4
        self.offsets_ms = {name: rng.choice((-DRIFT_MS, 0, DRIFT_MS)) for name in NAMES}
        self.lease_ahead_ms = rng.choice((5, 50))
        self.segment_bytes = rng.choice((4096, 65_536))
        self.disks = {name: Disk() for name in NAMES}
        self.nodes: dict[str, ClusterNode] = {}
        self.network = Network(self.nodes, rng, repeats=rng.choice((0.0, 0.0, 0.2)))
        self.clients = self.make_clients()
        self._transfers: list[Transfer] = []
        self._canon: dict[int, bytes] = {}
        """Command applied at each index, by the first replica that applied it."""
        self._leaders: dict[int, str] = {}
        self.crashes = self.snapshots = self.outrun = self.failures = self.compared = 0
        for name in NAMES:
            self.start(name, Plan())
        self.network.renew()

    def set(self, module: Any, name: str, value: Any) -> None:
        """Set a variable of a module until the world is closed."""
        self._undo.append(_restored(module, name))
        setattr(module, name, value)

    def close(self) -> None:
        for undo in reversed(self._undo):  # a variable may have been set twice
            undo()

    # -- contents -------------------------------------------------------------------------------------------------

    def make_topic(self) -> Topic:
        rng = self.rng
        settings = {
            "ordering": rng.choice(("none", "key")),
            "lease": "1s",
            "max_attempts": "none",
            "backoff": {"first": "100ms"},
            "dedup_window": rng.choice(("0s", "10m")),
            "retention": rng.choice(("0s", "1s")),
            "precision": self._precision,
        }
        return topic_of(NAMES, parse_settings(settings).record())

    def make_clients(self) -> Any:
        ordered = self.topic.settings["ordering"] == "key"
        return Clients(self.rng, self.clock, self.nodes, self._moments, ordered=ordered, margin_ms=DRIFT_MS)

    def is_settled(self, node: ClusterNode) -> bool:
        """Return whether the replica holds only the data that should remain in the end."""
        return bool(node.host.status.messages == 0)

    # -- checks ---------------------------------------------------------------------------------------------------

    @property
    def elections(self) -> int:
        return len(self._leaders)

    def applied(self, name: str, task: Apply) -> None:
        if self.clocks_go_wrong and task.index not in self._canon:
            self._note_reset(task)
        known = self._canon.setdefault(task.index, task.command)
        assert known == task.command, f"{name} applies {task.command!r} at {task.index}, others {known!r}"

    def _note_reset(self, task: Apply) -> None:
        commands = c.Entry.decode(task.command).commands if task.command else ()  # a new leader's entry is empty
        if any(isinstance(command, c.ClockReset) for command in commands):
            self.clients.oracle.set_back(offsets.token(task.index + 1, 0))  # leases granted by the same entry end, too

    def check_invariants(self) -> None:
        for node in self.nodes.values():
            group = node.host.group
            if group.is_leader:
                first = self._leaders.setdefault(group.term, node.name)
                assert first == node.name, f"{first} and {node.name} lead term {group.term}"
                check_matches(group, self._group_of)

    def _group_of(self, member: str) -> Group | None:
        node = self.nodes.get(node_of(member))
        return node.host.group if node is not None else None

    def compare(self) -> None:
        """Check that replicas which have applied the same entries have the same rows."""
        by_index: dict[int, ClusterNode] = {}
        for node in self.nodes.values():
            pointer = node.node_log.pointers.get(node.host.number)
            if pointer is None or pointer.store != node.replica.store:
                continue  # a snapshot is replacing the rows of this node
            other = by_index.setdefault(node.replica.applied_index, node)
            if other is not node:
                self.compared += 1
                ours, theirs = node.rows(), other.rows()
                differ = [
                    (k, ours.get(k), theirs.get(k)) for k in ours.keys() | theirs.keys() if ours.get(k) != theirs.get(k)
                ]
                assert not differ, f"{node.name} and {other.name} differ: {differ[:3]}"

    # -- faults ---------------------------------------------------------------------------------------------------

    def start(self, name: str, plan: Plan) -> None:
        try:
            self.nodes[name] = ClusterNode(self, name, plan)
        except Crashed:
            self._lose(name, power_loss=True)
        except StorageFailed:
            self._lose(name, power_loss=False)

    def _lose(self, name: str, *, power_loss: bool) -> None:
        """End the life of a node and apply the crash to its disk."""
        self.crashes += 1
        node = self.nodes.pop(name, None)
        self.network.isolate(name)
        self.disks[name].crash(self.rng, power_loss=power_loss)
        if node is not None:
            self.failures += node.node_log.failed is not None
            self._transfers = [transfer for transfer in self._transfers if not transfer.gone(node)]
            node.end()
            self.clients.gone(node)

    def guarded(self, name: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Crashed:
            self._lose(name, power_loss=self.rng.random() < 0.7)

    def _crash(self) -> None:
        name = self.rng.choice(NAMES)
        if name in self.nodes:
            if self.rng.random() < 0.5:
                self._lose(name, power_loss=self.rng.random() < 0.7)
            else:
                self.disks[name].memory.crash_after(self.rng.randint(1, 20), inside=self.rng.random() < 0.5)

    def _lose_power(self) -> None:
        for name in list(self.nodes):
            self._lose(name, power_loss=True)

    def _restart(self) -> None:
        rng = self.rng
        for name in NAMES:
            if name in self.nodes and self.nodes[name].node_log.failed is not None and rng.random() < 0.2:
                self._lose(name, power_loss=False)
            if name not in self.nodes and rng.random() < 0.3:
                plans = (Plan(), Plan(fail_sync_at=rng.randint(1, 200)), Plan(budget_bytes=rng.randint(0, 200_000)))
                self.start(name, rng.choices(plans, (8, 1, 1))[0])

    def _transfer(self) -> bool:
        node = self.clients.leader()
        return node is not None and node.host.group.transfer(self.rng.choice(node.host.group.members.voters))

    def _checkpoint(self) -> None:
        for name in list(self.nodes):
            if self.rng.random() < 0.5:
                self.guarded(name, self.nodes[name].step_checkpoint)

    def _sweep(self) -> None:
        for node in self.nodes.values():
            node.sweep()

    def disturb(self) -> None:
        for probability, action in (
            (self._crash_probability, self._crash),
            (0.0015, self._lose_power),
            (0.05, self._restart),
            (0.005, self._transfer),
            (0.3, self.network.disturb),
        ):
            if self.rng.random() < probability:
                action()

    # -- time -----------------------------------------------------------------------------------------------------

    def step(self, *, calm: bool = False) -> None:
        rng = self.rng
        self.clock.ms += 10 if calm else rng.choice((0, 1, 5, 10, 20, 50))
        if not calm:
            self.disturb()
        self.network.deliver(1.0 if calm else self._pace)
        for name in list(self.nodes):
            node = self.nodes[name]
            for action, pace in ((node.tick, 0.8), (node.sync, self._sync_pace), (node.apply, 0.8), (node.answer, 0.8)):
                if (calm or rng.random() < pace) and self.nodes.get(name) is node:
                    self.guarded(name, action)
            if self.nodes.get(name) is node:
                node.timers.fire()
        self._spread_level()
        if self.clocks_go_wrong:
            if not calm:
                self._disturb_clocks()
            if self.clock_rng.random() < 0.1:
                self._set_clock_back()
        for probability, action in ((0.1, self._checkpoint), (0.1, self._sweep), (0.02, self.compare)):
            if rng.random() < probability:
                action()
        self._send_snapshots()
        self.check_invariants()

    def _spread_level(self) -> None:
        rng = self.level_rng
        if rng.random() < RAISE_CHANCE:
            self.level = NEXT.highest
        for node in self.nodes.values():
            if node.node_log.known_level < self.level and rng.random() < 0.05:
                node.learn_level(self.level)

    def _disturb_clocks(self) -> None:
        """Put the clocks of all nodes ahead by the same amount for a while, and then make them right again.

        After that, an operator sets the partition's clock back."""
        rng = self.clock_rng
        if self.wrong_ms:
            if rng.random() < RIGHT_CHANCE:
                self.wrong_ms = 0
        elif self.clocks_go_wrong and rng.random() < WRONG_CHANCE:
            self.wrong_ms = rng.choice((5_000, 3_600_000))

    def _set_clock_back(self) -> None:
        node = next((node for node in self.nodes.values() if node.host.ready), None)
        if node is None or self.wrong_ms or node.host.status.floor_ms - node.clock.ms < FLOOR_AHEAD_MS:
            return

        def done(result: Any) -> None:
            if isinstance(result, dict):
                self.resets += result["outcome"] == clock_reset.BEGUN

        node.call(c.ClockReset(node.clock.ms), done)

    def _send_snapshots(self) -> None:
        for node in list(self.nodes.values()):
            under_way = {t.target for t in self._transfers}
            new = cluster_snapshots.begin(node, self.nodes, self.network.joins, self.rng, self._pin_bytes)
            self._transfers += [transfer for transfer in new if transfer.target not in under_way]
        for transfer in list(self._transfers):
            if self.rng.random() < 0.7 and transfer in self._transfers:
                more = self.guarded(transfer.target.name, transfer.step)
                if not more and transfer in self._transfers:
                    self._transfers.remove(transfer)
                    self.snapshots += transfer.installed
                    self.outrun += transfer.is_outrun

    def live(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
            self.clients.act()

    def heal(self) -> None:
        """Stop all faults. Then all acknowledged messages must be delivered, acked and trimmed on all nodes."""
        for disk in self.disks.values():
            disk.memory.crash_after(1 << 60)
        for name, node in list(self.nodes.items()):
            node.plan.fail_sync_at = node.plan.budget_bytes = None
            if node.node_log.failed is not None:
                self._lose(name, power_loss=False)
        for name in NAMES:
            if name not in self.nodes:
                self.start(name, Plan())
        self.wrong_ms = 0
        self.network.repeats = 0.0
        self.network.renew()
        until_ms, moved = self.clock.ms + HEALED_MS, False
        for turn in count():
            if self.clock.ms > until_ms:
                raise AssertionError(f"not done after healing: {self._describe_pending()}")
            self.step(calm=True)
            self.clients.finish()
            if turn < BUSY_STEPS:
                if turn % 10 == 0:
                    self.clients.produce()
                moved = moved or (turn > BUSY_STEPS // 2 and self._transfer())
                continue
            if self._is_even() and self.clients.is_done:
                break
        self.compare()
        for node in self.nodes.values():
            node.check_rows(node.replica)

    def _is_even(self) -> bool:
        nodes = self.nodes.values()
        indices = {node.replica.applied_index for node in nodes}
        return len(indices) == 1 and all(node.is_idle and self.is_settled(node) for node in nodes)

    def _describe_pending(self) -> Any:
        groups = [(n.name, n.host.ready, n.host.group.leader, n.host.group.term) for n in self.nodes.values()]
        state = [(n.replica.applied_index, n.host.status.messages, n.is_idle) for n in self.nodes.values()]
        return groups, state, self.clients.describe_pending()


def _restored(module: Any, name: str) -> Callable[[], None]:
    before = getattr(module, name)
    return lambda: setattr(module, name, before)
