"""The blocking subscription. Threads take messages from what has come, and wait for the event loop only when that is
used up: once for all that has come meanwhile, not for each message."""

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
from sandq.sync.wrappers import Blocks, BlockWrapper, blocking

T = TypeVar("T")


@suggesting
class Subscription(BlockWrapper[AsyncSubscription]):
    """Messages of a topic for a consumer group; made by `client.subscribe`, a context manager and an iterator, for any
    number of threads: each message goes to one of them.

    Leaving the block waits (5 s at most; 1 s after Ctrl-C) until queued acks are confirmed, then gives back whatever
    was not settled, also what other threads still hold. Otherwise as `sandq.Subscription`.
    """

    def __init__(self, inner: AsyncSubscription, portal: Portal, blocks: Blocks) -> None:
        super().__init__(inner, portal, blocks)
        self._make = partial(Message, portal)
        self._arrivals: deque[Arrival] = deque()
        self._taking = threading.Lock()  # held for a moment
        self._filling = threading.Lock()  # held by the thread that waits for more

    @property
    def topic(self) -> str:
        """The topic's name; of several, all of them, or their pattern."""
        return self._inner.topic

    @property
    def topics(self) -> list[str]:
        """The names of the topics that it is subscribed to at present."""
        return self._inner.topics

    @property
    def refused(self) -> dict[str, SandqError]:
        """The topics of a pattern that do not take the subscription at present, each with its reason."""
        return self._inner.refused

    @property
    def group(self) -> str:
        """The group's name."""
        return self._inner.group

    @property
    def consumer_id(self) -> str:
        """What the broker knows this consumer by."""
        return self._inner.consumer_id

    def __iter__(self) -> Subscription:
        return self

    def __next__(self) -> Message:
        """The next message; waits for it."""
        return self._next(self._take_message, whole=False)

    def batches(self) -> Batches:
        """`for batch in subscription.batches():` messages by the batch, as they were pushed: many at little cost.

        Unless `credit` was given, up to 10,000 messages are held from now on.
        """
        self._portal.post(self._inner.batches)
        return Batches(self)

    def next_batch(self) -> MessageBatch:
        """The next batch, for `Batches`."""
        return self._next(self._take_batch, whole=True)

    flush = blocking(AsyncSubscription.flush)

    def _next(self, take: Callable[[], T | None], *, whole: bool) -> T:
        """`whole`: whether all that came together is begun, or only the next message."""
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
        """Take the next message; None if nothing has come, or the next one is to be reported as begun first."""
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
        # Here and not in the thread, which may be interrupted: nothing that has come is lost on the way.
        self._arrivals.extend(await self._inner.next_arrivals())


class Batches:
    """An iterator over a subscription's messages by the batch; several threads may share one."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> MessageBatch:
        return self._subscription.next_batch()
