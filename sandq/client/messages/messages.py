"""`client.messages(topic)`: inspect stored messages, and cancel, move or update pending ones."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from sandq.client.arguments import suggesting
from sandq.client.messages.jobs import Progress, bulk_prefix, run_job
from sandq.client.messages.merged_pages import Merged
from sandq.client.messages.stored_message import JobResult, StoredMessage, lives_of, target_of, target_text
from sandq.client.positions import shift_ms, span_ms
from sandq.client.producer.partitioner import check_rank
from sandq.client.producer.validation import Headers, MessageValidation, Value, as_bytes, delay_of, rank_of
from sandq.client.timeouts import timed_change, timed_read, within
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.request_batcher import Ask, Counter, RequestBatcher
from sandq.client.transport.requests import call_leader, fresh_topic
from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest, NotFound, ProtocolError, TooLate
from sandq.model.headers import headers_or_none
from sandq.model.json_values import MISSING, content_of
from sandq.model.names import DEFAULT_TENANT, FAIR, NOT_OF_DEFAULT, NOT_WITHOUT_KEY
from sandq.model.partitioning import partition_for
from sandq.model.retries import written_rules
from sandq.model.times import LEAST_INSTANT_MS, Duration, Instant, duration_ms, instant_ms
from sandq.protocol.replies_messages import (
    CANCELLED,
    MOVED,
    NOT_FOUND,
    NOT_YET,
    TOO_LATE,
    UPDATE_OUTCOMES,
    UPDATED,
    MessageRecord,
    Outcome,
    outcomes,
    page,
    why,
)
from sandq.protocol.requests_messages import (
    BY_ID,
    DEAD_ELSEWHERE,
    LISTED_STATES,
    NEWEST,
    PREVIEW_BYTES_MAX,
    Cancel,
    Get,
    List,
    Move,
    Target,
    Why,
)


async def _settle(
    request: type[Cancel] | type[Move], cluster: Cluster, topic: str, partition: int, items: list[Any]
) -> list[Outcome]:
    frame = await call_leader(cluster, request(topic, partition, items))
    return outcomes(frame, len(items))


async def _settle_updates(cluster: Cluster, topic: str, partition: int, items: list[Any]) -> list[Outcome]:
    """Send updates. Repeat the updates that a partition postponed because they would write too much at once."""
    found: dict[int, Outcome] = {}
    most = len(items)
    while left := [at for at in range(len(items)) if at not in found][:most]:
        frame = await call_leader(cluster, Move.of_updates(topic, partition, [items[at] for at in left]))
        results = zip(left, outcomes(frame, len(left), UPDATE_OUTCOMES), strict=True)
        done = {at: one for at, one in results if one.verdict != NOT_YET}
        found.update(done)
        # Each repetition of an item costs a transfer and a lookup. So do not repeat a thousand large items if the
        # partition handles three per request.
        most = max(2 * len(done), _LEAST_UPDATES)
    return [found[at] for at in range(len(items))]


_LEAST_UPDATES: Final = 8
KEY_WEIGHT: Final = 2
"""Weight of a byte of a key, relative to the other bytes of an item in a frame."""
_CANCEL, _MOVE = partial(_settle, Cancel), partial(_settle, Move)
# Priorities and updates have frames of their own, because a broker without such a feature refuses the whole frame.
_RANK = partial(_settle, Move)
_UPDATE = _settle_updates
_VERDICTS: Final[dict[Ask[Any, Outcome], str]] = {_CANCEL: CANCELLED, _MOVE: MOVED, _RANK: MOVED, _UPDATE: UPDATED}


@suggesting
class Messages:
    """The stored messages of one topic, in all its partitions.

    A message is identified by its id (26 characters: the offset that `produce` returned) or by `unique_key=...`. In a
    fair topic, `unique_key` requires the `tenant`, unless the tenant is "default". In other topics it requires the
    message's `key`, if there is one.
    """

    def __init__(self, cluster: Cluster, batcher: RequestBatcher, topic: str) -> None:
        self.topic = topic
        self._cluster = cluster
        self._batcher = batcher

    @timed_read
    async def get(
        self,
        id: str | None = None,
        *,
        unique_key: Value | None = None,
        tenant: str | None = None,
        key: Value | None = None,
        timeout: Duration | None = None,
    ) -> StoredMessage:
        """Return a message in any state, with its value. Raises NotFound if it does not exist (any more)."""
        target = target_of(id, unique_key, tenant, key)
        partition = await self._partition(target, tenant)
        frame = await call_leader(self._cluster, Get(self.topic, partition, target))
        return StoredMessage.of(self.topic, MessageRecord.from_map(frame[2] if len(frame) > 2 else None))

    def list(
        self,
        *,
        state: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        key_prefix: Value | None = None,
        unique_key_prefix: Value | None = None,
        limit: int | None = None,
        after: str | None = None,
        values: bool = False,
        newest: bool = False,
        value_bytes: int | None = None,
        timeout: Duration | None = None,
    ) -> Merged[MessageRecord, StoredMessage]:
        """Iterate over messages of all partitions in delivery order: `async for message in messages.list():`.

        `state`: delayed, ready, leased, waiting or acked (None: any of these; dead letters are listed by
        `client.dead`). `since` and `until`: delivery times from `since` on and before `until`. `key_prefix` and
        `unique_key_prefix`: the beginning of the keys. `after`: the offset after which to begin. `values`: include the
        values. `value_bytes`: maximum number of bytes of each value; `size` is the size of the whole value. `newest`:
        the latest delivery time comes first. For `value_bytes` and `newest`, all nodes must run a version with this
        feature.
        """
        if state == "dead":
            raise InvalidRequest(f"state: {DEAD_ELSEWHERE}")
        if state is not None and state not in LISTED_STATES:
            raise InvalidRequest(f"state: one of {', '.join(LISTED_STATES)} is expected, not {state!r}")
        check_limit(limit)
        if value_bytes is not None and (type(value_bytes) is not int or not 1 <= value_bytes <= PREVIEW_BYTES_MAX):
            raise InvalidRequest(f"value_bytes: 1 to {PREVIEW_BYTES_MAX} are expected, not {value_bytes!r}")
        from_ms, until_ms = span_ms(since, until)
        prefix = None if key_prefix is None else as_bytes("key_prefix", key_prefix)
        unique = None if unique_key_prefix is None else as_bytes("unique_key_prefix", unique_key_prefix)

        async def get(partition: int, after: bytes | None, count: int) -> tuple[list[MessageRecord], bytes | None]:
            request = List(
                self.topic,
                partition,
                state,
                from_ms,
                until_ms,
                prefix,
                count,
                after,
                bool(values),
                unique,
                NEWEST if newest else None,
                value_bytes,
            )
            return page(await call_leader(self._cluster, request), MessageRecord.from_map)

        async def partitions() -> range:
            return range(len((await fresh_topic(self._cluster, self.topic)).partitions))

        asked, pages = within(partitions, timeout, "list"), within(get, timeout, "list")
        return Merged(asked, pages, partial(StoredMessage.of, self.topic), limit, after, newest=newest)

    @timed_change
    async def cancel(
        self,
        id: str | None = None,
        *,
        unique_key: Value | None = None,
        tenant: str | None = None,
        key: Value | None = None,
        timeout: Duration | None = None,
    ) -> str:
        """Cancel a message that is delayed, ready or waiting for a retry; return its id. After this no group receives
        it.

        Raises TooLate if a consumer holds the message or it is finished (`details["state"]`: leased, acked, dead or
        gone); NotFound. Repeating the call is safe: within ten minutes, the result is the same. Concurrent cancels
        share frames.
        """
        target = target_of(id, unique_key, tenant, key)
        return await self._settled(target, tenant, _CANCEL, target)

    @timed_change
    async def move(
        self,
        id: str | None = None,
        *,
        unique_key: Value | None = None,
        tenant: str | None = None,
        key: Value | None = None,
        deliver_at: Instant | None = None,
        delay: Duration | None = None,
        delay_ms: int | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
    ) -> str:
        """Change the delivery time of a delayed or ready message, and return its new offset. Its id stays the same.

        The new time is an instant, or a `delay` from now (`delay_ms`: in whole milliseconds). A message that waits for
        a retry is retried at that time, and keeps its offset. In a priority or fair topic, `priority` may
        be changed as well, or alone (`set_priority`).

        Raises TooLate and NotFound as `cancel`. TooLate with the state waiting is also raised if the message waits in
        one group, while another group has yet to receive it. The request is retried after a lost reply. With
        `deliver_at`, the retry has no further effect. A `delay` counts from the leader's clock at the retry: the
        message may be late by the time that the client waited for the first reply, but is never early.
        """
        target = target_of(id, unique_key, tenant, key)
        if delay_ms is not None:
            delay = delay_of(delay, delay_ms)
        if deliver_at is None and delay is None and priority is None:
            raise InvalidRequest("move: one of deliver_at and delay is expected, or a priority")
        item = _move_item("move", target, deliver_at, delay)
        if priority is None:
            return await self._settled(target, tenant, _MOVE, item)
        await self._check_priority(priority)
        return await self._settled(target, tenant, _RANK, [*item, priority])

    @timed_change
    async def update(
        self,
        id: str | None = None,
        *,
        unique_key: Value | None = None,
        tenant: str | None = None,
        key: Value | None = None,
        value: Value | None = None,
        json: Any = MISSING,
        headers: Headers | None = None,
        deliver_at: Instant | None = None,
        delay: Duration | None = None,
        delay_ms: int | None = None,
        priority: int | None = None,
        timeout: Duration | None = None,
    ) -> str:
        """Change the value, the headers (`{}`: remove them), or both, of a pending message in all groups. Return its
        offset.

        A pending message is delayed, ready or waiting for a retry. Its position, keys, ttl and attempts stay the same.
        With `deliver_at`, `delay`, `delay_ms` or `priority`, it is also moved, in the same atomic step. `json`: a value
        in JSON, as in `produce`; without `headers`, the message keeps its headers, and its content type becomes JSON.

        After this, no consumer receives the old value. Raises TooLate and NotFound as `move`, except that a waiting
        message can always get a new value or headers. Raises TooLarge for the value or the headers. Raises
        InvalidRequest for a compacted topic: put a new value of the key instead. The request is retried after a lost
        reply. Concurrent updates share frames.
        """
        target = target_of(id, unique_key, tenant, key)
        if json is not MISSING:
            if headers is None:
                headers = (await self.get(id, unique_key=unique_key, tenant=tenant, key=key)).headers
            value, headers = content_of(MISSING if value is None else value, json, headers)
        if value is None and headers is None:
            raise InvalidRequest("update: a value or headers are expected, or both")
        if delay_ms is not None:
            delay = delay_of(delay, delay_ms)
        checks = MessageValidation(self._cluster.limits)
        changes: dict[str, bytes] = {}
        if value is not None:
            changes["value"] = checks.value(value)
        if headers is not None:
            changes["headers"] = checks.headers(headers) or b""
        if priority is not None:
            await self._check_priority(priority)
        item = [*_move_item("update", target, deliver_at, delay), priority, changes]
        return await self._settled(target, tenant, _UPDATE, item, sum(map(len, changes.values())))

    @timed_change
    async def set_priority(
        self,
        id: str | None = None,
        *,
        unique_key: Value | None = None,
        tenant: str | None = None,
        key: Value | None = None,
        priority: int,
        timeout: Duration | None = None,
    ) -> str:
        """Change the priority of a message in a priority or fair topic (lower goes first); return its
        offset.

        Offset, id and delivery time stay the same. Within its new priority, the message is ordered by age. Raises
        TooLate and NotFound as `move`. Concurrent calls share frames.
        """
        return await self.move(id, unique_key=unique_key, tenant=tenant, key=key, priority=priority)

    async def _check_priority(self, priority: int) -> None:
        rank_of(priority, None)
        check_rank(self.topic, (await self._cluster.topic(self.topic)).kind, priority, None)

    @timed_change
    async def cancel_all(
        self,
        *,
        since: Instant | None = None,
        until: Instant | None = None,
        key_prefix: Value | None = None,
        unique_key_prefix: Value | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        timeout: Duration | None = None,
    ) -> JobResult:
        """Cancel all pending messages whose delivery times and keys match. Without conditions, cancel all pending
        messages.

        Raises InvalidRequest for an empty prefix. `dry_run` only counts. `progress(result)` is called repeatedly. If
        the call itself is cancelled, the job stops. Messages that it has cancelled stay cancelled.
        """
        return await run_job(
            self._cluster,
            self.topic,
            "cancel",
            _arguments(since, until, key_prefix, unique_key_prefix, dry_run),
            progress,
        )

    @timed_change
    async def move_all(
        self,
        *,
        since: Instant | None = None,
        until: Instant | None = None,
        key_prefix: Value | None = None,
        unique_key_prefix: Value | None = None,
        to: Instant | None = None,
        shift: Duration | None = None,
        priority: int | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        timeout: Duration | None = None,
    ) -> JobResult:
        """Move all matching pending messages `to` an instant, or by a `shift` ("1h", "-30m", a timedelta).

        Messages that would be moved into the past are due immediately. In a priority or fair topic, `priority` may be
        changed as well, or alone; then the times stay. Otherwise like `cancel_all`.
        """
        if to is not None and shift is not None:
            raise InvalidRequest("move_all: one of to and shift is expected, not both")
        if to is None and shift is None and priority is None:
            raise InvalidRequest("move_all: one of to and shift is expected, or a priority")
        arguments = _arguments(since, until, key_prefix, unique_key_prefix, dry_run)
        if priority is not None:
            await self._check_priority(priority)
            arguments["priority"] = priority
        if to is not None:
            arguments["to_ms"] = _past_or_later_ms(to)
        elif shift is not None:
            arguments["shift_ms"] = shift_ms(shift)
        return await run_job(self._cluster, self.topic, "move", arguments, progress)

    @timed_read
    async def why(
        self,
        id: str | None = None,
        *,
        unique_key: Value | None = None,
        tenant: str | None = None,
        key: Value | None = None,
        timeout: Duration | None = None,
    ) -> dict[str, Any]:
        """Explain what a message waits for: the fields of `get` without the value, and its state in each group.

        Each row of "groups" has a `reason` as text, the `lease_token` under which the message is held (or None), the
        history of its attempts, and `lives` (each a `Life`): its former lives in the group, which a redrive ended. The
        history begins with the attempts of the former lives.
        """
        target = target_of(id, unique_key, tenant, key)
        partition = await self._partition(target, tenant)
        found = why(await call_leader(self._cluster, Why(self.topic, partition, target)))
        shown: dict[str, Any] = {name: offset_model.to_text(found[name]) for name in ("id", "offset")}
        found.pop("value", None)
        group_number = (await self._cluster.topic(self.topic)).partitions[partition].group_number
        for group in found["groups"]:
            token = group.get("token")
            lease = None if token is None else offset_model.lease_text(group_number, partition, token)
            group["lease_token"] = lease
            group["lives"] = lives_of(group.get("lives") or (), group.get("history") or ())
        cell = found["headers"]
        shown |= {"headers": headers_or_none(cell) or {}, "headers_bytes": cell}
        shown |= {"topic": self.topic, "partition": partition}
        shown |= written_rules(found.get("max_attempts"), found.get("backoff"), found.get("cost"))
        return found | shown

    async def _partition(self, target: Target, tenant: str | None) -> int:
        """Return the partition of a message.

        An id contains the partition. In a fair topic, the tenant routes a unique key. In other topics, the key does,
        or, if there is none, the unique key itself. Raises InvalidRequest if messages of the topic are not identified
        in this way.
        """
        record = await self._cluster.topic(self.topic)
        kind, data, *_ = target
        if tenant is not None and record.kind != FAIR:
            raise InvalidRequest(
                f"tenant: topic {self.topic!r} is a {record.kind} topic; only fair topics have tenants"
            )
        key = _key_of(target)
        if key is not None and record.kind == FAIR:
            raise InvalidRequest(
                f"key: topic {self.topic!r} is a fair topic: a unique key is unique within the tenant there; name the "
                "tenant and leave out the key"
            )
        if kind != BY_ID:
            if record.kind == FAIR:
                data = (tenant or DEFAULT_TENANT).encode()
            return partition_for(data if key is None else key, record.initial_partitions)
        partition = offset_model.unpack(data).partition
        if partition >= len(record.partitions):
            record = await fresh_topic(self._cluster, self.topic)
        if partition >= len(record.partitions):
            raise self._not_found(target)
        return partition

    async def _settled(
        self, target: Target, tenant: str | None, ask: Ask[Any, Outcome], item: Any, size: int = 0
    ) -> str:
        counter = Counter(ask, self.topic, await self._partition(target, tenant))
        # The broker accepts fewer bytes of keys per frame than of values.
        size += KEY_WEIGHT * len(_key_of(target) or b"")
        outcome = await self._batcher.run(counter, item, size)
        if outcome.verdict == NOT_FOUND:
            raise self._not_found(target, is_fair=(await self._cluster.topic(self.topic)).kind == FAIR)
        return self._text_of(target, outcome, _VERDICTS[ask])

    def _text_of(self, target: Target, outcome: Outcome, wanted: str) -> str:
        """Return the offset in an outcome, or raise its error. `wanted`: the verdict that means success."""
        verdict, detail = outcome
        if verdict == TOO_LATE:
            state = str(detail)
            is_gone = state == "gone"
            shown = "gone: acked by every group, purged, or trimmed" if is_gone else state
            raise TooLate(f"message {target_text(target)} cannot be {wanted} any more: it is {shown}", state=state)
        if verdict != wanted or not isinstance(detail, bytes):
            raise ProtocolError(f"an outcome that does not fit the request: {verdict}")
        return offset_model.to_text(detail)

    def _not_found(self, target: Target, *, is_fair: bool = False) -> NotFound:
        """Return the error for a message that does not exist.

        `is_fair`: the topic is fair, so that a target without a tenant has the tenant `default`.
        """
        text = f"topic {self.topic!r} has no message {target_text(target)}"
        if target[0] == BY_ID or len(target) > 2:
            return NotFound(text)
        return NotFound(text + NOT_OF_DEFAULT, tenant=DEFAULT_TENANT) if is_fair else NotFound(text + NOT_WITHOUT_KEY)


def _key_of(target: Target) -> bytes | None:
    """Return the key that a target has in addition to the unique key."""
    return target[3] if len(target) > 3 else None


def _arguments(
    since: Instant | None,
    until: Instant | None,
    key_prefix: Value | None,
    unique_key_prefix: Value | None,
    dry_run: bool,
) -> dict[str, Any]:
    from_ms, until_ms = span_ms(since, until)
    prefix = None if key_prefix is None else bulk_prefix("key_prefix", key_prefix)
    arguments = {"from_ms": from_ms, "until_ms": until_ms, "key_prefix": prefix, "dry_run": bool(dry_run)}
    if unique_key_prefix is not None:
        arguments["unique_key_prefix"] = bulk_prefix("unique_key_prefix", unique_key_prefix)
    return arguments


def _move_item(verb: str, target: Target, deliver_at: Instant | None, delay: Duration | None) -> list[Any]:
    """Return an item of a MOVE with the new time. None: the time does not change."""
    if deliver_at is not None and delay is not None:
        raise InvalidRequest(f"{verb}: one of deliver_at and delay is expected, not both")
    if delay is not None:
        return [target, duration_ms(delay), True]
    return [target, None if deliver_at is None else _past_or_later_ms(deliver_at), False]


def _past_or_later_ms(instant: Instant | None) -> int:
    """Return the instant of a move in ms.

    Replace an instant far in the past (seconds instead of milliseconds) by the lowest valid time. The effect is the
    same, but the broker would reject a frame with the original instant.
    """
    assert instant is not None
    return max(instant_ms(instant), LEAST_INSTANT_MS)


def check_limit(limit: int | None) -> None:
    """Check the limit of a listing. Raises InvalidRequest."""
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidRequest(f"limit: an int from 0 on is expected, not {limit!r}")
