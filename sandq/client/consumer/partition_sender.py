"""Send the requests about leases of one partition to its leader, with a pause after failures."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable

import anyio

from sandq.client.options import Options
from sandq.client.signals import Signal
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.connection import Connection
from sandq.model.errors import SandqError

log = logging.getLogger("sandq.client")


class RequestQueue(ABC):
    """Queued and unanswered requests of one kind."""

    def __init__(self, sender: PartitionSender) -> None:
        self.in_flight = 0
        """Number of unanswered requests."""
        self._sender = sender
        sender.queues.append(self)

    @property
    @abstractmethod
    def is_queued(self) -> bool:
        """True if there are requests to send."""

    @abstractmethod
    def flush(self, connection: Connection) -> None:
        """Send the queued requests."""


class PartitionSender:
    """Sends the requests of one partition's queues, with the next send of the connection to its leader."""

    def __init__(
        self, cluster: Cluster, topic: str, partition: int, on_quiet: Signal, wake: Callable[[], None]
    ) -> None:
        """`on_quiet` is set when all requests are sent and answered.

        `wake` runs the subscription's task, which calls `poke` when it is due.
        """
        self.queues: list[RequestQueue] = []
        self.topic = topic
        self.partition = partition
        self.wake = wake
        self._cluster = cluster
        self._on_quiet = on_quiet
        self._failures = 0
        self._resume_at = -math.inf

    @property
    def options(self) -> Options:
        """The options of the client."""
        return self._cluster.options

    @property
    def is_quiet(self) -> bool:
        """True if all requests are sent and answered."""
        return not any([queue.is_queued or queue.in_flight for queue in self.queues])

    @property
    def _is_queued(self) -> bool:
        return any([queue.is_queued for queue in self.queues])

    def poke(self) -> None:
        """Send the queued requests, unless the partition has no leader, or sending pauses after a failure."""
        if anyio.current_time() < self._resume_at:
            self.wake()
            return
        connection = self._cluster.leader(self.topic, self.partition)
        if connection is not None and self._is_queued:
            connection.flush_soon(self._flush)

    def next_time(self, now: float) -> float:
        """Return the next time at which `poke` is due without an event."""
        return self._resume_at if self._resume_at > now and self._is_queued else math.inf

    def _flush(self) -> None:
        connection = self._cluster.leader(self.topic, self.partition)
        if connection is not None:
            for queue in self.queues:
                queue.flush(connection)

    def answered(self) -> None:
        """Set `on_quiet` if all requests are sent and answered."""
        if self.is_quiet:
            self._on_quiet.set()

    def pause(self, error: SandqError) -> None:
        """Pause sending after a retriable failure."""
        log.debug("topic %s partition %d: %s; retrying", self.topic, self.partition, error)
        self._resume_at = anyio.current_time() + self.options.back_off_s(self._failures)
        self._failures += 1
        if error.code not in ("OVERLOADED", "TIMED_OUT"):
            self._cluster.refresh(self.topic)
        self.wake()

    def reset_failures(self) -> None:
        """Reset the back-off: a request succeeded."""
        self._failures = 0
