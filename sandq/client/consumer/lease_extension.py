"""Extend the leases of one partition, for `message.extend` and for `auto_extend` of a subscription."""

from __future__ import annotations

import logging
from typing import Any

import anyio

from sandq.client.consumer.held_messages import HeldMessages
from sandq.client.consumer.lease import Extension, Lease, frames_of
from sandq.client.consumer.partition_sender import PartitionSender, RequestQueue
from sandq.client.transport.connection import Connection
from sandq.model.errors import SandqError
from sandq.protocol.frames import Frame
from sandq.protocol.replies import results
from sandq.protocol.requests import Extend

log = logging.getLogger("sandq.client")

Waiting = dict[Lease, list[Extension]]


class LeaseExtensions(RequestQueue):
    """Queued and unanswered extensions of one partition's leases."""

    def __init__(self, held: HeldMessages, sender: PartitionSender) -> None:
        super().__init__(sender)
        self._held = held
        self._queued: Waiting = {}

    @property
    def is_queued(self) -> bool:
        return bool(self._queued)

    def add(self, lease: Lease, lease_ms: int) -> Extension:
        """Queue an extension. It fails immediately if the lease is known to be lost."""
        extension = Extension(lease_ms)
        if lease.lost:
            extension.finish(None, self._held.lost_error(lease))
        else:
            lease.extending = True
            self._queued.setdefault(lease, []).append(extension)
        return extension

    def flush(self, connection: Connection) -> None:
        """Send the queued extensions. If a lease has several extensions, the duration of the last one is sent, and all
        of them get the reply."""
        queued, self._queued = self._queued, {}
        rows = [(_item_of(lease, queued[lease][-1].lease_ms), lease) for lease in queued]
        for items, leases in frames_of(rows, at=2):
            self._send(connection, items, {lease: queued[lease] for lease in leases})

    def _send(self, connection: Connection, items: list[list[Any]], waiting: Waiting) -> None:
        request = Extend(self._held.group_number, self._held.partition, items)
        self.in_flight += 1
        connection.request(request.frame, lambda reply: self._answered(connection, waiting, reply))

    def give_up(self, error: SandqError) -> None:
        """Fail all queued extensions. Nothing is sent afterwards."""
        waiting, self._queued = self._queued, {}
        for lease, extensions in waiting.items():
            self._finish(lease, extensions, None, error)

    def _answered(self, connection: Connection, waiting: Waiting, reply: Frame | SandqError) -> None:
        self.in_flight -= 1
        if isinstance(reply, SandqError):
            self._failed(waiting, reply)
        else:
            deadlines = results(reply, len(waiting))
            failed = 0
            for (lease, extensions), deadline_ms in zip(waiting.items(), deadlines, strict=True):
                if type(deadline_ms) is int:
                    lease.expires_at = connection.local_time(deadline_ms)
                    self._finish(lease, extensions, deadline_ms, None)
                else:
                    held = lease.held  # 0: the lease ended because all its messages were settled meanwhile
                    self._held.lose(lease)
                    failed += self._finish(lease, extensions, None, self._held.lost_error(lease)) and held > 0
            self._warn(failed, "they are not held any more")
        self._sender.answered()
        self._sender.wake()

    def _failed(self, waiting: Waiting, error: SandqError) -> None:
        """Queue extensions again if the error is retriable and their leases have not ended. Fail all other
        extensions."""
        now = anyio.current_time()
        failed = 0
        for lease, extensions in waiting.items():
            if error.retriable and now < lease.expires_at and not self._held.is_closed:
                self._queued.setdefault(lease, [])[:0] = extensions
            else:
                failed += self._finish(lease, extensions, None, error)
        self._warn(failed, str(error))
        if error.retriable:
            self._sender.pause(error)

    def _finish(
        self, lease: Lease, extensions: list[Extension], deadline_ms: int | None, error: SandqError | None
    ) -> bool:
        """Finish the extensions of a lease. Return whether they failed and no task awaits them."""
        lease.extending = False
        for extension in extensions:
            extension.finish(deadline_ms, error and error.again())
        return error is not None and not any(extension.awaited for extension in extensions)

    def _warn(self, count: int, why: str) -> None:
        if count:
            held = self._held
            log.warning(
                "topic %s partition %d: %d leases were not extended: %s",
                held.topic,
                held.partition,
                count,
                why,
            )


def _item_of(lease: Lease, lease_ms: int) -> list[Any]:
    """Return the item of an EXTEND. It names the messages that were begun and are not settled, if any."""
    begun = [row for chunk in lease.chunks for row in chunk.ranges_begun()]
    return [lease.token, lease_ms, begun] if begun else [lease.token, lease_ms]
