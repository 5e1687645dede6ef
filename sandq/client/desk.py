"""Where a subscription settles the messages of one partition: acks, nacks and extensions, gathered and sent.

What is queued leaves with the next send to the partition's leader, as few frames; what was not answered
(the connection broke, the leader moved, overload) is queued again, for an ack repeated with its token is
answered as the first time. It is given up, and said so, once `delivery_timeout` has passed and the lease
is over.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

import anyio

from sandq.client.cluster import Cluster
from sandq.client.connection import Connection
from sandq.client.extensions import Extensions
from sandq.client.leases import (
    ACKED,
    ACKING,
    HELD,
    LAPSED,
    LOST,
    NACKED,
    NACKING,
    SETTLING,
    Chunk,
    Lease,
    Part,
    frames_of,
    what_of,
)
from sandq.client.messages import Extension
from sandq.client.options import again
from sandq.client.signals import Signal
from sandq.model.errors import InvalidRequest, LeaseLost, ProtocolError, SandqError
from sandq.protocol.frames import Frame
from sandq.protocol.replies import lost_ranges, results
from sandq.protocol.requests import Ack, Nack

log = logging.getLogger("sandq.client")


class NackKey(NamedTuple):
    """Nacks that are one item of a request."""

    lease: Lease
    delay_ms: int | None
    error: str | None


class Sent(NamedTuple):
    """One item of an ACK (`nack` None) or a NACK."""

    nack: NackKey | None
    parts: list[Part]


class Desk:
    """One partition of one group, as one subscription sees it."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        partition: int,
        group_number: int,
        on_quiet: Signal,
        wake: Callable[[], None],
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.group_number = group_number
        self.leases: dict[int, Lease] = {}
        self._finished: OrderedDict[int, Lease] = OrderedDict()
        self._cluster = cluster
        self._options = cluster.options
        self._quiet = on_quiet
        self.wake = wake
        self._dirty: dict[Chunk, float] = {}  # chunks with queued acks, and since when
        self._nacks: dict[NackKey, tuple[float, dict[Chunk, list[int]]]] = {}  # since when, and what
        self._extensions = Extensions(self)
        self._in_flight = 0
        self._failures = 0
        self._resume_at = -math.inf
        self._closed: SandqError | None = None

    # Leases.

    def lease(self, token: int, attempt: int, expires_at: float) -> Lease:
        """The lease of a token that was just pushed; one that had ended comes back."""
        lease = self.leases.get(token) or self._finished.pop(token, None)
        if lease is None:
            lease = Lease(self, token, attempt, expires_at)
        lease.expires_at = max(lease.expires_at, expires_at)
        self.leases[token] = lease
        return lease

    def deliver(self, chunk: Chunk) -> list[int]:
        """Take a chunk in; the positions that are new, which are held from now on."""
        lease = chunk.lease
        lease.filter_seen(chunk)
        positions = chunk.positions(HELD)
        chunk.held = chunk.unsettled = len(positions)
        lease.held += len(positions)
        lease.unsettled += len(positions)
        if positions:
            lease.chunks[chunk] = None
        else:
            self._finish(lease)
        return positions

    def _finish(self, lease: Lease) -> None:
        """Nothing of the lease is left here; remember it for a while, for it may be pushed again."""
        if lease.unsettled == 0 and self.leases.pop(lease.token, None) is not None:
            self._finished[lease.token] = lease
            while len(self._finished) > self._options.finished_leases:
                self._finished.popitem(last=False)

    def cut(self) -> None:
        """The connection is gone: from now on look at what is pushed for what was pushed before."""
        for lease in (*self.leases.values(), *self._finished.values()):
            lease.recheck = True

    def lapse(self, lease: Lease) -> None:
        """Its deadline has passed: what is held of it is anybody's now."""
        lease.lapsed = True
        self._drop_held(lease, LAPSED)

    def lose(self, lease: Lease) -> None:
        """The broker said that the lease is over."""
        lease.lost = True
        self._drop_held(lease, LOST)

    def _drop_held(self, lease: Lease, state: int) -> None:
        for chunk in list(lease.chunks):
            positions = chunk.positions(HELD)
            for position in positions:
                chunk.state[position] = state
            self._leave_held(chunk, len(positions))
            self._settled(chunk, len(positions))

    def _leave_held(self, chunk: Chunk, count: int) -> None:
        if count:
            chunk.held -= count
            chunk.lease.held -= count
            chunk.session.give_back(count)

    def _settled(self, chunk: Chunk, count: int) -> None:
        chunk.unsettled -= count
        lease = chunk.lease
        lease.unsettled -= count
        if not chunk.unsettled:
            lease.chunks.pop(chunk, None)
            self._finish(lease)

    # What a message's methods do.

    def ack(self, chunk: Chunk, position: int) -> None:
        if self._begin(chunk, position, ACKING):
            chunk.queued.append(position)
            if chunk not in self._dirty:
                self._dirty[chunk] = anyio.current_time()
                self.poke()

    def nack(self, chunk: Chunk, position: int, delay_ms: int | None, error: str | None) -> None:
        if self._begin(chunk, position, NACKING):
            key = NackKey(chunk.lease, delay_ms, error)
            _, chunks = self._nacks.setdefault(key, (anyio.current_time(), {}))
            chunks.setdefault(chunk, []).append(position)
            self.poke()

    def _begin(self, chunk: Chunk, position: int, settling: int) -> bool:
        """Whether a message is to be settled now: not when it was before, nor when its lease is known to be lost."""
        self._check_open()
        state = chunk.state[position]
        if state == HELD:
            self._leave_held(chunk, 1)
        elif state == LAPSED:
            self._unlapse(chunk)
        elif state == LOST:
            chunk.errors.setdefault(position, self.lost_error(chunk.lease))
            return False
        elif (state in (ACKING, ACKED)) is (settling == ACKING):
            return False
        else:
            was, wanted = ("nacked", "acked") if settling == ACKING else ("acked", "nacked")
            raise InvalidRequest(f"the message was {was} already, it cannot be {wanted}")
        chunk.state[position] = settling
        return True

    def _check_open(self) -> None:
        if self._closed is not None:
            raise again(self._closed)

    def _unlapse(self, chunk: Chunk) -> None:
        chunk.unsettled += 1
        chunk.lease.unsettled += 1
        chunk.lease.chunks[chunk] = None
        self.leases[chunk.lease.token] = chunk.lease

    def extend(self, lease: Lease, lease_ms: int) -> Extension:
        self._check_open()
        extension = self._extensions.add(lease, lease_ms)
        self.poke()
        return extension

    async def confirmed(self, chunk: Chunk, position: int) -> None:
        """Until the ack or nack of a message was answered; raises what the answer was, if not yes."""
        while chunk.state[position] in SETTLING:
            event = chunk.events.get(position)
            if event is None:
                event = chunk.events[position] = anyio.Event()
            await event.wait()
        if chunk.state[position] == LOST:
            raise again(chunk.errors.get(position) or self.lost_error(chunk.lease))

    def lost_error(self, lease: Lease) -> LeaseLost:
        return LeaseLost(
            f"topic {self.topic!r} partition {self.partition}: the lease is not held any more",
            lease=lease.text,
        )

    # Sending.

    @property
    def is_closed(self) -> bool:
        """Whether the subscription was left."""
        return self._closed is not None

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is queued or unanswered."""
        return not (self._queued or self._in_flight or self._extensions.in_flight)

    @property
    def _queued(self) -> bool:
        return bool(self._dirty or self._nacks or self._extensions.queued)

    def tell_quiet(self) -> None:
        """Something was answered: whoever waits for the last answer may go on."""
        if self.is_quiet:
            self._quiet.set()

    def poke(self) -> None:
        """Something is queued, or the leader may be there again: have it sent."""
        if anyio.current_time() < self._resume_at:
            self.wake()
            return
        connection = self._cluster.leader(self.topic, self.partition)
        if connection is not None and self._queued:
            connection.flush_soon(self._flush)

    def next_time(self, now: float) -> float:
        """When `poke` is due without any event."""
        return self._resume_at if self._queued and self._resume_at > now else math.inf

    def _flush(self) -> None:
        connection = self._cluster.leader(self.topic, self.partition)
        if connection is None:
            return
        self._flush_acks(connection)
        self._flush_nacks(connection)
        self._extensions.flush(connection)

    def _flush_acks(self, connection: Connection) -> None:
        dirty, self._dirty = self._dirty, {}
        by_lease: dict[Lease, list[Part]] = {}
        for chunk in dirty:
            by_lease.setdefault(chunk.lease, []).append((chunk, chunk.queued))
            chunk.queued = []
        since = min(dirty.values(), default=0.0)
        rows = [([lease.token, what_of(lease, parts)], Sent(None, parts)) for lease, parts in by_lease.items()]
        for items, sent in frames_of(rows):
            self._request(connection, Ack(self.group_number, self.partition, items).frame, sent, since)

    def _flush_nacks(self, connection: Connection) -> None:
        nacks, self._nacks = self._nacks, {}
        since = min((since for since, _ in nacks.values()), default=0.0)
        rows = []
        for key, (_, chunks) in nacks.items():
            parts = list(chunks.items())
            item = [key.lease.token, what_of(key.lease, parts), key.delay_ms, key.error]
            rows.append((item, Sent(key, parts)))
        for items, sent in frames_of(rows):
            self._request(connection, Nack(self.group_number, self.partition, items).frame, sent, since)

    def _request(self, connection: Connection, frame: Callable[[int], bytes], sent: list[Sent], since: float) -> None:
        self._in_flight += 1
        connection.request(frame, lambda reply: self._answered(sent, since, reply))

    def _answered(self, sent: list[Sent], since: float, reply: Frame | SandqError) -> None:
        self._in_flight -= 1
        try:
            if isinstance(reply, SandqError):
                self._failed(sent, since, reply)
                return
            self._failures = 0
            for one, result in zip(sent, results(reply, len(sent)), strict=True):
                self._settle(one, lost_ranges(result))
        except ProtocolError as error:
            self._give_up(sent, error)
            raise
        finally:
            self.tell_quiet()

    def _settle(self, sent: Sent, lost: list[tuple[bytes, int]] | None) -> None:
        """One item was answered: `lost` as `lost_ranges` gives it."""
        state = ACKED if sent.nack is None else NACKED
        lost_count = 0
        for chunk, positions in sent.parts:
            gone = set() if lost is None else chunk.within(lost) if lost else set(positions)
            for position in positions:
                chunk.state[position] = LOST if position in gone else state
            if gone:
                lost_count += self._report_lost(chunk, [position for position in positions if position in gone])
            self._settled(chunk, len(positions))
            self._wake_waiters(chunk, positions)
        if lost == []:
            self.lose(sent.parts[0][0].lease)
        if lost_count:
            what = "acks" if sent.nack is None else "nacks"
            where = (self.topic, self.partition)
            log.warning("topic %s partition %d: %d %s came too late: the lease was lost", *where, lost_count, what)

    def _report_lost(self, chunk: Chunk, positions: list[int]) -> int:
        """How many of these nobody awaits; those who do get their error."""
        for position in positions:
            if position in chunk.events:
                chunk.errors[position] = self.lost_error(chunk.lease)
        return sum(1 for position in positions if position not in chunk.events)

    def _wake_waiters(self, chunk: Chunk, positions: list[int]) -> None:
        if chunk.events:
            for position in positions:
                event = chunk.events.pop(position, None)
                if event is not None:
                    event.set()

    def _failed(self, sent: list[Sent], since: float, error: SandqError) -> None:
        """A whole request failed: queue it again, or give it up."""
        now = anyio.current_time()
        lease = sent[0].parts[0][0].lease
        late = now - since > self._options.delivery_timeout_s and now > lease.expires_at
        if not error.retriable or late or self._closed is not None:
            self._give_up(sent, error)
            return
        for one in sent:
            for chunk, positions in one.parts:
                if one.nack is None:
                    chunk.queued.extend(positions)
                    self._dirty[chunk] = min(since, self._dirty.get(chunk, since))
                else:
                    _, chunks = self._nacks.setdefault(one.nack, (since, {}))
                    chunks.setdefault(chunk, []).extend(positions)
        self.pause(error)

    def pause(self, error: SandqError) -> None:
        """Nothing is sent for a while after a failure that may pass."""
        log.debug("topic %s partition %d: %s; trying again", self.topic, self.partition, error)
        self._resume_at = anyio.current_time() + self._options.back_off_s(self._failures)
        self._failures += 1
        if error.code not in ("OVERLOADED", "TIMED_OUT"):
            self._cluster.refresh(self.topic)
        self.wake()

    def _give_up(self, sent: list[Sent], error: SandqError) -> None:
        count = 0
        for chunk, positions in (part for one in sent for part in one.parts):
            count += sum(1 for position in positions if position not in chunk.events)
            for position in positions:
                chunk.state[position] = LOST
                chunk.errors[position] = error
            self._settled(chunk, len(positions))
            self._wake_waiters(chunk, positions)
        if count:
            log.warning("topic %s partition %d: %d acks or nacks failed: %s", self.topic, self.partition, count, error)

    def give_up_all(self, error: SandqError) -> None:
        """The subscription is over: what is still queued is not sent, and nothing can be queued any more."""
        self._closed = error
        dirty, self._dirty = self._dirty, {}
        nacks, self._nacks = self._nacks, {}
        for chunk in dirty:
            positions, chunk.queued = chunk.queued, []
            self._give_up([Sent(None, [(chunk, positions)])], error)
        self._give_up([Sent(key, list(chunks.items())) for key, (_, chunks) in nacks.items()], error)
        self._extensions.give_up(error)
