"""A watch: the writes to the keys of a compacted topic, as they happen.

One task per partition sends KV_WATCH in a loop. The node waits for the first change. Each request continues after the
end of the last reply, even if another node leads now. Replies wait for the consumer in one queue, at most two per
partition; then the task pauses. So a slow consumer costs only the memory of a few replies, and no change is lost,
because the log keeps the rest.
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
from sandq.client.signals import Signal
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call_leader_until_closed
from sandq.model.errors import ClosedError, ProtocolError, SandqError, Unavailable, UnknownTopic
from sandq.model.partitioning import KeyPartitions
from sandq.model.piece import Piece
from sandq.protocol.replies import TopicRecord
from sandq.protocol.requests_keys import KvChanges, KvWatch

ANSWERS_AHEAD: Final = 2
"""Maximum number of replies of one partition that wait for the consumer."""
ANSWER_MESSAGES: Final = 1000
ANSWER_BYTES: Final = 1 << 20
ALL_BYTES: Final = 32 << 20
"""Approximate maximum size of all waiting replies, in bytes."""
_LEAST_BYTES: Final = 64 << 10
_WAIT_S: Final = 5.0
"""How long a node waits for a change, in seconds; limited to half of the client's timeout."""
_YIELD_S: Final = 0.001
"""Maximum time in seconds until the iterator lets other tasks run."""


class Answer:
    """Changes of one partition that arrived together, and the consumer's position in them."""

    __slots__ = ("_changes", "_mark", "_taken", "end", "is_through", "source")

    def __init__(self, source: _Source, changes: list[Change], end: WatchPosition) -> None:
        self.source = source
        self.end = end
        self.is_through = False
        self._changes = changes
        self._mark = end.mark
        self._taken = 0

    def take(self) -> Change:
        """Return the next change. Do not call it if `is_through` is True."""
        change = self._changes[self._taken]
        self._taken += 1
        self.source.current = self
        if self._taken == len(self._changes):
            self.is_through = True
            self.source.reached = self.end
        return change

    @property
    def position(self) -> WatchPosition | None:
        """Position after the last taken change. None if no change was taken, or all changes were."""
        if not self._taken or self.is_through:
            return None
        return WatchPosition(self._changes[self._taken - 1].offset, self._mark)


class _Source:
    """One partition. The consumer may run in another thread, which writes only `current` and `reached`."""

    def __init__(self, partition: int, position: WatchPosition | None) -> None:
        self.partition = partition
        self.reached = position
        """Position of the consumer. While the consumer reads `current`, that answer has the position instead.

        None if "now" is not known yet, because no node has replied."""
        self.current: Answer | None = None
        self.asked = position
        """Position after which the next answer continues."""
        self.last: Answer | None = None
        self.has_answered = False
        self.waiting = 0
        """Number of answers in the queue."""
        self.capacity_freed = Signal()

    @property
    def position(self) -> WatchPosition | None:
        """Position up to which the consumer has received all changes."""
        current = self.current
        return (current.position if current is not None else None) or self.reached

    def passed(self, end: WatchPosition) -> None:
        """Record that there are no changes up to `end`."""
        last = self.last
        if last is not None and not last.is_through:
            last.end = end
        else:
            self.reached = end


class Watch:
    """Changes of keys. Created by `kv.watch`; an async context manager and iterator. Only one task may iterate.

    Broken connections are reopened, without a limit on attempts. The iterator raises only permanent errors (the topic
    was deleted; HistoryGone), after all changes before the error. It raises ClosedError after the block was left.
    Entering raises Unavailable if a partition does not report within the client's `timeout` where "now" is.
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
        self._answers: deque[Answer] = deque()
        self._arrived = Signal()
        self._known = Signal()
        self._scope = anyio.CancelScope()
        self._error: SandqError | None = None
        self._is_open = False
        self._entered = False
        self._yielded_at = 0.0

    async def __aenter__(self) -> Watch:
        if self._entered:
            raise ClosedError("a watch is entered once; make a new one with kv.watch")
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
        """Return the next change; wait for it."""
        if time.monotonic() - self._yielded_at <= _YIELD_S and self._answers:
            return self._take()
        await self._until_arrived()
        return self._take()

    @property
    def position(self) -> dict[int, str]:
        """By partition: position up to which changes were returned. Can be saved as JSON.

        If it is the `start` of another watch, that watch continues from there.
        """
        positions = {source.partition: source.position for source in self._sources}
        found = {partition: position.text for partition, position in positions.items() if position is not None}
        if not found:
            raise ClosedError("a watch has a position once it was entered: `async with kv.watch() as watch:`")
        return found

    def take_arrived(self) -> Change | None:
        """Return the next change if it has arrived; never wait."""
        if not self._answers:
            self.check_open()
        return self._take() if self._answers else None

    async def next_answers(self) -> list[Answer]:
        """Return all arrived replies, for callers that read them in another thread."""
        await self._until_arrived()
        answers = list(self._answers)
        self._answers.clear()
        for answer in answers:
            self._release(answer)
        return answers

    def check_open(self) -> None:
        """Raise the error that the iterator raises after the last change if the watch was left or has failed."""
        if self._error is not None:
            raise self._error.again()
        if not self._is_open:
            raise _closed(self.topic)

    # Taking.

    async def _until_arrived(self) -> None:
        if time.monotonic() - self._yielded_at > _YIELD_S:
            await anyio.lowlevel.checkpoint()
        while not self._answers:
            self.check_open()
            await self._arrived.wait()
        self._yielded_at = time.monotonic()

    def _take(self) -> Change:
        answer = self._answers[0]
        change = answer.take()
        if answer.is_through:
            self._answers.popleft()
            self._release(answer)
        return change

    @staticmethod
    def _release(answer: Answer) -> None:
        answer.source.waiting -= 1
        answer.source.capacity_freed.set()

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
                    await source.capacity_freed.wait()
                frame = await call_leader_until_closed(
                    self._cluster, self._request(source), wait_s=self._wait_ms / 1000
                )
                self._check_number()
                self._take_over(source, KvChanges.parse(frame))
        except SandqError as error:
            self._fail(error)

    def _request(self, source: _Source) -> KvWatch:
        after, mark = source.asked if source.asked is not None else (None, None)
        # The first reply comes immediately, and reports the position up to which there are no changes.
        wait_ms = self._wait_ms if source.has_answered else 0
        return KvWatch(
            *(self.topic, source.partition, after, mark, self._every, self._keys.start, self._keys.stop),
            *(ANSWER_MESSAGES, self._bytes, wait_ms),
        )

    def _take_over(self, source: _Source, answer: KvChanges) -> None:
        if source.asked is not None and answer.through < source.asked.after:
            raise ProtocolError("KV_WATCH reply: through lies before the requested position")
        changes = [change for piece in answer.pieces for change in _cut(piece, source.partition)]
        source.asked = WatchPosition(answer.through, answer.mark)
        if changes:
            source.last = Answer(source, changes, source.asked)
            source.waiting += 1
            self._answers.append(source.last)
            self._arrived.set()
        else:
            source.passed(source.asked)
        source.has_answered = True
        self._known.set()

    def _check_number(self) -> None:
        record = self._cluster.record(self.topic)
        if record is not None and record.number != self._number:
            raise UnknownTopic(f"topic {self.topic!r} was deleted and created again", topic=self.topic)

    def _fail(self, error: SandqError) -> None:
        if self._error is None:
            self._error = error
        self._scope.cancel()
        self._arrived.set()
        self._known.set()

    # Entering and leaving.

    async def _until_known(self) -> None:
        """Wait until all partitions have replied. After the timeout, continue if the starting positions are known."""
        timeout_s = self._cluster.options.timeout_s
        with anyio.move_on_after(timeout_s):
            while self._error is None and not all(source.has_answered for source in self._sources):
                await self._known.wait()
        unknown = [source.partition for source in self._sources if source.position is None]
        if unknown:
            self.check_open()
            where = f"partition {unknown[0]} of topic {self.topic!r}"
            raise Unavailable(
                f'{where} did not report within {timeout_s:g} s where "now" is{self._cluster.error_summary()}'
            )

    def _leave(self) -> None:
        self._is_open = False
        self._answers.clear()
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
