"""Settle the messages that a subscription holds of one partition, and extend their leases.

Messages and batches call `PartitionConsumer`. `HeldMessages` has the state of each message. `AckQueue` (acks and nacks)
and `LeaseExtensions` have the requests, which `PartitionSender` sends to the leader of the partition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import anyio

from sandq.client.consumer.ack_queue import AckQueue
from sandq.client.consumer.held_messages import HeldMessages, settled_before
from sandq.client.consumer.lease import ACKING, LOST, NACKING, REJECTING, Chunk, Extension, Lease
from sandq.client.consumer.lease_extension import LeaseExtensions
from sandq.client.consumer.nack_change import NOT_BEGUN, NackChange, NackTerms
from sandq.client.consumer.outgoing import Outgoing, rows_of
from sandq.client.consumer.partition_sender import PartitionSender
from sandq.client.producer.validation import Headers
from sandq.client.signals import Signal
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import settle
from sandq.model.errors import SandqError
from sandq.model.nack_ends import DEAD
from sandq.protocol.replies import results
from sandq.protocol.requests import LeasePause


class PartitionConsumer:
    """One partition of one group, for one subscription."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        group: str,
        partition: int,
        group_number: int,
        on_quiet: Signal,
        wake: Callable[[], None],
        lease_ms: Callable[[], int],
    ) -> None:
        """`lease_ms()` returns how long messages are held."""
        self.topic = topic
        self.group = group
        self.partition = partition
        self.sender = PartitionSender(cluster, topic, partition, on_quiet, wake)
        self.held = HeldMessages(topic, partition, group_number, cluster.options.finished_leases, wake)
        self._cluster = cluster
        self._lease_ms = lease_ms
        self._ack_queue = AckQueue(self.held, self.sender)
        self._extensions = LeaseExtensions(self.held, self.sender)

    # The methods of a message and of a batch call these.

    def ack(self, chunk: Chunk, position: int) -> None:
        if self.held.begin(chunk, position, ACKING):
            self._ack_queue.ack_one(chunk, position)

    def then_rows(self, then: Sequence[Outgoing]) -> list[list[Any]]:
        """Check and return the messages that an ack or nack sends. Changes nothing; may be called from any thread."""
        return rows_of(self._cluster, then)

    def settle_then(self, chunk: Chunk, position: int, then: list[list[Any]], terms: NackTerms | None = None) -> None:
        """Ack a message and send other messages with it; with `terms`, nack it and send them if it is dead."""
        if self.held.begin(chunk, position, ACKING if terms is None else _settling(terms)):
            self._ack_queue.settle_then(chunk, [(position, position + 1)], then, terms)
        elif chunk.state[position] != LOST:
            raise settled_before()

    def ack_then_from(self, chunk: Chunk, start: int, then: list[list[Any]]) -> None:
        """Ack all unsettled messages from position `start` on, and send other messages with them.

        Does nothing if one of the messages is known to be lost.
        """
        self.held.check_open()
        if chunk.state.find(LOST, start) >= 0:
            return
        spans = self.held.begin_from(chunk, start, ACKING)
        if not spans:
            raise settled_before()
        self._ack_queue.settle_then(chunk, spans, then)

    def nack(self, chunk: Chunk, position: int, terms: NackTerms) -> None:
        if self.held.begin(chunk, position, _settling(terms)):
            self._ack_queue.nack(chunk, [(position, position + 1)], terms)

    def ack_from(self, chunk: Chunk, start: int) -> None:
        """Ack all unsettled messages from position `start` on."""
        spans = self.held.begin_from(chunk, start, ACKING)
        if spans:
            self._ack_queue.ack(chunk, spans)

    def nack_from(self, chunk: Chunk, start: int, terms: NackTerms) -> None:
        """Nack all unsettled messages from position `start` on."""
        spans = self.held.begin_from(chunk, start, _settling(terms))
        if spans:
            self._ack_queue.nack(chunk, spans, terms)

    def nack_change(self, priority: int | None, headers: Headers | None) -> NackChange | None:
        """Check and return the change that a nack makes. Changes nothing; may be called from any thread."""
        return NackChange.of(self._cluster, self.topic, priority, headers)

    def give_back_from(self, chunk: Chunk, start: int) -> None:
        """Give back the messages from position `start` on, which were not begun. Their attempt does not count."""
        self.nack_from(chunk, start, NOT_BEGUN)

    def extend(self, lease: Lease, lease_ms: int) -> Extension:
        self.held.check_open()
        extension = self._extensions.add(lease, lease_ms)
        lease.asked_until = anyio.current_time() + lease_ms / 1000
        self.sender.poke()
        return extension

    async def pause(self, chunk: Chunk, position: int, part: str, for_ms: int) -> int:
        """Pause a part of the group to which a message belongs. Return the end of the pause in epoch ms. Raise
        LeaseLost; TimedOut or InvalidRequest if the pause does not hold in all partitions."""
        self.held.check_open()
        item = [chunk.lease.token, chunk.offset(position), part, for_ms, self.group]
        request = LeasePause(self.held.group_number, self.partition, [item])
        (end_ms,) = results(await settle(self._cluster, self.topic, request, idempotent=True), 1)
        if type(end_ms) is not int:
            raise self.held.lost_error(chunk.lease)
        return end_ms

    def report_begun(self, lease: Lease) -> Extension:
        """Extend a lease in order to report which of its messages were begun.

        This never shortens the lease, because its other messages may need more time.
        """
        left_s = max(lease.expires_at, lease.asked_until) - anyio.current_time()
        return self.extend(lease, max(self._lease_ms(), int(left_s * 1000)))

    def give_up_all(self, error: SandqError) -> None:
        """Fail all queued requests, and refuse new requests, because the subscription has ended."""
        self.held.close(error)
        self._ack_queue.give_up(error)
        self._extensions.give_up(error)


def _settling(terms: NackTerms) -> int:
    return REJECTING if terms.end == DEAD else NACKING
