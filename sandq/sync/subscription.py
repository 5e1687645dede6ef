"""The blocking subscription.

Threads take arrived messages directly, and wait for the event loop only if there are none. One wait then gets all
messages that have arrived meanwhile.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sandq.client.arguments import suggesting
from sandq.client.consumer.deliveries import Arrival
from sandq.client.consumer.subscription import Subscription as AsyncSubscription
from sandq.client.consumer.threaded import Message, MessageBatch
from sandq.client.portal import Portal
from sandq.model.errors import SandqError
from sandq.model.times import Duration
from sandq.sync.wrappers import Blocks, BlockWrapper, blocking

T = TypeVar("T")


@suggesting
class Subscription(BlockWrapper[AsyncSubscription]):
    """Messages of a topic for a consumer group. Created by `client.subscribe`; a context manager and iterator.

    Any number of threads may iterate; each message goes to one thread. Leaving the block waits until queued acks are
    confirmed (at most 5 s, or 1 s after Ctrl-C). Then it gives back the messages that were not settled, including
    messages that other threads hold. In all other respects, it behaves like `sandq.Subscription`.
    """

    def __init__(self, inner: AsyncSubscription, portal: Portal, blocks: Blocks) -> None:
        super().__init__(inner, portal, blocks)
        self._make = partial(Message, portal)
        self._arrivals: deque[Arrival] = deque()
        self._taking = threading.Lock()  # held for a short time
        self._filling = threading.Lock()  # held by the thread that waits for more messages

    @property
    def topic(self) -> str:
        """The topic's name; for several topics, all names or their pattern."""
        return self._inner.topic

    @property
    def topics(self) -> list[str]:
        """The names of the topics that are currently subscribed to."""
        return self._inner.topics

    @property
    def refused(self) -> dict[str, SandqError]:
        """The topics of a pattern that currently refuse the subscription, with the reason."""
        return self._inner.refused

    @property
    def group(self) -> str:
        """The group's name."""
        return self._inner.group

    @property
    def consumer_id(self) -> str:
        """The id by which the broker knows this consumer."""
        return self._inner.consumer_id

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Message:
        """Return the next message; wait for it."""
        return self._next(self._take_message, whole=False)

    def batches(self) -> Batches:
        """Iterate over batches in the form in which the nodes pushed them: `for batch in subscription.batches():`. This
        is cheap per message.

        Unless `credit` was given, up to 10,000 messages are held from now on.
        """
        self._portal.post(self._inner.batches)
        return Batches(self)

    def gather(self, min_messages: int, *, max_wait: Duration = "1s") -> Gathered:
        """Iterate over lists of batches, which together have at least `min_messages` messages: `for batches in
        subscription.gather(500):`.

        A list has fewer messages if the first of them has waited for `max_wait` (at most 60 s), which must be shorter
        than the lease. A list also has all other messages that have arrived. Unless `credit` was given, up to 10,000
        messages are held from now on, or `min_messages` if that is more.
        """

        async def prepare() -> float:
            return self._inner.prepare_gather(min_messages, max_wait)

        return Gathered(self, min_messages, self._portal.call(prepare))

    def next_gathered(self, min_messages: int, max_wait_s: float) -> list[MessageBatch]:
        """Return the next list of batches, for `Gathered`."""
        arrivals = self._portal.call(partial(self._gather, min_messages, max_wait_s))
        return [MessageBatch(self._portal, arrival.chunk, arrival.position) for arrival in arrivals]

    def next_batch(self) -> MessageBatch:
        """Return the next batch, for `Batches`."""
        return self._next(self._take_batch, whole=True)

    flush = blocking(AsyncSubscription.flush)

    def stop(self) -> None:
        """Stop receiving: give back the messages that were not taken yet, and messages that still arrive. Iterating
        then waits until the subscription is left."""
        self._portal.post(self._inner.stop)

    def _next(self, take: Callable[[], T | None], *, whole: bool) -> T:
        """Return the next result of `take`. `whole`: all messages of a chunk are begun together; otherwise only the
        next message is begun."""
        while True:
            self._portal.check()
            self._inner.check_open()
            with self._taking:
                found = take()
                unreported = self._arrivals[0] if found is None and self._arrivals else None
            if found is not None:
                return found
            if unreported is not None:
                self._portal.call(partial(unreported.report, whole=whole))
                continue
            with self._filling:
                if not self._arrivals:
                    self._portal.call(self._fill)

    def _take_message(self) -> Message | None:
        """Take the next message. None if no message has arrived, or if it must be reported as begun first."""
        arrivals = self._arrivals
        while arrivals and not arrivals[0].needs_report:
            message = arrivals[0].take(self._make)
            if message is not None:
                return message
            arrivals.popleft()
        return None

    def _take_batch(self) -> MessageBatch | None:
        arrivals = self._arrivals
        while arrivals and not arrivals[0].needs_report:
            arrival = arrivals.popleft()
            if arrival.take_rest():
                return MessageBatch(self._portal, arrival.chunk, arrival.position)
        return None

    async def _fill(self) -> None:
        # Runs in the event loop, because the caller's thread may be interrupted: so no arrived message is lost.
        self._arrivals.extend(await self._inner.next_arrivals())

    async def _gather(self, min_messages: int, max_wait_s: float) -> list[Arrival]:
        """Return what iterating has left over; without that, what arrives next (see `AsyncSubscription.gather`)."""
        with self._taking:
            left = list(self._arrivals)
            self._arrivals.clear()
        for arrival in left:
            if arrival.needs_report:
                await arrival.report(whole=True)
        return [arrival for arrival in left if arrival.take_rest()] or await self._inner.gather_arrivals(
            min_messages, max_wait_s
        )


class Batches:
    """An iterator over the batches of a subscription; several threads may share it."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> MessageBatch:
        return self._subscription.next_batch()


class Gathered:
    """An iterator over lists of batches; several threads may share it."""

    def __init__(self, subscription: Subscription, min_messages: int, max_wait_s: float) -> None:
        self._subscription = subscription
        self._min_messages = min_messages
        self._max_wait_s = max_wait_s

    def __iter__(self) -> Gathered:
        return self

    def __next__(self) -> list[MessageBatch]:
        return self._subscription.next_gathered(self._min_messages, self._max_wait_s)
