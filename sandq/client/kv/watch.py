"""A watch: what is written to the keys of a compacted topic, as it is written.

One task a partition asks for changes again and again (KV_WATCH waits for the first) and goes on from where the last
answer ended, whoever leads by then. Answers wait for the consumer in one line; of a partition two at most, then it asks
no more. So nothing is held for who is slow but what a few answers bring, and nothing is lost: the log keeps the rest.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final

import anyio
import anyio.abc

from sandq.client.kv.entries import Change
from sandq.client.kv.scan import KeyRange
from sandq.client.kv.watch_positions import Beginning, WatchPosition, WatchStart
from sandq.client.messages.fetch import open_piece
from sandq.client.options import again
from sandq.client.signals import Signal
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call_leader_until_closed
from sandq.model.errors import ClosedError, ProtocolError, SandqError, Unavailable, UnknownTopic
from sandq.model.partitioning import KeyPartitions
from sandq.model.piece import Piece
from sandq.protocol.replies import TopicRecord
from sandq.protocol.requests_keys import KvChanges, KvWatch

ANSWERS_AHEAD: Final = 2
"""Of a partition, that wait for the consumer."""
ANSWER_MESSAGES: Final = 1000
ANSWER_BYTES: Final = 1 << 20
ALL_BYTES: Final = 32 << 20
"""Of what waits, over all partitions, about."""
_LEAST_BYTES: Final = 64 << 10
_WAIT_S: Final = 5.0
"""How long a node waits for a change; half of what an answer may take at most."""
_YIELD_S: Final = 0.001
"""The iterator lets other tasks run at least this often."""


class Answer:
    """Changes of one partition that came together, and how far they were taken."""

    __slots__ = ("_changes", "_mark", "_taken", "end", "is_through", "source")

    def __init__(self, source: _Source, changes: list[Change], end: WatchPosition) -> None:
        self.source = source
        self.end = end
        self.is_through = False
        self._changes = changes
        self._mark = end.mark
        self._taken = 0

    def take(self) -> Change:
        """The next one; there is one unless it is through."""
        change = self._changes[self._taken]
        self._taken += 1
        self.source.current = self
        if self._taken == len(self._changes):
            self.is_through = True
            self.source.reached = self.end
        return change

    @property
    def position(self) -> WatchPosition | None:
        """Where it was taken to; None: not begun, or through."""
        if not self._taken or self.is_through:
            return None
        return WatchPosition(self._changes[self._taken - 1].offset, self._mark)


class _Source:
    """One partition. What the consumer does with it may happen in another thread: it writes `current` and `reached`."""

    def __init__(self, partition: int, position: WatchPosition | None) -> None:
        self.partition = partition
        self.reached = position
        """Where the consumer stands, unless it is amid `current`; None: nobody has said yet where "now" is."""
        self.current: Answer | None = None
        self.asked = position
        """From where the next answer goes on."""
        self.last: Answer | None = None
        self.has_answered = False
        self.waiting = 0
        """Answers in the line."""
        self.room = Signal()

    @property
    def position(self) -> WatchPosition | None:
        """Everything up to there was handed out."""
        current = self.current
        return (current.position if current is not None else None) or self.reached

    def passed(self, end: WatchPosition) -> None:
        """Nothing more is there up to the end."""
        last = self.last
        if last is not None and not last.is_through:
            last.end = end
        else:
            self.reached = end


class Watch:
    """Changes of keys; made by `kv.watch`, an async context manager and iterator. One task iterates.

    Error handling: connections that break are made again for ever; the iterator raises only what cannot get better
    (the topic was deleted; HistoryGone), behind the changes that came before it, and ClosedError after the block was
    left. Entering raises Unavailable when a partition cannot say where "now" is within the client's `timeout`.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: anyio.abc.TaskGroup,
        topic: str,
        record: Callable[[], Awaitable[TopicRecord]],
        keys: KeyRange,
        only: bytes | None,
        start: WatchStart,
        latest: bool,
    ) -> None:
        self.topic = topic
        self._cluster = cluster
        self._tasks = tasks
        self._record = record
        self._keys = keys
        self._only = only
        self._beginning = Beginning(start)
        self._every = not latest
        self._number = 0
        self._bytes = ANSWER_BYTES
        self._wait_ms = round(min(_WAIT_S, cluster.options.timeout_s / 2) * 1000)
        self._sources: list[_Source] = []
        self._line: deque[Answer] = deque()
        self._arrived = Signal()
        self._known = Signal()
        self._scope = anyio.CancelScope()
        self._error: SandqError | None = None
        self._is_open = False
        self._entered = False
        self._yielded_at = 0.0

    async def __aenter__(self) -> Watch:
        if self._entered:
            raise ClosedError("a watch is entered once; make another one with kv.watch")
        self._entered = True
        record = await self._record()
        self._number, count = record.number, record.initial_partitions
        partitions = KeyPartitions.of_topic(count, record.settings)
        keys = self._keys
        one = partitions.of_range(keys.start, keys.stop) if self._only is None else partitions.of(self._only)
        watched = range(count) if one is None else [one]
        self._sources = [_Source(*position) for position in self._beginning.positions(watched, count).items()]
        self._bytes = max(_LEAST_BYTES, min(ANSWER_BYTES, ALL_BYTES // (ANSWERS_AHEAD * count)))
        self._is_open = True
        self._tasks.start_soon(self._run)
        try:
            await self._until_known()
        except BaseException:
            self._leave()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()

    def __aiter__(self) -> Watch:
        return self

    async def __anext__(self) -> Change:
        """The next change; waits for it."""
        if time.monotonic() - self._yielded_at <= _YIELD_S and self._line:
            return self._take()
        await self._until_arrived()
        return self._take()

    @property
    def position(self) -> dict[int, str]:
        """How far changes were handed out, by partition: the `start` of a watch that goes on from there. May be saved
        as JSON."""
        positions = {source.partition: source.position for source in self._sources}
        found = {partition: position.text for partition, position in positions.items() if position is not None}
        if not found:
            raise ClosedError("a watch has a position once it was entered: `async with kv.watch() as watch:`")
        return found

    def take_arrived(self) -> Change | None:
        """The next change if it has come already; never waits."""
        if not self._line:
            self.check_open()
        return self._take() if self._line else None

    async def next_answers(self) -> list[Answer]:
        """All that has come, for who reads it elsewhere: another thread."""
        await self._until_arrived()
        answers = list(self._line)
        self._line.clear()
        for answer in answers:
            self._makes_room(answer)
        return answers

    def check_open(self) -> None:
        """Raise what the iterator would behind the last change: that it was left, or why it cannot go on."""
        if self._error is not None:
            raise again(self._error)
        if not self._is_open:
            raise _closed(self.topic)

    # Taking.

    async def _until_arrived(self) -> None:
        if time.monotonic() - self._yielded_at > _YIELD_S:
            await anyio.lowlevel.checkpoint()
        while not self._line:
            self.check_open()
            await self._arrived.wait()
        self._yielded_at = time.monotonic()

    def _take(self) -> Change:
        answer = self._line[0]
        change = answer.take()
        if answer.is_through:
            self._line.popleft()
            self._makes_room(answer)
        return change

    @staticmethod
    def _makes_room(answer: Answer) -> None:
        answer.source.waiting -= 1
        answer.source.room.set()

    # The tasks.

    async def _run(self) -> None:
        try:
            with self._scope:
                async with anyio.create_task_group() as following:
                    for source in self._sources:
                        following.start_soon(self._follow, source)
        finally:
            if self._is_open:  # the client was closed first
                self._fail(_closed(self.topic))

    async def _follow(self, source: _Source) -> None:
        try:
            while True:
                while source.waiting >= ANSWERS_AHEAD:
                    await source.room.wait()
                frame = await call_leader_until_closed(
                    self._cluster, self._request(source), wait_s=self._wait_ms / 1000
                )
                self._check_number()
                self._take_over(source, KvChanges.parse(frame))
        except SandqError as error:
            self._fail(error)

    def _request(self, source: _Source) -> KvWatch:
        after, mark = source.asked if source.asked is not None else (None, None)
        # The first answer comes at once: it says how far there is nothing to be seen.
        wait_ms = self._wait_ms if source.has_answered else 0
        return KvWatch(
            *(self.topic, source.partition, after, mark, self._every, self._keys.start, self._keys.stop),
            *(ANSWER_MESSAGES, self._bytes, wait_ms),
        )

    def _take_over(self, source: _Source, answer: KvChanges) -> None:
        if source.asked is not None and answer.through < source.asked.after:
            raise ProtocolError("KV_WATCH reply: through lies before what was asked for")
        changes = [change for piece in answer.pieces for change in _cut(piece, source.partition)]
        source.asked = WatchPosition(answer.through, answer.mark)
        if changes:
            source.last = Answer(source, changes, source.asked)
            source.waiting += 1
            self._line.append(source.last)
            self._arrived.set()
        else:
            source.passed(source.asked)
        source.has_answered = True
        self._known.set()

    def _check_number(self) -> None:
        record = self._cluster.record(self.topic)
        if record is not None and record.number != self._number:
            raise UnknownTopic(f"topic {self.topic!r} was deleted; there is another one of this name", topic=self.topic)

    def _fail(self, error: SandqError) -> None:
        if self._error is None:
            self._error = error
        self._scope.cancel()
        self._arrived.set()
        self._known.set()

    # Entering and leaving.

    async def _until_known(self) -> None:
        """Until every partition has answered; that long at most, unless nobody knows yet where it begins."""
        timeout_s = self._cluster.options.timeout_s
        with anyio.move_on_after(timeout_s):
            while self._error is None and not all(source.has_answered for source in self._sources):
                await self._known.wait()
        unknown = [source.partition for source in self._sources if source.position is None]
        if unknown:
            self.check_open()
            where = f"partition {unknown[0]} of topic {self.topic!r}"
            raise Unavailable(f'{where} did not say in {timeout_s:g} s where "now" is{self._cluster.error_summary()}')

    def _leave(self) -> None:
        self._is_open = False
        self._line.clear()
        self._scope.cancel()
        self._arrived.set()


def _cut(piece: Piece, partition: int) -> list[Change]:
    found, positions = open_piece("KV_WATCH reply", piece)
    keys, values = found.keys(), found.values()
    changes = []
    for position in positions:
        key = keys[position] if keys else None
        if key is None:
            raise ProtocolError("KV_WATCH reply: a change without a key")
        changes.append(Change(found, position, key, values[position], partition))
    return changes


def _closed(topic: str) -> ClosedError:
    return ClosedError(f"the watch of topic {topic!r} is closed")
