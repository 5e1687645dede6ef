"""Simulate whole nodes of a cluster with crashes, cuts, hangs, wiped disks, joins, drains and moves, from one seed.

The nodes are complete nodes of `run_node`, in virtual time. Clients outlive the nodes, and the answers to clients are
checked: no acknowledged message is lost, and no message is early. Replicas that have applied the same entries have the
same rows. If metadata or the Raft group still counts a replica, it is not deleted. In the end all faults are healed,
and the cluster must come to rest."""

from __future__ import annotations

import random
import tempfile
import uuid
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, ClassVar, Final

import anyio._backends._trio  # noqa: F401 - it keeps trio's functions, and is not to come first while others stand there
import structlog
import trio
import trio.testing

from sandq.broker.broker import Broker
from sandq.broker.clock.clock_keeper import ClockKeeper
from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.leader.subscription import Subscription
from sandq.broker.replication import node_log, runner
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import Delivery, MetadataView, PartitionReplica
from sandq.metadata.records import REMOVING
from sandq.model.batch import Column, encode
from sandq.model.caller import NODE
from sandq.model.config import NodeConfig, load_config
from sandq.model.errors import SandqError, StorageFailed
from sandq.model.members import member_id, own_member
from sandq.model.names import COMPACTED, TIMER
from sandq.node import run_node
from sandq.node import serving as node_serving
from sandq.node import start as node_start
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.protocol.peer import PeerFrame
from sandq.protocol.requests import Subscribe
from sandq.raft import core, hooks
from sandq.storage import identity
from tests.support.nodes.administrator import Administrator
from tests.support.nodes.fake_receiver import FakeReceiver
from tests.support.raft.library_time import replace_time
from tests.support.simulation.oracle import messages_of
from tests.support.simulation.virtual_net import HOST, VirtualNet
from tests.support.simulation.whole_node import (
    CLOCK,
    HANGS,
    FairTaskWorker,
    Life,
    Machine,
    TaskWorker,
    in_task,
    running_on,
)

FOUNDERS: Final = ("n1", "n2", "n3")
JOINING: Final = ("n4", "n5")
TOPIC, GROUP, CONSUMER = "t", "g", "c"
PARTITIONS = 3
TopicPartition = tuple[str, int]
"""A topic and one of its partitions."""
START_S = 1_800_000_000.0
DRIFT_S = 0.05
"""Maximum deviation of a node's wall clock from the true time, in seconds."""
REST_S = 300.0
"""Time after the last fault within which everything must be at rest, in seconds."""
ASK_S = 10.0
"""Timeout of a client's request, in seconds."""
LOG_LINES = 60
"""Number of recent events that a failure report shows."""
COUNTS_FIELD = 6
"""Index of the counts in the row with a partition's state."""


STEPS_MOST = 50_000
"""Maximum number of task steps at one virtual time. If there are more, some task loops without waiting."""


class Rounds(trio.abc.Instrument):
    """Detects a task that loops without waiting, because virtual time would never advance again."""

    def __init__(self) -> None:
        self.too_many = trio.Event()
        self._at_s = 0.0
        self._steps = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        now_s = trio.current_time()
        self._steps = self._steps + 1 if now_s == self._at_s else 0
        self._at_s = now_s
        if self._steps == STEPS_MOST:
            self.too_many.set()

    async def watch(self) -> None:
        await self.too_many.wait()
        raise AssertionError("a task loops without waiting")


class MembershipWorld:
    topics: ClassVar[Mapping[str, str]] = {TOPIC: TIMER}
    """Kind of each topic, by name."""
    partitions = PARTITIONS
    """Number of partitions of each topic."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.machines = {name: Machine(name, 1000 + at) for at, name in enumerate((*FOUNDERS, *JOINING))}
        self.known = list(FOUNDERS)
        """Nodes in the current configuration, which each node reads at its next start."""
        self.net = VirtualNet(rng, lambda: running_on.get().name)
        self.sent: dict[bytes, int] = {}
        """Earliest permitted delivery time of each payload, in ms."""
        self.stored: set[bytes] = set()
        self.delivered: set[bytes] = set()
        self.acked: set[bytes] = set()
        self.counts: Counter[str] = Counter()
        """Number of events of each kind."""
        self.violations: list[str] = []
        """Violations that clients found in callbacks. They are collected, because callbacks must not raise errors."""
        self.ahead_s = {name: rng.uniform(-DRIFT_S, DRIFT_S) for name in self.machines}
        self.wiped: str | None = None
        """Name of a node that lost its data and has not joined again yet."""
        self.drained: str | None = None
        self.replicas = rng.choice((2, 3, 3))
        self.topic_partitions: list[TopicPartition] = [
            (topic, partition) for topic in self.topics for partition in range(self.partitions)
        ]
        self.log: list[str] = []
        """Descriptions of events, for failure reports."""
        self._numbers = count()
        self._subscriptions: dict[tuple[Life, str], Subscription] = {}
        """Subscriptions by node and topic."""
        self._is_over = False

    def note(self, what: str) -> None:
        self.log.append(f"{trio.current_time() - self._began_s:8.3f} {what}")

    # -- running --------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """Run `steps` random steps, heal, and come to rest."""
        self.live(partial(self._live_on, steps))

    def live(self, story: Callable[[], Awaitable[None]]) -> None:
        """Run a story, heal, and come to rest."""
        with tempfile.TemporaryDirectory() as directory, self._replaced():
            self._directory = directory
            try:
                self._rounds = Rounds()
                clock = trio.testing.MockClock(autojump_threshold=0)
                trio.run(self._main, story, clock=clock, instruments=[self._rounds])
            except BaseException as error:
                found = _first_violation(error)
                found.add_note("\n".join(self.log[-LOG_LINES:]))
                raise found from error

    @contextmanager
    def _replaced(self) -> Iterator[None]:
        """Replace the parts of nodes that use their machine by those of the world."""
        rng, state = self.rng, random.getstate()
        random.seed(self.seed)
        trio._core._run._r.seed(self.seed)  # type: ignore[attr-defined]
        answers = ClockKeeper.on_frame

        def on_frame(keeper: ClockKeeper, node: str, kind: int, body: Any) -> bool:
            if kind == PeerFrame.CLOCK_ASKED and CLOCK in running_on.get().machine.hangs:
                return True
            return answers(keeper, node, kind, body)

        uninstall = NodeLog.uninstall

        def checked_uninstall(log: NodeLog, groups: Any, metadata_index: int = 0) -> None:
            self._check_unwanted(log, groups)
            uninstall(log, groups, metadata_index)

        values: list[tuple[Any, str, Any]] = [
            (trio._core._run, "_ALLOW_DETERMINISTIC_SCHEDULING", True),  # type: ignore[attr-defined]
            (trio.to_thread, "run_sync", in_task),
            (trio, "open_tcp_stream", self.net.connect),
            (node_start, "bind", self.net.bind),
            (node_serving, "listen", self.net.listen),
            (runner, "Worker", TaskWorker),
            (runner, "FairWorker", FairTaskWorker),
            # Sets of members are iterated in the order of these hashes, which must be the same in each process.
            (hooks.Member, "__hash__", lambda member: zlib.crc32(member.id.encode())),
            (identity, "new_uuid", lambda: str(uuid.UUID(int=rng.getrandbits(128)))),
            (ClockKeeper, "on_frame", on_frame),
            (NodeLog, "uninstall", checked_uninstall),
            (core, "MAX_APPEND_BYTES", rng.choice((1000, 1 << 20))),
            (node_log, "KEPT_BYTES", rng.choice((100, 2000))),
            (node_log, "LAG_BYTES", rng.choice((500, 5000, 1 << 20))),
        ]
        before = [(module, name, getattr(module, name)) for module, name, _ in values]
        logging = structlog.get_config()
        structlog.configure(processors=[_drop], cache_logger_on_first_use=False)
        for module, name, value in values:
            setattr(module, name, value)
        try:
            yield
        finally:
            for module, name, value in before:
                setattr(module, name, value)
            structlog.configure(**logging)
            random.setstate(state)

    async def _main(self, story: Callable[[], Awaitable[None]]) -> None:
        self._began_s = trio.current_time()
        undo = replace_time(trio.current_time, self.rng)
        try:
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                nursery.start_soon(self._rounds.watch)
                for name in FOUNDERS:
                    self.start(name)
                await self._create_topics()
                nursery.start_soon(self._produce)
                nursery.start_soon(self._consume)
                await story()
                await self._heal()
                nursery.cancel_scope.cancel()
        finally:
            for life in self._lives():
                life.is_lost = True
            undo()

    async def _live_on(self, steps: int) -> None:
        for _ in range(steps):
            await trio.sleep(self.rng.uniform(0.05, 0.5))
            await self.disturb()
            self.check()

    async def restart_all(self) -> None:
        """Cut the power of all nodes, and start them at once."""
        self.note("all nodes start anew")
        for name in self.known:
            if self.machines[name].life is not None:
                self.lose(name, power_loss=True)
        for name in self.known:
            self.start(name)

    async def _create_topics(self) -> None:
        until_s = trio.current_time() + REST_S
        while missing := [topic for topic in self.topics if not any(topic in view.topics for view in self._views())]:
            assert trio.current_time() < until_s, f"no topic: {self._describe_pending()}"
            broker = self._metadata_leader()
            if broker is not None:
                kind = self.topics[missing[0]]
                made = Administrator(broker).create_topic(
                    missing[0], kind, self.partitions, self.replicas, self._settings(kind)
                )
                await self._ask(made)
            await trio.sleep(0.2)

    def _settings(self, kind: str) -> dict[str, Any]:
        return {"lease": "2s", "retention": "0s", "max_attempts": "none"}

    async def _ask(self, asked: Any) -> bool:
        """Execute a request with a timeout. Return whether it was confirmed."""
        with trio.move_on_after(ASK_S):
            try:
                await asked
                return True
            except SandqError as error:
                self.note(f"refused: {error.message}")
        return False

    # -- nodes ----------------------------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        machine = self.machines[name]
        machine.life = life = Life(machine, self._nursery, self.rng)
        self._nursery.start_soon(self._live, life)

    async def _live(self, life: Life) -> None:
        running_on.set(life)
        wall = partial(self._wall_s, life.name)
        clock = GuardedClock(wall=wall, monotonic=trio.current_time)
        try:
            with life.scope:
                async with run_node(
                    self._config(life.name), files=life.files, stores=lambda path, create: life.stores, clock=clock
                ) as serving:
                    life.serving = serving
                    await life.stopping.wait()
        except* StorageFailed as errors:
            self.note(f"{life.name} ends: {errors.exceptions[0]}")
        finally:
            life.serving = None
            life.ended.set()

    def _wall_s(self, name: str) -> float:
        return START_S + trio.current_time() + self.ahead_s[name]

    def _config(self, name: str) -> NodeConfig:
        ports = {other: self.machines[other].port for other in self.machines}
        named = [
            f"{{id: {other}, peer: '{HOST}:{port}', client: '{HOST}:{port + 100}', http: '{HOST}:1'}}"
            for other, port in ports.items()
            if other in self.known and other != name
        ]
        settings = {
            "NODE__ID": name,
            "NODE__DATA_DIR": f"{self._directory}/{name}",
            "LISTEN__CLIENT": f"{HOST}:{ports[name] + 100}",
            "LISTEN__PEER": f"{HOST}:{ports[name]}",
            "LISTEN__HTTP": "none",
            "CLUSTER__MEMBERSHIP": "static",
            "CLUSTER__PEERS": f"[{', '.join(named)}]",
            "CLUSTER__REASSIGN_AFTER": "20s",
            "STORAGE__SEGMENT_BYTES": "1048576",
            "STORAGE__CHECKPOINT_INTERVAL": "5s",
            "STORAGE__SCRUB_RATE": "0",
        }
        return load_config(None, {f"SANDQ_{key}": value for key, value in settings.items()})

    def lose(self, name: str, *, power_loss: bool) -> None:
        """End a node by a power loss or the end of its process."""
        machine = self.machines[name]
        life, machine.life = machine.life, None
        assert life is not None
        life.is_lost = True
        machine.crash(self.rng, power_loss=power_loss)
        machine.resume()
        self.net.gone(name, silently=power_loss and self.rng.random() < 0.5)
        life.scope.cancel()
        self.counts["crashes"] += 1

    async def stop(self, name: str) -> None:
        """Stop a node cleanly. A part that hangs may prevent the stop."""
        life = self.machines[name].life
        if life is None:
            return
        life.stopping.set()
        with trio.move_on_after(40):
            await life.ended.wait()
        if self.machines[name].life is life:
            if life.ended.is_set():
                self.machines[name].life = None
                self.machines[name].crash(self.rng, power_loss=False)
            else:
                self.lose(name, power_loss=False)

    def _lives(self) -> list[Life]:
        return [machine.life for machine in self.machines.values() if machine.life is not None]

    def _brokers(self) -> list[Broker]:
        return [life.serving.broker for life in self._lives() if life.serving is not None]

    def _views(self) -> list[MetadataView]:
        return [host.status for host in map(self._metadata_of, self._brokers()) if host is not None]

    @staticmethod
    def _metadata_of(broker: Broker) -> RaftGroup | None:
        return broker.node_log.hosts.get(node_log.METADATA_GROUP)

    def _newest_view(self) -> MetadataView | None:
        return max(self._views(), key=lambda view: view.applied_index, default=None)

    def _metadata_leader(self) -> Broker | None:
        for broker in self._brokers():
            metadata = self._metadata_of(broker)
            if metadata is not None and metadata.works:
                return broker
        return None

    def _hosts(self, place: TopicPartition) -> list[tuple[Broker, RaftGroup]]:
        """Return the Raft groups of a partition, with their brokers."""
        found = []
        topic, partition = place
        for broker in self._brokers():
            opened = broker.catalog.topics.get(topic)
            if opened is not None and partition in opened.partitions:
                found.append((broker, opened.partitions[partition].raft_group))
        return found

    # -- clients --------------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        return int((START_S + trio.current_time()) * 1000)

    async def _produce(self) -> None:
        rng = self.rng
        while not self._is_over:
            self._produce_one()
            await trio.sleep(rng.uniform(0.05, 0.4))

    def _produce_one(self) -> None:
        rng = self.rng
        place = self.topic_partitions[rng.randrange(len(self.topic_partitions))]
        leading = [host for _, host in self._hosts(place) if host.ready]
        if not leading:
            return
        payload = b"m%d" % next(self._numbers)
        cells = self._cells(self.topics[place[0]], payload)
        self.sent[payload] = cells.get(Column.DELIVER_MS, [self._now_ms()])[0]

        def done(result: Any) -> None:
            if not isinstance(result, SandqError):
                self._note_stored(place[0], payload)

        try:
            rng.choice(leading).submit(c.Append(encode(cells), split=Column.COST in cells), done, messages=1)
        except SandqError:
            return

    def _note_stored(self, topic: str, payload: bytes) -> None:
        self.stored.add(payload)

    def _cells(self, kind: str, payload: bytes) -> dict[int, list[Any]]:
        """Return the columns of a batch with one message."""
        return {
            Column.VALUE: [payload],
            Column.DELIVER_MS: [self._now_ms() + self.rng.choice((0, 0, 200, 2000, 15_000))],
        }

    async def _consume(self) -> None:
        while True:
            for life in self._lives():
                for topic in [*self.topics]:
                    subscription = self._subscriptions.get((life, topic))
                    if life.serving is not None and (subscription is None or subscription.closed):
                        await self._subscribe(life, topic)
            await trio.sleep(0.5)

    async def _subscribe(self, life: Life, topic: str) -> None:
        assert life.serving is not None
        broker = life.serving.broker
        request = Subscribe(1, topic, GROUP, CONSUMER, 20, None, "earliest", [])
        ended: list[SandqError] = []
        push = partial(self._pushed, life, broker, topic)
        with trio.move_on_after(ASK_S):
            try:
                subscription, _ = await broker.subscribe(request, NODE, FakeReceiver(push, ended=ended.append))
            except SandqError:
                return
            if not ended:
                self._subscriptions[life, topic] = subscription

    def _pushed(self, life: Life, broker: Broker, topic: str, delivery: Delivery) -> None:
        if life.is_lost or life.serving is None:
            return
        now_ms = self._now_ms()
        found = self._messages(delivery)
        for _, payload in found:
            early_ms = self.sent[payload] - now_ms
            if early_ms > 2 * DRIFT_S * 1000:
                self.violations.append(f"{payload!r} is {early_ms} ms early from {life.name}")
            if payload in self.acked:
                self.violations.append(f"{payload!r} was acked and comes again")
            self.delivered.add(payload)
        self._finish(life, broker, topic, delivery)

    def _finish(self, life: Life, broker: Broker, topic: str, delivery: Delivery) -> None:
        """Ack the messages of a delivery, and ask for as many others."""
        found = self._messages(delivery)

        def done(result: Any) -> None:
            if not isinstance(result, SandqError) and result[0] is None:
                self.acked.update(payload for _, payload in found)

        subscription = self._subscriptions.get((life, topic))
        if subscription is not None:
            broker.add_credit(subscription, len(found))
        host = broker.node_log.hosts.get(delivery.group_number)
        if host is not None:
            try:
                host.submit(c.Ack([(delivery.token, [[offset, 1] for offset, _ in found])]), done)
            except SandqError:
                return

    def _messages(self, delivery: Delivery) -> list[tuple[bytes, bytes]]:
        """Return the offset of each message, and the payload that identifies it."""
        return messages_of(delivery)

    # -- checks ---------------------------------------------------------------------------------------------------

    def _check_unwanted(self, log: NodeLog, groups: Any) -> None:
        """Check that a replica that a node deletes is not needed.

        The replica must not be in the newest metadata that any node has applied. It must not be a voter in the
        configuration of its group's leader."""
        view = self._newest_view()
        for group in groups:
            pointer = log.pointers.get(group)
            if pointer is None or view is None:
                continue
            member = member_id(log.node_id, pointer.incarnation)
            placed = view.partition(group)
            if placed is None:
                continue
            counted_on = (*placed.members, *placed.former)
            assert member not in counted_on, f"{member} of group {group} is deleted, and metadata wants {counted_on}"
            leading = [b.node_log.hosts[group].group for b in self._brokers() if group in b.node_log.hosts]
            for leader in [one for one in leading if one.is_leader and one.age_s() is not None]:
                voters = leader.members.voters
                assert member not in voters or leader.term < max(one.term for one in leading), (
                    f"{member} of group {group} is deleted, and votes there: {voters}"
                )
            self.counts["deleted"] += 1

    def check(self) -> None:
        """Check that clients found no violation. Sometimes, compare replicas that have applied the same entries."""
        assert not self.violations, self.violations[0]
        if self.rng.random() < 0.1:
            for place in self.topic_partitions:
                self._compare(place)

    def _compare(self, place: TopicPartition) -> None:
        by_index: dict[int, tuple[str, dict[bytes, Any]]] = {}
        for broker, host in self._hosts(place):
            if broker.node_log.failed is not None:
                continue
            replica = host.replica
            assert isinstance(replica, PartitionReplica)
            own = broker.node_log.node_id, _rows(broker.node_log, replica)
            other = by_index.setdefault(replica.applied_index, own)
            if other is not own:
                self.counts["compared"] += 1
                ours, theirs = own[1], other[1]
                differ = [
                    (key, ours.get(key), theirs.get(key))
                    for key in sorted(ours.keys() | theirs.keys())
                    if ours.get(key) != theirs.get(key)
                ]
                assert not differ, f"{own[0]} and {other[0]} differ at {replica.applied_index}: {differ[:3]}"

    # -- faults ---------------------------------------------------------------------------------------------------

    async def disturb(self) -> None:
        rng = self.rng
        for chance, action in (
            (0.03, self._crash),
            (0.15, self._restart),
            (0.03, self._hang),
            (0.06, self._go_on),
            (0.04, self._cut),
            (0.1, self._join_links),
            (0.008, self._wipe),
            (0.1, self._remove_wiped),
            (0.02, self._join),
            (0.02, self._drain),
            (0.02, self._move),
            (0.01, self._stop_one),
        ):
            if rng.random() < chance:
                await action()

    def _some(self) -> str | None:
        up = [life.name for life in self._lives()]
        return self.rng.choice(up) if up else None

    async def _crash(self) -> None:
        name = self._some()
        if name is not None:
            power_loss = self.rng.random() < 0.6
            self.note(f"{name} crashes, power loss {power_loss}")
            self.lose(name, power_loss=power_loss)

    async def _restart(self) -> None:
        down = [name for name in self.known if self.machines[name].life is None]
        if down:
            name = self.rng.choice(down)
            self.note(f"{name} starts")
            self.start(name)

    async def _stop_one(self) -> None:
        name = self._some()
        if name is not None:
            self.note(f"{name} is stopped")
            await self.stop(name)

    async def _hang(self) -> None:
        name = self._some()
        if name is not None:
            what = self.rng.choice(HANGS)
            self.note(f"{name}: {what} hangs")
            self.machines[name].hang(what)
            self.counts["hangs"] += 1

    async def _go_on(self) -> None:
        name = self._some()
        if name is not None and self.machines[name].hangs:
            self.note(f"{name} goes on")
            self.machines[name].resume()

    async def _cut(self) -> None:
        rng = self.rng
        a, b = rng.sample(self.known, 2)
        kind = rng.choice(("break", "one way", "both ways", "alone"))
        self.note(f"{a} and {b}: {kind}")
        self.counts["cuts"] += 1
        if kind == "break":
            self.net.break_between(a, b)
        elif kind == "one way":
            self.net.hang(a, b)
        else:
            for other in self.known if kind == "alone" else [b]:
                if other != a:
                    self.net.hang(a, other)
                    self.net.hang(other, a)

    async def _join_links(self) -> None:
        self.net.resume()

    async def _wipe(self) -> None:
        """Restart a node without its data. If another wiped node has not joined again yet, do nothing."""
        view = self._newest_view()
        name = self._some()
        if self.wiped is not None or name is None or view is None or not self._is_whole(view) or self.replicas < 3:
            return
        self.note(f"{name} loses its disk")
        self.lose(name, power_loss=True)
        self.machines[name].wipe()
        self.wiped = name
        self.counts["wipes"] += 1

    async def _remove_wiped(self) -> None:
        """Remove the wiped node from the cluster as an operator would, so that it can join as a new one."""
        view, broker, name = self._newest_view(), self._metadata_leader(), self.wiped
        if name is None or view is None or broker is None:
            return
        record = view.nodes.get(name)
        store = self._store_of(name)
        if record is None or record.store_uuid == store:
            if record is not None and self._is_whole(view):
                self.note(f"{name} is taken in again")
                self.wiped = None
            return
        if record.standing != REMOVING and await self._ask(Administrator(broker).remove(name)):
            self.note(f"{name} is to be forgotten")

    def _store_of(self, name: str) -> str | None:
        memory = self.machines[name].memory
        if not memory.exists(identity.NAME):
            return None
        return identity.open_identity(memory, name).store_uuid

    async def _join(self) -> None:
        """Start one more node. The other nodes find it in their configuration after a restart."""
        new = [name for name in JOINING if name not in self.known]
        if not new or self.wiped is not None:
            return
        name = new[0]
        self.note(f"{name} comes")
        self.counts["joins"] += 1
        self.known.append(name)
        for other in self.known[:-1]:
            await self.stop(other)
            self.start(other)
            await trio.sleep(self.rng.uniform(0.5, 4))
        self.start(name)

    async def _drain(self) -> None:
        broker = self._metadata_leader()
        if broker is None:
            return
        if self.drained is not None:
            if await self._ask(Administrator(broker).drain(self.drained, undo=True)):
                self.note(f"{self.drained} takes part again")
                self.drained = None
        else:
            name = self.rng.choice(self.known)
            if name != self.wiped and await self._ask(Administrator(broker).drain(name)):
                self.note(f"{name} is drained")
                self.counts["drains"] += 1
                self.drained = name

    async def _move(self) -> None:
        broker, view = self._metadata_leader(), self._newest_view()
        if broker is not None and view is not None and view.topics.keys() >= self.topics.keys():
            topic, partition = self.topic_partitions[self.rng.randrange(len(self.topic_partitions))]
            node = self.rng.choice(view.topics[topic].partitions[partition].nodes)
            await self._ask(Administrator(broker).transfer(topic, partition, node))

    # -- healing --------------------------------------------------------------------------------------------------

    async def _heal(self) -> None:
        self.note("everything heals")
        self.net.resume()
        for machine in self.machines.values():
            machine.resume()
        for life in self._lives():
            serving = life.serving
            if life.ended.is_set() or (serving is not None and serving.broker.node_log.failed is not None):
                self.lose(life.name, power_loss=False)
        for name in self.known:
            if self.machines[name].life is None:
                self.start(name)
        until_s = trio.current_time() + REST_S
        busy_s = trio.current_time() + 5
        while not (trio.current_time() > busy_s and self._is_at_rest()):
            self._is_over = self._is_over or trio.current_time() > busy_s
            assert trio.current_time() < until_s, f"not at rest after healing: {self._describe_pending()}"
            if self.wiped is not None:
                await self._remove_wiped()
            if self.drained is not None and self.rng.random() < 0.2:
                await self._drain()
            await trio.sleep(0.5)
        for place in self.topic_partitions:
            self._compare(place)
        self.check()
        assert self.stored <= self.delivered, f"lost: {sorted(self.stored - self.delivered)[:5]}"

    def _is_whole(self, view: MetadataView) -> bool:
        """Return whether every node is in the cluster, and every partition has the replicas that metadata assigns."""
        if not view.topics.keys() >= self.topics.keys() or any(view.nodes.get(name) is None for name in self.known):
            return False
        if any(node.failed_since_ms is not None or node.standing == REMOVING for node in view.nodes.values()):
            return False
        for place in self.topic_partitions:
            placed = view.topics[place[0]].partitions[place[1]]
            if placed.moving:
                return False
            hosts = {broker.node_log.node_id: host for broker, host in self._hosts(place)}
            if not hosts.keys() >= set(placed.nodes) or not any(host.ready for host in hosts.values()):
                return False
            for host in hosts.values():
                if host.group.is_leader and set(host.members.voters) != set(placed.members):
                    return False
        return True

    def _is_at_rest(self) -> bool:
        view = self._newest_view()
        if self.wiped is not None or self.drained is not None or view is None or not self._is_whole(view):
            return False
        if not self.stored <= self.delivered:
            return False
        for topic, at in self.topic_partitions:
            placed = view.topics[topic].partitions[at]
            hosts = [
                host
                for broker, host in self._hosts((topic, at))
                if own_member(broker.node_log.node_id, placed.members) is not None
            ]
            ends = {(host.replica.applied_index, host.group.journal.last_index) for host in hosts}
            if len(ends) != 1 or len(hosts) != len(placed.members):
                return False
            if self.topics[topic] != COMPACTED and any(host.status.messages for host in hosts):
                return False
        return True

    def _describe_pending(self) -> Any:
        view = self._newest_view()
        return {
            "nodes": view and {node.node_id: (node.standing, node.failed_since_ms) for node in view.nodes.values()},
            "placed": view and {topic: view.topics[topic].partitions for topic in self.topics if topic in view.topics},
            "groups": {
                place: [
                    [broker.node_log.node_id, host.ready, host.group.leader, host.status.applied_index, host.stalled]
                    for broker, host in self._hosts(place)
                ]
                for place in self.topic_partitions
            },
            "missing": sorted(self.stored - self.delivered)[:5],
            "wiped": self.wiped,
            "drained": self.drained,
            "clocks": {
                b.node_log.node_id: (b.clock.reason, b.clock.waits, sorted(b.links.reachable()))
                for b in self._brokers()
            },
        }


def _rows(log: NodeLog, replica: PartitionReplica) -> dict[bytes, Any]:
    """Return all rows of a replica at its applied index, without counts, whose rows depend on the batches of writes."""
    log.applier.write()
    found = dict(replica._rows.scan(b"", b"\xff" * 40, limit=1 << 30, max_bytes=1 << 40))
    state: list[Any] = rows.unpack(found[rows.STATE_KEY]) if rows.STATE_KEY in found else []
    return {key: row for key, row in found.items() if key[:1] != rows.COUNTS} | {
        rows.STATE_KEY: state[:COUNTS_FIELD] + state[COUNTS_FIELD + 1 :]
    }


def _first_violation(error: BaseException) -> BaseException:
    """Return the first failed check in nested exception groups. If there is none, return the error itself."""
    violations = error.split(AssertionError)[0] if isinstance(error, BaseExceptionGroup) else None
    while isinstance(violations, BaseExceptionGroup):
        violations = violations.exceptions[0]
    return violations or error


def _drop(logger: Any, name: str, event: Any) -> Any:
    raise structlog.DropEvent
