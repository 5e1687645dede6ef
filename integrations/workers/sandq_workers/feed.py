"""A subscription whose messages a thread puts into a queue in memory, from which the framework takes them.

The client extends the leases of all messages that a feed holds, however long a task runs. The credit of the
subscription limits the number of messages, so the queue in memory needs no limit of its own.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sandq import LeasedMessage
from sandq.errors import ClosedError, SandqError
from sandq.sync import Client, Leases, Subscription
from sandq.sync import Message as SandqMessage

log = logging.getLogger("sandq.workers")

CREDIT: Final = 100
"""Messages that a feed may hold if the channel has no prefetch limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The topics of a feed, and the terms of its subscription."""

    queues: Mapping[str, str]
    """By topic: the queue whose messages it has."""
    group: str
    credit: int
    lease: str | None
    accepts: Callable[[Headed], bool] | None = None
    """Whether a message is for the queue; others are acked. None: all are."""


class Feed:
    """A subscription with its thread. `on_arrival` is called in that thread for each message, and when it ends."""

    def __init__(self, client: Client, terms: Terms, on_arrival: Callable[[], None]) -> None:
        self.terms = terms
        self.inbox: deque[SandqMessage] = deque()
        self.error: SandqError | None = None
        """Why the feed ended; None while it runs, and after it was closed."""
        self.held = 0
        """Messages that were taken from the inbox and not settled."""
        self._on_arrival = on_arrival
        self._is_retired = False
        self._is_closed = False
        self._settling = threading.Lock()
        self._subscription: Subscription = client.subscribe(
            list(terms.queues), group=terms.group, credit=terms.credit, lease=terms.lease
        )
        self._subscription.__enter__()
        threading.Thread(target=self._run, name="sandq-feed", daemon=True).start()

    def take(self) -> tuple[str, SandqMessage] | None:
        """Take the next message with its queue; None if none has arrived."""
        try:
            message = self.inbox.popleft()
        except IndexError:
            return None
        with self._settling:
            self.held += 1
        return self.terms.queues[message.topic], message

    def settled(self) -> None:
        """Count a message as settled. A retired feed ends with its last message."""
        with self._settling:
            self.held -= 1
            is_over = self._is_retired and not self.held
        if is_over:
            self.close()

    def retire(self) -> None:
        """Receive no more messages, and give back those that were not taken. The others stay leased."""
        self._is_retired = True
        self._subscription.stop()
        while self.inbox:
            try:
                give_back(self.inbox.popleft())
            except IndexError:
                break
        if not self.held:
            self.close()

    def close(self) -> None:
        """Send queued acks, and give back all messages that were not settled."""
        if not self._is_closed:
            self._is_closed = True
            self._subscription.__exit__(None, None, None)

    def _run(self) -> None:
        try:
            for message in self._subscription:
                if self._is_retired:
                    give_back(message)
                elif self.terms.accepts is None or self.terms.accepts(message):
                    self.inbox.append(message)
                    self._on_arrival()
                else:
                    message.ack()
        except SandqError as error:
            if not self._is_closed:
                self.error = error if not isinstance(error, ClosedError) else ClosedError("the client was closed")
                self._on_arrival()


class Leased:
    """A message that was leased by a single call, with the methods of a message that a feed has."""

    def __init__(self, leases: Leases, message: LeasedMessage) -> None:
        self.value, self.headers, self.attempt = message.value, message.headers, message.attempt
        self.topic, self.id = message.topic, message.id
        self._leases = leases
        self._message = message

    def ack(self) -> None:
        """Ack the message."""
        self._leases.ack([self._message])

    def give_back(self) -> None:
        """Make the message ready again."""
        self._leases.give_back([self._message])

    def dead(self, error: str) -> None:
        """Make the message a dead letter."""
        self._leases.dead([self._message], error)


Headed = SandqMessage | LeasedMessage
"""A message with headers."""
Held = SandqMessage | Leased
"""A message that is held until it is settled."""


def give_back(message: Held) -> Any:
    """Make a message ready for other consumers immediately. The attempt does not count."""
    return message.give_back()
