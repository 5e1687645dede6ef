"""Connect a partition producer with a partition. The test controls the connection completely.

The test decides when requests are read, when replies are sent, and which requests and replies are lost. There are no
sockets, and the test moves the clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from sandq.client.options import Options
from sandq.client.producer.batches import Batch
from sandq.client.producer.partition_producer import PartitionProducer
from sandq.client.transport.connection import Build, OnReply
from sandq.client.transport.on_behalf import OURSELVES
from sandq.model.errors import ConnectionLost, SandqError, TimedOut
from sandq.model.sequence import is_resent, number_of
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.protocol.frames import FrameReader, Type
from sandq.protocol.replies import HelloReply, TopicRecord
from sandq.protocol.requests import OnBehalf, Produce
from tests.support.partition.bench import Bench, batch_of

DELIVERY_TIMEOUT_S = 10.0
OPTIONS = Options(delivery_timeout_s=DELIVERY_TIMEOUT_S, back_off_first_s=0.05, back_off_max_s=0.05)

STORE = "store"
LOSE_LEADER = "lose leader"
"""The batch is stored, and the leader fails before it can reply."""
LOSE_ENTRY = "lose entry"
"""The leader fails, and the entry is lost."""
Fate = str | SandqError
"""Result of a request: one of the words above, or an error that means that the broker did nothing."""


class Wire:
    """Replaces `client.Connection` for a partition producer. It holds requests and replies that are in flight."""

    def __init__(self, node: str) -> None:
        """Connect to the node with this id."""
        self.hello = HelloReply("", node, "", {}, 0)
        self.address = node
        self.requests: deque[tuple[int, Produce]] = deque()
        self.answers: deque[tuple[int, Any]] = deque()
        self._waiting: dict[int, OnReply] = {}
        self._last_id = 0

    def request(self, build: Build, on_reply: OnReply, asker: OnBehalf = OURSELVES) -> int:
        self._last_id += 1
        (frame,) = FrameReader().feed(build(self._last_id))
        self.requests.append((self._last_id, Produce.parse(frame)))
        self._waiting[self._last_id] = on_reply
        return self._last_id

    def forget(self, request_id: int) -> None:
        self._waiting.pop(request_id, None)

    def hand_over(self) -> None:
        """Pass the next reply to the client."""
        request_id, answer = self.answers.popleft()
        on_reply = self._waiting.pop(request_id, None)
        if on_reply is not None:
            on_reply(answer)

    def cut(self) -> None:
        """Lose the connection at the client. The broker may still read the requests that were sent."""
        waiting, self._waiting = self._waiting, {}
        self.answers.clear()
        for on_reply in waiting.values():
            on_reply(ConnectionLost("cut"))


class OneNode:
    """Replaces `client.Cluster` for a partition producer."""

    def __init__(self) -> None:
        self.wire: Wire | None = Wire("node1")
        self.topic: TopicRecord | None = None
        self._nodes = 1

    def forget_if_unknown(self, topic: str, error: SandqError) -> None:
        pass

    def missing(self, topic: str) -> None:
        return None

    def record(self, topic: str) -> TopicRecord | None:
        return self.topic

    def leader(self, topic: str, partition: int) -> Wire | None:
        return self.wire

    def refresh(self, topic: str) -> None:
        pass

    def successor(self, topic: str, partition: int, node_id: str) -> Wire | None:
        return self.wire if self.wire is not None and self.wire.hello.node_id != node_id else None

    def elect(self) -> None:
        """Make a new node the leader. The client can reach it."""
        self._nodes += 1
        self.wire = Wire(f"node{self._nodes}")


class LaneBed:
    def __init__(self, *, restarts: bool = False, note: Callable[[str], None] = lambda text: None) -> None:
        """`restarts`: load the partition from its rows before every entry."""
        self.bench = Bench()
        self.now = 100.0
        self.node = OneNode()
        self.old: list[Wire] = []
        """Lost connections, with the requests that the broker has not read yet."""
        self.sent: list[Batch] = []
        self.done: list[Batch] = []
        self.numbers: list[tuple[int, int, bool]] = []
        """Epoch, number, and whether it is a repetition, of each request that the partition received."""
        self._others = 0
        self._restarts, self._note = restarts, note
        arguments: Any = (self.node, OPTIONS, "t", 0, 77, self._on_done, lambda: None, lambda: self.now)
        self.partition_producer = PartitionProducer(*arguments)

    def _on_done(self, partition_producer: PartitionProducer, batch: Batch) -> None:
        assert batch.done and batch not in self.done, "told once"
        self.done.append(batch)
        partition_producer.pump(self.now)

    # -- the producer ---------------------------------------------------------------------------------------------

    def send(self) -> Batch:
        """Send a batch of two messages."""
        place = len(self.sent)
        batch = Batch(0, 0, self.now)
        batch.values = [b"%d.a" % place, b"%d.b" % place]
        batch.keys = batch.headers = [None, None]
        self.sent.append(batch)
        self.partition_producer.open[0] = batch
        self.partition_producer.seal(0)
        self.advance()
        return batch

    def advance(self, seconds: float = 0.0) -> None:
        """Let time pass, and let the producer check its batches, as it does after every event."""
        self.now += seconds
        self.partition_producer.expire(self.now)
        self.partition_producer.pump(self.now)

    # -- the network ----------------------------------------------------------------------------------------------

    @property
    def wire(self) -> Wire:
        assert self.node.wire is not None
        return self.node.wire

    @property
    def wires(self) -> list[Wire]:
        return [*self.old, *([self.node.wire] if self.node.wire else [])]

    def cut(self, *, connect: bool = True) -> None:
        """Lose the connection. `connect`: open a new connection at once."""
        wire = self.wire
        self.node.wire = None
        wire.cut()
        self.old.append(wire)
        if connect:
            self.connect()

    def connect(self) -> None:
        """Open a new connection and wait for the end of the pause."""
        self.node.wire = Wire("node1")
        self.advance(0.05)

    def stand_still(self) -> None:
        """Stop the replies of the node, and elect another leader.

        The broker may still read the requests that were sent, but the client does not receive the replies."""
        self.old.append(self.wire)
        self.node.elect()
        self.advance(OPTIONS.standstill_s)
        self.advance(OPTIONS.standstill_s)
        self.advance(OPTIONS.back_off_max_s)

    def read(self, *fates: Fate, wire: Wire | None = None) -> None:
        """Let the broker read requests of a connection, one for each fate."""
        wire = wire or self.wire
        for fate in fates:
            request_id, produce = wire.requests.popleft()
            wire.answers.append((request_id, self._answer(request_id, produce, fate)))

    def answer(self, count: int = 1) -> None:
        """Pass the next replies to the client."""
        for _ in range(count):
            self.wire.hand_over()
        self.advance()

    def _answer(self, request_id: int, produce: Produce, fate: Fate) -> Any:
        if isinstance(fate, SandqError):
            return fate
        if fate == LOSE_ENTRY:
            return TimedOut("leadership was lost")
        if self._restarts:
            self.bench.restart()
        self.numbers.append((produce.epoch, number_of(produce.sequence), is_resent(produce.sequence)))
        append = c.Append(produce.batch, produce.producer_id, produce.epoch, produce.sequence)
        result = self.bench.apply(0, append)[0]
        self._note(f"{self.numbers[-1]} -> {result!r}")
        if fate == LOSE_LEADER:
            return TimedOut("leadership was lost")
        return result if isinstance(result, SandqError) else [Type.REPLY, request_id, list(result), None]

    def others(self, count: int) -> None:
        """Append batches of other producers. The requests in old connections are lost."""
        for wire in self.old:
            wire.requests.clear()
        for _ in range(count):
            self._others += 1
            self.bench.apply(0, c.Append(batch_of(["other"]), 1000 + self._others, 1, 1))

    def heal(self) -> None:
        """Read and answer all requests, first those in old connections, until the producer has nothing left to do."""
        for wire in self.old:
            self.read(*[STORE] * len(wire.requests), wire=wire)
        if self.node.wire is None:
            self.connect()
        for _ in range(40 + 10 * len(self.sent)):
            if self.partition_producer.idle:
                return
            self.read(*[STORE] * len(self.wire.requests))
            self.answer(len(self.wire.answers))
            self.now += 0.05
            self.partition_producer.pump(self.now)  # the steps are too short for a timeout
        raise AssertionError("the producer does not become idle")

    # -- results --------------------------------------------------------------------------------------------------

    def stored(self) -> dict[int, bytes]:
        """Return the offset of each stored batch, by its number, in log order. Fails if a batch is stored twice."""
        found: dict[int, bytes] = {}
        for key, value in self.bench.rows(rows.LOG):
            entry = rows.log_entry(key, value)
            for message in self.bench.read([rows.Range(entry.first, entry.length)]):
                place, _, part = message.fields[1].decode().partition(".")
                if part == "a":
                    assert int(place) not in found, f"batch {place} is stored twice"
                    found[int(place)] = message.offset
        return found

    def check(self) -> None:
        """Check that batches are stored in the order in which they were sent, and that every receipt is true."""
        stored = self.stored()
        assert list(stored) == sorted(stored), "out of order"
        assert len(self.done) == len(self.sent)
        for place, batch in enumerate(self.sent):
            if batch.offsets is not None:
                assert stored.get(place) == batch.offsets.base, f"batch {place} is not where its receipt says"
            elif not batch.unknown:
                assert place not in stored, f"batch {place} is stored, but reported as not stored"
