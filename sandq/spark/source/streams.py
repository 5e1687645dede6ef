"""How far a stream goes, micro-batch by micro-batch.

A position is a cursor for each partition, and never above the partition's closed time, so that no later message comes
to lie below it. What lies between two positions is the same whenever it is read, but for what is removed: cancelled
before anybody was given it, compacted, or trimmed, and for the priority of what is pending; a hold under the stream's
name keeps what it has yet to read from being trimmed. The name is drawn when the stream begins and stands in its
positions, so that it is found again after a restart, and no other stream has it. Nothing is held before Spark has
written the name down, with the end of the first micro-batch: a stream that never gets so far leaves no hold behind.

A stream that is new begins where the options say. That start is in no checkpoint until the first micro-batch is done;
after a failed one Spark asks again, and `latest` would be a later place then. So the default is the earliest.
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
from sandq.spark.source.brokers import Brokers, Found, before, check_kinds, closed_end, set_back
from sandq.spark.source.options import EARLIEST, LATEST, NO_HOLD, SourceOptions
from sandq.spark.source.planning import Range, Task, plan
from sandq.spark.source.positions import Place, Positions, lost, steps

log = logging.getLogger("sandq.spark")

Start = Mapping[str, Any]
"""A position as Spark keeps it: JSON."""
BEGINNING: Final = offset_model.pack(1, 0, 0, 0)
"""Where a stream begins in a partition of which nothing was trimmed yet: from there on, everything is to be read."""
RENEWALS: Final = 10
"""A hold is renewed so many times within its time to live."""
HOLD_BYTES: Final = 6
"""Drawn for the name of a hold."""
_HELP: Final = (
    "(A stream that begins anew each time leaves a hold each time, for holdTtl; holdName gives it one of one name)"
)
STEPS_MAX: Final = 1000
"""Questions about one partition until a micro-batch has as many messages as it may."""
CUTS_MAX: Final = 8
"""How often an instant is looked for at which a micro-batch may end; one after which less than a tenth of what it may
have is missing is good enough."""


class Lag(NamedTuple):
    """How far a partition is behind what is closed."""

    messages: int
    """About."""
    behind_ms: int
    """Of delivery time."""


class Stream:
    """Decides where micro-batches begin and end."""

    def __init__(self, options: SourceOptions, brokers: Brokers, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._brokers = brokers
        self._clock = clock
        self._held_at = -float("inf")
        self._is_written_down = True  # the name of the hold
        self._target: Positions | None = None
        self._found: Positions | None = None
        """The end that was looked for last, by what the brokers said then."""
        self._gone: set[Place] = set()
        """What has been warned of."""
        self._triggered_at = -float("inf")
        """When there was a micro-batch last."""
        self.closed: Positions | None = None
        """How far everything was closed when that was last looked at."""
        self.lag: dict[Place, Lag] = {}
        """What was closed then, and is in no micro-batch."""

    # -- positions ------------------------------------------------------------------------------------------------

    def initial(self) -> Positions:
        """Where a stream without a checkpoint begins."""
        places = self._places()
        replies = self._measured(places, {})
        found = {place: self._beginning(place, places[place], replies[place]) for place in places}
        self._is_written_down = False
        return self._noted(found, f"spark-{secrets.token_hex(HOLD_BYTES)}", _epochs(replies), places)

    def latest(self, start: Positions, limit: int | None) -> Positions:
        """Where the micro-batch from `start` on ends: at one instant in all partitions, after `limit` messages, about,
        or with all that is closed. `start` itself: there is nothing new, or not enough yet to be worth one.

        HistoryGone: a topic is gone that was not read to its end, or a partition's clock was set back since (a warning,
        with failOnDataLoss=false).
        """
        self._check_cluster(start)
        places = self._places()
        if self._target is not None:
            places = {place: found for place, found in places.items() if place in self._target.cursors}
        known = {place.number for place in start}
        cursors = {place: start.cursors.get(place, first_of(place, known)) for place in places}
        held = replace(start, cursors=cursors)
        self._renew(held, places, at_once=bool(cursors.keys() - start.cursors.keys()))
        replies = self._measured(places, cursors)
        self._check_epochs(start, places, replies)
        closed = {place: closed_end(reply) for place, reply in replies.items()}
        self.closed = self._noted(closed, start.hold, {}, places, start.names)
        ends = {place: self._end(place, cursors[place], reply) for place, reply in replies.items()}
        self._check_lost(start, Positions(ends))
        firsts = {
            place: reply.first
            for place, reply in replies.items()
            if reply.first is not None and cursors[place] < ends[place] and reply.first < ends[place]
        }
        counts = {place: replies[place].messages for place in firsts}
        epochs = {**start.clock_epochs, **_epochs(replies)}
        is_as_before = cursors.keys() <= start.cursors.keys() and epochs == {**start.clock_epochs}
        is_as_before = is_as_before and start.cluster == self._brokers.cluster
        # What was trimmed before it was read is told by who reads there.
        is_whole = all(reply.trimmed < cursors[place] for place, reply in replies.items())
        if is_as_before and is_whole and self._may_wait(sum(counts.values())):
            self.lag = _lag(cursors, closed, counts)
            return start
        left: dict[Place, int] = {}
        if limit is not None and sum(counts.values()) > limit:
            all_ends, ends = ends, self._limited(places, cursors, ends, firsts, limit)
            left = self._counts(places, ends, all_ends, firsts)
        self.lag = _lag(ends, closed, left)
        self._tell(sum(counts.values()) - sum(left.values()), len(places))
        self._triggered_at = self._clock()
        # What is gone keeps its cursor: should it be asked for again, it is not read again.
        self._found = self._noted({**start.cursors, **ends}, start.hold, epochs, places, start.names)
        return self._found

    def _noted(
        self,
        cursors: Mapping[Place, bytes],
        hold: str,
        epochs: Mapping[Place, int],
        places: Mapping[Place, Found],
        names: Mapping[int, str] | None = None,
    ) -> Positions:
        """A position of this cluster."""
        told = {place.number: found.topic for place, found in places.items()}
        return Positions(cursors, hold, epochs, self._brokers.cluster, {**(names or {}), **told})

    def _check_cluster(self, *noted: Positions) -> None:
        """Numbers of topics say nothing in another cluster. Raises InvalidRequest."""
        cluster = self._brokers.cluster
        for positions in noted:
            if positions.cluster != cluster:
                raise InvalidRequest(
                    f"the checkpoint is of a stream from cluster {positions.cluster}, and this is cluster {cluster} "
                    "(sandq.bootstrap.servers): give each its own checkpointLocation"
                )

    def _may_wait(self, messages: int) -> bool:
        """Whether no micro-batch is made, with so many messages. A first one is: it writes the hold's name down."""
        if not self._is_written_down:
            return False
        if not messages:
            return True
        options = self._options
        if messages >= options.min_offsets_per_trigger or self._target is not None:
            return False
        return self._clock() - self._triggered_at < options.max_trigger_delay_ms / 1000

    def _tell(self, messages: int, partitions: int) -> None:
        """Log what a micro-batch will have, and what it leaves."""
        if not log.isEnabledFor(logging.INFO):
            return
        place, most = max(self.lag.items(), key=lambda item: item[1].behind_ms, default=(None, Lag(0, 0)))
        far = "" if place is None or self.closed is None else f", the most in {self.closed.shown(place)}"
        log.info(
            "%s: a micro-batch of about %d messages of %d partitions; %d more are closed, up to %d ms later%s",
            *(self.description, messages, partitions, sum(lag.messages for lag in self.lag.values())),
            *(most.behind_ms, far if most.behind_ms else ""),
        )

    @property
    def description(self) -> str:
        """What is read, and where."""
        return f"sandq at {','.join(self._options.servers)}: {self._options.topics}"

    def report(self) -> dict[str, Any] | None:
        """What progress shows as the latest offset: how far everything is closed, what of it is in no micro-batch yet,
        by topic and partition, and what is read. None: that was not looked at yet."""
        if self.closed is None:
            return None
        lag: dict[str, dict[str, dict[str, int]]] = {}
        for place, behind_closed in sorted(self.lag.items()):
            topic = self.closed.names.get(place.number, str(place.number))
            lag.setdefault(topic, {})[str(place.partition)] = behind_closed._asdict()
        return {**self.closed.to_json(), "lag": lag, "source": self.description}

    def aim(self) -> None:
        """From now on nothing behind what is closed at this moment is read (Trigger.AvailableNow)."""
        replies = self._measured(self._places(), {}, 1)
        self._target = Positions({place: closed_end(reply) for place, reply in replies.items()})

    def committed(self, end: Positions) -> None:
        """Everything before this position was read and is never asked for again."""
        self._hold(end, self._places())

    # -- tasks ----------------------------------------------------------------------------------------------------

    def tasks(self, start: Positions, end: Positions) -> list[Task]:
        """What reads a micro-batch; the same for the same positions."""
        self._check_cluster(start, end)
        places = self._places()
        # Between knowing an end and planning what is before it, Spark writes the end down.
        self._is_written_down = True
        start = self._begun(start, end)
        self._renew(Positions(start.cursors, end.hold), places)
        if end != self._found:  # it is from a checkpoint, and may be old
            read = {place: places[place] for place in end if place in places}
            self._check_epochs(end, read, self._measured(read, {}, 1))
        ranges = []
        known = {place.number for place in start}
        for step in steps(start, end, lambda place: first_of(place, known)):
            found = places.get(step.place)
            if found is None:
                self._lose(f"{end.shown(step.place)} is gone, and with it what was to be read of it")
                continue
            ranges.append(
                Range(
                    found.topic,
                    step.place.number,
                    step.place.partition,
                    step.start,
                    step.end,
                    clock_epoch=end.clock_epoch(step.place),
                )
            )
        wanted = self._options.min_partitions
        return plan(ranges if wanted <= len(ranges) else self._brokers.all(self._from_first, ranges), wanted)

    def _begun(self, start: Positions, end: Positions) -> Positions:
        """The start of a first micro-batch that failed: Spark has its end, and asks for the start anew. What was
        trimmed since up to behind the end cannot be read any more."""
        crossed = [place for place in start if start.cursors[place] > end.cursors.get(place, offset_model.LAST)]
        if not crossed or start.hold == end.hold:
            return start
        self._lose(f"{end.shown(crossed[0])}: all of the first micro-batch was trimmed before it was read")
        return replace(start, cursors={**start.cursors, **{place: end.cursors[place] for place in crossed}})

    def _from_first(self, one: Range) -> Range:
        """A range that begins at the very beginning is cut from its first message on."""
        if one.start > BEGINNING:
            return one
        reply = self._brokers.measure(Place(one.number, one.partition), one.topic, one.start, one.end, 1)
        if reply.first is None or reply.trimmed >= one.start:
            return one  # the task that reads it says what is wrong
        return replace(one, start=reply.first)

    # -- parts ----------------------------------------------------------------------------------------------------

    def _places(self) -> dict[Place, Found]:
        places = self._brokers.places(self._options.topics)
        check_kinds(places, self._options)
        return places

    def _measured(
        self, places: Mapping[Place, Found], cursors: Mapping[Place, bytes], most: int | None = None
    ) -> dict[Place, MeasureReply]:
        def measure(place: Place) -> MeasureReply:
            cursor = cursors.get(place, offset_model.FIRST)
            return self._brokers.measure(place, places[place].topic, cursor, None, most)

        return dict(zip(places, self._brokers.all(measure, places), strict=True))

    def _beginning(self, place: Place, found: Found, reply: MeasureReply) -> bytes:
        start = self._options.starting.of(found.topic, place.partition)
        if start == EARLIEST:
            return max(BEGINNING, behind(reply.trimmed)) if reply.trimmed > offset_model.FIRST else BEGINNING
        if start == LATEST:
            return closed_end(reply)
        return offset_model.pack(start, 0, 0, 0) if isinstance(start, int) else offset_model.from_text(start)

    def _end(self, place: Place, cursor: bytes, reply: MeasureReply) -> bytes:
        """All that is closed, but not behind the target; and not before the start, which may lie ahead of now."""
        end = closed_end(reply)
        if self._target is not None:
            end = min(end, self._target.cursors[place])
        return max(end, cursor)

    def _limited(
        self,
        places: Mapping[Place, Found],
        cursors: Mapping[Place, bytes],
        ends: Mapping[Place, bytes],
        firsts: Mapping[Place, bytes],
        limit: int,
    ) -> dict[Place, bytes]:
        """Ends that leave about `limit` messages: one instant in all partitions. So event time rises alike in all of
        them, and nothing comes later than a watermark that others have raised. What is due in the first instant goes
        whole, however much that is. `firsts`: of those partitions that have something."""
        at_ms = min(map(offset_model.deliver_ms, firsts.values())) + 1
        last_ms = min(offset_model.deliver_ms(ends[place]) for place in ends if cursors[place] < ends[place])
        at, left = {place: cursors[place] for place in firsts}, limit
        for _ in range(CUTS_MAX):
            counts = self._counts(places, at, _cut(ends, last_ms), firsts)
            total = sum(counts.values())
            if total <= left:
                at_ms = max(at_ms, last_ms)
                break
            shares = {place: max(1, left * count // total) for place, count in counts.items() if count}
            found_ms = min(last_ms, *self._reached(places, at, ends, shares))
            if found_ms <= at_ms:
                break
            at_ms, reached = found_ms, _cut(ends, found_ms)
            left -= sum(self._counts(places, at, reached, firsts).values())
            if left <= limit // 10:
                break
            at |= {place: max(at[place], reached[place]) for place in at}
        return {place: max(cursors[place], end) for place, end in _cut(ends, at_ms).items()}

    def _counts(
        self,
        places: Mapping[Place, Found],
        starts: Mapping[Place, bytes],
        ends: Mapping[Place, bytes],
        firsts: Mapping[Place, bytes],
    ) -> dict[Place, int]:
        """Messages between these, about."""
        asked = [place for place in firsts if starts[place] < ends[place]]

        def count(place: Place) -> int:
            return self._brokers.measure(place, places[place].topic, starts[place], ends[place]).messages

        return dict(zip(asked, self._brokers.all(count, asked), strict=True))

    def _reached(
        self,
        places: Mapping[Place, Found],
        starts: Mapping[Place, bytes],
        ends: Mapping[Place, bytes],
        shares: Mapping[Place, int],
    ) -> list[int]:
        """The instant (epoch ms) at which each partition has its share of messages."""

        def instant_of(place: Place) -> int:
            share, cursor = shares[place], starts[place]
            for _ in range(STEPS_MAX):
                reply = self._brokers.measure(place, places[place].topic, cursor, ends[place], share)
                if reply.next is None:
                    return offset_model.deliver_ms(ends[place])
                cursor, share = reply.next, share - reply.messages
                if share <= 0:
                    break
            return offset_model.deliver_ms(cursor)

        return self._brokers.all(instant_of, shares)

    def _check_epochs(
        self, noted: Positions, places: Mapping[Place, Found], replies: Mapping[Place, MeasureReply]
    ) -> None:
        """Cursors that were noted before a partition's clock was set back lead nowhere any more."""
        for place, reply in sorted(replies.items()):
            if place in noted.cursors and reply.clock_epoch != noted.clock_epoch(place):
                self._lose(set_back(places[place].topic, place.partition))

    def _check_lost(self, start: Positions, end: Positions) -> None:
        gone = lost(start, end)
        if gone and set(gone) != self._gone:
            more = f" (and {len(gone) - 1} more)" if len(gone) > 1 else ""
            self._lose(f"{start.shown(gone[0])}{more}: it was deleted, or is not asked for any more")
            self._gone = set(gone)

    def _lose(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise HistoryGone(f"{what}. With failOnDataLoss=false that is a warning, and the rest is read")
        log.warning("%s; the rest is read", what)

    # -- holds ----------------------------------------------------------------------------------------------------

    def _renew(self, start: Positions, places: Mapping[Place, Found], *, at_once: bool = False) -> None:
        if not self._is_written_down:
            return
        if at_once or self._clock() - self._held_at >= self._options.hold_ttl_ms / 1000 / RENEWALS:
            self._hold(start, places)

    def _hold(self, positions: Positions, places: Mapping[Place, Found]) -> None:
        """Keep what lies behind a position. Where that cannot be done reading goes on: what is trimmed is found out."""
        name = self._options.hold_name or positions.hold
        if name == NO_HOLD:
            return
        by_topic: dict[str, dict[int, bytes]] = {}
        for place, cursor in positions.cursors.items():
            found = places.get(place)
            if found is not None and found.kind != COMPACTED:
                by_topic.setdefault(found.topic, {})[place.partition] = before(cursor, place.partition)
        for topic, offsets in by_topic.items():
            try:
                self._brokers.hold(topic, name, offsets, self._options.hold_ttl_ms)
            except SandqError as error:
                log.warning("topic %r: what is to be read is not held: %s. %s", topic, error.message, _HELP)
        self._held_at = self._clock()


def _lag(ends: Mapping[Place, bytes], closed: Mapping[Place, bytes], messages: Mapping[Place, int]) -> dict[Place, Lag]:
    """What is closed behind these ends; nothing where no message is."""
    return {
        place: Lag(
            messages.get(place, 0),
            max(0, offset_model.deliver_ms(closed[place]) - offset_model.deliver_ms(end)) if messages.get(place) else 0,
        )
        for place, end in ends.items()
    }


def _cut(ends: Mapping[Place, bytes], at_ms: int) -> dict[Place, bytes]:
    """These ends, and none behind an instant."""
    instant = offset_model.pack(at_ms, 0, 0, 0)
    return {place: min(end, instant) for place, end in ends.items()}


def _epochs(replies: Mapping[Place, MeasureReply]) -> dict[Place, int]:
    return {place: reply.clock_epoch for place, reply in replies.items() if reply.clock_epoch}


def first_of(place: Place, known: set[int]) -> bytes:
    """Where a partition begins that comes later. Of a topic that was read before, all of it is to be read. Of another
    one, what is there: that something was trimmed before it was asked for is no loss."""
    return BEGINNING if place.number in known else offset_model.FIRST
