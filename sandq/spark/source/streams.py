"""`Stream`: decides where the micro-batches of a stream begin and end, and holds the messages that it has not read.

A position is a cursor for each partition. It is never above the partition's closed time, so no message is added below
it later. So the range between two positions always has the same messages, except those that were cancelled, compacted
or trimmed meanwhile; and the priority of a pending message may change.

A hold keeps messages that the stream has not read from being trimmed. Its name is random, so that each stream has its
own hold. The name is part of the positions, so that the stream finds its hold after a restart. Spark stores the name
with the end of the first micro-batch. Before that nothing is held, so a stream that fails earlier leaves no hold.

A new stream begins where the options say. Spark stores that start only after the first micro-batch. If the first
micro-batch fails, Spark asks for the start again, and `latest` would be later then. So the default is `earliest`.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from sandq.model import offsets as offset_model
from sandq.model.errors import HistoryGone, InvalidRequest, SandqError
from sandq.model.names import COMPACTED
from sandq.model.offsets import behind
from sandq.protocol.requests_log import MeasureReply
from sandq.spark.source.brokers import Brokers, TopicInfo, before, check_kinds, clock_reset_text, closed_end
from sandq.spark.source.options import EARLIEST, LATEST, NO_HOLD, SourceOptions
from sandq.spark.source.planning import Range, Task, plan
from sandq.spark.source.positions import Positions, TopicPartition, lost, steps

log = logging.getLogger("sandq.spark")

Start = Mapping[str, Any]
"""A position as JSON, as Spark stores it."""
BEGINNING: Final = offset_model.pack(1, 0, 0, 0)
"""Start of a stream in a partition of which nothing was trimmed yet.

It is greater than the smallest offset. For a range from the smallest offset, readers do not report trimmed messages;
for a range from here they do.
"""
RENEWALS: Final = 10
"""Number of renewals of a hold within its time to live."""
HOLD_BYTES: Final = 6
"""Number of random bytes in the name of a hold."""
_HELP: Final = (
    "(A stream without a checkpoint leaves a new hold at each start, for holdTtl; holdName sets a fixed name)"
)
STEPS_MAX: Final = 1000
"""Maximum number of requests per partition to find the time at which it has its share of a micro-batch."""
CUTS_MAX: Final = 8
"""Maximum number of rounds to find the end of a limited micro-batch.

The search also ends when less than a tenth of the limit is unused.
"""


class Lag(NamedTuple):
    """The closed part of a partition that is in no micro-batch yet."""

    messages: int
    """Approximate number of messages."""
    behind_ms: int
    """Span of delivery time, in ms."""


class Stream:
    """Decides where micro-batches begin and end, and plans their tasks."""

    def __init__(self, options: SourceOptions, brokers: Brokers, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._brokers = brokers
        self._clock = clock
        self._held_at = -float("inf")
        self._is_hold_stored = True
        """Whether Spark has stored the name of the hold; true unless this process has chosen a new name."""
        self._target: Positions | None = None
        """End of the stream with Trigger.AvailableNow."""
        self._found: Positions | None = None
        """The last new end that `latest` has returned. Its clock epochs need no second check."""
        self._gone: set[TopicPartition] = set()
        """Lost partitions that were already reported."""
        self._triggered_at = -float("inf")
        """Monotonic time of the last micro-batch, in s."""
        self.closed: Positions | None = None
        """Closed offsets of all partitions at the last call of `latest`."""
        self.lag: dict[TopicPartition, Lag] = {}
        """Lag at the last call of `latest`: closed messages that were in no micro-batch yet."""

    # -- positions ------------------------------------------------------------------------------------------------

    def initial(self) -> Positions:
        """Return the start of a stream without a checkpoint."""
        partitions = self._partitions()
        replies = self._measure_all(partitions, {})
        found = {tp: self._beginning(tp, partitions[tp], replies[tp]) for tp in partitions}
        self._is_hold_stored = False
        return self._positions(found, f"spark-{secrets.token_hex(HOLD_BYTES)}", _epochs(replies), partitions)

    def latest(self, start: Positions, limit: int | None) -> Positions:
        """Return the end of the micro-batch that begins at `start`.

        With more than `limit` closed messages, all partitions end at the same time, after about `limit` messages.
        Otherwise the micro-batch has all closed messages. If there are none, or not enough yet, `start` is returned.

        Raises HistoryGone if a topic was deleted, or if a partition's clock was set back. With failOnDataLoss=false
        these are logged as warnings.
        """
        self._check_cluster(start)
        partitions = self._partitions()
        if self._target is not None:
            partitions = {tp: found for tp, found in partitions.items() if tp in self._target.cursors}
        known = {tp.number for tp in start}
        cursors = {tp: start.cursors.get(tp, first_of(tp, known)) for tp in partitions}
        unread = replace(start, cursors=cursors)
        self._renew(unread, partitions, at_once=bool(cursors.keys() - start.cursors.keys()))
        replies = self._measure_all(partitions, cursors)
        self._check_epochs(start, partitions, replies)
        closed = {tp: closed_end(reply) for tp, reply in replies.items()}
        self.closed = self._positions(closed, start.hold, {}, partitions, start.names)
        ends = {tp: self._end(tp, cursors[tp], reply) for tp, reply in replies.items()}
        self._check_lost(start, Positions(ends))
        firsts = {
            tp: reply.first
            for tp, reply in replies.items()
            if reply.first is not None and cursors[tp] < ends[tp] and reply.first < ends[tp]
        }
        counts = {tp: replies[tp].messages for tp in firsts}
        epochs = {**start.clock_epochs, **_epochs(replies)}
        is_as_before = cursors.keys() <= start.cursors.keys() and epochs == {**start.clock_epochs}
        is_as_before = is_as_before and start.cluster == self._brokers.cluster
        # If messages were trimmed before they were read, make a micro-batch: its task reports the loss.
        is_whole = all(reply.trimmed < cursors[tp] for tp, reply in replies.items())
        if is_as_before and is_whole and self._may_wait(sum(counts.values())):
            self.lag = _lag_of(cursors, closed, counts)
            return start
        left: dict[TopicPartition, int] = {}
        if limit is not None and sum(counts.values()) > limit:
            all_ends, ends = ends, self._limited(partitions, cursors, ends, firsts, limit)
            left = self._counts(partitions, ends, all_ends, firsts)
        self.lag = _lag_of(ends, closed, left)
        self._log_micro_batch(sum(counts.values()) - sum(left.values()), len(partitions))
        self._triggered_at = self._clock()
        # Lost partitions keep their cursors: if the options select them again, they are not read twice.
        self._found = self._positions({**start.cursors, **ends}, start.hold, epochs, partitions, start.names)
        return self._found

    def _positions(
        self,
        cursors: Mapping[TopicPartition, bytes],
        hold: str,
        epochs: Mapping[TopicPartition, int],
        partitions: Mapping[TopicPartition, TopicInfo],
        names: Mapping[int, str] | None = None,
    ) -> Positions:
        """Return a position of this cluster, with the names of its topics."""
        found_names = {tp.number: found.topic for tp, found in partitions.items()}
        return Positions(cursors, hold, epochs, self._brokers.cluster, {**(names or {}), **found_names})

    def _check_cluster(self, *stored: Positions) -> None:
        """Raise InvalidRequest for positions of a different cluster, where topics have different numbers."""
        cluster = self._brokers.cluster
        for positions in stored:
            if positions.cluster != cluster:
                raise InvalidRequest(
                    f"the checkpoint is of a stream from cluster {positions.cluster}, and this is cluster {cluster} "
                    "(sandq.bootstrap.servers): give each its own checkpointLocation"
                )

    def _may_wait(self, messages: int) -> bool:
        """Return whether the next micro-batch may wait, given its number of messages.

        The first micro-batch never waits: with its end, Spark stores the name of the hold.
        """
        if not self._is_hold_stored:
            return False
        if not messages:
            return True
        options = self._options
        if messages >= options.min_offsets_per_trigger or self._target is not None:
            return False
        return self._clock() - self._triggered_at < options.max_trigger_delay_ms / 1000

    def _log_micro_batch(self, messages: int, partition_count: int) -> None:
        """Log the size of a micro-batch, and the lag that it leaves."""
        if not log.isEnabledFor(logging.INFO):
            return
        tp, most = max(self.lag.items(), key=lambda item: item[1].behind_ms, default=(None, Lag(0, 0)))
        far = "" if tp is None or self.closed is None else f", the most in {self.closed.shown(tp)}"
        log.info(
            "%s: a micro-batch of about %d messages of %d partitions; %d more are closed, up to %d ms later%s",
            *(self.description, messages, partition_count, sum(lag.messages for lag in self.lag.values())),
            *(most.behind_ms, far if most.behind_ms else ""),
        )

    @property
    def description(self) -> str:
        """The servers and the topics of the stream, for people."""
        return f"sandq at {','.join(self._options.servers)}: {self._options.topics}"

    def report(self) -> dict[str, Any] | None:
        """Return the latest offset for Spark's progress: closed offsets, lag by topic and partition, and the source.

        None before the first call of `latest`.
        """
        if self.closed is None:
            return None
        lag: dict[str, dict[str, dict[str, int]]] = {}
        for tp, behind_closed in sorted(self.lag.items()):
            topic = self.closed.names.get(tp.number, str(tp.number))
            lag.setdefault(topic, {})[str(tp.partition)] = behind_closed._asdict()
        return {**self.closed.to_json(), "lag": lag, "source": self.description}

    def set_target(self) -> None:
        """Read nothing beyond the offsets that are closed now (Trigger.AvailableNow)."""
        replies = self._measure_all(self._partitions(), {}, 1)
        self._target = Positions({tp: closed_end(reply) for tp, reply in replies.items()})

    def committed(self, end: Positions) -> None:
        """Move the hold: everything before `end` was read, and is never requested again."""
        self._hold(end, self._partitions())

    # -- tasks ----------------------------------------------------------------------------------------------------

    def tasks(self, start: Positions, end: Positions) -> list[Task]:
        """Return the tasks of a micro-batch; the same positions give the same tasks."""
        self._check_cluster(start, end)
        partitions = self._partitions()
        # Spark stores the end of a micro-batch before it asks for the tasks.
        self._is_hold_stored = True
        start = self._checked_start(start, end)
        self._renew(Positions(start.cursors, end.hold), partitions)
        if end != self._found:  # the end comes from a checkpoint, and a partition's clock may have been set back since
            read = {tp: partitions[tp] for tp in end if tp in partitions}
            self._check_epochs(end, read, self._measure_all(read, {}, 1))
        ranges = []
        known = {tp.number for tp in start}
        for step in steps(start, end, lambda tp: first_of(tp, known)):
            found = partitions.get(step.tp)
            if found is None:
                self._report_loss(f"{end.shown(step.tp)} does not exist any more, and its unread messages are lost")
                continue
            ranges.append(
                Range(
                    found.topic,
                    step.tp.number,
                    step.tp.partition,
                    step.start,
                    step.end,
                    clock_epoch=end.clock_epoch(step.tp),
                )
            )
        wanted = self._options.min_partitions
        return plan(ranges if wanted <= len(ranges) else self._brokers.all(self._from_first, ranges), wanted)

    def _checked_start(self, start: Positions, end: Positions) -> Positions:
        """Return the start of a micro-batch that is repeated.

        If the first micro-batch failed, Spark has its end, and gets a new start from `initial`. If messages were
        trimmed beyond the end meanwhile, that start is after the end: report the loss, and read nothing there.
        """
        crossed = [tp for tp in start if start.cursors[tp] > end.cursors.get(tp, offset_model.LAST)]
        if not crossed or start.hold == end.hold:
            return start
        self._report_loss(f"{end.shown(crossed[0])}: all of the first micro-batch was trimmed before it was read")
        return replace(start, cursors={**start.cursors, **{tp: end.cursors[tp] for tp in crossed}})

    def _from_first(self, one: Range) -> Range:
        """Move the start of a range to its first message, if the range is from the very beginning.

        Otherwise splitting by time would put almost everything into the last part.
        """
        if one.start > BEGINNING:
            return one
        reply = self._brokers.measure(TopicPartition(one.number, one.partition), one.topic, one.start, one.end, 1)
        if reply.first is None or reply.trimmed >= one.start:
            return one  # the range is empty, or its task reports the loss
        return replace(one, start=reply.first)

    # -- parts ----------------------------------------------------------------------------------------------------

    def _partitions(self) -> dict[TopicPartition, TopicInfo]:
        partitions = self._brokers.partitions(self._options.topics)
        check_kinds(partitions, self._options)
        return partitions

    def _measure_all(
        self,
        partitions: Mapping[TopicPartition, TopicInfo],
        cursors: Mapping[TopicPartition, bytes],
        most: int | None = None,
    ) -> dict[TopicPartition, MeasureReply]:
        def measure(tp: TopicPartition) -> MeasureReply:
            cursor = cursors.get(tp, offset_model.FIRST)
            return self._brokers.measure(tp, partitions[tp].topic, cursor, None, most)

        return dict(zip(partitions, self._brokers.all(measure, partitions), strict=True))

    def _beginning(self, tp: TopicPartition, found: TopicInfo, reply: MeasureReply) -> bytes:
        start = self._options.starting.of(found.topic, tp.partition)
        if start == EARLIEST:
            return max(BEGINNING, behind(reply.trimmed)) if reply.trimmed > offset_model.FIRST else BEGINNING
        if start == LATEST:
            return closed_end(reply)
        return offset_model.pack(start, 0, 0, 0) if isinstance(start, int) else offset_model.from_text(start)

    def _end(self, tp: TopicPartition, cursor: bytes, reply: MeasureReply) -> bytes:
        """Return the largest end that a micro-batch may have: the closed end, limited by the target.

        It is not below the cursor, which is above the closed end if the stream begins at a time in the future.
        """
        end = closed_end(reply)
        if self._target is not None:
            end = min(end, self._target.cursors[tp])
        return max(end, cursor)

    def _limited(
        self,
        partitions: Mapping[TopicPartition, TopicInfo],
        cursors: Mapping[TopicPartition, bytes],
        ends: Mapping[TopicPartition, bytes],
        firsts: Mapping[TopicPartition, bytes],
        limit: int,
    ) -> dict[TopicPartition, bytes]:
        """Return the ends of a micro-batch with about `limit` messages: the same time in all partitions.

        So event time advances equally in all partitions, and no message is late for a watermark that a different
        partition has raised. The messages of the first millisecond are never split, even if they are more than `limit`.
        `firsts` has the first offsets of the partitions that have messages.

        Each round divides the rest of the limit into a share for each partition. It finds the earliest time at which a
        partition has its share, and subtracts the messages of all partitions up to that time from the limit.
        """
        at_ms = min(map(offset_model.deliver_ms, firsts.values())) + 1
        last_ms = min(offset_model.deliver_ms(ends[tp]) for tp in ends if cursors[tp] < ends[tp])
        at, left = {tp: cursors[tp] for tp in firsts}, limit
        for _ in range(CUTS_MAX):
            counts = self._counts(partitions, at, _cut(ends, last_ms), firsts)
            total = sum(counts.values())
            if total <= left:
                at_ms = max(at_ms, last_ms)
                break
            shares = {tp: max(1, left * count // total) for tp, count in counts.items() if count}
            found_ms = min(last_ms, *self._reached(partitions, at, ends, shares))
            if found_ms <= at_ms:
                break
            at_ms, reached = found_ms, _cut(ends, found_ms)
            left -= sum(self._counts(partitions, at, reached, firsts).values())
            if left <= limit // 10:
                break
            at |= {tp: max(at[tp], reached[tp]) for tp in at}
        return {tp: max(cursors[tp], end) for tp, end in _cut(ends, at_ms).items()}

    def _counts(
        self,
        partitions: Mapping[TopicPartition, TopicInfo],
        starts: Mapping[TopicPartition, bytes],
        ends: Mapping[TopicPartition, bytes],
        firsts: Mapping[TopicPartition, bytes],
    ) -> dict[TopicPartition, int]:
        """Return the approximate numbers of messages between these offsets, by partition."""
        nonempty = [tp for tp in firsts if starts[tp] < ends[tp]]

        def count(tp: TopicPartition) -> int:
            return self._brokers.measure(tp, partitions[tp].topic, starts[tp], ends[tp]).messages

        return dict(zip(nonempty, self._brokers.all(count, nonempty), strict=True))

    def _reached(
        self,
        partitions: Mapping[TopicPartition, TopicInfo],
        starts: Mapping[TopicPartition, bytes],
        ends: Mapping[TopicPartition, bytes],
        shares: Mapping[TopicPartition, int],
    ) -> list[int]:
        """Return for each partition the time (epoch ms) up to which it has at least its share of messages.

        `shares`: number of messages by partition, counted from its start. If it has fewer, return the time of its end.
        """

        def instant_of(tp: TopicPartition) -> int:
            share, cursor = shares[tp], starts[tp]
            for _ in range(STEPS_MAX):
                reply = self._brokers.measure(tp, partitions[tp].topic, cursor, ends[tp], share)
                if reply.next is None:
                    return offset_model.deliver_ms(ends[tp])
                cursor, share = reply.next, share - reply.messages
                if share <= 0:
                    break
            return offset_model.deliver_ms(cursor)

        return self._brokers.all(instant_of, shares)

    def _check_epochs(
        self,
        noted: Positions,
        partitions: Mapping[TopicPartition, TopicInfo],
        replies: Mapping[TopicPartition, MeasureReply],
    ) -> None:
        """Report partitions whose clock was set back after their cursor was stored: such a cursor is invalid."""
        for tp, reply in sorted(replies.items()):
            if tp in noted.cursors and reply.clock_epoch != noted.clock_epoch(tp):
                self._report_loss(clock_reset_text(partitions[tp].topic, tp.partition))

    def _check_lost(self, start: Positions, end: Positions) -> None:
        gone = lost(start, end)
        if gone and set(gone) != self._gone:
            more = f" (and {len(gone) - 1} more)" if len(gone) > 1 else ""
            self._report_loss(f"{start.shown(gone[0])}{more}: it was deleted, or the options do not select it any more")
            self._gone = set(gone)

    def _report_loss(self, text: str) -> None:
        """Report a loss of data: an error or a warning, as failOnDataLoss says."""
        if self._options.fail_on_data_loss:
            raise HistoryGone(f"{text}. With failOnDataLoss=false this is a warning, and the rest is read")
        log.warning("%s; the rest is read", text)

    # -- holds ----------------------------------------------------------------------------------------------------

    def _renew(
        self, start: Positions, partitions: Mapping[TopicPartition, TopicInfo], *, at_once: bool = False
    ) -> None:
        if not self._is_hold_stored:
            return
        if at_once or self._clock() - self._held_at >= self._options.hold_ttl_ms / 1000 / RENEWALS:
            self._hold(start, partitions)

    def _hold(self, positions: Positions, partitions: Mapping[TopicPartition, TopicInfo]) -> None:
        """Hold the messages from `positions` on. If that fails, reading continues: tasks notice trimmed messages."""
        name = self._options.hold_name or positions.hold
        if name == NO_HOLD:
            return
        by_topic: dict[str, dict[int, bytes]] = {}
        for tp, cursor in positions.cursors.items():
            found = partitions.get(tp)
            if found is not None and found.kind != COMPACTED:
                by_topic.setdefault(found.topic, {})[tp.partition] = before(cursor, tp.partition)
        for topic, offsets in by_topic.items():
            try:
                self._brokers.hold(topic, name, offsets, self._options.hold_ttl_ms)
            except SandqError as error:
                log.warning("topic %r: unread messages are not held: %s. %s", topic, error.message, _HELP)
        self._held_at = self._clock()


def _lag_of(
    ends: Mapping[TopicPartition, bytes], closed: Mapping[TopicPartition, bytes], messages: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Lag]:
    """Return the lag of each partition that a micro-batch with these ends leaves; 0 ms if there are no messages."""
    return {
        tp: Lag(
            messages.get(tp, 0),
            max(0, offset_model.deliver_ms(closed[tp]) - offset_model.deliver_ms(end)) if messages.get(tp) else 0,
        )
        for tp, end in ends.items()
    }


def _cut(ends: Mapping[TopicPartition, bytes], at_ms: int) -> dict[TopicPartition, bytes]:
    """Return the ends, limited to the time `at_ms`."""
    instant = offset_model.pack(at_ms, 0, 0, 0)
    return {tp: min(end, instant) for tp, end in ends.items()}


def _epochs(replies: Mapping[TopicPartition, MeasureReply]) -> dict[TopicPartition, int]:
    return {tp: reply.clock_epoch for tp, reply in replies.items() if reply.clock_epoch}


def first_of(tp: TopicPartition, known: set[int]) -> bytes:
    """Return the start in a partition that the stream has not read before.

    A new partition of a known topic is read completely: trimmed messages are a loss. A new topic is read from its first
    remaining message: messages that were trimmed before are no loss.
    """
    return BEGINNING if tp.number in known else offset_model.FIRST
