"""`client.leases`: lease and settle messages by single calls, for callers that request messages from time to time.

With a subscription, nodes push messages and the client extends the leases. With `client.leases`, each call is
independent. Texts identify a held message: they can be stored and sent to another process, which settles the message.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import anyio

from sandq.client.arguments import suggesting
from sandq.client.consumer.ack_ranges import ranges_of
from sandq.client.consumer.chosen import Partitions, chosen_of, partitions_of
from sandq.client.consumer.message import lease_ms_of
from sandq.client.consumer.nack_change import NackChange, NackTerms, dead_terms, not_begun_terms, retry_terms
from sandq.client.consumer.outgoing import Outgoing, rows_of
from sandq.client.messages.log_page import LogMessage, LogPiece, positions_of
from sandq.client.positions import Start, start_of
from sandq.client.producer.validation import Headers
from sandq.client.timeouts import timed_change
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.connection import Connection
from sandq.client.transport.on_behalf import asker
from sandq.client.transport.requests import fresh_topic, settle, used_topic
from sandq.model import offsets as offset_model
from sandq.model.errors import (
    InvalidRequest,
    LeaseLost,
    ProtocolError,
    SandqError,
    Unavailable,
    UnknownPartition,
)
from sandq.model.limits import FIXED
from sandq.model.nack_ends import DEAD
from sandq.model.offsets import Lease as LeaseParts
from sandq.model.pauses import GROUP, KEY, LIMIT, TENANT
from sandq.model.times import Duration, duration_ms
from sandq.protocol.frames import Frame
from sandq.protocol.replies import Deliver, TopicRecord, lost_ranges, results
from sandq.protocol.requests import LEASE_WAIT_MAX_MS, Ack, AckThen, Extend, Lease, LeasePause, Nack, Unsubscribe

SETTLE_ITEMS: Final = 10_000
"""Maximum number of messages that one call settles."""
_SPARE_S = 10.0  # a node may take this much longer to reply than the requested wait
_SLICE_MS = 10_000
"""Maximum time that one LEASE request waits, in ms. After that, the client checks again which nodes lead."""
_UNLED_SLICE_MS = 200
"""Maximum time of one LEASE request while a partition has no leader, in ms."""


class Held(NamedTuple):
    """Identifies a leased message, or (if `offset` is None) all messages of the lease."""

    lease_token: str
    offset: str | None = None


class LeasedMessage(LogMessage[LogPiece]):
    """A message that `take` leased. It is held until it is settled or the lease ends."""

    __slots__ = ("_lease", "topic")

    def __init__(self, piece: LogPiece, position: int, value: bytes, topic: str, lease: Deliver) -> None:
        super().__init__(piece, position, value)
        self.topic = topic
        self._lease = lease

    @property
    def partition(self) -> int:
        """Number of its partition."""
        return self._lease.partition

    @property
    def attempt(self) -> int:
        """Number of the attempt: 1 for the first delivery to this group."""
        return self._lease.attempt

    @property
    def lease_token(self) -> str:
        """The lease: group number, partition, token. The lease may cover other messages, too."""
        return offset_model.lease_text(self._lease.group_number, self._lease.partition, self._lease.token)

    @property
    def lease_until_ms(self) -> int:
        """End of the lease unless it is extended, in epoch milliseconds, on the node's clock."""
        return self._lease.deadline_ms

    @property
    def held(self) -> Held:
        """The value by which another process can settle this message."""
        return Held(self.lease_token, self.offset)

    def __repr__(self) -> str:
        return f"<LeasedMessage {self.offset} topic={self.topic!r} attempt={self.attempt} bytes={len(self.value)}>"


Item = LeasedMessage | Held | tuple[str, str | None]
"""An item that can be settled: a message, or its lease token and offset."""


class Taken(list[LeasedMessage]):
    """The messages that `take` leased, and the partitions that it skipped because they had no leader."""

    def __init__(self, messages: Iterable[LeasedMessage] = (), without_leader: Sequence[int] = ()) -> None:
        super().__init__(messages)
        self.without_leader = list(without_leader)


@suggesting
class Leases:
    """Leases messages of a topic for a consumer group by single calls. Created by `client.leases`."""

    def __init__(self, cluster: Cluster, client_name: str, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        self._cluster = cluster
        self._client_name = client_name

    @timed_change
    async def take(
        self,
        max: int = 1,
        *,
        wait: Duration = 0,
        lease: Duration | None = None,
        start: Start = "earliest",
        ack: bool = False,
        partitions: Partitions | None = None,
        timeout: Duration | None = None,
    ) -> Taken:
        """Lease up to `max` ready messages (1 to 1,000). If none is ready, wait up to `wait` (at most 1 min) for the
        first.

        Returns [] if no message is ready. `lease`: how long the messages are held (None: the topic's setting). `start`:
        where a new group begins. `ack`: ack the messages before they are sent; a message that is lost in transit is
        then not delivered again. `partitions`: numbers of the partitions to lease from; None for all.

        The result's `without_leader` has the partitions without a leader; their messages are missing. A cancelled call
        gives back the messages that it leased. Retriable errors are raised after the client's `timeout`.
        """
        if type(max) is not int or not 1 <= max <= FIXED.grant_messages:
            raise InvalidRequest(f"max: an int within 1..{FIXED.grant_messages} is expected, not {max!r}")
        wait_ms = duration_ms(wait)
        if wait_ms > LEASE_WAIT_MAX_MS:
            raise InvalidRequest(f"wait: {LEASE_WAIT_MAX_MS // 1000} s at most, not {wait_ms / 1000:g} s")
        request = Lease(self.topic, self.group, "", max, wait_ms, lease_ms_of(lease), start_of(start), ack)
        request = request._replace(partitions=partitions_of(partitions))
        waits_until = anyio.current_time() + wait_ms / 1000
        fails_at = waits_until + self._cluster.options.timeout_s
        attempt = 0
        is_current = True
        while True:
            left_ms = round((waits_until - anyio.current_time()) * 1000)
            try:
                if not is_current:
                    # The known leaders may be outdated, which may have caused the failure.
                    await self._cluster.fetch_topic(self.topic)
                    is_current = True
                found = await self._take_round(request, left_ms if left_ms > 0 else 0)
                if found or left_ms <= 0:
                    return found
            except SandqError as error:
                self._cluster.forget_if_unknown(self.topic, error)
                left_s = fails_at - anyio.current_time()
                if not error.retriable or left_s <= 0:
                    raise
                is_current = False
                await anyio.sleep(min(self._cluster.options.pause_s(attempt, error), left_s))
                attempt += 1

    async def _take_round(self, request: Lease, wait_ms: int) -> Taken:
        """Request messages from all nodes that lead partitions, one after the other, until there are enough.

        If no node has ready messages, ask all nodes at the same time to wait for some.
        """
        try:
            wanted = chosen_of(await used_topic(self._cluster, self.topic), request.partitions)
        except UnknownPartition:
            # the partition may be new
            wanted = chosen_of(await self._cluster.fetch_topic(self.topic), request.partitions)
        leaders = list(dict.fromkeys(part.leader for part in wanted if part.leader is not None))
        unled = [part.partition for part in wanted if part.leader is None]
        if not leaders:
            raise self._no_leader_error(unled)
        found = Taken(without_leader=unled)
        waiting = request._replace(wait_ms=min(wait_ms, _UNLED_SLICE_MS if unled else _SLICE_MS))
        try:
            if len(leaders) == 1:
                found += await self._take(waiting, leaders[0])
            else:
                await self._take_ready(request, leaders, found)
                if not found and wait_ms:
                    await self._take_first(waiting, leaders, found)
        except SandqError:
            if not found:
                raise
        except BaseException:
            await self._give_back_soon(found)
            raise
        if unled and not found:
            self._cluster.refresh(self.topic)
            if not wait_ms:
                # An empty reply would look as if no partition had ready messages.
                raise self._no_leader_error(unled)
        return found

    async def _take_ready(self, request: Lease, leaders: Sequence[str], found: Taken) -> None:
        for node_id in leaders:
            found += await self._take(request._replace(max=request.max - len(found), wait_ms=0), node_id)
            if len(found) >= request.max:
                return

    async def _take_first(self, request: Lease, leaders: Sequence[str], found: Taken) -> None:
        """Ask all nodes at the same time to wait, and take the messages of the first node that has some. Keep at most
        the requested number."""
        errors: list[SandqError] = []
        lease = request._replace(ack=False)  # if the node acked them, surplus messages could not be given back

        async def take(node_id: str) -> None:
            try:
                taken = await self._take(lease, node_id)
                found.extend(taken)
            except SandqError as error:
                errors.append(error)
            if found or errors:
                tasks.cancel_scope.cancel()

        async with anyio.create_task_group() as tasks:
            for node_id in leaders:
                tasks.start_soon(take, node_id)
        if errors and not found:
            raise errors[0]
        if len(found) > request.max:
            await self._give_back_soon(found[request.max :])
            del found[request.max :]
        if request.ack:
            taken = list(found)
            found.clear()  # return only messages that were certainly acked
            await self._ack_each(taken, found)

    async def _ack_each(self, taken: Sequence[LeasedMessage], acked: Taken) -> None:
        """Ack lease by lease. Add the acked messages to `acked`, even if other acks fail. Raises an error if no message
        could be acked."""
        failure: SandqError | None = None
        for messages in _by_lease(taken):
            try:
                lost = set(await self.ack(messages))
            except SandqError as error:
                failure = error
                await self._give_back_soon(messages)
            else:
                acked.extend(message for message in messages if message.held not in lost)
        if failure is not None and not acked:
            raise failure

    async def _give_back_soon(self, messages: Sequence[LeasedMessage]) -> None:
        """Give back messages that the caller does not get. If this fails, their lease runs out."""
        if not messages:
            return
        timeout_s = self._cluster.options.cancel_timeout_s
        with anyio.CancelScope(shield=True), anyio.move_on_after(timeout_s), suppress(SandqError):
            await self.give_back(messages)

    def _no_leader_error(self, partitions: Sequence[int]) -> Unavailable:
        names = ", ".join(map(str, partitions))
        return Unavailable(f"topic {self.topic!r} has no leader of partition {names} at present", topic=self.topic)

    async def _take(self, request: Lease, node_id: str) -> list[LeasedMessage]:
        """Send one request to one node."""
        connection = self._cluster.connection(node_id)
        if connection is None:
            raise Unavailable(f"node {node_id} cannot be reached{self._cluster.error_summary()}")
        consumer_id = f"{self._client_name[:200]}-{secrets.token_hex(8)}"
        taking = _Taking(connection, self.topic, request._replace(consumer_id=consumer_id))
        return await taking.run()

    @timed_change
    async def ack(
        self, items: Sequence[Item], *, then: Sequence[Outgoing] | None = None, timeout: Duration | None = None
    ) -> list[Held]:
        """Ack messages: the group does not get them again. Returns the messages whose lease was lost or belongs to
        another topic.

        The returned messages may be delivered again. At most 10,000 items per call, as in `nack`, `dead` and `extend`.
        `then`: messages to send together with the ack, as with `Message.ack`; all acked messages must have the same
        lease. If any of them was lost, nothing is sent and nothing is acked.
        """
        if then:
            return await self._settle_then(items, rows_of(self._cluster, then))
        return await self._settle(items, lambda token, ranges: [token, ranges], Ack)

    async def _settle_then(
        self, items: Sequence[Item], rows: list[list[Any]], terms: NackTerms | None = None
    ) -> list[Held]:
        """Ack messages of one lease and send `rows`; with `terms`, nack one message and send them if it is dead."""
        held = _held(items)
        if terms is not None and (len(held) != 1 or held[0].offset is None):
            raise InvalidRequest("a nack that sends messages takes one message, with its offset: nack each separately")
        tokens = {one.lease_token for one in held}
        if len(tokens) != 1:
            raise InvalidRequest(
                f"then: it requires that all messages have the same lease (lease_token), and these have "
                f"{len(tokens)} leases: ack the messages of each lease separately"
            )
        lease = offset_model.parse_lease(held[0].lease_token)
        if await self._elsewhere([lease[:2]]):
            return held
        end = () if terms is None else terms.end_fields()
        request = AckThen(*lease, _ranges(held), rows, *end)
        # Do not repeat a nack, unless it certainly makes the message dead: see `_settle`.
        (result,) = await self._results(request, 1, idempotent=terms is None or terms.end == DEAD)
        return _lost(held, result)

    @timed_change
    async def nack(
        self,
        items: Sequence[Item],
        *,
        delay: Duration | None = None,
        delay_ms: int | None = None,
        error: str | BaseException | None = None,
        priority: int | None = None,
        headers: Headers | None = None,
        count: bool = True,
        if_dead: Sequence[Outgoing] | None = None,
        timeout: Duration | None = None,
    ) -> list[Held]:
        """Nack messages: they are retried after `delay`, or `delay_ms` whole milliseconds, or are dead after the last
        attempt.

        Without a delay the topic's back-off applies. Returns the messages whose lease was lost.

        `priority` (only in priority and fair topics) and `headers` change the messages for this group; {} removes the
        headers. `count=False` is a snooze: the attempt does not count, unless they were snoozed `max_snoozes` times (a
        setting). `if_dead`: messages to send, as `then` of `ack`, if this nack makes a single message dead; not
        together with changes.
        """
        terms = retry_terms(delay, delay_ms, error, count)
        if priority is not None:
            await self._cluster.topic(self.topic)
        change = NackChange.of(self._cluster, self.topic, priority, headers)
        terms = terms._replace(change=change)
        if if_dead:
            return await self._settle_then(items, rows_of(self._cluster, if_dead), terms)
        return await self._settle(items, terms.item, Nack)

    @timed_change
    async def dead(
        self,
        items: Sequence[Item],
        error: str | BaseException | None = None,
        *,
        then: Sequence[Outgoing] | None = None,
        timeout: Duration | None = None,
    ) -> list[Held]:
        """Make messages dead for the group immediately, even if attempts remain.

        Their dead letters have the `error` and the reason "rejected". Returns the messages whose lease was lost.
        `then`: messages to send together with a single message, as in `ack`.
        """
        if then:
            return await self._settle_then(items, rows_of(self._cluster, then), dead_terms(error))
        return await self._settle(items, dead_terms(error).item, Nack)

    @timed_change
    async def give_back(
        self,
        items: Sequence[Item],
        *,
        delay: Duration | None = None,
        error: str | BaseException | None = None,
        timeout: Duration | None = None,
    ) -> list[Held]:
        """Give back messages that were not begun: they are ready after `delay` (by default immediately).

        Neither the attempt nor a snooze counts. `error`: why they wait. Returns the messages whose lease was lost.
        """
        return await self._settle(items, not_begun_terms(delay, error).item, Nack)

    @timed_change
    async def extend(
        self, items: Sequence[Item], lease: Duration, *, timeout: Duration | None = None
    ) -> list[int | None]:
        """Extend the leases of messages until `lease` from now. All other messages of these leases are extended, too.

        Returns the new deadline of each item (epoch ms), or None if its lease was lost.
        """
        lease_ms = duration_ms(lease)
        if not lease_ms:
            raise InvalidRequest("extend: the duration must be greater than 0")
        held = _held(items)
        deadlines: dict[LeaseParts, int | None] = {}
        by_partition = _by_partition(held)
        elsewhere = await self._elsewhere(by_partition)
        for (group_number, partition), tokens in by_partition.items():
            if (group_number, partition) in elsewhere:
                deadlines |= {LeaseParts(group_number, partition, token): None for token in tokens}
                continue
            request = Extend(group_number, partition, [[token, lease_ms] for token in tokens])
            for token, result in zip(tokens, await self._results(request, len(tokens), idempotent=True), strict=True):
                deadlines[LeaseParts(group_number, partition, token)] = result if type(result) is int else None
        return [deadlines[offset_model.parse_lease(one.lease_token)] for one in held]

    @timed_change
    async def pause_tenant(self, item: Item, *, for_: Duration, timeout: Duration | None = None) -> int:
        """Pause the tenant of a message in its group, with the tenants below it, in all partitions, as
        `Message.pause_tenant` does. Raises LeaseLost, TimedOut; InvalidRequest also if another group holds the
        lease."""
        return await self._pause(item, TENANT, for_)

    @timed_change
    async def pause_key(self, item: Item, *, for_: Duration, timeout: Duration | None = None) -> int:
        """Pause the key of a message in its group, in the partition of the message, as `Message.pause_key` does. Raises
        LeaseLost."""
        return await self._pause(item, KEY, for_)

    @timed_change
    async def pause_group(self, item: Item, *, for_: Duration, timeout: Duration | None = None) -> int:
        """Pause the group of a message in all partitions, as `Message.pause_group` does. Raises LeaseLost, TimedOut."""
        return await self._pause(item, GROUP, for_)

    @timed_change
    async def pause_limit(self, item: Item, *, for_: Duration, timeout: Duration | None = None) -> int:
        """Pause the named limit of the group of a message, for all groups that use it, as `Message.pause_limit` does.
        Raises LeaseLost, TimedOut; InvalidRequest if the group uses no named limit."""
        return await self._pause(item, LIMIT, for_)

    async def _pause(self, item: Item, part: str, for_: Duration) -> int:
        (one,) = held = _held([item])
        if one.offset is None:
            raise InvalidRequest("a pause needs the offset of a message, besides its lease_token")
        lease = offset_model.parse_lease(one.lease_token)
        row = [lease.token, offset_model.from_text(one.offset), part, duration_ms(for_), self.group]
        end_ms = None
        if not await self._elsewhere([lease[:2]]):
            (end_ms,) = await self._results(LeasePause(*lease[:2], [row]), 1, idempotent=True)
        if type(end_ms) is not int:
            raise LeaseLost("the message is no longer leased; it may be delivered again", lost=held)
        return end_ms

    async def _settle(
        self,
        items: Sequence[Item],
        row: Callable[[int, list[list[Any]] | None], list[Any]],
        request: type[Ack] | type[Nack],
    ) -> list[Held]:
        held = _held(items)
        lost: set[Held] = set()
        by_partition = _by_partition(held)
        elsewhere = await self._elsewhere(by_partition)
        for (group_number, partition), tokens in by_partition.items():
            if (group_number, partition) in elsewhere:
                lost.update(*tokens.values())
                continue
            rows = [row(token, _ranges(ones)) for token, ones in tokens.items()]
            # Do not repeat a nack: the second one would be reported as lost, because the first one ended the lease.
            found = await self._results(request(group_number, partition, rows), len(rows), idempotent=request is Ack)
            for ones, result in zip(tokens.values(), found, strict=True):
                lost.update(_lost(ones, result))
        return [one for one in held if one in lost]

    async def _elsewhere(self, keys: Collection[tuple[int, int]]) -> set[tuple[int, int]]:
        """Return the (Raft group, partition) pairs that this topic does not have.

        Their leases belong to another topic, or were lost with a deleted topic of the same name.
        """
        wrong = _not_in(await self._cluster.topic(self.topic), keys)
        return wrong and _not_in(await fresh_topic(self._cluster, self.topic), keys)

    async def _results(
        self, request: Ack | AckThen | Nack | Extend | LeasePause, count: int, *, idempotent: bool
    ) -> list[Any]:
        try:
            frame = await settle(self._cluster, self.topic, request, idempotent=idempotent)
        except LeaseLost:
            return [None if isinstance(request, Extend | LeasePause) else []] * count
        return results(frame, count)


class _Taking:
    """One LEASE request on one connection."""

    def __init__(self, connection: Connection, topic: str, request: Lease) -> None:
        self._connection = connection
        self._topic = topic
        self._request = request
        self._found: list[LeasedMessage] = []
        self._reply: Frame | SandqError | None = None
        self._done = anyio.Event()

    async def run(self) -> list[LeasedMessage]:
        connection = self._connection
        request_id = connection.request(self._request.frame, self._on_reply, asker())
        connection.listeners[request_id] = self
        try:
            with anyio.move_on_after(self._request.wait_ms / 1000 + _SPARE_S):
                await self._done.wait()
        except BaseException:
            self._give_back(request_id)  # also arrived messages: the caller will not get them
            raise
        finally:
            connection.listeners.pop(request_id, None)
            connection.forget(request_id)
        if isinstance(self._reply, SandqError):
            raise self._reply.again()
        if self._reply is None:
            self._give_back(request_id)
            raise Unavailable(f"{connection.address} did not answer within {_SPARE_S:g} s more than the wait")
        return self._found

    def _give_back(self, request_id: int) -> None:
        self._connection.post(Unsubscribe(request_id).frame(self._connection.new_id()))

    def _on_reply(self, reply: Frame | SandqError) -> None:
        self._reply = reply
        self._done.set()

    def on_deliver(self, frame: Frame) -> None:
        deliver = Deliver.parse(frame)
        try:
            piece = LogPiece(deliver.offsets, deliver.ids, deliver.created_ms, deliver.batch)
        except InvalidRequest as error:
            raise ProtocolError(f"DELIVER: {error.message}") from None
        live = deliver.live
        spans = [(0, piece.count)] if live is None else [(first, first + count) for first, count in live]
        if spans and spans[-1][1] > piece.count:
            raise ProtocolError(f"DELIVER: live names positions beyond {piece.count}")
        values = piece.values()
        self._found += [
            LeasedMessage(piece, position, values[position] or b"", self._topic, deliver)
            for position in positions_of(spans)
        ]

    def on_end(self, error: SandqError) -> None:
        """Do nothing: if the connection is lost, the callback of the request also gets the error."""


def _held(items: Sequence[Item]) -> list[Held]:
    """Return the items as `Held`. Raises InvalidRequest for a wrong item."""
    if isinstance(items, (str, bytes)) or not isinstance(items, Sequence):
        raise InvalidRequest("a list of messages, or of (lease token, offset), is expected")
    if len(items) > SETTLE_ITEMS:
        raise InvalidRequest(f"{len(items)} items; {SETTLE_ITEMS} at most can be settled at once")
    return [item.held if isinstance(item, LeasedMessage) else Held(*item) for item in items]


def _by_lease(messages: Iterable[LeasedMessage]) -> Iterable[list[LeasedMessage]]:
    found: dict[str, list[LeasedMessage]] = {}
    for message in messages:
        found.setdefault(message.lease_token, []).append(message)
    return found.values()


_Tokens = dict[int, list[Held]]


def _by_partition(held: Iterable[Held]) -> dict[tuple[int, int], _Tokens]:
    """Group the items by (group number, partition), then by token."""
    found: dict[tuple[int, int], _Tokens] = {}
    for one in held:
        lease = offset_model.parse_lease(one.lease_token)
        found.setdefault((lease.group_number, lease.partition), {}).setdefault(lease.token, []).append(one)
    return found


def are_elsewhere(leases: Leases, lost: Iterable[Held]) -> bool:
    """Return whether any of the lost items that `ack` or another method returned belongs to a different topic."""
    record = leases._cluster.record(leases.topic)
    return record is not None and bool(_not_in(record, _by_partition(lost)))


def _not_in(record: TopicRecord, keys: Iterable[tuple[int, int]]) -> set[tuple[int, int]]:
    partitions = record.partitions
    return {
        (number, partition)
        for number, partition in keys
        if partition >= len(partitions) or partitions[partition].group_number != number
    }


def _ranges(ones: Iterable[Held]) -> list[list[Any]] | None:
    offsets: set[int] = set()
    for one in ones:
        if one.offset is None:
            return None
        offsets.add(int.from_bytes(offset_model.from_text(one.offset), "big"))
    return ranges_of((number, 1) for number in offsets)


def _lost(ones: Sequence[Held], result: object) -> list[Held]:
    """Return the items of a lease that the reply reports as lost."""
    ranges = lost_ranges(result)
    if ranges is None:
        return []
    if not ranges:
        return list(ones)
    gone = {offset_model.to_text(offset) for base, count in ranges for offset in offset_model.run(base, count)}
    return [one for one in ones if one.offset is None or one.offset in gone]
