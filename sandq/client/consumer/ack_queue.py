"""Queue the acks and nacks of one partition, send them in a few frames, and retry them.

If a request gets no reply (the connection broke, the leader moved, the node was overloaded), its acks and nacks are
queued again: a repeated ack with the same token gets the same reply as the first. They fail once `delivery_timeout` has
passed and the lease is over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import anyio

from sandq.client.consumer.held_messages import HeldMessages
from sandq.client.consumer.lease import (
    ACKED,
    LOST,
    NACKED,
    REJECTED,
    Chunk,
    Lease,
    Part,
    count_of,
    frames_of,
    ranges_or_all,
)
from sandq.client.consumer.nack_change import NackTerms
from sandq.client.consumer.partition_sender import PartitionSender, RequestQueue
from sandq.client.messages.log_page import Span, positions_of
from sandq.client.transport.connection import Connection
from sandq.model.errors import (
    Conflict,
    DiskFull,
    Forbidden,
    InvalidRequest,
    NotFound,
    NotLeader,
    Overloaded,
    ProtocolError,
    SandqError,
    Unavailable,
)
from sandq.model.nack_ends import DEAD
from sandq.protocol.frames import Frame
from sandq.protocol.replies import lost_ranges, results
from sandq.protocol.requests import Ack, AckThen, Nack

log = logging.getLogger("sandq.client")

_REFUSALS: Final = (InvalidRequest, NotFound, Conflict, Forbidden)
"""Errors of a broker that checked a request and did nothing."""
_NOTHING_DONE: Final = (NotLeader, Overloaded, Unavailable, DiskFull)
"""Retriable errors which prove that nothing was done; after other retriable errors the outcome is unknown."""


class NackKey(NamedTuple):
    """The key by which nacks are merged into one item of a request."""

    lease: Lease
    terms: NackTerms


class Sent(NamedTuple):
    """One item of an ACK (`nack` is None) or of a NACK, or an ACK_THEN (with `then`)."""

    nack: NackKey | None
    parts: list[Part]
    then: list[list[Any]] | None = None
    """Messages that the ack or nack sends. It is then a request of its own."""
    may_be_done: bool = False
    """True if an earlier attempt got no reply. The item may then have been done, even if a later attempt is refused."""

    @property
    def settled(self) -> int:
        """The state of the messages once the item is done."""
        if self.nack is None:
            return ACKED
        return REJECTED if self.nack.terms.end == DEAD else NACKED


class AckQueue(RequestQueue):
    """The queue of one partition; see the module's docstring."""

    def __init__(self, held: HeldMessages, sender: PartitionSender) -> None:
        super().__init__(sender)
        self._held = held
        self._dirty: dict[Chunk, float] = {}  # chunks with queued acks; value: time of the oldest
        # time of the oldest, and the messages by chunk
        self._nacks: dict[NackKey, tuple[float, dict[Chunk, list[Span]]]] = {}
        self._sending: list[tuple[float, Sent]] = []  # acks that send messages, with their times

    @property
    def is_queued(self) -> bool:
        return bool(self._dirty or self._nacks or self._sending)

    def ack_one(self, chunk: Chunk, position: int) -> None:
        """Queue an ack of one message. Usually the position follows the previous one and extends the last span."""
        queued = chunk.queued
        if queued and queued[-1][1] == position:
            queued[-1] = (queued[-1][0], position + 1)
        else:
            queued.append((position, position + 1))
        if chunk not in self._dirty:
            self._dirty[chunk] = anyio.current_time()
            self._sender.poke()

    def ack(self, chunk: Chunk, spans: list[Span]) -> None:
        """Queue an ack of these messages."""
        chunk.queued += spans
        if chunk not in self._dirty:
            self._dirty[chunk] = anyio.current_time()
            self._sender.poke()

    def settle_then(
        self, chunk: Chunk, spans: list[Span], then: list[list[Any]], terms: NackTerms | None = None
    ) -> None:
        """Queue an ack of these messages that sends other messages; with `terms`, a nack that sends them if the
        messages are dead."""
        nack = None if terms is None else NackKey(chunk.lease, terms)
        self._sending.append((anyio.current_time(), Sent(nack, [(chunk, spans)], then)))
        self._sender.poke()

    def nack(self, chunk: Chunk, spans: list[Span], terms: NackTerms) -> None:
        """Queue a nack of these messages."""
        key = NackKey(chunk.lease, terms)
        _, chunks = self._nacks.setdefault(key, (anyio.current_time(), {}))
        chunks.setdefault(chunk, []).extend(spans)
        self._sender.poke()

    def flush(self, connection: Connection) -> None:
        """Send the queued acks and nacks."""
        self._flush_acks(connection)
        self._flush_nacks(connection)
        sending, self._sending = self._sending, []
        held = self._held
        for since, sent in sending:
            ((chunk, spans),) = sent.parts
            lease = held.group_number, held.partition, chunk.lease.token
            end = () if sent.nack is None else sent.nack.terms.end_fields()
            request = AckThen(*lease, chunk.ranges(spans), sent.then or [], *end)
            self._request(connection, request.frame, [sent], since)

    def _flush_acks(self, connection: Connection) -> None:
        dirty, self._dirty = self._dirty, {}
        by_lease: dict[Lease, list[Part]] = {}
        for chunk in dirty:
            by_lease.setdefault(chunk.lease, []).append((chunk, chunk.queued))
            chunk.queued = []
        since = min(dirty.values(), default=0.0)
        held = self._held
        rows = [([lease.token, ranges_or_all(lease, parts)], Sent(None, parts)) for lease, parts in by_lease.items()]
        for items, sent in frames_of(rows):
            self._request(connection, Ack(held.group_number, held.partition, items).frame, sent, since)

    def _flush_nacks(self, connection: Connection) -> None:
        nacks, self._nacks = self._nacks, {}
        since = min((since for since, _ in nacks.values()), default=0.0)
        held = self._held
        by_feature: dict[int, list[tuple[list[Any], Sent]]] = {}
        for key, (_, chunks) in nacks.items():
            parts = list(chunks.items())
            row = key.terms.item(key.lease.token, ranges_or_all(key.lease, parts)), Sent(key, parts)
            by_feature.setdefault(key.terms.feature, []).append(row)
        # A broker that does not know a feature of an item refuses the whole frame. So items with different features go
        # into separate frames.
        for rows in by_feature.values():
            for items, sent in frames_of(rows):
                self._request(connection, Nack(held.group_number, held.partition, items).frame, sent, since)

    def _request(self, connection: Connection, frame: Callable[[int], bytes], sent: list[Sent], since: float) -> None:
        self.in_flight += 1
        connection.request(frame, lambda reply: self._answered(sent, since, reply))

    def _answered(self, sent: list[Sent], since: float, reply: Frame | SandqError) -> None:
        self.in_flight -= 1
        try:
            if isinstance(reply, SandqError):
                self._failed(sent, since, reply)
                return
            self._sender.reset_failures()
            for one, result in zip(sent, results(reply, len(sent)), strict=True):
                lost = lost_ranges(result)
                self._settle(self._without_refused(one, lost) if lost and one.then is not None else one, lost)
        except ProtocolError as error:
            self._give_up(sent, error)
            raise
        finally:
            self._sender.answered()

    def _settle(self, sent: Sent, lost: list[tuple[bytes, int]] | None) -> None:
        """Process the reply to one item; `lost` is the result of `lost_ranges`."""
        held = self._held
        unseen = 0
        for chunk, spans in sent.parts:
            chunk.fill(spans, sent.settled)
            if lost is not None:
                unseen += self._mark_lost(chunk, spans, lost)
            held.settled(chunk, count_of([(chunk, spans)]))
            chunk.notify(spans)
        if lost == []:
            held.lose(sent.parts[0][0].lease)
        if unseen:
            kind = "acks" if sent.nack is None else "nacks"
            where = (held.topic, held.partition)
            log.warning("topic %s partition %d: %d %s came too late: the lease was lost", *where, unseen, kind)

    def _without_refused(self, sent: Sent, lost: list[tuple[bytes, int]]) -> Sent:
        """Return an ack that sends messages, reduced to its lost messages. Mark its other messages as held again.

        The broker does nothing if any message of such an ack is lost.
        """
        ((chunk, spans),) = sent.parts
        gone = chunk.within(lost)
        positions = positions_of(spans)
        self._refuse(chunk, [(at, at + 1) for at in positions if at not in gone], self._held.lost_error(chunk.lease))
        return sent._replace(parts=[(chunk, [(at, at + 1) for at in positions if at in gone])])

    def _refuse(self, chunk: Chunk, spans: list[Span], error: SandqError) -> None:
        """Mark these messages as held again: the broker refused to settle them and changed nothing, so the caller may
        settle them differently."""
        unseen = 0
        for position in positions_of(spans):
            unseen += not chunk.is_awaited(position)
            chunk.errors[position] = error
        self._held.hold_again(chunk, spans)
        chunk.notify(spans)
        self._warn(unseen, error)

    def _mark_lost(self, chunk: Chunk, spans: list[Span], lost: list[tuple[bytes, int]]) -> int:
        """Mark messages as lost. Tasks that await them get the error. Return how many messages no task awaits."""
        unseen = 0
        gone = chunk.within(lost)
        for position in positions_of(spans):
            if lost and position not in gone:
                continue
            chunk.state[position] = LOST
            if chunk.is_awaited(position):
                chunk.errors[position] = self._held.lost_error(chunk.lease)
            else:
                unseen += 1
        return unseen

    def _failed(self, sent: list[Sent], since: float, error: SandqError) -> None:
        """Handle the error of a whole request: queue its items again, or give them up."""
        held = self._held
        now = anyio.current_time()
        lease = sent[0].parts[0][0].lease
        late = now - since > self._sender.options.delivery_timeout_s and now > lease.expires_at
        is_refused = isinstance(error, _REFUSALS) and not error.retriable and not sent[0].may_be_done
        if sent[0].then is not None and not sent[0].may_be_done and isinstance(error, _NOTHING_DONE):
            options = self._sender.options
            is_refused = now - since > (options.then_timeout_s or options.delivery_timeout_s)
        if is_refused and sent[0].then is not None and not held.is_closed:
            ((chunk, spans),) = sent[0].parts
            self._refuse(chunk, spans, error)
            return
        if not error.retriable or late or held.is_closed:
            self._give_up(sent, error)
            return
        for one in sent:
            if one.then is not None:
                may_be_done = one.may_be_done or not isinstance(error, _NOTHING_DONE)
                self._sending.append((since, one._replace(may_be_done=may_be_done)))
                continue
            for chunk, spans in one.parts:
                if one.nack is None:
                    chunk.queued.extend(spans)
                    self._dirty[chunk] = min(since, self._dirty.get(chunk, since))
                else:
                    _, chunks = self._nacks.setdefault(one.nack, (since, {}))
                    chunks.setdefault(chunk, []).extend(spans)
        self._sender.pause(error)

    def _give_up(self, sent: list[Sent], error: SandqError) -> None:
        held = self._held
        unseen = 0
        for chunk, spans in (part for one in sent for part in one.parts):
            for position in positions_of(spans):
                unseen += not chunk.is_awaited(position)
                chunk.errors[position] = error
            chunk.fill(spans, LOST)
            chunk.lease.abandoned = True
            held.settled(chunk, count_of([(chunk, spans)]))
            chunk.notify(spans)
        self._warn(unseen, error)

    def _warn(self, unseen: int, error: SandqError) -> None:
        if unseen:
            where = (self._held.topic, self._held.partition)
            log.warning("topic %s partition %d: %d acks or nacks failed: %s", *where, unseen, error)

    def give_up(self, error: SandqError) -> None:
        """Fail all queued acks and nacks. Nothing is sent afterwards."""
        dirty, self._dirty = self._dirty, {}
        nacks, self._nacks = self._nacks, {}
        sending, self._sending = self._sending, []
        self._give_up([sent for _, sent in sending], error)
        for chunk in dirty:
            spans, chunk.queued = chunk.queued, []
            self._give_up([Sent(None, [(chunk, spans)])], error)
        self._give_up([Sent(key, list(chunks.items())) for key, (_, chunks) in nacks.items()], error)
