"""Administration of consumer groups, and of their pushes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from sandq.client.admin.group_consumers import GroupConsumers, consumers_of
from sandq.client.admin.requests import ask_leaders_of_group, count_of, map_of, rows_of, rows_of_leaders
from sandq.client.admin.settings import GroupSettings, plain_settings
from sandq.client.arguments import suggesting
from sandq.client.positions import Start, start_of
from sandq.client.timeouts import timed_change, timed_read
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call
from sandq.model import offsets as offset_model
from sandq.model.errors import (
    InvalidRequest,
    ProtocolError,
)
from sandq.model.group_limits import parse_limit
from sandq.model.health import PUSH_STARTING, worst_push
from sandq.model.names import check_name
from sandq.model.push import check_push
from sandq.model.times import Duration, duration_ms, format_duration
from sandq.model.unfinished import unfinished_conflict
from sandq.protocol.requests_admin import (
    CHECK,
    FORCE,
    ConsumerList,
    GroupDelete,
    GroupLimit,
    GroupList,
    GroupPause,
    GroupPush,
    GroupSeek,
    GroupUpdate,
    PushList,
)


@suggesting
class GroupAdmin:
    """The part of `client.admin` that is about consumer groups."""

    _cluster: Cluster

    @timed_read
    async def groups(self, topic: str, *, timeout: Duration | None = None) -> list[dict[str, Any]]:
        """The groups of a topic, a row for each partition and group; offsets (`cursor`, `committed`) as text."""
        rows = await rows_of_leaders(self._cluster, GroupList(topic))
        return sorted(rows, key=lambda row: (str(row.get("group")), row.get("partition", 0)))

    @timed_read
    async def consumers(self, topic: str, group: str, *, timeout: Duration | None = None) -> GroupConsumers:
        """The consumers of a group, with the messages that each holds. UnknownGroup when there is none."""
        return consumers_of(await ask_leaders_of_group(self._cluster, ConsumerList(topic, check_name("group", group))))

    @timed_change
    async def seek_group(self, topic: str, group: str, to: Start, *, timeout: Duration | None = None) -> dict[int, str]:
        """Put a group elsewhere: "earliest", "latest", an instant, or an offset; its new cursor for each partition.

        Everything from there on is delivered again; seeking forward, what it passes counts as acked. What the group
        had leased, or was to get again, is revoked. An offset is of one partition: the others stay where they are.
        """
        request = GroupSeek(topic, check_name("group", group), start_of(to))
        rows = [row for found in await ask_leaders_of_group(self._cluster, request) for row in rows_of(found, list)]
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
        await ask_leaders_of_group(self._cluster, request, idempotent=False)

    async def _check_finished(self, request: GroupDelete) -> None:
        """Raise Conflict if a group has unfinished messages in any partition, before it is deleted in the first."""
        try:
            frames = await ask_leaders_of_group(self._cluster, request._replace(mode=CHECK))
        except InvalidRequest:
            return  # nodes of a version that knows no modes; they refuse a bad request once more
        unfinished = sum(count_of(frame) for frame in frames)
        if unfinished:
            raise unfinished_conflict(request.group, unfinished)

    @timed_change
    async def update_group(
        self, /, topic: str, group: str, *, timeout: Duration | None = None, **settings: Unpack[GroupSettings]
    ) -> None:
        """Give a group settings of its own, instead of those that it had: `max_attempts`, `max_snoozes`, `backoff`,
        `max_in_flight_per_key` (not above the topic's); none at all: it has the topic's again."""
        request = GroupUpdate(topic, check_name("group", group), plain_settings(settings))
        await ask_leaders_of_group(self._cluster, request)

    @timed_change
    async def pause_group(self, topic: str, group: str, *, timeout: Duration | None = None) -> None:
        """Have a group get nothing until `resume_group`; what its consumers hold they keep, and can ack. UnknownGroup
        when there is none. It stays paused across restarts, and is not forgotten for want of consumers.

        A TimedOut or ConnectionLost leaves open whether it was done everywhere; asking again does no harm.
        """
        await ask_leaders_of_group(self._cluster, GroupPause(topic, check_name("group", group), True))

    @timed_change
    async def resume_group(self, topic: str, group: str, *, timeout: Duration | None = None) -> None:
        """Have a group get again what there is for it, what has come due meanwhile first."""
        await ask_leaders_of_group(self._cluster, GroupPause(topic, check_name("group", group), False))

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
        return map_of(await call(self._cluster, request))

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
        return together(await rows_of_leaders(self._cluster, PushList(check_name("topic", topic))))


def together(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each group: its setting, its `state` (the worst of any node), the last `error` (with `error_ms`), and
    `nodes`, a row each for those that push."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        push = found.setdefault(str(row.get("group")), {**row, "nodes": []})
        here = row.get("here")
        if isinstance(here, Mapping):
            push["nodes"].append({"node": row.get("node"), **here})
    return [_whole(push) for _, push in sorted(found.items())]


def _whole(push: dict[str, Any]) -> dict[str, Any]:
    nodes = sorted(push["nodes"], key=lambda node: str(node.get("node")))
    states = {node.get("state") for node in nodes}
    failed = [node for node in nodes if node.get("error") is not None]
    last: dict[str, Any] = max(failed, key=lambda node: node.get("error_ms") or 0, default={})
    settings = {name: value for name, value in push.items() if name not in ("node", "here", "nodes")}
    return {
        **settings,
        "state": worst_push(states) or PUSH_STARTING,
        "error": last.get("error"),
        "error_ms": last.get("error_ms"),
        "nodes": nodes,
    }
