"""One client for each process and cluster, and the queues that are declared with it.

Worker processes are forked, and a client belongs to the process that made it. So `acquire` makes one for each process
when it is first needed there, and forgets those of the parent process after a fork.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

from sandq.errors import NotFound, SandqError, TooLate, TopicExists, UnknownGroup, UnknownTopic
from sandq_workers import clients
from sandq_workers.kombu.bindings import Bindings
from sandq_workers.kombu.envelope import Payload, outgoing
from sandq_workers.names import decoded, encoded, key_of
from sandq_workers.urls import Address

log = logging.getLogger("sandq.workers")

_RANKED: Final = ("priority", "fair")
_EXCHANGE_TOPIC: Final = "kombu.exchange"
_BROADCAST: Final[dict[str, Any]] = {
    # Without a group, messages stay only for this long; with one, until it has got them or they expire.
    "delete_on_ack": False, "retain": "1m", "ttl": "1m", "on_expiry": "drop", "group_ttl": "10m",
}  # fmt: skip
"""Settings of the topic of an exchange that has temporary queues."""
_WORK: Final[dict[str, Any]] = {"on_expiry": "drop"}
"""Settings of the topic of a queue, in addition to those of the transport options."""


class Session:
    """The client of this process for one address."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.pid = os.getpid()
        self.users = 0
        self.client = clients.acquire(address)
        self.bindings = Bindings(self.client, address.prefix)
        self.temporary: dict[str, dict[str, set[str]]] = {}
        """Temporary queues that this process has declared: their exchanges, and the routing keys in each."""
        self._ranked: set[str] = set()
        """Temporary queues with priorities."""
        self._groups: dict[str, str] = {}
        self._kinds: dict[str, str] = {}
        """Kinds of the topics of queues that this process has declared."""
        self._exchange_kinds: dict[str, str] = {}
        try:
            self.bindings.start()
        except BaseException:
            clients.release(address)
            raise

    @property
    def is_foreign(self) -> bool:
        """True in a process that was forked after the session was made."""
        return os.getpid() != self.pid

    def topic(self, queue: str) -> str:
        """Return the topic of a queue."""
        return encoded(queue, prefix=self.address.prefix)

    def exchange_topic(self, exchange: str) -> str:
        """Return the topic of an exchange that has temporary queues."""
        name = f"{self.address.prefix}{_EXCHANGE_TOPIC}"
        return encoded(exchange, prefix=f"{name}.") if exchange else name

    def group(self, queue: str) -> str:
        """Return the group of a temporary queue."""
        return self._groups.get(queue) or encoded(queue)

    # Queues.

    def declare_queue(self, queue: str, *, kind: str, partitions: int, settings: Mapping[str, Any]) -> None:
        """Create the topic of a queue unless it exists."""
        topic = self.topic(queue)
        if topic in self._kinds:
            return
        with suppress(TopicExists):
            self.client.admin.create_topic(topic, kind=kind, partitions=partitions, **{**_WORK, **settings})
        self._kinds[topic] = found = self.client.admin.topic(topic).kind
        if found not in _RANKED and kind in _RANKED:
            log.warning("queue %s: its topic has the kind %r, so that priorities have no effect", queue, found)

    def exists(self, queue: str) -> bool:
        """Return whether a queue exists."""
        if queue in self.temporary:
            return True
        try:
            self.client.admin.topic(self.topic(queue))
        except UnknownTopic:
            return self.bindings.is_temporary(queue)
        return True

    def declare_temporary(self, queue: str, *, is_exclusive: bool, is_ranked: bool) -> None:
        """Declare a temporary queue. Until it is bound, it gets what is sent to it by its name.

        `is_ranked`: it has priorities, if it is the first one of its exchange."""
        if queue not in self.temporary:
            self.temporary[queue] = {}
            if is_ranked:
                self._ranked.add(queue)
            if is_exclusive:
                self._groups[queue] = f"{encoded(queue)}.{uuid.uuid4().hex[:8]}"
            self.bindings.add_temporary(queue)

    def bind_temporary(self, queue: str, exchange: str, key: str) -> None:
        """Bind a temporary queue: make the exchange broadcast, and begin a group of its topic."""
        keys = self.temporary[queue].setdefault(exchange, set())
        if not keys:
            topic = self.exchange_topic(exchange)
            with suppress(TopicExists):
                kind = "priority" if queue in self._ranked else "timer"
                self.client.admin.create_topic(topic, kind=kind, **_BROADCAST)
            self._begin_group(topic, self.group(queue))
            self.bindings.broadcast(exchange)
        keys.add(key)

    def bind_unbound(self) -> None:
        """Let temporary queues without an exchange get what is sent to their names. Called before anything is sent, so
        that a queue that is bound right after its declaration needs only one group."""
        for queue, exchanges in list(self.temporary.items()):
            if not exchanges:
                self.bind_temporary(queue, "", queue)

    def _begin_group(self, topic: str, group: str) -> None:
        """Begin a group at the latest message. A group without consumers is the rest of a process that was killed."""
        try:
            has_consumers = any(True for _ in self.client.admin.consumers(topic, group).consumers)
        except UnknownGroup:
            leases = self.client.leases(topic, group)
            if taken := leases.take(start="latest"):
                leases.give_back(taken)
        else:
            if not has_consumers:
                self.client.admin.seek_group(topic, group, "latest")

    def drop_temporary(self, queue: str) -> None:
        """Delete a temporary queue."""
        for exchange in self.temporary.pop(queue, {}):
            with suppress(SandqError):  # another consumer may have it, or the cluster may be away: `group_ttl` ends it
                self.client.admin.delete_group(self.exchange_topic(exchange), self.group(queue), force=True)
        self._groups.pop(queue, None)
        self._ranked.discard(queue)
        with suppress(SandqError):
            self.bindings.remove_temporary(queue)

    def delete_queue(self, queue: str) -> None:
        """Delete a queue with its messages and bindings."""
        if queue in self.temporary:
            self.drop_temporary(queue)
            return
        self._kinds.pop(self.topic(queue), None)
        self.bindings.remove_queue(queue)
        with suppress(UnknownTopic):
            self.client.admin.delete_topic(self.topic(queue))

    # Messages.

    def publish(self, payload: Payload, *, exchange: str, routing_key: str) -> None:
        """Store a message in each queue that it is routed to. Returns once all of them are safely stored."""
        self.bind_unbound()
        now_ms = int(time.time() * 1000)
        message = outgoing(payload, exchange=exchange, routing_key=routing_key, now_ms=now_ms)
        if exchange:
            queues, broadcasts = self.bindings.route(exchange, routing_key)
        else:
            is_temporary = self.topic(routing_key) not in self._kinds and self.bindings.is_temporary(routing_key)
            queues, broadcasts = (() if is_temporary else (routing_key,)), is_temporary
        for queue in queues:
            self._produce(queue, message.value, message.options(is_ranked=self.is_ranked(queue)))
        if broadcasts:
            topic = self.exchange_topic(exchange)
            if topic not in self._exchange_kinds:
                self._exchange_kinds[topic] = self.client.admin.topic(topic).kind
            options = message.options(is_ranked=self._exchange_kinds[topic] in _RANKED)
            options.pop("deliver_at", None)  # workers of a broadcast are those of now
            self.client.produce(topic, message.value, **options)

    def cancel(self, task_id: str) -> str | None:
        """Cancel a task that waits. Return "cancelled", or the state in which it is if it is too late; None if no queue
        knows it."""
        state: str | None = None
        for queue in self.queues():
            try:
                self.client.messages(self.topic(queue)).cancel(unique_key=key_of(task_id))
                return "cancelled"
            except TooLate as error:
                state = str(error.details.get("state"))
            except NotFound:
                continue
        return state

    def move(self, task_id: str, **when: Any) -> bool:
        """Change the time of a task that waits. Return False if no queue knows it. Raises TooLate."""
        for queue in self.queues():
            with suppress(NotFound):
                self.client.messages(self.topic(queue)).move(unique_key=key_of(task_id), **when)
                return True
        return False

    def why(self, task_id: str) -> dict[str, Any] | None:
        """Return what a task waits for, with its queue; None if no queue knows it."""
        for queue in self.queues():
            with suppress(NotFound):
                found = self.client.messages(self.topic(queue)).why(unique_key=key_of(task_id))
                return {"queue": queue, **found}
        return None

    def queues(self) -> list[str]:
        """Return the queues that are topics, as far as this process knows: those that are bound to an exchange, and
        those that it has declared."""
        bound = [queue for pairs in self.bindings.bound.values() for queue, _ in pairs]
        declared = [decoded(topic, prefix=self.address.prefix) for topic in self._kinds]
        return [queue for queue in dict.fromkeys([*declared, *bound]) if not self.bindings.is_temporary(queue)]

    def _produce(self, queue: str, value: bytes, options: Mapping[str, Any]) -> None:
        topic = self.topic(queue)
        try:
            self.client.produce(topic, value, **options)
        except UnknownTopic:
            # Someone has deleted the queue since: the message is more important.
            kind = self._kinds.pop(topic, "timer")
            self.declare_queue(queue, kind=kind, partitions=1, settings={})
            self.client.produce(topic, value, **options)

    def is_ranked(self, queue: str) -> bool:
        """Return whether the topic of a queue has priorities. Create it if it does not exist."""
        topic = self.topic(queue)
        if topic not in self._kinds:
            self.declare_queue(queue, kind="timer", partitions=1, settings={})
        return self._kinds[topic] in _RANKED


_sessions: dict[Address, Session] = {}
_lock = threading.RLock()


def acquire(address: Address) -> Session:
    """Return the session of this process for an address; connect if there is none. Raises the errors of connecting."""
    with _lock:
        session = _sessions.get(address)
        if session is None:
            session = _sessions[address] = Session(address)
        session.users += 1
        return session


def release(session: Session) -> None:
    """Close the session if nothing uses it any more."""
    if session.is_foreign:
        return
    with _lock:
        session.users -= 1
        if session.users:
            return
        if _sessions.get(session.address) is session:
            del _sessions[session.address]
    for queue in list(session.temporary):
        session.drop_temporary(queue)
    clients.release(session.address)


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # a thread of the parent process may hold the other one
    _sessions.clear()


os.register_at_fork(after_in_child=_after_fork)
