"""Administration of topics: create, change, delete, hold, statistics and forecasts."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Unpack

from sandq.client.admin.requests import ask_leaders, check_count, check_partitions, field_of, rows_of_leaders
from sandq.client.admin.settings import TopicSettings, plain_settings
from sandq.client.arguments import suggesting
from sandq.client.messages.jobs import run_job
from sandq.client.messages.stored_message import JobResult
from sandq.client.timeouts import timed_change, timed_read
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import ask_topic, call, call_leader, each, fresh_topic
from sandq.model import offsets as offset_model
from sandq.model.errors import (
    InvalidRequest,
    ProtocolError,
)
from sandq.model.limits import FIXED
from sandq.model.names import TIMER, check_name, check_new_topic
from sandq.model.times import TIME_MAX_MS, Duration, duration_ms, format_duration
from sandq.protocol.replies import MetadataReply, TopicRecord
from sandq.protocol.replies_messages import ForecastReply
from sandq.protocol.requests import Metadata
from sandq.protocol.requests_admin import (
    GroupList,
    Hold,
    TopicCreate,
    TopicDelete,
    TopicStats,
    TopicUpdate,
)
from sandq.protocol.requests_messages import BUCKETS_MAX, UNITS
from sandq.protocol.requests_messages import Forecast as ForecastRequest

log = logging.getLogger("sandq.client")

_EVERYTHING = {"from_ms": 0, "until_ms": TIME_MAX_MS, "dry_run": False}


class Forecast(NamedTuple):
    """Number of messages that become due: `(start_ms, messages)` for each second, minute or hour with messages.

    `later`: messages that become due after the requested time. `scheduled`: messages that schedules will send in the
    requested time; they do not exist yet. `is_complete`: False if `scheduled` is incomplete, because there were too
    many to count.
    """

    now_ms: int
    buckets: list[tuple[int, int]]
    later: int
    scheduled: Sequence[tuple[int, int]] = ()
    is_complete: bool = True

    def together(self) -> list[tuple[int, int]]:
        """Return existing and scheduled messages together: `(start_ms, messages)`."""
        return sorted((Counter(dict(self.buckets)) + Counter(dict(self.scheduled))).items())


def _warned(record: TopicRecord) -> TopicRecord:
    for warning in record.warnings:
        log.warning("topic %s: %s", record.name, warning)
    return record


@suggesting
class TopicAdmin:
    """The part of `client.admin` for topics."""

    _cluster: Cluster

    @timed_change
    async def create_topic(
        self,
        /,
        name: str,
        *,
        kind: str = TIMER,
        partitions: int = 1,
        replicas: int | None = None,
        timeout: Duration | None = None,
        **settings: Unpack[TopicSettings],
    ) -> TopicRecord:
        """Create a topic. Settings are keyword arguments: `lease="30s"`, `max_attempts=10`, `backoff={...}`, and
        others.

        `replicas`: copies of each partition; None for 3 if the cluster has 3 nodes or more, else 1.

        Raises TopicExists, or InvalidSetting with all mistakes in the settings. Probable mistakes (for example two
        replicas, which do not survive the loss of a node) are in `warnings` of the result, and are logged. After
        TimedOut or ConnectionLost the outcome is unknown.
        """
        check_new_topic(name)
        check_count("partitions", partitions)
        if replicas is not None:
            check_count("replicas", replicas)
        request = TopicCreate(name, kind, partitions, replicas, plain_settings(settings))
        frame = await call(self._cluster, request, idempotent=False)
        self._cluster.forget(name)
        return _warned(TopicRecord.from_map(field_of(frame)))

    @timed_read
    async def list_topics(self, *, timeout: Duration | None = None) -> list[TopicRecord]:
        """Return all topics, ordered by name."""
        generation = self._cluster.generation
        reply = MetadataReply.parse(await call(self._cluster, Metadata(None)))
        self._cluster.learn_all(reply.topics, generation)
        return sorted(reply.topics, key=lambda topic: topic.name)

    @timed_read
    async def topic(self, name: str, *, timeout: Duration | None = None) -> TopicRecord:
        """Return a topic. Raises UnknownTopic."""
        check_name("topic", name)
        return await ask_topic(self._cluster, name)

    @timed_change
    async def delete_topic(self, name: str, *, timeout: Duration | None = None) -> None:
        """Delete a topic with all its messages."""
        check_name("topic", name)
        try:
            await call(self._cluster, TopicDelete(name), idempotent=False)
        finally:
            self._cluster.forget(name)  # also if another client was first

    @timed_change
    async def update_topic(
        self,
        /,
        name: str,
        *,
        partitions: int | None = None,
        replicas: int | None = None,
        timeout: Duration | None = None,
        **settings: Unpack[TopicSettings],
    ) -> TopicRecord:
        """Change a topic's settings (of `backoff`, only the given keys), its number of partitions (it can only grow)
        and its replicas.

        An omitted argument changes nothing. Returns the new record. Raises InvalidSetting with all mistakes; `ordering`
        and `max_in_flight_per_key` cannot be changed. After partitions were added, some keys go to different
        partitions, but unique keys stay in theirs. Replicas are added and removed after this method has returned.
        """
        check_name("topic", name)
        for count_name, count in (("partitions", partitions), ("replicas", replicas)):
            if count is not None:
                check_count(count_name, count)
        request = TopicUpdate(name, plain_settings(settings), partitions, replicas)
        generation = self._cluster.generation
        record = TopicRecord.from_map(field_of(await call(self._cluster, request)))
        self._cluster.learn(record, generation)
        return record if replicas is None else _warned(record)

    @timed_change
    async def purge_topic(self, name: str, *, timeout: Duration | None = None) -> JobResult:
        """Delete every message that no consumer holds: delayed and ready messages, and the dead letters of all groups.

        Messages that are leased or wait for a retry stay (`too_late` counts them). The groups stay, too.
        """
        check_name("topic", name)
        results = [await run_job(self._cluster, name, "cancel", {**_EVERYTHING, "key_prefix": None})]
        for group in sorted({str(row.get("group")) for row in await rows_of_leaders(self._cluster, GroupList(name))}):
            arguments = {**_EVERYTHING, "group": group, "reason": None}
            results.append(await run_job(self._cluster, name, "purge_dead", arguments))
        return JobResult._make(map(sum, zip(*results, strict=True)))

    @timed_read
    async def stats(self, topic: str, *, timeout: Duration | None = None) -> list[dict[str, Any]]:
        """Return statistics of a topic: one row per partition."""
        rows = await rows_of_leaders(self._cluster, TopicStats(topic))
        return sorted(rows, key=lambda row: row.get("partition", 0))

    @timed_change
    async def hold(
        self,
        topic: str,
        name: str,
        offsets: Mapping[int, str],
        ttl: Duration = "1h",
        *,
        timeout: Duration | None = None,
    ) -> dict[int, str]:
        """Protect messages above these offsets from trimming, for `ttl`. A hold can be renewed and released by its
        name.

        `offsets`: by partition, an offset as text; it may be lower than before. Returns the offset up to which each
        partition is already trimmed. If this is above the given offset, the messages in between are gone.

        Raises Conflict if a partition has too many holds; InvalidRequest for a compacted topic. After TimedOut or
        ConnectionLost it is unknown which partitions have the hold; repeating the call is safe.
        """
        at = {partition: offset_model.from_text(text) for partition, text in offsets.items()}
        ttl_ms = duration_ms(ttl)
        if not FIXED.hold_least_ms <= ttl_ms <= FIXED.hold_most_ms:
            least, most = format_duration(FIXED.hold_least_ms), format_duration(FIXED.hold_most_ms)
            raise InvalidRequest(f"ttl: {least} to {most} is expected, not {format_duration(ttl_ms)}")
        await check_partitions(self._cluster, topic, at)
        return await self._hold(topic, name, at, ttl_ms)

    @timed_change
    async def release(self, topic: str, name: str, *, timeout: Duration | None = None) -> None:
        """End a hold in all partitions that have it."""
        count = len((await fresh_topic(self._cluster, check_name("topic", topic))).partitions)
        await self._hold(topic, name, dict.fromkeys(range(count)), None)

    async def _hold(
        self, topic: str, name: str, offsets: Mapping[int, bytes | None], ttl_ms: int | None
    ) -> dict[int, str]:
        check_name("hold", name)

        async def one(partition: int) -> bytes:
            request = Hold(topic, partition, name, offsets[partition], ttl_ms)
            trimmed = field_of(await call_leader(self._cluster, request))
            if type(trimmed) is not bytes or len(trimmed) != offset_model.OFFSET_BYTES:
                raise ProtocolError(f"HOLD reply: {str(trimmed)[:100]}")
            return trimmed

        partitions = sorted(offsets)
        found = await each(one, partitions)
        return {partition: offset_model.to_text(trimmed) for partition, trimmed in zip(partitions, found, strict=True)}

    @timed_read
    async def forecast(
        self, topic: str, unit: str = "minute", count: int = 60, *, timeout: Duration | None = None
    ) -> Forecast:
        """Count the messages that become due in each of the next `count` seconds, minutes or hours.

        The first bucket is the rest of the current unit. Messages that schedules will send are counted separately.
        """
        if unit not in UNITS:
            raise InvalidRequest(f"unit: one of {', '.join(UNITS)} is expected, not {unit!r}")
        if type(count) is not int or not 1 <= count <= BUCKETS_MAX:
            raise InvalidRequest(f"count: a whole number within 1..{BUCKETS_MAX} is expected, not {count!r}")
        found = map(ForecastReply.parse, await ask_leaders(self._cluster, ForecastRequest(topic, unit, count)))
        now_ms, later, is_complete = 0, 0, True
        buckets, scheduled = Counter[int](), Counter[int]()
        for reply in found:
            now_ms, later = max(now_ms, reply.now_ms), later + reply.later
            is_complete = is_complete and reply.is_complete
            for counts, part in ((buckets, reply.buckets), (scheduled, reply.scheduled)):
                for start_ms, messages in part:
                    counts[start_ms] += messages
        return Forecast(now_ms, sorted(buckets.items()), later, sorted(scheduled.items()), is_complete)
