"""A consumer: the subscription of a group to topics, on all nodes that lead their partitions."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from itertools import islice
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
from sandq.client.options import Options
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
from sandq.model.times import Duration, duration_ms

log = logging.getLogger("sandq.client")

T = TypeVar("T")

CREDIT: Final = 10
BATCH_CREDIT: Final = 10_000
"""Default credit: `CREDIT` for single messages, `BATCH_CREDIT` for batches."""
MAX_WAIT_MS: Final = 60_000
"""Maximum of `max_wait` of `gather`, in ms."""
_REFUSALS: Final = (InvalidRequest, Conflict, Forbidden)
"""Errors with which a topic refuses a subscription."""
YIELD_S: Final = 0.001
"""Maximum time in seconds until the iterator lets other tasks run, so that acks are sent while the caller computes."""


class Subscription:
    """Messages of topics for a consumer group. Created by `client.subscribe`; an async context manager and iterator.

    Entering waits until the nodes that lead partitions have accepted the subscription. Leaving waits until queued acks
    are confirmed (at most 5 s, or 1 s when cancelled). Then it gives back the messages that were not settled: they are
    ready for other consumers immediately, and their attempt does not count.

    Broken connections are reopened, without a limit on attempts, and held messages stay held. The iterator raises only
    permanent errors, for example if a topic was deleted that no pattern includes. It raises ClosedError after the block
    was left. If topics of a pattern refuse the subscription, for example because of a lease above their `max_lease`,
    they are skipped with a warning and retried; `refused` lists them. If all topics of a pattern refuse it, the
    iterator raises the reason.
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
        """`credit`: maximum number of held messages. None: `worked_on`, and more while messages are settled quickly.

        `handlers`: usual number of messages that are processed at the same time. `consumer_id`: a permanent id; None: a
        new id, only for this subscription. `partitions`: None for all.
        """
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
            raise InvalidRequest("partitions: they can only be given for a single topic")
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
        """By topic of a pattern: the reason why it refused the subscription. Removed once the topic accepts it."""
        self._scope = anyio.CancelScope()
        self._follower = anyio.CancelScope()
        self._error: SandqError | None = None
        self._is_open = False
        self._entered = False
        self._yielded_at = 0.0

    async def __aenter__(self) -> Subscription:
        if self._entered:
            raise ClosedError("a subscription is entered once; make a new one with client.subscribe")
        self._entered = True
        self.cluster.check_open()
        names = await self._chosen.names(self.cluster)
        if len(names) > TOPICS_MAX:
            raise too_many(self.topic, len(names))
        consumers = [self._consumer_of(name) for name in names]
        for name in names:
            if self.cluster.record(name) is None:
                self.cluster.refresh(name)  # all topics are requested together
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
        self._terms.identity.is_accepted = True
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
        """Return the next message. Several tasks may iterate over one subscription; each message goes to one task."""
        message = self.take_ready()
        return message if message is not None else await self._next(self._take_message)

    def take_ready(self) -> Message | None:
        """Return the next message without waiting. None if the caller must use `__anext__`, for instance to let other
        tasks run."""
        return self.take_arrived() if time.monotonic() - self._yielded_at <= YIELD_S else None

    def take_arrived(self) -> Message | None:
        """Return the next message if it has arrived; never wait.

        Also returns None if the broker must first store that the message was begun, because only `__anext__` can wait
        for the broker.
        """
        while self._arrivals and self._is_open and self._error is None:
            if self._arrivals[0].needs_report:
                return None
            message = self._take_message()
            if message is not None:
                return message
        return None

    @property
    def has_arrived(self) -> bool:
        """True if there are arrived messages that were not taken yet."""
        return bool(self._arrivals)

    @property
    def topic(self) -> str:
        """The topic's name; for several topics, all names or their pattern."""
        return self._chosen.text

    @property
    def topics(self) -> list[str]:
        """The names of the topics that are currently subscribed to."""
        return list(self._consumers) if self._entered else self._chosen.listed

    @property
    def refused(self) -> dict[str, SandqError]:
        """The topics of a pattern that currently refuse the subscription, with the reason. They are retried
        periodically."""
        consumers = self._consumers
        return {
            name: error
            for name, error in self._refused.items()
            if name not in consumers or not consumers[name].is_ready
        }

    @property
    def consumer_id(self) -> str:
        """The id by which the broker knows this consumer."""
        return self._terms.identity.id

    @property
    def options(self) -> Options:
        """The options of the client."""
        return self.cluster.options

    def batches(self) -> Batches:
        """Iterate over batches in the form in which the nodes pushed them: `async for batch in
        subscription.batches():`. This is cheap per message.

        Unless `credit` was given, up to 10,000 messages are held from now on.
        """
        if self._intake.prefetch is not None:
            self._intake.hold_by_batch(BATCH_CREDIT)
        return Batches(self)

    def gather(self, min_messages: int, *, max_wait: Duration = "1s") -> Gathered:
        """Iterate over lists of batches, which together have at least `min_messages` messages: `async for batches in
        subscription.gather(500):`.

        A list has fewer messages if the first of them has waited for `max_wait` (at most 60 s), which must be shorter
        than the lease. A list also has all other messages that have arrived. Unless `credit` was given, up to 10,000
        messages are held from now on, or `min_messages` if that is more.
        """
        max_wait_s = self.prepare_gather(min_messages, max_wait)
        return Gathered(self, min_messages, max_wait_s)

    def prepare_gather(self, min_messages: int, max_wait: Duration) -> float:
        """Check the arguments of `gather`, and hold enough messages. Return `max_wait` in seconds."""
        if type(min_messages) is not int or not 1 <= min_messages <= DEFAULT.credit_max:
            raise InvalidRequest(
                f"min_messages: an int within 1..{DEFAULT.credit_max} is expected, not {min_messages!r}"
            )
        max_wait_ms = duration_ms(max_wait)
        if not 0 <= max_wait_ms <= MAX_WAIT_MS:
            raise InvalidRequest(f"max_wait: at most {MAX_WAIT_MS // 1000} s is expected, not {max_wait!r}")
        if self._intake.prefetch is not None:
            self._intake.hold_by_batch(max(BATCH_CREDIT, min_messages))
        elif self._intake.credit < min_messages:
            raise InvalidRequest(
                f"min_messages: {min_messages} is more than the credit of the subscription, {self._intake.credit}"
            )
        return max_wait_ms / 1000

    async def gather_arrivals(self, min_messages: int, max_wait_s: float) -> list[Arrival]:
        """Take the arrived chunks, once they have enough messages or the first has waited long enough: for
        `gather`."""
        await anyio.lowlevel.checkpoint()  # so that acks are sent
        while True:
            await self._wait_for_messages(min_messages, max_wait_s)
            # Report all before any is taken: a caller that is cancelled loses nothing.
            for arrival in list(self._arrivals):
                if arrival.needs_report:
                    await arrival.report(whole=True)
            found = []
            while self._arrivals and not self._arrivals[0].needs_report:
                arrival = self._arrivals.popleft()
                if arrival.take_rest():
                    found.append(arrival)
            if found:
                return found

    async def _wait_for_messages(self, min_messages: int, max_wait_s: float) -> None:
        """Wait until this number of messages has arrived, or the first has waited for `max_wait_s`."""
        counted = messages = 0
        while True:
            self.check_open()
            if len(self._arrivals) < counted:  # a different task has taken some
                counted = messages = 0
            messages += sum([each.chunk.count - each.position for each in islice(self._arrivals, counted, None)])
            counted = len(self._arrivals)
            left_s = self._arrivals[0].since + max_wait_s - anyio.current_time() if self._arrivals else math.inf
            if messages >= min_messages or left_s <= 0:
                return
            await self._intake.wait_for_more(left_s)

    async def next_batch(self) -> MessageBatch:
        """Return the next batch, for `Batches`."""
        return await self._next(self._take_batch, whole=True)

    async def next_arrivals(self) -> list[Arrival]:
        """Return all arrived chunks, for callers that read them in another thread. They cannot be given back later."""
        self._intake.hold_no_more()
        return await self._next(self._take_all, whole=None)

    async def flush(self) -> None:
        """Wait until each queued ack, nack and extension has a reply, or can no longer get one."""
        while self._error is None and not all(consumer.is_quiet for consumer in self._consumers.values()):
            await self._wakeups.quiet.wait()

    def stop(self) -> None:
        """Stop receiving: give back the messages that were not taken yet, and messages that still arrive."""
        self._intake.stop()

    def check_open(self) -> None:
        """Raise the error that the iterator would raise if the subscription was left or has failed. May be called from
        any thread."""
        if self._error is not None:
            raise self._error.again()
        if not self._is_open:
            raise closed(self.topic)

    async def _next(self, take: Callable[[], T | None], *, whole: bool | None = False) -> T:
        """Return the next result of `take` that is not None.

        `whole`: True if all messages of a chunk are begun together; False if only the next message is begun; None if no
        message is begun yet.
        """
        while True:
            self.check_open()
            if self._arrivals:
                if time.monotonic() - self._yielded_at > YIELD_S:
                    await anyio.lowlevel.checkpoint()
                    self._yielded_at = time.monotonic()
                    continue
                if whole is not None and self._arrivals[0].needs_report:
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

    # Topics and their sessions call these.

    def _outrank(self, error: ConsumerFenced) -> bool:
        """Claim a newer epoch if this process has only just started; return whether to subscribe again."""
        if not self._is_open or self._terms.identity.is_replaced_by(error):
            return False
        if self._terms.identity.outrank(error):
            self._arrivals.clear()
            for consumer in self._consumers.values():
                consumer.restart()
        return True

    def _topic_failed(self, topic: str, error: SandqError) -> None:
        """Handle a permanent error of a topic: fail the iterator, or continue without the topic.

        The subscription continues only if the topic belongs to a pattern. It must also be gone, or refuse the
        subscription while other topics accept it.
        """
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
                        "subscription to %s: topic %s refuses it (%s); continuing without this topic",
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
        """Fail the subscription: the iterator raises this error."""
        if self._error is None:
            self._error = error
        self._intake.arrived.set()
        self._wakeups.changed.set()
        self._wakeups.quiet.set()

    # The subscription's tasks: open sessions on the leaders, extend leases, join new topics.

    async def _run(self) -> None:
        try:
            with self._scope:
                while True:
                    now = anyio.current_time()
                    if self._error is None:
                        for consumer in list(self._consumers.values()):
                            consumer.update_sessions(self._tasks)
                    self._wakeups.due_at = self._tend(now)
                    await self._wakeups.task.wait(self._wakeups.due_at - now)
        finally:
            if self._is_open:  # the client was closed first
                self._fail(closed(self.topic))
                self._give_up()

    def _tend(self, now: float) -> float:
        """Extend leases, drop expired leases, send delayed requests, and give back messages that wait too long.

        Return the time of the next call.
        """
        due_at = self._intake.tend(now)
        return min([due_at, *[consumer.tend(now) for consumer in self._consumers.values()]])

    async def _follow(self) -> None:
        """Join new topics of the pattern."""
        is_full = False
        with self._follower:
            while self._error is None:
                await anyio.sleep(self.options.topics_interval_s)
                try:
                    names = await self._chosen.names(self.cluster)
                except SandqError as error:
                    log.info("subscription to %s: %s; asking again", self.topic, error)
                    continue
                self._update_refused(names)
                new = [name for name in names if name not in self._consumers]
                free = TOPICS_MAX - len(self._consumers)
                if len(new) > free and not is_full:
                    log.warning("%s", too_many(self.topic, len(names)).message)
                is_full = len(new) > free
                for name in new[: max(free, 0)]:
                    await self._join(name)

    def _update_refused(self, names: Sequence[str]) -> None:
        """Remove topics from `refused` that accept the subscription now, or that are gone."""
        for name in list(self._refused):
            consumer = self._consumers.get(name)
            if consumer is not None and consumer.is_ready:
                log.info("subscription to %s: topic %s accepts it now", self.topic, name)
                del self._refused[name]
            elif consumer is None and name not in names:
                del self._refused[name]

    async def _join(self, name: str) -> None:
        try:
            await self.cluster.fetch_topic(name)  # the cache may have the reply that there is no such topic
        except SandqError as error:
            log.info("subscription to %s: topic %s: %s", self.topic, name, error)
            return
        if name not in self._refused:  # otherwise it is only retried
            log.info("subscription to %s: new topic %s", self.topic, name)
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
            raise self._error.again()
        for name, consumer in self._consumers.items():
            if not any(session.credit.is_accepted for session in consumer.sessions.values()):
                raise Unavailable(f"no node accepted a subscription to topic {name!r} in {timeout_s:g} s")

    async def _leave(self, timeout_s: float) -> None:
        """Confirm the queued acks, give back the unsettled messages, and end the tasks."""
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
    """An async iterator over the batches of a subscription; several tasks may share it."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __aiter__(self) -> Batches:
        return self

    async def __anext__(self) -> MessageBatch:
        return await self._subscription.next_batch()


class Gathered:
    """An async iterator over lists of batches; several tasks may share it."""

    def __init__(self, subscription: Subscription, min_messages: int, max_wait_s: float) -> None:
        self._subscription = subscription
        self._min_messages = min_messages
        self._max_wait_s = max_wait_s

    def __aiter__(self) -> Gathered:
        return self

    async def __anext__(self) -> list[MessageBatch]:
        arrivals = await self._subscription.gather_arrivals(self._min_messages, self._max_wait_s)
        return [MessageBatch(arrival.chunk, arrival.position) for arrival in arrivals]


def closed(topic: str) -> ClosedError:
    """Return the error for using a subscription that was left."""
    return ClosedError(f"the subscription to topic {topic!r} is closed")
