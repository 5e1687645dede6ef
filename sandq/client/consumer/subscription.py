"""A consumer: a subscription of a group to topics, over all nodes that lead their partitions."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, TypeVar

import anyio
import anyio.abc

from sandq.client.consumer.chosen import TOPICS_MAX, ChosenTopics, Partitions, Topics, partitions_of, too_many
from sandq.client.consumer.consumer_identity import ConsumerIdentity
from sandq.client.consumer.credit import Prefetch
from sandq.client.consumer.deliveries import Arrival
from sandq.client.consumer.intake import Intake, Wakeups
from sandq.client.consumer.message import Message, lease_ms_of
from sandq.client.consumer.message_batch import MessageBatch
from sandq.client.consumer.topic_consumer import Terms, TopicConsumer
from sandq.client.options import Options, again
from sandq.client.positions import Start, start_of
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
        self._terms = Terms(
            group=self.group,
            identity=ConsumerIdentity(client_name, consumer_id),
            lease_ms=lease_ms_of(lease),
            start=start_of(start),
            partitions=partitions_of(partitions),
            auto_extend=auto_extend,
            handlers=handlers,
        )
        if self._terms.partitions is not None and not self._chosen.is_one:
            raise InvalidRequest("partitions: they are of one topic, and this is about several")
        self._wakeups = Wakeups()
        self._intake = Intake(
            worked_on if credit is None else credit,
            Prefetch() if credit is None else None,
            self._chosen.is_one,
            self._wakeups,
        )
        self._arrivals = self._intake.arrivals
        self._tasks = tasks
        self._consumers: dict[str, TopicConsumer] = {}
        self._refused: dict[str, SandqError] = {}
        """Topics of a pattern that refused the subscription, and why, until it is known that they take it."""
        self._scope = anyio.CancelScope()
        self._follower = anyio.CancelScope()
        self._error: SandqError | None = None
        self._is_open = False
        self._entered = False
        self._yielded_at = 0.0

    async def __aenter__(self) -> Subscription:
        if self._entered:
            raise ClosedError("a subscription is entered once; make another one with client.subscribe")
        self._entered = True
        self.cluster.check_open()
        names = await self._chosen.names(self.cluster)
        if len(names) > TOPICS_MAX:
            raise too_many(self.topic, len(names))
        consumers = [self._consumer_of(name) for name in names]
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
        self.cluster.on_change[self._wakeups.wake] = None
        self._tasks.start_soon(self._run)
        if self._chosen.pattern is not None:
            self._tasks.start_soon(self._follow)
        try:
            await self._wait_until_ready()
        except BaseException:
            await self._leave(0.0)
            raise
        self._terms.identity.has_come = True
        return self

    def _consumer_of(self, topic: str) -> TopicConsumer:
        return TopicConsumer(
            self.cluster,
            topic,
            self._terms,
            self._intake,
            self._wakeups,
            on_failed=self._topic_failed,
            on_fenced=self._outrank,
        )

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
        return self._terms.identity.id

    @property
    def options(self) -> Options:
        """The named times of the client."""
        return self.cluster.options

    def batches(self) -> Batches:
        """`async for batch in subscription.batches():` messages by the batch, as they were pushed: many at little cost.

        Unless `credit` was given, up to 10,000 messages are held from now on.
        """
        if self._intake.prefetch is not None:
            self._intake.hold_by_batch(BATCH_CREDIT)
        return Batches(self)

    async def next_batch(self) -> MessageBatch:
        """The next batch, for `Batches`."""
        return await self._next(self._take_batch, whole=True)

    async def next_arrivals(self) -> list[Arrival]:
        """All that has come, for who reads it elsewhere: another thread. What waits there cannot be given back."""
        self._intake.hold_no_more()
        return await self._next(self._take_all, whole=None)

    async def flush(self) -> None:
        """Until every ack, nack and extension that is queued was answered, or cannot be any more."""
        while self._error is None and not all(consumer.is_quiet for consumer in self._consumers.values()):
            await self._wakeups.quiet.wait()

    def stop(self) -> None:
        """Take nothing more: what has come and was not taken, and what still comes, is given back at once."""
        self._intake.stop()

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
            await self._intake.wait_for_more()
            self._yielded_at = time.monotonic()

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

    # What topics and their sessions report.

    def _outrank(self, error: ConsumerFenced) -> bool:
        """Have this process be the last that came, if it has only just come. Whether it is."""
        if not self._is_open or self._terms.identity.is_outrun_by(error):
            return False
        if self._terms.identity.outrank(error):
            self._arrivals.clear()
            for consumer in self._consumers.values():
                consumer.restart()
        return True

    def _topic_failed(self, topic: str, error: SandqError) -> None:
        """A topic cannot go on: nor can the iterator, unless the topic was one of a pattern, and is gone, or refuses
        what others take."""
        self.cluster.forget_if_unknown(topic, error)
        if not self._goes_on_without(topic, error):
            self._fail(error)
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
            self._intake.give_credit()
            self._wakeups.wake()

    def _goes_on_without(self, topic: str, error: SandqError) -> bool:
        if self._chosen.pattern is None:
            return False
        if isinstance(error, UnknownTopic):
            return True
        is_refusal = isinstance(error, _REFUSALS) and not isinstance(error, ConsumerFenced)
        return is_refusal and (topic in self._refused or len(self._consumers) > 1)

    def _fail(self, error: SandqError) -> None:
        """It cannot go on: the iterator raises this."""
        if self._error is None:
            self._error = error
        self._intake.arrived.set()
        self._wakeups.changed.set()
        self._wakeups.quiet.set()

    # The subscription's tasks: sessions where leaders are, leases kept alive, topics that come.

    async def _run(self) -> None:
        try:
            with self._scope:
                while True:
                    now = anyio.current_time()
                    if self._error is None:
                        for consumer in list(self._consumers.values()):
                            consumer.place_sessions(self._tasks)
                    self._wakeups.due_at = self._tend(now)
                    await self._wakeups.task.wait(self._wakeups.due_at - now)
        finally:
            if self._is_open:  # the client was closed first
                self._fail(closed(self.topic))
                self._give_up()

    def _tend(self, now: float) -> float:
        """Extend leases, let go of those that are over, send what had to wait, give back what waits too long; when to
        look again."""
        due_at = self._intake.tend(now)
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
            await self.cluster.fetch_topic(name)  # it may be known that there was none
        except SandqError as error:
            log.info("subscription to %s: topic %s: %s", self.topic, name, error)
            return
        if name not in self._refused:  # it is only asked again
            log.info("subscription to %s: topic %s has come", self.topic, name)
        self._consumers[name] = self._consumer_of(name)
        self._wakeups.wake()

    # Entering and leaving.

    async def _wait_until_ready(self) -> None:
        timeout_s = self.cluster.options.timeout_s
        with anyio.move_on_after(timeout_s):
            while self._error is None:
                if all(consumer.is_ready for consumer in self._consumers.values()):
                    return
                await self._wakeups.changed.wait()
        if self._error is not None:
            raise again(self._error)
        for name, consumer in self._consumers.items():
            if not any(session.credit.is_accepted for session in consumer.sessions.values()):
                raise Unavailable(f"no node accepted a subscription to topic {name!r} in {timeout_s:g} s")

    async def _leave(self, timeout_s: float) -> None:
        """Confirm what is queued, give back the rest, end the tasks."""
        self._is_open = False
        self._intake.arrived.set()
        with anyio.CancelScope(shield=True), anyio.move_on_after(timeout_s):
            await self.flush()
            async with anyio.create_task_group() as leaving:
                for consumer in self._consumers.values():
                    consumer.leave(leaving)
        self._scope.cancel()
        self.cluster.on_change.pop(self._wakeups.wake, None)
        self._give_up()

    def _give_up(self) -> None:
        error = closed(self.topic)
        self._follower.cancel()
        for consumer in self._consumers.values():
            consumer.close(error)
        self._arrivals.clear()
        self._wakeups.quiet.set()


class Batches:
    """An async iterator over a subscription's messages by the batch; several tasks may share one."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> MessageBatch:
        return await self._subscription.next_batch()


def closed(topic: str) -> ClosedError:
    """The error of using a subscription that was left."""
    return ClosedError(f"the subscription to topic {topic!r} is closed")
