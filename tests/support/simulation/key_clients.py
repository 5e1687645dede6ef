"""Simulate clients of the keys of a compacted topic: they read, put, delete and swap, and record the answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sandq.broker.replication.applier import Ask
from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.errors import NotLeader, Overloaded, SandqError, StorageFailed, TimedOut, Unavailable
from sandq.model.sequence import RESENT
from sandq.partition import commands as c
from sandq.partition.kv.key_table import Value
from sandq.partition.kv.writes import ABSENT, CHANGED, NO_VERSION
from sandq.partition.log.appends import Stored
from tests.support.simulation.cluster_node import ClusterNode
from tests.support.simulation.linearizable import Operation
from tests.support.simulation.stepped import SteppedEvent, VirtualClock

KEYS = (b"k1", b"k2", b"k3", b"k4")
BRIEF = b"brief"
"""Key whose values have a time to live.

Clocks of nodes differ, so a value has no single expiry time. A node whose clock is ahead reports no value, while a
write in flight still finds the value. No order of operations explains that, so the check skips this key. But no client
may see an expired value."""
WRONG = bytes(15) + b"\x01"
"""A version that no value ever had."""
LOST = 0.1
"""Share of the answers to a client that are lost."""
PATIENCE_MS = (100, 300, 1000, 3000)
"""Timeouts of a client, in ms. Clients with a short timeout soon leave a leader that is cut off while another leads."""
NOT_DONE = (NotLeader, Overloaded, Unavailable)
UNKNOWN = (StorageFailed, TimedOut)
BYTES = 1 << 20


class KeyClients:
    """The shared state of all clients, and their interface to the world."""

    def __init__(self, rng: random.Random, clock: VirtualClock, nodes: dict[str, ClusterNode], *, clients: int) -> None:
        self.rng, self.clock = rng, clock
        self.histories: dict[bytes, list[Operation]] = {key: [] for key in (*KEYS, BRIEF)}
        self.events = count(1)
        self.values = count()
        self.versions = [WRONG]
        """Versions that existed at some time."""
        self.clients = [KeyClient(self, number) for number in range(1, clients + 1)]
        self.resent = 0
        """Number of batches that were answered after a repetition."""
        self._nodes = nodes

    def leader(self) -> ClusterNode | None:
        """Return a random node that claims to lead; None if no node does."""
        ready = [node for node in self._nodes.values() if node.host.ready]
        return self.rng.choice(ready) if ready else None

    def begin(self, key: bytes, kind: str, client: str, **asked: Any) -> Operation:
        operation = Operation(kind, next(self.events), client=client, **asked)
        self.histories[key].append(operation)
        return operation

    def not_done(self, operations: Sequence[Operation]) -> None:
        """Remove operations from the history: writes that never take effect, or reads without an answer."""
        gone = {id(operation) for operation in operations}
        for key, history in self.histories.items():
            self.histories[key] = [operation for operation in history if id(operation) not in gone]

    def expires(self, write: Write, version: bytes | None) -> None:
        """Add an operation that deletes an expired value if the key has `version`. None: it deletes any value."""
        kind = "delete" if version is None else "cas"
        ended = Operation(kind, write.operation.invoked, expected=version, client="time")
        self.histories[write.key].append(ended)

    def gone(self, node: ClusterNode) -> None:
        for client in self.clients:
            client.gone(node)

    def act(self) -> None:
        """Run all clients in a step."""
        for client in self.clients:
            client.act()

    def produce(self) -> None:
        """Let a random client begin an operation."""
        self.rng.choice(self.clients).begin()

    def read_all(self) -> None:
        """Let each client read all keys next."""
        for client in self.clients:
            client.read(list(KEYS))

    def finish(self) -> None:
        """Continue the operations in progress."""
        for client in self.clients:
            client.proceed()

    @property
    def is_done(self) -> bool:
        return all(client.doing is None for client in self.clients)

    def describe_pending(self) -> Any:
        """Describe the unfinished operations."""
        return [client.doing for client in self.clients]


class KeyClient:
    """A client that does one random operation at a time.

    A client with an even number is an idempotent producer: it numbers its batches and resends them if there is no
    answer. For other clients, the outcome of an unanswered batch stays unknown."""

    def __init__(self, all_of_them: KeyClients, number: int) -> None:
        self.all = all_of_them
        self.rng = all_of_them.rng
        self.name = f"c{number}"
        self.doing: Reading | Writing | None = None
        self.seen: dict[bytes, bytes] = {}
        """Last known version of each key. `ABSENT`: the key had no value."""
        self.learned = KEYS[0]
        """Key of the last answer that this client received."""
        self.producer_id = 0 if number % 2 else number
        self.epoch, self.number = 1, 0

    def act(self) -> None:
        if self.doing is None:
            if self.rng.random() < 0.4:
                self.begin()
        else:
            self.proceed()

    def proceed(self) -> None:
        if self.doing is not None:
            self.doing.proceed()

    def gone(self, node: ClusterNode) -> None:
        if isinstance(self.doing, Reading) and self.doing.node is node:
            self.doing.end()

    def begin(self) -> None:
        if self.doing is not None:
            return
        if self.rng.random() < 0.45:
            every = list(self.all.histories)
            self.read(self.rng.sample(every, self.rng.choice((1, 1, 2, len(every)))))
        else:
            self.write(self.rng.choice((1, 1, 1, 2, 4)))

    def read(self, keys: list[bytes]) -> None:
        node = self.all.leader()
        if node is not None and self.doing is None:
            self.doing = Reading(self, node, keys)
            self.doing.proceed()

    def write(self, length: int) -> None:
        if self.all.leader() is None:
            return
        writes = [self._write_of() for _ in range(length)]
        batch = encode(_columns(writes))
        self.number += 1
        self.doing = Writing(self, writes, batch, any(write.expected is not None for write in writes))
        self.doing.send()

    def _write_of(self) -> Write:
        rng = self.rng
        key = rng.choice(KEYS) if rng.random() < 0.9 else BRIEF
        if rng.random() < 0.5:
            key = self.learned  # this client's version of that key may still be current
        kind = rng.choices(("put", "delete", "cas"), (4, 2, 6))[0]
        value = b"v%d" % next(self.all.values) if kind == "put" or (kind == "cas" and rng.random() < 0.8) else None
        expected = None
        if kind == "cas":
            known = self.seen.get(key, ABSENT)
            expected = rng.choices((known, ABSENT, rng.choice(self.all.versions[-20:]), WRONG), (7, 2, 1, 1))[0]
        ttl_ms = rng.choice((1, 300, 2000)) if key == BRIEF and value is not None else None
        operation = self.all.begin(key, kind, self.name, value=value, expected=expected)
        return Write(key, operation, value, expected, ttl_ms)

    def learn(self, key: bytes, version: bytes | None) -> None:
        self.seen[key], self.learned = version or ABSENT, key
        if version is not None:
            self.all.versions.append(version)

    def ended(self, doing: Reading | Writing) -> None:
        if self.doing is doing:
            self.doing = None

    def begin_epoch(self) -> None:
        """Begin a new epoch after a batch was given up, so that no late copy of it is stored after the next batch."""
        self.epoch, self.number = self.epoch + 1, 0


@dataclass
class Write:
    """A write of a batch."""

    key: bytes
    operation: Operation
    value: bytes | None
    expected: bytes | None
    ttl_ms: int | None


def _columns(writes: Sequence[Write]) -> dict[int, Any]:
    columns: dict[int, Any] = {
        Column.KEY: [write.key for write in writes],
        Column.VALUE: [write.value for write in writes],
    }
    for column, cells in (
        (Column.EXPECTED_VERSION, [write.expected for write in writes]),
        (Column.TTL_MS, [write.ttl_ms for write in writes]),
    ):
        if any(cell is not None for cell in cells):
            columns[column] = cells
    return columns


class Reading:
    """A read of some keys, or a scan of all keys, on a node that claims to lead. It runs as in the server."""

    def __init__(self, client: KeyClient, node: ClusterNode, keys: list[bytes]) -> None:
        self.client, self.node, self.keys = client, node, keys
        self._operations = [client.all.begin(key, "get", client.name) for key in keys]
        self._began_ms = client.all.clock.ms
        self._until_ms = self._began_ms + client.rng.choice(PATIENCE_MS)
        scans = client.rng.random() < 0.3
        self._steps: Coroutine[None, None, list[bytes | None]] = self._read(scans)

    def __repr__(self) -> str:
        return f"reading {self.keys} of {self.node.name} since {self._began_ms}"

    async def _read(self, scans: bool) -> list[bytes | None]:
        node = self.node
        await node.host.read()
        replica = node.replica

        def values() -> list[bytes | None]:
            return replica.values(self.keys, BYTES)

        def scan() -> list[bytes | None]:
            found = {key: row for part, _ in replica.scan(b"", None, len(KEYS) + 2, BYTES) for key, row in part}
            return [found.get(key) for key in self.keys]

        answered = SteppedEvent()
        answers: list[list[bytes | None]] = []

        def take(rows: list[bytes | None]) -> None:
            answers.append(rows)
            answered.set()

        node.tasks.append(Ask(scan if scans else values, take))
        await answered.wait()
        return answers[0]

    def proceed(self) -> None:
        try:
            self._steps.send(None)
        except StopIteration as stop:
            self._answered(stop.value)
        except NOT_DONE:
            self.end()
        else:
            if self.client.all.clock.ms > self._until_ms:
                self.end()

    def end(self) -> None:
        """End the read without an answer: the node has ended, or the client's time is over."""
        self._steps.close()
        self.client.all.not_done(self._operations)
        self.client.ended(self)

    def _answered(self, rows: list[bytes | None]) -> None:
        all_of_them = self.client.all
        at = next(all_of_them.events)
        for key, operation, row in zip(self.keys, self._operations, rows, strict=True):
            value = None if row is None else Value.load(row)
            operation.answered = at
            if value is not None:
                operation.value, operation.version = value.value, value.version
            self.client.learn(key, operation.version)
        self.client.ended(self)


@dataclass
class Writing:
    """A batch, and its state at the client."""

    client: KeyClient
    writes: list[Write]
    batch: bytes
    split: bool
    sent: int = 0
    is_unsure: bool = False
    """Whether the outcome of some copy of the batch is unknown."""
    first_answer: Any = None
    """First answer of a leader. All later answers must be equal."""
    ended: bool = False
    until_ms: int = field(init=False)
    """Time at which the batch is given up, in ms."""

    def __post_init__(self) -> None:
        client = self.client
        self.until_ms = client.all.clock.ms + client.rng.choice(PATIENCE_MS)
        self._numbers = (client.producer_id, client.epoch, client.number)

    def __repr__(self) -> str:
        return f"writing {[write.key for write in self.writes]} until {self.until_ms}, {self._numbers}"

    def send(self) -> None:
        client, node = self.client, self.client.all.leader()
        if node is None:
            return
        producer_id, epoch, number = self._numbers
        command = c.Append(self.batch, split=self.split)
        if producer_id:
            sequence = number | (RESENT if self.sent else 0)
            command = c.Append(self.batch, producer_id, epoch, sequence, c.REJECT, self.split)
        self.sent += 1
        node.call(command, self._answered_by(client.rng.random() < LOST), messages=len(self.writes))

    def _answered_by(self, is_lost: bool) -> Callable[[Any], None]:
        def done(result: Any) -> None:
            if not isinstance(result, SandqError):
                assert self.first_answer in (None, result), (
                    f"a resent batch has another answer: {self.first_answer}, {result}"
                )
                self.first_answer = result
            if self.ended:
                return  # the answer to a late copy of the batch
            if isinstance(result, UNKNOWN) or is_lost:
                self.is_unsure = True
                if not self.client.producer_id:
                    self.give_up()
            elif isinstance(result, NOT_DONE):
                if not self.client.producer_id:
                    self.client.all.not_done([write.operation for write in self.writes])
                    self._end()
            else:
                assert not isinstance(result, SandqError), result
                self._stored(result)

        return done

    def proceed(self) -> None:
        if self.client.all.clock.ms > self.until_ms:
            self.give_up()
        elif self.client.producer_id and self.client.rng.random() < 0.1:
            self.send()

    def give_up(self) -> None:
        """Give up the batch. Its outcome stays unknown."""
        for write in self.writes:
            if write.ttl_ms is not None:
                self.client.all.expires(write, None)
        self.client.begin_epoch()
        self._end()

    def _end(self) -> None:
        self.ended = True
        self.client.ended(self)

    def _stored(self, result: Any) -> None:
        all_of_them = self.client.all
        at = next(all_of_them.events)
        all_of_them.resent += self.sent > 1
        refused: set[int] = set()
        if isinstance(result, Stored):
            assert all(why == CHANGED for _, why in result.refused)
            refused = {position for position, _ in result.refused}
        for position, (write, version) in enumerate(zip(self.writes, versions_of(result), strict=True)):
            operation = write.operation
            operation.answered = at
            operation.refused = position in refused
            operation.version = None if operation.refused and version == NO_VERSION else version
            assert not (operation.refused and write.expected is None), "refused without a condition"
            if write.ttl_ms is not None and not operation.refused:
                all_of_them.expires(write, version)
            holds = None if write.value is None and not operation.refused else operation.version
            self.client.learn(write.key, holds)
        self._end()


def versions_of(result: Any) -> list[bytes]:
    """Return the version of each message from the answer to an Append. For a rejected message, it is the current
    version of the key."""
    if isinstance(result, Stored):
        size = offsets.OFFSET_BYTES
        return [result.offsets[at : at + size] for at in range(0, len(result.offsets), size)]
    return offsets.run(*result)
