"""A consumer: a subscription of a group to topics, over all nodes that lead their partitions."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, TypeVar

import anyio
import anyio.abc

from sandq.client.consumer.chosen_partitions import Partitions, partitions_of
from sandq.client.consumer.chosen_topics import TOPICS_MAX, ChosenTopics, Topics, too_many
from sandq.client.consumer.consumer_identity import ConsumerIdentity
from sandq.client.consumer.credit_shares import BUSY_S, equal_share, is_crowded, shares
from sandq.client.consumer.lease import OF_HELD, Arrival, Chunk
from sandq.client.consumer.message import Message, lease_ms_of
from sandq.client.consumer.message_batch import MessageBatch
from sandq.client.consumer.node_session import Session, closed
from sandq.client.consumer.prefetch import STALE_S, Prefetch
from sandq.client.consumer.topic_consumer import TopicConsumer
from sandq.client.messages.log_page import positions_of
from sandq.client.options import Options, again
from sandq.client.positions import Start, start_of
from sandq.client.signals import Signal
from sandq.client.transport.cluster import Cluster
from sandq.model.errors import (
    ClosedError,
    Conflict,
    ConsumerFenced,
    Forbidden,
    InvalidRequest,
    SandqError,
    Unavailable,
    UnknownTopic,
)
from sandq.model.limits import DEFAULT
from sandq.model.names import check_name
from sandq.model.times import Duration

log = logging.getLogger("sandq.client")

T = TypeVar("T")

CREDIT: Final = 10
BATCH_CREDIT: Final = 10_000
"""Messages that may be held when the caller names no number: of who takes them one by one, and by the batch."""
_REFUSALS: Final = (InvalidRequest, Conflict, Forbidden)
"""How a topic says that it does not take a subscription."""
YIELD_S: Final = 0.001
"""The iterator lets other tasks run at least this often, so that queued acks leave while the caller computes."""


class Subscription:
    """Messages of topics for a consumer group; made by `client.subscribe`, an async context manager and iterator.

    Resource handling: entering waits until the nodes that lead partitions have accepted the subscription.
    Leaving waits (5 s at most; 1 s when cancelled) until queued acks are confirmed, then gives back
    whatever was not settled: it is delivered to others at once, and its attempt is not counted.

    Error handling: connections that break are made again for ever, held messages stay held; the iterator raises only
    what cannot get better (a topic was deleted, unless it was one of a pattern), and ClosedError after the block was
    left. Topics of a pattern that refuse the subscription, for a lease above their `max_lease` say, are left out with a
    warning, and tried again; `refused` names them. When none of a pattern takes it, the iterator raises why.
    """

    def __init__(
        self,
        cluster: Cluster,
        tasks: anyio.abc.TaskGroup,
        client_name: str,
        topics: Topics,
        group: str,
        *,
        credit: int | None,
        lease: Duration | None,
        start: Start,
        auto_extend: bool,
        worked_on: int = CREDIT,
        handlers: int = 1,
        consumer_id: str | None = None,
        partitions: Partitions | None = None,
    ) -> None:
        """`credit`: messages held at most. None: `worked_on`, and more as long as they are settled quickly. `handlers`:
        messages that are worked on at the same time, as a rule.
        `consumer_id`: one that lasts; None: one of this subscription alone. `partitions`: None is all."""
        if credit is not None and (type(credit) is not int or not 1 <= credit <= DEFAULT.credit_max):
            raise InvalidRequest(f"credit: an int within 1..{DEFAULT.credit_max} is expected, not {credit!r}")
        self._chosen = ChosenTopics.of(topics)
        self.group = check_name("group", group)
        self.cluster = cluster
        self.identity = ConsumerIdentity(client_name, consumer_id)
        self.lease_ms = lease_ms_of(lease)
        self.start = start_of(start)
        self.partitions = partitions_of(partitions)
        if self.partitions is not None and not self._chosen.is_one:
            raise InvalidRequest("partitions: they are of one topic, and this is about several")
        self.auto_extend = auto_extend
        self.handlers = handlers
        self.quiet = Signal()
        self.due_at = -math.inf
        self._prefetch = Prefetch() if credit is None else None
        self._credit = worked_on if credit is None else credit
        self._is_crowded = False
        self._tasks = tasks
        self._consumers: dict[str, TopicConsumer] = {}
        self._refused: dict[str, SandqError] = {}
        """Topics of a pattern that refused the subscription, and why, until it is known that they take it."""
        self._arrivals: deque[Arrival] = deque()
        self._arrived = Signal()
        self._changed = Signal()
        self._wake = Signal()
        self._scope = anyio.CancelScope()
        self._follower = anyio.CancelScope()
        self._error: SandqError | None = None
        self._is_open = False
        self._is_stopped = False
        self._entered = False
        self._waiting = 0
        self._yielded_at = 0.0

    async def __aenter__(self) -> Subscription:
        if self._entered:
            raise ClosedError("a subscription is entered once; make another one with client.subscribe")
        self._entered = True
        self.cluster.check_open()
        names = await self._chosen.names(self.cluster)
        if len(names) > TOPICS_MAX:
            raise too_many(self.topic, len(names))
        consumers = [TopicConsumer(self, name) for name in names]
        for name in names:
            if self.cluster.record(name) is None:
                self.cluster.refresh(name)  # all of them are asked for together
        for consumer in consumers:
            try:
                await consumer.check(makes=self._chosen.pattern is None)
            except UnknownTopic:
                if self._chosen.pattern is None:
                    raise
            else:
                self._consumers[consumer.topic] = consumer
        self._is_open = True
        self.cluster.on_change[self.wake] = None
        self._tasks.start_soon(self._run)
        if self._chosen.pattern is not None:
            self._tasks.start_soon(self._follow)
        try:
            await self._wait_until_ready()
        except BaseException:
            await self._leave(0.0)
            raise
        self.identity.has_come = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        options = self.cluster.options
        by_caller = error is None or isinstance(error, Exception)
        await self._leave(options.close_timeout_s if by_caller else options.cancel_timeout_s)

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Message:
        """The next message; several tasks may iterate over one subscription, each message goes to one of them."""
        message = self.take_ready()
        return message if message is not None else await self._next(self._take_message)

    def take_ready(self) -> Message | None:
        """The short way, for one after another: the next message, when nothing special is the matter."""
        return self.take_arrived() if time.monotonic() - self._yielded_at <= YIELD_S else None

    def take_arrived(self) -> Message | None:
        """The next message if it has come already; never waits. None also if the broker is to know first that it is
        begun."""
        while self._arrivals and self._is_open and self._error is None:
            if self._arrivals[0].is_to_be_reported:
                return None
            message = self._take_message()
            if message is not None:
                return message
        return None

    @property
    def has_arrived(self) -> bool:
        """Whether something has come and was not taken yet."""
        return bool(self._arrivals)

    @property
    def topic(self) -> str:
        """The topic's name; of several, all of them, or their pattern."""
        return self._chosen.text

    @property
    def topics(self) -> list[str]:
        """The names of the topics that it is subscribed to at present."""
        return list(self._consumers) if self._entered else self._chosen.listed

    @property
    def refused(self) -> dict[str, SandqError]:
        """The topics of a pattern that do not take the subscription at present, each with its reason: messages of the
        others come. They are asked again every few seconds."""
        consumers = self._consumers
        return {
            name: error
            for name, error in self._refused.items()
            if name not in consumers or not consumers[name].is_ready
        }

    @property
    def consumer_id(self) -> str:
        """What the broker knows this consumer by."""
        return self.identity.id

    @property
    def options(self) -> Options:
        """The named times of the client."""
        return self.cluster.options

    def batches(self) -> Batches:
        """`async for batch in subscription.batches():` messages by the batch, as they were pushed: many at little cost.

        Unless `credit` was given, up to 10,000 messages are held from now on.
        """
        if self._prefetch is not None:
            self._prefetch, self._credit = None, max(self._credit, BATCH_CREDIT)
            self._give_credit()
        return Batches(self)

    async def next_batch(self) -> MessageBatch:
        """The next batch, for `Batches`."""
        return await self._next(self._take_batch, whole=True)

    async def next_arrivals(self) -> list[Arrival]:
        """All that has come, for who reads it elsewhere: another thread. What waits there cannot be given back."""
        self._prefetch = None
        return await self._next(self._take_all, whole=None)

    async def flush(self) -> None:
        """Until every ack, nack and extension that is queued was answered, or cannot be any more."""
        while self._error is None and not all(consumer.is_quiet for consumer in self._consumers.values()):
            await self.quiet.wait()

    def stop(self) -> None:
        """Take nothing more: what has come and was not taken, and what still comes, is given back at once."""
        self._is_stopped, self._prefetch = True, None
        self._credit = 0
        self._give_credit()
        while self._arrivals:
            arrival = self._arrivals.popleft()
            self._give_back(arrival.chunk, arrival.position)

    def _give_back(self, chunk: Chunk, start: int) -> None:
        with suppress(ClosedError):  # it was left: then all is given back
            chunk.lease.owner.give_back_from(chunk, start)

    def check_open(self) -> None:
        """Raise what the iterator would: that it was left, or why it cannot go on. Of any thread."""
        if self._error is not None:
            raise again(self._error)
        if not self._is_open:
            raise closed(self.topic)

    async def _next(self, take: Callable[[], T | None], *, whole: bool | None = False) -> T:
        """`whole`: whether all that came together is begun, or only the next message; None: nothing is begun yet."""
        while True:
            self.check_open()
            if self._arrivals:
                if time.monotonic() - self._yielded_at > YIELD_S:
                    await anyio.lowlevel.checkpoint()
                    self._yielded_at = time.monotonic()
                    continue
                if whole is not None and self._arrivals[0].is_to_be_reported:
                    await self._arrivals[0].report(whole=whole)
                    continue
                found = take()
                if found is not None:
                    return found
                continue
            await self._wait_for_more()
            self._yielded_at = time.monotonic()

    async def _wait_for_more(self) -> None:
        self._waiting += 1
        try:
            for session in self._sessions():
                session.top_up()
            await self._arrived.wait()
        finally:
            self._waiting -= 1

    def _take_message(self) -> Message | None:
        message = self._arrivals[0].take(Message)
        if message is None:
            self._arrivals.popleft()
        return message

    def _take_batch(self) -> MessageBatch | None:
        arrival = self._arrivals.popleft()
        return MessageBatch(arrival.chunk, arrival.position) if arrival.take_rest() else None

    def _take_all(self) -> list[Arrival]:
        arrivals = list(self._arrivals)
        self._arrivals.clear()
        return arrivals

    # For topics and their sessions.

    @property
    def is_starved(self) -> bool:
        """Whether somebody waits for a message."""
        return self._waiting > 0 and not self._arrivals

    def receive(self, chunk: Chunk, crossed: int) -> None:
        """Messages came: for the iterator. `crossed`: for so many of them the credit had been taken back."""
        if self._is_stopped:
            self._give_back(chunk, 0)
            return
        now = anyio.current_time()
        if crossed and not self._give_back_beyond(chunk, crossed):
            return
        self._arrivals.append(Arrival(chunk, now))
        self._arrived.set()
        if self._prefetch is not None and now + STALE_S < self.due_at:
            self._wake.set()

    def freed(self, count: int) -> None:
        """So many messages are not held any more."""
        is_other = self._prefetch is not None and self._prefetch.settled(count, anyio.current_time())
        if is_other or self._is_crowded:
            self._give_credit()

    def sessions_changed(self) -> None:
        """There are others than before, or others of them have something to give."""
        self._give_credit()
        if not self._chosen.is_one:
            self._wake.set()  # it is to be seen when they have nothing any more

    def hold_no_more(self) -> None:
        """Hold nothing that nobody works on."""
        self._prefetch = None

    def outrank(self, error: ConsumerFenced) -> bool:
        """Have this process be the last that came, if it has only just come. Whether it is."""
        if not self._is_open or self.identity.is_outrun_by(error):
            return False
        if self.identity.outrank(error):
            self._arrivals.clear()
            for consumer in self._consumers.values():
                consumer.restart()
        return True

    def topic_failed(self, topic: str, error: SandqError) -> None:
        """A topic cannot go on: nor can the iterator, unless the topic was one of a pattern, and is gone, or refuses
        what others take."""
        self.cluster.gone(topic, error)
        if not self._goes_on_without(topic, error):
            self.fail(error)
        elif (consumer := self._consumers.pop(topic, None)) is not None:
            if isinstance(error, UnknownTopic):
                log.info("subscription to %s: topic %s is gone", self.topic, topic)
                self._refused.pop(topic, None)
            else:
                if topic not in self._refused:
                    log.warning(
                        "subscription to %s: topic %s refuses it (%s); it goes on without that one",
                        self.topic, topic, error,
                    )  # fmt: skip
                self._refused[topic] = error
            consumer.drop(error)
            self._give_credit()
            self.wake()

    def _goes_on_without(self, topic: str, error: SandqError) -> bool:
        if self._chosen.pattern is None:
            return False
        if isinstance(error, UnknownTopic):
            return True
        is_refusal = isinstance(error, _REFUSALS) and not isinstance(error, ConsumerFenced)
        return is_refusal and (topic in self._refused or len(self._consumers) > 1)

    def tend_soon(self) -> None:
        """Look after leases before that was due."""
        self._wake.set()

    def wake(self) -> None:
        """Something changed that the subscription's task looks after."""
        self._wake.set()
        self._changed.set()

    def fail(self, error: SandqError) -> None:
        """It cannot go on: the iterator raises this."""
        if self._error is None:
            self._error = error
        self._arrived.set()
        self._changed.set()
        self.quiet.set()

    # Credit.

    def _sessions(self) -> list[Session]:
        """Those that get some."""
        found = [session for consumer in self._consumers.values() for session in consumer.sessions.values()]
        return [session for session in found if not session.is_retired]

    def _give_credit(self) -> None:
        """Let each session have its share of what may be held now."""
        sessions = self._sessions()
        credit = self._credit + (self._prefetch.extra if self._prefetch is not None else 0)
        if self._chosen.is_one:
            share = min(equal_share(credit, len(sessions)), DEFAULT.credit_max)
            for session in sessions:
                session.aim(share)
            return
        held = [session.held if session.is_busy else None for session in sessions]
        targets = shares(min(credit, DEFAULT.credit_max), held)
        self._is_crowded = is_crowded(held, targets)
        for session, target in zip(sessions, targets, strict=True):
            session.aim(target, takes_back=True)

    def _tend_busy(self, now: float) -> float:
        """Take credit from sessions of several topics that have nothing to give any more; when to look again."""
        if self._chosen.is_one:
            return math.inf
        busy = [session for session in self._sessions() if session.is_busy]
        over = [session for session in busy if not session.held and now >= session.came_at + BUSY_S]
        for session in over:
            session.is_busy = False
        if over:
            self._give_credit()
        return now + BUSY_S if len(over) < len(busy) else math.inf

    def _return_stale(self, now: float) -> float:
        """Give back what waits although work has become slow; when to look again."""
        if self._prefetch is None or not self._arrivals:
            return math.inf
        stale_at = self._arrivals[0].since + STALE_S
        if now < stale_at:
            return stale_at
        prefetch, self._prefetch = self._prefetch, None  # what is given back was not settled
        self._give_credit()
        held = sum(session.held for consumer in self._consumers.values() for session in consumer.sessions.values())
        beyond = held - self._credit
        while self._arrivals and beyond > 0:
            arrival = self._arrivals.pop()
            waiting = positions_of(arrival.chunk.spans(OF_HELD, arrival.position))
            if len(waiting) > beyond:
                self._arrivals.append(arrival)
            if waiting:
                self._give_back(arrival.chunk, waiting[-min(beyond, len(waiting))])
            beyond -= len(waiting)
        prefetch.stop()
        self._prefetch = prefetch
        return now + STALE_S if self._arrivals else math.inf

    def _give_back_beyond(self, chunk: Chunk, crossed: int) -> bool:
        """Credit of one topic is another one's as soon as it is taken back, and what was on its way by then comes all
        the same: give back what of it is more than may be held, the last first. Whether something is left of it."""
        sessions = [session for consumer in self._consumers.values() for session in consumer.sessions.values()]
        most = self._credit + (self._prefetch.extra if self._prefetch is not None else 0) + len(sessions)
        beyond = min(crossed, sum([session.held for session in sessions]) - most)
        if beyond <= 0:
            return True
        waiting = positions_of(chunk.spans(OF_HELD))
        self._give_back(chunk, waiting[-min(beyond, len(waiting))])
        return beyond < len(waiting)

    # The subscription's tasks: sessions where leaders are, leases kept alive, topics that come.

    async def _run(self) -> None:
        try:
            with self._scope:
                while True:
                    now = anyio.current_time()
                    if self._error is None:
                        for consumer in list(self._consumers.values()):
                            consumer.place_sessions(self._tasks)
                    self.due_at = self._tend(now)
                    await self._wake.wait(self.due_at - now)
        finally:
            if self._is_open:  # the client was closed first
                self.fail(closed(self.topic))
                self._give_up()

    def _tend(self, now: float) -> float:
        """Extend leases, let go of those that are over, send what had to wait, give back what waits too long; when to
        look again."""
        due_at = min(self._return_stale(now), self._tend_busy(now))
        return min([due_at, *[consumer.tend(now) for consumer in self._consumers.values()]])

    async def _follow(self) -> None:
        """Join topics of the pattern that come."""
        is_full = False
        with self._follower:
            while self._error is None:
                await anyio.sleep(self.options.topics_interval_s)
                try:
                    names = await self._chosen.names(self.cluster)
                except SandqError as error:
                    log.info("subscription to %s: %s; asking again", self.topic, error)
                    continue
                self._look_at_refused(names)
                new = [name for name in names if name not in self._consumers]
                room = TOPICS_MAX - len(self._consumers)
                if len(new) > room and not is_full:
                    log.warning("%s", too_many(self.topic, len(names)).message)
                is_full = len(new) > room
                for name in new[: max(room, 0)]:
                    await self._join(name)

    def _look_at_refused(self, names: Sequence[str]) -> None:
        """Forget of topics that they refused the subscription once they take it, or are gone."""
        for name in list(self._refused):
            consumer = self._consumers.get(name)
            if consumer is not None and consumer.is_ready:
                log.info("subscription to %s: topic %s takes it now", self.topic, name)
                del self._refused[name]
            elif consumer is None and name not in names:
                del self._refused[name]

    async def _join(self, name: str) -> None:
        try:
            await self.cluster.asked(name)  # it may be known that there was none
        except SandqError as error:
            log.info("subscription to %s: topic %s: %s", self.topic, name, error)
            return
        if name not in self._refused:  # it is only asked again
            log.info("subscription to %s: topic %s has come", self.topic, name)
        self._consumers[name] = TopicConsumer(self, name)
        self.wake()

    # Entering and leaving.

    async def _wait_until_ready(self) -> None:
        timeout_s = self.cluster.options.timeout_s
        with anyio.move_on_after(timeout_s):
            while self._error is None:
                if all(consumer.is_ready for consumer in self._consumers.values()):
                    return
                await self._changed.wait()
        if self._error is not None:
            raise again(self._error)
        for name, consumer in self._consumers.items():
            if not any(session.ready for session in consumer.sessions.values()):
                raise Unavailable(f"no node accepted a subscription to topic {name!r} in {timeout_s:g} s")

    async def _leave(self, timeout_s: float) -> None:
        """Confirm what is queued, give back the rest, end the tasks."""
        self._is_open = False
        self._arrived.set()
        with anyio.CancelScope(shield=True), anyio.move_on_after(timeout_s):
            await self.flush()
            async with anyio.create_task_group() as leaving:
                for consumer in self._consumers.values():
                    consumer.leave(leaving)
        self._scope.cancel()
        self.cluster.on_change.pop(self.wake, None)
        self._give_up()

    def _give_up(self) -> None:
        error = closed(self.topic)
        self._follower.cancel()
        for consumer in self._consumers.values():
            consumer.close(error)
        self._arrivals.clear()
        self.quiet.set()


class Batches:
    """An async iterator over a subscription's messages by the batch; several tasks may share one."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> MessageBatch:
        return await self._subscription.next_batch()
