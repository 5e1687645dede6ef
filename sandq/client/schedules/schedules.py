"""`client.schedules(topic)`: named messages that recur; each occurrence sends exactly one message."""

from __future__ import annotations

import heapq
import secrets
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

from sandq.client.arguments import did_you_mean, suggesting
from sandq.client.producer.partitioner import check_rank
from sandq.client.producer.validation import Headers, MessageValidation, Value, rank_of
from sandq.client.schedules.schedule import Schedule
from sandq.client.timeouts import check_timeout, timed_change, timed_read, within
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call, call_leader, each, fresh_topic
from sandq.model.batch import Column, encode
from sandq.model.errors import Conflict, InvalidRequest, NotFound, ProtocolError, SandqError
from sandq.model.json_values import MISSING, content_of, with_json_type
from sandq.model.names import COMPACTED, DEFAULT_TENANT, FAIR, check_tenant, schedule_id
from sandq.model.offsets import to_text
from sandq.model.partitioning import partition_for
from sandq.model.retries import RULE_COLUMNS, Backoff, MaxAttempts, parse_rules
from sandq.model.times import Duration, Instant, duration_ms, instant_ms
from sandq.protocol.fields import U48_MAX
from sandq.protocol.replies import TopicRecord
from sandq.protocol.requests_schedules import (
    DELETE,
    ITEMS_MOST,
    NAME_BYTES,
    NEW,
    PAUSE,
    RESUME,
    TIMES_MOST,
    TOKEN_BYTES,
    TRIGGER,
    ScheduleChange,
    ScheduleGet,
    ScheduleList,
    SchedulePreview,
    SchedulePut,
    ScheduleRecord,
    ScheduleResult,
    check_schedule_id,
    check_schedule_name,
    schedule_page,
    schedule_results,
    schedule_times,
    schedules_got,
)

KEEP: Final[Any] = ...
"""The default of the arguments of `update`: leave the setting unchanged."""
CHANGED_AGAIN_MOST: Final = 20
SETTING_BYTES: Final = 1 << 10
"""Maximum size of a text setting that the client sends, in bytes. Brokers allow less, and report the reason."""
PUT_BYTES: Final = 3 << 20
"""Maximum total size of the items of one request, in bytes (see `_size_of`). A frame's arrays may have 4 MiB."""


class Fire(NamedTuple):
    """A future occurrence: its nominal time, and the delivery time of its message (epoch ms)."""

    occurrence_ms: int
    fire_ms: int


class SchedulesStored(NamedTuple):
    """The number of schedules that `create_many` created, changed, and left unchanged."""

    created: int
    changed: int
    unchanged: int


class _Definition(NamedTuple):
    """A schedule as SCHEDULE_PUT sends it."""

    name: str
    version: int | None
    settings: dict[str, Any]
    message: dict[str, Any]
    paused: bool | None
    tenant: str | None


@suggesting
class Schedules:
    """The schedules of one topic.

    A schedule is identified by its name. In a fair topic it is identified by the name and the `tenant` of its messages;
    the tenant may be left out if it is "default".
    """

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.topic = topic
        self._cluster = cluster

    @timed_change
    async def create(
        self,
        name: str,
        value: Value = MISSING,
        *,
        json: Any = MISSING,
        cron: str | None = None,
        every: Duration | None = None,
        zone: str | None = None,
        start: Instant | None = None,
        end: Instant | None = None,
        count: int | None = None,
        jitter: Duration | None = None,
        misfire: str | None = None,
        misfire_most: int | None = None,
        overlap_group: str | None = None,
        key: Value | None = None,
        headers: Headers | None = None,
        ttl: Duration | None = None,
        priority: int | None = None,
        tenant: str | None = None,
        paused: bool | None = None,
        max_attempts: MaxAttempts | None = None,
        backoff: Backoff | None = None,
        cost: int | None = None,
        timeout: Duration | None = None,
    ) -> Schedule:
        """Create a schedule that sends a message at each occurrence, and return it.

        Give either `cron`, an expression of five or six fields (seconds first) in the time zone `zone` (default UTC),
        or `every`, a duration. The schedule runs from `start` on, before `end`, `count` times. Each message is delayed
        by up to `jitter`; the delay of one occurrence is always the same. `misfire`: for occurrences that no node could
        fire in time, send "one" message for all of them, none ("skip"), or one for each ("all", at most the last
        `misfire_most`). With `overlap_group`, an occurrence is skipped while that group has not acked the message of
        the last one.

        The message has the options of `produce`, with a value or `json`. It gets the headers `sandq-schedule` and
        `sandq-occurrence` (ms). Raises Conflict if a different schedule of this name exists. If an identical schedule
        exists, it is returned unchanged, even if it is paused (unless `paused` is given).
        """
        settings = _settings(
            cron=cron,
            every=every,
            zone=zone,
            start=start,
            end=end,
            count=count,
            jitter=jitter,
            misfire=misfire,
            misfire_most=misfire_most,
            overlap_group=overlap_group,
        )
        value, headers = content_of(value, json, headers)
        message: dict[str, Any] = {"value": value, "key": key, "headers": headers, "ttl": ttl, "priority": priority}
        message |= {"max_attempts": max_attempts, "backoff": backoff, "cost": cost}
        await self._put([_Definition(name, NEW, settings, message, paused, tenant)])
        return await self.get(name, tenant=tenant)

    @timed_change
    async def create_many(
        self, schedules: Iterable[Mapping[str, Any]], *, timeout: Duration | None = None
    ) -> SchedulesStored:
        """Create many schedules, or change existing ones; return how many were created and changed.

        Each item is a mapping of the arguments of `create`. Afterwards every schedule has the given settings. A paused
        schedule stays paused unless `paused` is given.
        """
        definitions: list[_Definition] = []
        for one in schedules:
            where = f"create_many: schedule {len(definitions) + 1}"
            if not isinstance(one, Mapping):
                raise InvalidRequest(f"{where}: a mapping of the arguments of create is expected, not {one!r:.60}")
            unknown = [name for name in one if name not in _ARGUMENTS]
            if unknown:
                raise InvalidRequest(f"{where}: {unknown[0]!r:.60}: no such argument{_meant(unknown[0])}")
            arguments = dict(one)
            name = arguments.pop("name", None)
            if name is None:
                raise InvalidRequest(f"{where}: name: it is missing")
            message = {part: arguments.pop(part, None) for part in _MESSAGE}
            if "json" in arguments:
                given = MISSING if message["value"] is None else message["value"]
                message["value"], message["headers"] = content_of(given, arguments.pop("json"), message["headers"])
            paused, tenant = arguments.pop("paused", None), arguments.pop("tenant", None)
            try:
                definitions.append(_Definition(name, None, _settings(**arguments), message, paused, tenant))
            except SandqError as error:
                raise _about(name, error) from None
        outcomes = Counter([result.outcome for result in await self._put(definitions)])
        return SchedulesStored(*[outcomes[outcome] for outcome in SchedulesStored._fields])

    @timed_change
    async def update(
        self,
        name: str,
        *,
        tenant: str | None = None,
        value: Value = KEEP,
        json: Any = KEEP,
        cron: str | None = KEEP,
        every: Duration | None = KEEP,
        zone: str | None = KEEP,
        start: Instant | None = KEEP,
        end: Instant | None = KEEP,
        count: int | None = KEEP,
        jitter: Duration | None = KEEP,
        misfire: str | None = KEEP,
        misfire_most: int | None = KEEP,
        overlap_group: str | None = KEEP,
        key: Value | None = KEEP,
        headers: Headers | None = KEEP,
        ttl: Duration | None = KEEP,
        priority: int | None = KEEP,
        max_attempts: MaxAttempts | None = KEEP,
        backoff: Backoff | None = KEEP,
        cost: int | None = KEEP,
        timeout: Duration | None = None,
    ) -> Schedule:
        """Change the given settings of a schedule, and return it. None restores the default of `create`.

        Messages of past occurrences do not change; the message of the next occurrence does. Raises NotFound.
        """
        named: dict[str, Any] = {
            "cron": cron,
            "every": every,
            "zone": zone,
            "start": start,
            "end": end,
            "count": count,
            "jitter": jitter,
            "misfire": misfire,
            "misfire_most": misfire_most,
            "overlap_group": overlap_group,
        }
        changes = {name: setting for name, setting in named.items() if setting is not KEEP}
        if json is not KEEP:
            value, _ = content_of(value, json, None)
        parts: dict[str, Any] = {"value": value, "key": key, "headers": headers, "ttl": ttl, "priority": priority}
        parts |= {"max_attempts": max_attempts, "backoff": backoff, "cost": cost}
        for _ in range(CHANGED_AGAIN_MOST):
            old = await self.get(name, tenant=tenant)
            settings = _kept(old, changes) | _settings(**changes)
            message: dict[str, Any] = {"value": old.value, "key": old.key, "headers": old.headers}
            message["ttl"] = None if old.ttl_ms is None else timedelta(milliseconds=old.ttl_ms)
            message["priority"] = old.priority or None
            message |= {"max_attempts": old.max_attempts, "backoff": old.backoff, "cost": old.cost}
            message |= {part: new for part, new in parts.items() if new is not KEEP}
            if json is not KEEP:
                message["headers"] = with_json_type(message["headers"])
            definition = _Definition(name, old.version, settings, message, old.paused, old.tenant)
            (result,) = await self._put([definition], may_conflict=True)
            if result.outcome == "not_found":
                raise self._not_found(name)
            if result.outcome != "conflict":
                return await self.get(name, tenant=tenant)
        raise Conflict(f"schedule {name!r} is changed by other clients all the time", topic=self.topic)

    @timed_read
    async def get(self, name: str, *, tenant: str | None = None, timeout: Duration | None = None) -> Schedule:
        """Return a schedule. Raises NotFound."""
        _check_name(name)
        partition = self._partition(await self._record(tenant), name, tenant)
        frame = await call_leader(self._cluster, ScheduleGet(self.topic, partition, [schedule_id(name, tenant)]))
        (record,) = schedules_got(frame, 1)
        if record is None:
            raise self._not_found(name)
        return Schedule.of(self.topic, partition, record)

    def list(
        self,
        *,
        prefix: str = "",
        tenant: str | None = None,
        limit: int | None = None,
        after: str | None = None,
        timeout: Duration | None = None,
    ) -> ScheduleRows:
        """Iterate over schedules in the byte order of their names: `async for schedule in schedules.list():`.

        `prefix`: only names that begin with it. `tenant`: only schedules of this tenant. `after`: only names after this
        name. In a fair topic `after` is the `id` of a schedule, because tenants may have schedules of the same name.
        """
        return ScheduleRows(self._cluster, self.topic, prefix, tenant, limit, after, timeout)

    @timed_change
    async def pause(self, name: str, *, tenant: str | None = None, timeout: Duration | None = None) -> None:
        """Pause a schedule until it is resumed; occurrences during the pause are left out. Raises NotFound."""
        await self._change(PAUSE, name, tenant)

    @timed_change
    async def resume(self, name: str, *, tenant: str | None = None, timeout: Duration | None = None) -> None:
        """Resume a schedule, from its first occurrence after now. Raises NotFound."""
        await self._change(RESUME, name, tenant)

    @timed_change
    async def delete(self, name: str, *, tenant: str | None = None, timeout: Duration | None = None) -> None:
        """Delete a schedule and the message of its next occurrence; messages of past occurrences stay. Raises
        NotFound."""
        await self._change(DELETE, name, tenant)

    @timed_change
    async def trigger(self, name: str, *, tenant: str | None = None, timeout: Duration | None = None) -> str:
        """Send an additional message of the schedule now, even if the schedule is paused. Return the message's id.
        Raises NotFound."""
        result = await self._change(TRIGGER, name, tenant)
        if result.id is None:
            raise ProtocolError("an answer to a trigger without an id")
        return to_text(result.id)

    @timed_read
    async def next(
        self, name: str, count: int = 10, *, tenant: str | None = None, timeout: Duration | None = None
    ) -> Sequence[Fire]:
        """Return the next occurrences, at most `count`. Raises NotFound."""
        schedule = await self.get(name, tenant=tenant)
        if schedule.next_ms is None:
            return []
        settings = _kept(schedule, {})
        if schedule.count is not None:
            settings["count"] = max(schedule.count - schedule.fired, 1)
        if schedule._anchor_ms is not None:
            settings["start_ms"] = schedule._anchor_ms
        return await self._preview(schedule.id, settings, schedule.next_ms - 1, count)

    @timed_read
    async def preview(
        self,
        *,
        cron: str | None = None,
        every: Duration | None = None,
        zone: str | None = None,
        start: Instant | None = None,
        end: Instant | None = None,
        jitter: Duration | None = None,
        after: Instant | None = None,
        count: int = 10,
        name: str = "preview",
        timeout: Duration | None = None,
    ) -> Sequence[Fire]:
        """Return the occurrences that a schedule with these settings would have after an instant (None: now)."""
        _check_name(name)
        settings = _settings(cron=cron, every=every, zone=zone, start=start, end=end, jitter=jitter)
        return await self._preview(name, settings, None if after is None else instant_ms(after), count)

    # -- parts ----------------------------------------------------------------------------------------------------

    async def _preview(self, name: str, settings: dict[str, Any], after_ms: int | None, count: int) -> Sequence[Fire]:
        if type(count) is not int or not 1 <= count <= TIMES_MOST:
            raise InvalidRequest(f"count: a whole number of 1 to {TIMES_MOST} is expected, not {count!r}")
        times, _ = schedule_times(await call(self._cluster, SchedulePreview(name, settings, after_ms, count)))
        return [Fire(*time) for time in times]

    async def _put(self, definitions: Sequence[_Definition], *, may_conflict: bool = False) -> Sequence[ScheduleResult]:
        """Send schedules to their partitions, and return one result per schedule.

        Raises Conflict if a different schedule of a name exists, unless `may_conflict`: the caller then handles it."""
        record = await self._record(next((one.tenant for one in definitions if one.tenant is not None), None))
        by_partition: dict[int, list[list[Any]]] = {}
        names = set[tuple[str, str]]()
        for one in definitions:
            _check_name(one.name)
            if one.paused is not None and type(one.paused) is not bool:
                raise InvalidRequest(f"schedule {one.name!r}: paused: a bool is expected, not {one.paused!r:.60}")
            try:
                batch = self._batch(record, one)
            except SandqError as error:
                raise (_about(one.name, error) if len(definitions) > 1 else error) from None
            item = [schedule_id(one.name, one.tenant), one.version, one.settings, batch, one.paused]
            if (one.name, one.tenant or DEFAULT_TENANT) in names:
                raise InvalidRequest(f"schedule {one.name!r} is given twice: a name identifies one schedule")
            names.add((one.name, one.tenant or DEFAULT_TENANT))
            by_partition.setdefault(self._partition(record, one.name, one.tenant), []).append(item)
        requests = [
            SchedulePut(self.topic, partition, part)
            for partition, items in by_partition.items()
            for part in _parts(items)
        ]

        async def put(request: SchedulePut) -> Sequence[ScheduleResult]:
            return schedule_results(await call_leader(self._cluster, request), len(request.items))

        found = [result for results in await each(put, requests) for result in results]
        if not may_conflict and any([result.outcome == "exists" for result in found]):
            raise Conflict(
                f"topic {self.topic!r} has a different schedule {definitions[0].name!r}: update it or use another name",
                topic=self.topic,
            )
        return found

    def _batch(self, record: TopicRecord, definition: _Definition) -> bytes:
        """Return the message of a schedule, as a batch of one."""
        message, checks = definition.message, MessageValidation(self._cluster.limits)
        priority, tenant = message["priority"], definition.tenant
        if priority is not None or tenant is not None:
            rank_of(priority, tenant)
            check_rank(self.topic, record.kind, priority, tenant)
        if message["value"] is None:
            raise InvalidRequest("value: it is missing")
        columns: dict[int, Any] = {Column.VALUE: [checks.value(message["value"])]}
        rules = parse_rules(message["max_attempts"], message["backoff"], message["cost"])
        cells = {
            Column.KEY: checks.key(message["key"]),
            Column.HEADERS: checks.headers(message["headers"]),
            Column.TTL_MS: None if message["ttl"] is None else checks.extras(message["ttl"], None, "reject", None)[1],
            Column.PRIORITY: priority,
            Column.TENANT: None if tenant in (None, DEFAULT_TENANT) else tenant.encode(),
            **dict(zip(RULE_COLUMNS, rules, strict=True)),
        }
        return encode(columns | {column: [cell] for column, cell in cells.items() if cell is not None})

    async def _change(self, action: str, name: str, tenant: str | None) -> ScheduleResult:
        _check_name(name)
        partition = self._partition(await self._record(tenant), name, tenant)
        token = secrets.token_bytes(TOKEN_BYTES)
        names = [schedule_id(name, tenant)]
        frame = await call_leader(self._cluster, ScheduleChange(self.topic, partition, action, names, token))
        (result,) = schedule_results(frame, 1)
        if result.outcome == "not_found":
            raise self._not_found(name)
        return result

    async def _record(self, tenant: str | None) -> TopicRecord:
        record = await self._cluster.topic(self.topic)
        _check_kind(record, tenant)
        return record

    @staticmethod
    def _partition(record: TopicRecord, name: str, tenant: str | None) -> int:
        """Return the partition of a schedule. The name determines it; in a fair topic, the tenant does."""
        routes = (tenant or DEFAULT_TENANT) if record.kind == FAIR else name
        return partition_for(routes.encode(), record.initial_partitions)

    def _not_found(self, name: str) -> NotFound:
        return NotFound(f"topic {self.topic!r} has no schedule {name!r}")


class ScheduleRows:
    """An async iterator over the schedules of all partitions, in the byte order of their names."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        prefix: str,
        tenant: str | None,
        limit: int | None,
        after: str | None,
        timeout: Duration | None = None,
    ) -> None:
        """`timeout`: how long each step waits for the next page."""
        check_timeout(timeout)
        _check_text("prefix", prefix, NAME_BYTES)
        if tenant is not None:
            check_tenant(tenant)
        if limit is not None and (type(limit) is not int or limit < 0):
            raise InvalidRequest(f"limit: an int from 0 on is expected, not {limit!r}")
        if after is not None and (problem := check_schedule_id(after)) is not None:
            raise InvalidRequest(problem)
        self._cluster = cluster
        self._topic = topic
        self._prefix = prefix
        self._tenant = tenant
        self._left = limit
        self._after = after
        self._heap: list[tuple[bytes, int, _Source]] | None = None
        self._taken: _Source | None = None  # the partition whose next row is not in the heap
        self._timeout = timeout

    def __aiter__(self) -> ScheduleRows:
        return self

    async def __anext__(self) -> Schedule:
        if self._left == 0:
            raise StopAsyncIteration
        if self._heap is None or self._taken is not None:
            await within(self._make_ready, self._timeout, "list")()
        if not self._heap:
            raise StopAsyncIteration
        self._taken = source = heapq.heappop(self._heap)[2]
        if self._left is not None:
            self._left -= 1
        return Schedule.of(self._topic, source.partition, source.rows.popleft())

    async def _make_ready(self) -> None:
        """Put the next row of each partition into the heap."""
        if self._heap is None:
            record = await fresh_topic(self._cluster, self._topic)
            _check_kind(record, self._tenant)
            partitions = [*range(record.initial_partitions)]
            if self._tenant is not None:
                partitions = [partition_for(self._tenant.encode(), record.initial_partitions)]
            sources = [_Source(partition, self._after) for partition in partitions]
            await each(self._fill, sources)
            self._heap = []
            for source in sources:
                self._push(source)
        if self._taken is not None:
            await self._fill(self._taken)
            self._push(self._taken)
            self._taken = None

    async def _fill(self, source: _Source) -> None:
        while not source.rows and source.has_more:
            wanted = ITEMS_MOST if self._left is None or self._tenant is not None else self._left
            most = max(min(wanted, ITEMS_MOST), 1)
            request = ScheduleList(self._topic, source.partition, self._prefix, most, source.after)
            found, source.after = schedule_page(await call_leader(self._cluster, request))
            source.rows.extend([one for one in found if self._tenant in (None, one.tenant or DEFAULT_TENANT)])
            source.has_more = source.after is not None

    def _push(self, source: _Source) -> None:
        if source.rows:
            assert self._heap is not None
            heapq.heappush(self._heap, (source.rows[0].name.encode(), source.partition, source))


class _Source:
    """One partition: the rest of its current page, and the start of the next one."""

    def __init__(self, partition: int, after: str | None) -> None:
        self.partition = partition
        self.after = after
        self.rows: deque[ScheduleRecord] = deque()
        self.has_more = True


def _settings(
    *,
    cron: str | None = None,
    every: Duration | None = None,
    zone: str | None = None,
    start: Instant | None = None,
    end: Instant | None = None,
    count: int | None = None,
    jitter: Duration | None = None,
    misfire: str | None = None,
    misfire_most: int | None = None,
    overlap_group: str | None = None,
) -> dict[str, Any]:
    """Return the settings in the form that the broker accepts, without settings that are None."""
    for name, text in (("cron", cron), ("zone", zone), ("misfire", misfire), ("overlap_group", overlap_group)):
        if text is not None:
            _check_text(name, text, SETTING_BYTES)
    for name, number in (("count", count), ("misfire_most", misfire_most)):
        if number is not None and (type(number) is not int or not 1 <= number <= U48_MAX):
            raise InvalidRequest(f"{name}: a whole number from 1 on is expected, not {number!r:.60}")
    settings = {
        "cron": cron,
        "every_ms": None if every is None else duration_ms(every),
        "zone": zone,
        "start_ms": None if start is None else instant_ms(start),
        "end_ms": None if end is None else instant_ms(end),
        "count": count,
        "jitter_ms": None if jitter is None else duration_ms(jitter),
        "misfire": misfire,
        "misfire_most": misfire_most,
        "overlap_group": overlap_group,
    }
    return {name: value for name, value in settings.items() if value is not None}


_MESSAGE: Final = ("value", "key", "headers", "ttl", "priority", "max_attempts", "backoff", "cost")
_ARGUMENTS: Final = (
    *("name", "cron", "every", "zone", "start", "end", "count", "jitter", "misfire", "misfire_most", "overlap_group"),
    *(*_MESSAGE, "json", "tenant", "paused"),
)
"""Names of the arguments of `create`."""
_WIRE: Final = {"every": "every_ms", "start": "start_ms", "end": "end_ms", "jitter": "jitter_ms"}


def _kept(old: Schedule, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a schedule, without the settings that `changes` replaces."""
    settings = {
        "cron": old.cron,
        "every_ms": old.every_ms,
        "zone": old.zone if old.cron is not None else None,
        "start_ms": old.start_ms,
        "end_ms": old.end_ms,
        "count": old.count,
        "jitter_ms": old.jitter_ms or None,
        "misfire": old.misfire,
        "misfire_most": old.misfire_most,
        "overlap_group": old.overlap_group,
    }
    gone = {_WIRE.get(name, name) for name in changes}
    if changes.get("cron") is not None:
        gone.add("every_ms")  # the new kind of recurrence replaces the old one
    elif changes.get("every") is not None:
        gone |= {"cron", "zone"}
    if changes.get("misfire", "all") != "all":
        gone.add("misfire_most")
    return {name: value for name, value in settings.items() if value is not None and name not in gone}


def _meant(name: object) -> str:
    return did_you_mean(name, _ARGUMENTS) or f" ({', '.join(_ARGUMENTS)} are)"


def _parts(items: Sequence[list[Any]]) -> list[list[list[Any]]]:
    """Split items into groups that fit into one request."""
    parts: list[list[list[Any]]] = []
    size = 0
    for item in items:
        if not parts or len(parts[-1]) == ITEMS_MOST or size + _size_of(item) > PUT_BYTES:
            parts.append([])
            size = 0
        parts[-1].append(item)
        size += _size_of(item)
    return parts


def _size_of(item: Sequence[Any]) -> int:
    name, _, settings, batch, _ = item
    return len(name) + len(batch) + sum([len(key) + len(str(setting)) for key, setting in settings.items()])


def _about(name: object, error: SandqError) -> SandqError:
    """Return the same error with the name of the schedule in its text."""
    return error.again(f"schedule {name!r:.60}: {error.message}")


def _check_kind(record: TopicRecord, tenant: str | None) -> None:
    """Raise InvalidRequest for topics that have no schedules, and for a tenant in topics without tenants."""
    if record.kind == COMPACTED:
        raise InvalidRequest(f"topic {record.name!r} is a compacted topic, which has no schedules")
    if tenant is not None:
        check_tenant(tenant)
        if record.kind != FAIR:
            raise InvalidRequest(
                f"tenant: topic {record.name!r} is a {record.kind} topic; only fair topics have tenants"
            )


def _check_text(name: str, text: str, most: int) -> None:
    """Raise InvalidRequest unless this is a text that can be sent."""
    if type(text) is not str:
        raise InvalidRequest(f"{name}: text is expected, not {type(text).__name__}")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name}: it holds half a surrogate pair, which UTF-8 cannot") from None
    if size > most:
        raise InvalidRequest(f"{name}: it has {size} bytes, and {most} are allowed")


def _check_name(name: str) -> None:
    problem = check_schedule_name(name)
    if problem is not None:
        raise InvalidRequest(problem)
