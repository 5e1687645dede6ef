"""Administration: topics, groups, the cluster and its clock."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple, TypeVar, Unpack

from sandq.client.admin import audit, slo
from sandq.client.admin.access import AccessAdmin
from sandq.client.admin.group_consumers import GroupConsumers, consumers_of
from sandq.client.admin.overview import OverviewAdmin
from sandq.client.admin.pushes import together
from sandq.client.admin.settings import GroupSettings, TopicSettings
from sandq.client.arguments import suggesting
from sandq.client.messages.jobs import run_job
from sandq.client.messages.stored_message import JobResult
from sandq.client.options import parse_server
from sandq.client.positions import Start, start_of
from sandq.client.timeouts import timed_change, timed_read
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import ask_topic, call, call_leader, each, fresh_topic
from sandq.model import offsets as offset_model
from sandq.model.errors import (
    Conflict,
    InvalidRequest,
    InvalidSetting,
    NotFound,
    ProtocolError,
    Retriable,
    SandqError,
    Unavailable,
    UnknownGroup,
    UnknownPartition,
)
from sandq.model.group_limits import parse_limit
from sandq.model.limits import FIXED
from sandq.model.names import TIMER, check_name
from sandq.model.push import check_push
from sandq.model.times import TIME_MAX_MS, Duration, duration_ms, format_duration
from sandq.model.unfinished import unfinished_conflict
from sandq.protocol.fields import PARTITION_MAX
from sandq.protocol.frames import Frame, Type
from sandq.protocol.replies import MetadataReply, TopicRecord
from sandq.protocol.replies_messages import ForecastReply
from sandq.protocol.request import Request, TopicRequest, unknown_request
from sandq.protocol.requests import Metadata
from sandq.protocol.requests_admin import (
    ACCEPT,
    CHECK,
    DRAIN,
    FORCE,
    REMOVE,
    SHOW,
    UNDRAIN,
    ClockReset,
    ClusterClock,
    ClusterInfo,
    ClusterInit,
    ConsumerList,
    EntrySkip,
    Finalize,
    GroupDelete,
    GroupLimit,
    GroupList,
    GroupPause,
    GroupPush,
    GroupSeek,
    GroupUpdate,
    Hold,
    NodeChange,
    PushList,
    Rebuild,
    TopicCreate,
    TopicDelete,
    TopicStats,
    TopicUpdate,
    Transfer,
)
from sandq.protocol.requests_audit import AuditList
from sandq.protocol.requests_debug import DebugDump, LogLevel
from sandq.protocol.requests_messages import BUCKETS_MAX, UNITS
from sandq.protocol.requests_messages import Forecast as ForecastRequest
from sandq.protocol.requests_slo import Slo

_EVERYTHING = {"from_ms": 0, "until_ms": TIME_MAX_MS, "dry_run": False}

T = TypeVar("T")


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


log = logging.getLogger("sandq.client")


@suggesting
class Admin(AccessAdmin, OverviewAdmin):
    """`client.admin`. A request is tried again within the client's `timeout` where that is safe."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

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
        _check_count("partitions", partitions)
        if replicas is not None:
            _check_count("replicas", replicas)
        request = TopicCreate(name, kind, partitions, replicas, _plain(settings))
        frame = await call(self._cluster, request, idempotent=False)
        self._cluster.forget(name)
        return _warned(TopicRecord.from_map(_field(frame)))

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
                _check_count(what, count)
        request = TopicUpdate(name, _plain(settings), partitions, replicas)
        asked = self._cluster.forgotten
        record = TopicRecord.from_map(_field(await call(self._cluster, request)))
        self._cluster.learn(record, asked)
        return record if replicas is None else _warned(record)

    @timed_change
    async def purge_topic(self, name: str, *, timeout: Duration | None = None) -> JobResult:
        """Remove every message that no consumer holds: what is delayed or ready, and the dead letters of all groups.

        What is leased or waits to be delivered again stays (`too_late` counts it), and so do the groups.
        """
        check_name("topic", name)
        results = [await run_job(self._cluster, name, "cancel", {**_EVERYTHING, "key_prefix": None})]
        for group in sorted({str(row.get("group")) for row in await self.groups(name)}):
            arguments = {**_EVERYTHING, "group": group, "reason": None}
            results.append(await run_job(self._cluster, name, "purge_dead", arguments))
        return JobResult._make(map(sum, zip(*results, strict=True)))

    @timed_read
    async def groups(self, topic: str, *, timeout: Duration | None = None) -> list[dict[str, Any]]:
        """The groups of a topic, a row for each partition and group; offsets (`cursor`, `committed`) as text."""
        rows = await self._of_all_leaders(GroupList(topic))
        return sorted(rows, key=lambda row: (str(row.get("group")), row.get("partition", 0)))

    @timed_read
    async def consumers(self, topic: str, group: str, *, timeout: Duration | None = None) -> GroupConsumers:
        """The consumers of a group, with the messages that each holds. UnknownGroup when there is none."""
        return consumers_of(await self._of_group(ConsumerList(topic, check_name("group", group))))

    @timed_read
    async def stats(self, topic: str, *, timeout: Duration | None = None) -> list[dict[str, Any]]:
        """What a topic's partitions hold, a row each."""
        rows = await self._of_all_leaders(TopicStats(topic))
        return sorted(rows, key=lambda row: row.get("partition", 0))

    @timed_change
    async def seek_group(self, topic: str, group: str, to: Start, *, timeout: Duration | None = None) -> dict[int, str]:
        """Put a group elsewhere: "earliest", "latest", an instant, or an offset; its new cursor for each partition.

        Everything from there on is delivered again; seeking forward, what it passes counts as acked. What the group
        had leased, or was to get again, is revoked. An offset is of one partition: the others stay where they are.
        """
        request = GroupSeek(topic, check_name("group", group), start_of(to))
        rows = [row for found in await self._of_group(request) for row in _rows(found, list)]
        try:
            return {partition: offset_model.to_text(cursor) for partition, cursor in sorted(rows)}
        except (TypeError, ValueError, InvalidRequest):
            raise ProtocolError(f"GROUP_SEEK reply: {str(rows)[:100]}") from None

    @timed_change
    async def delete_group(
        self, topic: str, group: str, *, force: bool = False, timeout: Duration | None = None
    ) -> None:
        """Forget a group and its dead letters. UnknownGroup when there is none, Conflict while it has consumers.

        Conflict, too, while the group has unfinished messages (leased, retrying, or blocked by their keys): they would
        be lost. `force` deletes it with these. A TimedOut or ConnectionLost leaves open whether it was done everywhere.
        """
        request = GroupDelete(topic, check_name("group", group), FORCE if force else None)
        if not force:
            await self._check_finished(request)
        await self._of_group(request, idempotent=False)

    async def _check_finished(self, request: GroupDelete) -> None:
        """Raise Conflict if a group has unfinished messages in any partition, before it is deleted in the first."""
        try:
            frames = await self._of_group(request._replace(mode=CHECK))
        except InvalidRequest:
            return  # nodes of a version that knows no modes; they refuse a bad request once more
        unfinished = sum(_count(frame) for frame in frames)
        if unfinished:
            raise unfinished_conflict(request.group, unfinished)

    @timed_change
    async def update_group(
        self, /, topic: str, group: str, *, timeout: Duration | None = None, **settings: Unpack[GroupSettings]
    ) -> None:
        """Give a group settings of its own, instead of those that it had: `max_attempts`, `max_snoozes`, `backoff`,
        `max_in_flight_per_key` (not above the topic's); none at all: it has the topic's again."""
        request = GroupUpdate(topic, check_name("group", group), _plain(settings))
        await self._of_group(request)

    @timed_change
    async def pause_group(self, topic: str, group: str, *, timeout: Duration | None = None) -> None:
        """Have a group get nothing until `resume_group`; what its consumers hold they keep, and can ack. UnknownGroup
        when there is none. It stays paused across restarts, and is not forgotten for want of consumers.

        A TimedOut or ConnectionLost leaves open whether it was done everywhere; asking again does no harm.
        """
        await self._of_group(GroupPause(topic, check_name("group", group), True))

    @timed_change
    async def resume_group(self, topic: str, group: str, *, timeout: Duration | None = None) -> None:
        """Have a group get again what there is for it, what has come due meanwhile first."""
        await self._of_group(GroupPause(topic, check_name("group", group), False))

    @timed_change
    async def limit_group(
        self,
        /,
        topic: str,
        group: str,
        *,
        max_in_flight: int | None = None,
        rate: str | float | None = None,
        burst: int | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Limit a group over all partitions of a topic, instead of by the limits that it had; without any it has none.

        `max_in_flight`: so many messages at most that are leased and not settled. `rate`: so many are given out, a
        number a second, or text such as "5/s", "100/m"; after a pause as many as `burst` at once (a tenth of a second's
        worth, at least 1). The group need not be there yet. What is in flight already is not taken back.
        """
        limits = {"max_in_flight": max_in_flight, "rate": rate, "burst": burst}
        given = {name: value for name, value in limits.items() if value is not None}
        parse_limit(given)  # here too: what is no limit at all may not fit into a frame
        await call(self._cluster, GroupLimit(check_name("topic", topic), check_name("group", group), given))

    @timed_change
    async def set_push(
        self,
        /,
        topic: str,
        group: str,
        url: str | None = None,
        *,
        secrets: str | Sequence[str] | None = None,
        keep_secrets: bool = False,
        concurrency: int | None = None,
        request_timeout: Duration | None = None,
        timeout: Duration | None = None,
    ) -> dict[str, Any]:
        """Have the messages of a group POSTed to a URL, each at its time, or change how; what is not named stays. What
        holds from now on, with hints of the secrets only.

        `secrets`: 1 to 4, each signs the requests (`sandq.new_push_secret()` makes one); with `keep_secrets` those of
        before sign as well, while a receiver changes over. `concurrency`: requests at once by each node that leads
        partitions (10). `request_timeout`: for a request to the URL and its answer (30 s). The group
        need not be there yet. Raises InvalidSetting, also for a URL that the nodes' configuration (`push.allow`) does
        not allow.
        """
        given: dict[str, Any] = {"url": url, "concurrency": concurrency}
        if secrets is not None:
            given["secrets"] = [secrets] if isinstance(secrets, str) else list(secrets)
        if keep_secrets:
            given["keep_secrets"] = keep_secrets
        if request_timeout is not None:
            given["request_timeout"] = format_duration(duration_ms(request_timeout))
        given = {name: value for name, value in given.items() if value is not None}
        check_push(given)
        request = GroupPush(check_name("topic", topic), check_name("group", group), given)
        return _map(await call(self._cluster, request))

    @timed_change
    async def remove_push(self, topic: str, group: str, *, timeout: Duration | None = None) -> None:
        """Push the messages of a group no more; it stays, with its place. Requests that are under way have ten seconds
        to end. Also where it was not pushed."""
        await call(self._cluster, GroupPush(check_name("topic", topic), check_name("group", group), None))

    @timed_read
    async def pushes(self, topic: str, *, timeout: Duration | None = None) -> list[dict[str, Any]]:
        """The groups of a topic that are pushed, by name: `url`, `secrets` (hints), `concurrency`,
        `request_timeout`, `state` ("pushing"; "waiting" while the receiver fails at everything, "probing" after that;
        "looking" for its address; "starting"), the last `error` and its `error_ms`. `nodes`: how it goes on each that
        pushes, with what became of messages since it started (`acked`, `retried`, `snoozed`, `dead`)."""
        return together(await self._of_all_leaders(PushList(check_name("topic", topic))))

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
        await self._check_partitions(topic, at)
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
            trimmed = _field(await call_leader(self._cluster, request))
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
        found = map(ForecastReply.parse, await self._ask_leaders(ForecastRequest(topic, unit, count)))
        now_ms, later, is_complete = 0, 0, True
        buckets, scheduled = Counter[int](), Counter[int]()
        for reply in found:
            now_ms, later = max(now_ms, reply.now_ms), later + reply.later
            is_complete = is_complete and reply.is_complete
            for counts, part in ((buckets, reply.buckets), (scheduled, reply.scheduled)):
                for start_ms, messages in part:
                    counts[start_ms] += messages
        return Forecast(now_ms, sorted(buckets.items()), later, sorted(scheduled.items()), is_complete)

    @timed_read
    async def cluster(self, node: str | None = None, *, timeout: Duration | None = None) -> dict[str, Any]:
        """The cluster as this node sees it; None: as any of them does. `waiting`: why that node belongs to none yet,
        or None. `nodes`: a row each, with `standing`, `replicas` (those that it is to hold, or may still hold),
        `voter` (in the metadata group); `moving`: partitions that are on their way.

        The node that leads the metadata group (`metadata_leader`) knows first what has changed.
        """
        return _map(await self._at(node, ClusterInfo(), idempotent=True))

    @timed_read
    async def audit(
        self, last: int = 100, *, after: str | None = None, node: str | None = None, timeout: Duration | None = None
    ) -> audit.AuditPage:
        """The last lines of the audit logs of all nodes, or of one: who did what, and who was refused it. `after`: the
        `position` of an earlier answer: up to `last` lines of each node that were written since.

        Conflict when a node that is asked by its name keeps none; of several nodes `missing` says why nothing is told
        of one.
        """
        audit.check_last(last)
        positions = audit.positions_of(after)
        told, missing = await self._ask_nodes(
            node, lambda name: AuditList(last, positions.get(name)), audit.told_by, AuditList.type
        )
        return audit.together(told, positions, missing, None if after else last)

    @timed_read
    async def slo(self, *, node: str | None = None, timeout: Duration | None = None) -> slo.SloReport:
        """How late messages were delivered, beside what the nodes promise (`slo` in their configuration): of all nodes,
        or of one.

        Conflict when a node that is asked by its name counts nothing; of several nodes `missing` says why nothing is
        told of one. Unavailable when nothing is told of any.
        """
        told, missing = await self._ask_nodes(node, lambda name: Slo(), slo.told_by, Slo.type)
        if not told:
            why = "; ".join([f"nothing is told of {name}: {why}" for name, why in missing.items()])
            raise Unavailable(why or "the node that is asked belongs to no cluster yet, so nothing is counted")
        return slo.together(told, missing)

    async def _ask_nodes(
        self, node: str | None, request: Callable[[str], Request], told_by: Callable[[Frame], T], kind: Type
    ) -> tuple[dict[str, T], dict[str, str]]:
        """What all nodes, or one, answer to a request about themselves; and why nothing is told of some."""
        rows: list[dict[str, Any]] = (await self.cluster()).get("nodes") or []
        up = {str(row.get("node")) for row in rows if row.get("up")}
        told: dict[str, T] = {}
        missing: dict[str, str] = {}
        for name in [str(row.get("node")) for row in rows] if node is None else [check_name("node", node)]:
            if node is None and name not in up:
                missing[name] = "it cannot be reached"
                continue
            try:
                self._introduce(name, rows)
                told[name] = told_by(await call(self._cluster, request(name), node_id=name))
            except (Conflict, Retriable, NotFound, InvalidRequest) as error:
                if node is not None or (isinstance(error, InvalidRequest) and error.message != unknown_request(kind)):
                    raise
                missing[name] = error.message
        return told, missing

    @timed_change
    async def log_level(
        self,
        level: str | None = None,
        *,
        for_: Duration | None = None,
        node: str | None = None,
        timeout: Duration | None = None,
    ) -> dict[str, Any]:
        """At which level a node logs; with `level` (debug, info, warning, error) it logs at that from now on, `for_` so
        long at most a day, or until it stops.

        Its `node`, `level`, the `configured` one, and `until_ms`. None as `node`: the one that is asked. Connections
        that began before keep the level they had.
        """
        for_ms = None if for_ is None else duration_ms(for_)
        request = LogLevel(level, for_ms)
        return _map(await self._at(node, request, idempotent=level is None))

    @timed_read
    async def dump(self, node: str | None = None, *, timeout: Duration | None = None) -> dict[str, Any]:
        """What a node does now: `process`, `threads` and `tasks` with their stacks, `loop_stalls`, `memory`,
        `raft_groups`, `connections`, its `configuration` without secrets and the last lines of its `log`.

        None: of the node that is asked. There are names in it, but no values, keys, headers or secrets.
        """
        return _map(await self._at(node, DebugDump(), idempotent=True))

    async def _at(self, node: str | None, request: Request, *, idempotent: bool) -> Frame:
        """What a node answers, whether this client knows it or not; None: any."""
        if node is not None and not self._cluster.knows(check_name("node", node)):
            self._cluster.introduce(node, _address_of(node, (await self.cluster()).get("nodes")))
        return await call(self._cluster, request, node_id=node, idempotent=idempotent)

    @timed_change
    async def drain_node(self, node: str, *, undo: bool = False, timeout: Duration | None = None) -> None:
        """Let a node hold nothing: its replicas move to the others, and it stays registered. `undo`: it takes part
        again.

        Returns when it is written down, not when it is done: see `replicas` in `cluster()`. NotFound when there is no
        such node, InvalidRequest when the others would be too few.
        """
        request = NodeChange(check_name("node", node), UNDRAIN if undo else DRAIN)
        await call(self._cluster, request)

    @timed_change
    async def remove_node(self, node: str, *, timeout: Duration | None = None) -> None:
        """Let the cluster forget a node that was drained, or that has failed; then its replicas are made elsewhere
        first.

        Returns when it is written down; the node is gone when `cluster()` does not have it any more. NotFound when
        there is no such node, Conflict while it is there and holds something, or is the last that does. A TimedOut or
        ConnectionLost leaves open whether it is written down.
        """
        await call(self._cluster, NodeChange(check_name("node", node), REMOVE), idempotent=False)

    @timed_change
    async def transfer(self, topic: str, partition: int, node: str, *, timeout: Duration | None = None) -> None:
        """Let a node that holds a partition lead it; returns once it does. InvalidRequest when it does not hold it;
        TimedOut when it does not lead it yet: it will, once it can."""
        request = Transfer(check_name("topic", topic), _partition(partition), check_name("node", node))
        await call(self._cluster, request)
        self._cluster.refresh(topic, node)

    @timed_change
    async def rebuild(self, topic: str, partition: int, node: str, *, timeout: Duration | None = None) -> None:
        """Let a node drop its replica of a partition and get it anew from the others: for one that is not what the
        others are (`different` of `cluster()`).

        Returns when it is dropped and on its way back; `topic()` tells that it has come (`moving` is over). Until then
        there is a replica less. InvalidRequest when the node does not hold it, or nobody else does; Conflict when the
        others are not all there. A TimedOut or ConnectionLost leaves open whether it was dropped; it comes back.
        """
        request = Rebuild(check_name("topic", topic), _partition(partition), check_name("node", node))
        await call(self._cluster, request, idempotent=False)

    @timed_change
    async def skip_entry(
        self,
        topic: str | None,
        partition: int = 0,
        *,
        index: int | None = None,
        commands: Sequence[int] | None = None,
        dry_run: bool = False,
        force: bool = False,
        timeout: Duration | None = None,
    ) -> dict[str, Any]:
        """Skip the log entry that shut a partition, because no replica can apply it; its replicas open again then.

        What is skipped is lost; whoever sent it has not had an answer. `topic`: None is the metadata. `index`: of the
        entry; None, the one that shut the partition. `commands`: positions in the entry of what is skipped; None: the
        command that failed, or all of the entry if that is not known. `dry_run`: only return what the entry holds:
        `index`, `error` and `commands`, a row for each. `force`: also while a replica that may have applied the entry
        cannot be reached. Conflict when there is nothing to skip, or such a replica; InvalidRequest when there is
        another entry. A TimedOut or ConnectionLost leaves open whether it is skipped: `cluster()` tells (`shut`).
        """
        name = None if topic is None else check_name("topic", topic)
        request = EntrySkip(name, _partition(partition), index, commands, dry_run, force)
        return _map(await call(self._cluster, request, idempotent=dry_run))

    @timed_change
    async def finalize(self, *, dry_run: bool = False, timeout: Duration | None = None) -> tuple[int, int]:
        """Let the cluster come to the highest feature level that all nodes know, for good: the level before, and after.

        It is for clusters of `cluster.finalize: manual`; others do it by themselves. No node of a version that does not
        know the new level can be started afterwards. `dry_run`: only say. Conflict when there is no higher level that
        all know, and when a node is older. A TimedOut or ConnectionLost leaves open whether it is done: `cluster()`
        tells (`feature_level`).
        """
        # Asked again it would be told that there is nothing to do, though it was done.
        told = _map(await call(self._cluster, Finalize(dry_run), idempotent=dry_run))
        return told["before"], told["after"]

    @timed_change
    async def init_cluster(self, *, timeout: Duration | None = None) -> str:
        """Found the cluster with the node that is asked, alone, now; the cluster's UUID.

        Only a node that waits to be taken in does it; Conflict when it belongs to a cluster, or knows of one. Those
        that wait beside it join. Two clusters of one name never become one. A TimedOut or ConnectionLost leaves open
        whether it was founded: `cluster()` tells.
        """
        uuid = _field(await call(self._cluster, ClusterInit(), idempotent=False))
        if type(uuid) is not str:
            raise ProtocolError(f"CLUSTER_INIT reply: {str(uuid)[:100]}")
        return uuid

    @timed_change
    async def clock(self, *, accept: bool = False, timeout: Duration | None = None) -> dict[str, Any]:
        """The guarded clock of a node: `guarded_ms`, `wall_ms`, `drift_ms`, `alarm`, its `reason`; `peers` and
        `median_ms`, the other nodes' guarded clocks less this one's.

        `accept` makes it follow a step of the wall clock that it did not trust.
        """
        request = ClusterClock(ACCEPT if accept else SHOW)
        return _map(await call(self._cluster, request, idempotent=not accept))

    @timed_change
    async def reset_clock(self, topic: str, partition: int, *, timeout: Duration | None = None) -> dict[str, Any]:
        """Set the time of a partition, which a wrong clock put far ahead, back to the clock of the node that leads it.

        Its `outcome`: "begun"; "under_way", when it had begun before; "not_ahead", when there is nothing to set back.
        And the partition's `floor_ms` before, its `now_ms` and `clock_epoch` after. Until it is through the partition
        answers `Unavailable`; `stats` tells how far it is (`clock_reset`), and which are ahead (`ahead_ms`). Raises
        Conflict when the leader's clock is in alarm; InvalidRequest for a
        compacted topic; UnknownTopic, UnknownPartition.
        """
        await self._check_partitions(topic, [partition])
        request = ClockReset(check_name("topic", topic), _partition(partition))
        return _map(await call_leader(self._cluster, request))

    def _introduce(self, node: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Have the client know where a node is. Raises NotFound."""
        if not self._cluster.knows(node):
            self._cluster.introduce(node, _address_of(node, list(rows)))

    async def _check_partitions(self, topic: str, partitions: Iterable[int]) -> None:
        """Raise UnknownTopic, UnknownPartition."""
        count = len((await fresh_topic(self._cluster, check_name("topic", topic))).partitions)
        for partition in partitions:
            if type(partition) is not int or not 0 <= partition < count:
                raise UnknownPartition(f"topic {topic!r} has no partition {partition!r}; it has {count}", topic=topic)

    async def _ask_leaders(self, request: TopicRequest) -> list[Frame]:
        """The answers of all nodes that lead a partition; each answers for its own."""
        return [await call(self._cluster, request, node_id=node_id) for node_id in await self._leaders(request.topic)]

    async def _leaders(self, topic: str) -> list[str | None]:
        """None, any node, while there is no leader at all."""
        record = await self.topic(topic)
        return [*sorted({row.leader for row in record.partitions if row.leader is not None})] or [None]

    async def _of_all_leaders(self, request: TopicRequest) -> list[dict[str, Any]]:
        rows = [row for frame in await self._ask_leaders(request) for row in _rows(frame, dict)]
        return [_shown(row) for row in rows]

    async def _of_group(self, request: TopicRequest, *, idempotent: bool = True) -> list[Frame]:
        """As `_ask_leaders`; a group need not be known everywhere, but somewhere."""
        frames: list[Frame] = []
        unknown: SandqError | None = None
        for node_id in await self._leaders(request.topic):
            try:
                frames.append(await call(self._cluster, request, node_id=node_id, idempotent=idempotent))
            except UnknownGroup as error:
                unknown = error
        if unknown is not None and not frames:
            raise unknown
        return frames


def _address_of(node: str, rows: object) -> tuple[str, int]:
    """Where a node serves clients, by the rows of CLUSTER_INFO."""
    for row in rows if isinstance(rows, list) else ():
        if isinstance(row, dict) and row.get("node") == node and isinstance(row.get("client"), str):
            return parse_server(row["client"])
    raise NotFound(f"no node {node!r} is registered that serves clients", node=node)


def _partition(number: object) -> int:
    if type(number) is not int or not 0 <= number <= PARTITION_MAX:
        raise InvalidRequest(f"partition: a whole number within 0..{PARTITION_MAX} is expected, not {number!r}")
    return number


def _check_count(what: str, count: object) -> None:
    if type(count) is not int or not 1 <= count < 2**32:
        raise InvalidRequest(f"{what}: a whole number from 1 on is expected, not {count!r}")


def _check_text(what: str, text: object) -> None:
    """InvalidSetting unless it is text that UTF-8 can write."""
    try:
        if isinstance(text, str):
            text.encode()
            return
    except UnicodeEncodeError:
        pass
    raise InvalidSetting(f"{what}: {text!a:.80} is no text")


def _warned(record: TopicRecord) -> TopicRecord:
    for warning in record.warnings:
        log.warning("topic %s: %s", record.name, warning)
    return record


def _field(frame: Frame) -> Any:
    if len(frame) < 3:
        raise ProtocolError("a reply without its field")
    return frame[2]


def _count(frame: Frame) -> int:
    found = _field(frame)
    if type(found) is not int:
        raise ProtocolError(f"expected a count, got {str(found)[:100]}")
    return found


def _rows(frame: Frame, kind: type) -> list[Any]:
    found = _field(frame)
    if type(found) is not list or not all(type(row) is kind for row in found):
        raise ProtocolError(f"expected an array of rows, got {str(found)[:100]}")
    return found


def _map(frame: Frame) -> dict[str, Any]:
    found = _field(frame)
    if type(found) is not dict:
        raise ProtocolError(f"expected a map, got {str(found)[:100]}")
    return found


def _shown(value: Any) -> Any:
    """Offsets as text, also within rows; everything else as it is."""
    if type(value) is list:
        return [_shown(one) for one in value]
    if type(value) is dict:
        return {name: _shown(one) for name, one in value.items()}
    return offset_model.to_text(value) if type(value) is bytes and len(value) == offset_model.OFFSET_BYTES else value


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as msgpack knows them: a timedelta becomes a duration's text; what is wrong the broker says."""
    plain: dict[str, Any] = {}
    for name, value in settings.items():
        _check_text("the name of a setting", name)
        if isinstance(value, str):
            _check_text(name, value)
        elif type(value) is int and not -(2**63) <= value < 2**64:
            raise InvalidSetting(f"{name}: {str(value)[:40]} is too large")
        if isinstance(value, timedelta):
            plain[name] = format_duration(duration_ms(value))
        elif isinstance(value, Mapping):
            plain[name] = _plain(value)
        elif value is None or isinstance(value, (bool, int, float, str)):
            plain[name] = value
        else:
            raise InvalidRequest(f"{name}: {type(value).__name__} is no value of a setting")
    return plain
