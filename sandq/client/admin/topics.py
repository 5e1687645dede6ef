"""Administration of topics: create, change, delete, hold, and what they hold."""

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
from sandq.model.names import TIMER, check_name
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
    """When messages come due: `(start_ms, messages)` for every second, minute or hour that has some, and how many
    come after the last one that was asked for.

    `scheduled`: what schedules will send in that time beside the messages that there are already; `is_complete`: these
    are all, there were not too many to count.
    """

    now_ms: int
    buckets: list[tuple[int, int]]
    later: int
    scheduled: Sequence[tuple[int, int]] = ()
    is_complete: bool = True

    def together(self) -> list[tuple[int, int]]:
        """What there is and what schedules will send: `(start_ms, messages)`."""
        return sorted((Counter(dict(self.buckets)) + Counter(dict(self.scheduled))).items())


def _warned(record: TopicRecord) -> TopicRecord:
    for warning in record.warnings:
        log.warning("topic %s: %s", record.name, warning)
    return record


@suggesting
class TopicAdmin:
    """The part of `client.admin` that is about topics."""

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
        """Make a topic; settings: `lease="30s"`, `max_attempts=10`, `backoff={...}`, `delete_on_ack=True`, and others.

        `replicas`: copies of each partition; None: 3 if the cluster has 3 nodes or more, else 1.

        TopicExists when there is one of this name; InvalidSetting names every mistake in the settings. What may not be
        meant so (two replicas do not survive one node) stands in `warnings` of the answer, and is logged. A
        TimedOut or ConnectionLost leaves open whether it was made.
        """
        check_name("topic", name)
        check_count("partitions", partitions)
        if replicas is not None:
            check_count("replicas", replicas)
        request = TopicCreate(name, kind, partitions, replicas, plain_settings(settings))
        frame = await call(self._cluster, request, idempotent=False)
        self._cluster.forget(name)
        return _warned(TopicRecord.from_map(field_of(frame)))

    @timed_read
    async def list_topics(self, *, timeout: Duration | None = None) -> list[TopicRecord]:
        """All topics, by name."""
        asked = self._cluster.forgotten
        reply = MetadataReply.parse(await call(self._cluster, Metadata(None)))
        self._cluster.learn_all(reply.topics, asked)
        return sorted(reply.topics, key=lambda topic: topic.name)

    @timed_read
    async def topic(self, name: str, *, timeout: Duration | None = None) -> TopicRecord:
        """One topic; UnknownTopic when there is none of this name."""
        check_name("topic", name)
        return await ask_topic(self._cluster, name)

    @timed_change
    async def delete_topic(self, name: str, *, timeout: Duration | None = None) -> None:
        """Delete a topic with all its messages."""
        check_name("topic", name)
        try:
            await call(self._cluster, TopicDelete(name), idempotent=False)
        finally:
            self._cluster.forget(name)  # also if somebody else was first

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
        """Change settings of a topic, `backoff` key by key, how many partitions it has (they cannot become fewer), and
        how many nodes hold each; what is not named stays. Its record, as it is now.

        InvalidSetting names every mistake; `ordering` and `max_in_flight_per_key` cannot be changed. With more
        partitions some keys choose another one than before; unique keys do not. Replicas come and go after this has
        returned.
        """
        check_name("topic", name)
        for what, count in (("partitions", partitions), ("replicas", replicas)):
            if count is not None:
                check_count(what, count)
        request = TopicUpdate(name, plain_settings(settings), partitions, replicas)
        asked = self._cluster.forgotten
        record = TopicRecord.from_map(field_of(await call(self._cluster, request)))
        self._cluster.learn(record, asked)
        return record if replicas is None else _warned(record)

    @timed_change
    async def purge_topic(self, name: str, *, timeout: Duration | None = None) -> JobResult:
        """Remove every message that no consumer holds: what is delayed or ready, and the dead letters of all groups.

        What is leased or waits to be delivered again stays (`too_late` counts it), and so do the groups.
        """
        check_name("topic", name)
        results = [await run_job(self._cluster, name, "cancel", {**_EVERYTHING, "key_prefix": None})]
        for group in sorted({str(row.get("group")) for row in await rows_of_leaders(self._cluster, GroupList(name))}):
            arguments = {**_EVERYTHING, "group": group, "reason": None}
            results.append(await run_job(self._cluster, name, "purge_dead", arguments))
        return JobResult._make(map(sum, zip(*results, strict=True)))

    @timed_read
    async def stats(self, topic: str, *, timeout: Duration | None = None) -> list[dict[str, Any]]:
        """What a topic's partitions hold, a row each."""
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
        """Keep what stands above these offsets (text, one for each partition) from being trimmed, for `ttl` from now on
        or until the hold is renewed by its name, or released. Up to where each of these partitions is trimmed by now:
        where that is above the offset that was given, what lies between is gone.

        Offsets may go back. Conflict when a partition has too many holds; InvalidRequest for a compacted topic. A
        TimedOut or ConnectionLost leaves open where it was done; asking again does no harm.
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
        """End a hold in all partitions, where there is one."""
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
        """How many messages come due in each of the next `count` seconds, minutes or hours; the first is what is left
        of the current one. What schedules will send beside what there is already, is told apart."""
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
