"""`client.messages(topic)`: looking at stored messages, and taking back or moving those that are pending."""

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
    """Also what a partition does not do at once, because it would write very much again: in further requests."""
    found: dict[int, Outcome] = {}
    most = len(items)
    while left := [at for at in range(len(items)) if at not in found][:most]:
        frame = await call_leader(cluster, Move.of_updates(topic, partition, [items[at] for at in left]))
        told = zip(left, outcomes(frame, len(left), UPDATE_OUTCOMES), strict=True)
        done = {at: one for at, one in told if one.verdict != NOT_YET}
        found.update(done)
        # Each is sent and looked up in each request that names it: not all of a thousand large ones, of which a
        # partition does three at once.
        most = max(2 * len(done), _LEAST_UPDATES)
    return [found[at] for at in range(len(items))]


_LEAST_UPDATES: Final = 8
KEY_WEIGHT: Final = 2
"""Weight of a byte of a key among the bytes of items that share a frame."""
_CANCEL, _MOVE = partial(_settle, Cancel), partial(_settle, Move)
# In frames of their own: a broker that knows no priorities of a topic, or no updates, refuses all of a frame.
_RANK = partial(_settle, Move)
_UPDATE = _settle_updates
_VERDICTS: Final[dict[Ask[Any, Outcome], str]] = {_CANCEL: CANCELLED, _MOVE: MOVED, _RANK: MOVED, _UPDATE: UPDATED}


@suggesting
class Messages:
    """The stored messages of one topic, over all its partitions.

    A message is named by its id (26 characters: the offset that producing it gave) or by `unique_key=...`: in a fair
    topic with its `tenant` unless that is "default", in other topics with its `key` if it has one.
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
        """One message with its value, whatever its state; NotFound when it is not there (any more)."""
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
        """`async for message in messages.list():` in the order of delivery, those of all partitions.

        `state`: delayed, ready, leased, waiting or acked (None: any of these; the dead are `client.dead`'s). `since`
        and `until` bound the delivery time, the latter is not included; `key_prefix` and `unique_key_prefix` are the
        beginnings of their keys; `after` is the offset of the last one that is known. Values are left out unless asked
        for. `value_bytes`: the most bytes of each value; `size` is that of the whole value. `newest`: the latest
        delivery time comes first. For both, every node must run a version that knows them.
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
        """Take back a message that is delayed or ready, or waits for another attempt: once this returns, its id, nobody
        will get it any more.

        TooLate (`details["state"]`: leased, acked, dead or gone) when somebody has it, or is done with it; NotFound. It
        is safe to repeat: within ten minutes the answer is the same. Cancels at the same time share frames.
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
        """Give a message that is delayed or ready another delivery time, an instant, or a `delay` from now (in
        `delay_ms` whole milliseconds); its new offset. Its id stays. One that
        waits for another attempt comes at that time then, and keeps its offset. In a topic of the kind priority or fair
        it may be given another `priority`, too, or that alone (`set_priority`).

        TooLate and NotFound as with `cancel`, and TooLate with the state waiting when it waits in one group while
        another has yet to take it. It is repeated by itself when an answer is lost. With `deliver_at` that
        changes nothing; a `delay` is counted from the leader's clock, so a repeated one is counted from then: the
        message may come later than asked for by as long as the first answer was waited for, and is never early.
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
        """Give a message that is delayed or ready, or waits for another attempt, another value, other headers (`{}`:
        none), or both, in every group; its offset. What is not given stays as it is, and so do its place, its keys, its
        ttl and its attempts. With `deliver_at`, `delay`, `delay_ms` or `priority` it is moved as well, in one step: all
        of it is done, or nothing. `json` is a value as `produce` sends it; without `headers` the message keeps those
        that it has, with the content type of JSON.

        Once this returns, nobody is given the old value any more. TooLate and NotFound as with `move`; but without
        another time or priority it is never too late for what waits. TooLarge: the value or the headers.
        InvalidRequest for a compacted topic: there put the key's new value. It is repeated by itself
        when an answer is lost. Several at the same time share frames.
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
        """Give a message of a topic of the kind priority or fair another priority, the lower of which goes first; its
        offset. That stays, as its id and its delivery time do: among those of its new priority it goes by its age.

        TooLate and NotFound as with `move`. Several at the same time share frames.
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
        """Cancel every pending message whose delivery time and keys match; without any bound, all there are.

        InvalidRequest for an empty prefix.

        `dry_run` only counts. `progress(result)` is called every now and then. Leaving this by cancellation stops it;
        what is cancelled by then stays so.
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
        """Move every pending message that matches: `to` an instant, or by a `shift` ("1h", "-30m", a timedelta).

        What would come to lie in the past is due at once. In a topic of the kind priority or fair they may be given
        another `priority`, too, or that alone: then their times stay. Otherwise as `cancel_all`.
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
        """What a message waits for: what `get` knows but its value, and under "groups" its state in each group, with
        a `reason` in words, the `lease_token` under which it is held (None when it is not), the history of its
        attempts, and its `lives` there (each a `Life`) that were ended by redrives, whose attempts the history begins
        with."""
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
        return found | shown

    async def _partition(self, target: Target, tenant: str | None) -> int:
        """Return the partition of a message. Its id tells; else its tenant in a fair topic, its key if it has one, or
        its unique key chose it. Raises InvalidRequest if messages of the topic are not named so."""
        record = await self._cluster.topic(self.topic)
        kind, data, *_ = target
        if tenant is not None and record.kind != FAIR:
            raise InvalidRequest(
                f"tenant: topic {self.topic!r} is a {record.kind} topic; one of the kind fair has them"
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
        # The broker takes fewer bytes of keys in a frame than of values.
        size += KEY_WEIGHT * len(_key_of(target) or b"")
        outcome = await self._batcher.run(counter, item, size)
        if outcome.verdict == NOT_FOUND:
            raise self._not_found(target, is_fair=(await self._cluster.topic(self.topic)).kind == FAIR)
        return self._text_of(target, outcome, _VERDICTS[ask])

    def _text_of(self, target: Target, outcome: Outcome, wanted: str) -> str:
        """`wanted`: the verdict on what was done."""
        verdict, detail = outcome
        if verdict == TOO_LATE:
            state = str(detail)
            is_gone = state == "gone"
            what = "gone: acked by every group, purged, or trimmed" if is_gone else state
            raise TooLate(f"message {target_text(target)} cannot be {wanted} any more: it is {what}", state=state)
        if verdict != wanted or not isinstance(detail, bytes):
            raise ProtocolError(f"an outcome that does not fit the request: {verdict}")
        return offset_model.to_text(detail)

    def _not_found(self, target: Target, *, is_fair: bool = False) -> NotFound:
        """Return the error about a message that is not there. `is_fair`: the topic is a fair one, where a target
        without a tenant means the tenant `default`."""
        text = f"topic {self.topic!r} has no message {target_text(target)}"
        if target[0] == BY_ID or len(target) > 2:
            return NotFound(text)
        return NotFound(text + NOT_OF_DEFAULT, tenant=DEFAULT_TENANT) if is_fair else NotFound(text + NOT_WITHOUT_KEY)


def _key_of(target: Target) -> bytes | None:
    """Return the key that a target names beside the unique key."""
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
    """What an item of a MOVE says of the time: None, it stays."""
    if deliver_at is not None and delay is not None:
        raise InvalidRequest(f"{verb}: one of deliver_at and delay is expected, not both")
    if delay is not None:
        return [target, duration_ms(delay), True]
    return [target, None if deliver_at is None else _past_or_later_ms(deliver_at), False]


def _past_or_later_ms(instant: Instant | None) -> int:
    """An instant to move to. One so long past that it looks like seconds is as past as any other, and would spoil the
    frame that it shares."""
    assert instant is not None
    return max(instant_ms(instant), LEAST_INSTANT_MS)


def check_limit(limit: int | None) -> None:
    """The limit of a listing."""
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidRequest(f"limit: an int from 0 on is expected, not {limit!r}")
