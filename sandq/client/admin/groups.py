"""Administration of consumer groups, and of their pushes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from sandq.client.admin.group_consumers import GroupConsumers, consumers_of
from sandq.client.admin.group_pauses import GroupPauses, merged_refusals, pauses_of
from sandq.client.admin.requests import ask_leaders_of_group, count_of, map_of, rows_of, rows_of_leaders
from sandq.client.admin.settings import GroupSettings, plain_settings
from sandq.client.arguments import suggesting
from sandq.client.positions import Start, start_of
from sandq.client.producer.validation import Value, as_bytes
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
from sandq.model.names import check_name, check_tenant
from sandq.model.push import check_push
from sandq.model.times import Duration, Instant, duration_ms, format_duration, instant_ms
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
    PauseList,
    PushList,
)


@suggesting
class GroupAdmin:
    """The part of `client.admin` for consumer groups."""

    _cluster: Cluster

    @timed_read
    async def groups(self, topic: str, *, timeout: Duration | None = None) -> list[dict[str, Any]]:
        """Return the groups of a topic: one row per partition and group. Offsets (`cursor`, `committed`) are text."""
        rows = await rows_of_leaders(self._cluster, GroupList(topic))
        return sorted(rows, key=lambda row: (str(row.get("group")), row.get("partition", 0)))

    @timed_read
    async def consumers(self, topic: str, group: str, *, timeout: Duration | None = None) -> GroupConsumers:
        """Return the consumers of a group with the number of messages that each holds. Raises UnknownGroup."""
        return consumers_of(await ask_leaders_of_group(self._cluster, ConsumerList(topic, check_name("group", group))))

    @timed_read
    async def pauses(self, topic: str, group: str, *, timeout: Duration | None = None) -> GroupPauses:
        """Return the paused tenants and keys of a group, each with the end of its pause. Raises UnknownGroup.

        The list has at most 1,000 of them. `groups` shows whether the whole group is paused."""
        return pauses_of(await ask_leaders_of_group(self._cluster, PauseList(topic, check_name("group", group))))

    @timed_change
    async def seek_group(self, topic: str, group: str, to: Start, *, timeout: Duration | None = None) -> dict[int, str]:
        """Move a group to "earliest", "latest", an instant, or an offset; return its new cursor for each partition.

        All messages after the new position are delivered again. Messages that a seek forward skips count as acked.
        Leases and pending retries of the group are revoked. An offset belongs to one partition; the group's cursors in
        other partitions do not change.
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
        """Delete a group and its dead letters. Raises UnknownGroup; Conflict while the group has consumers.

        Conflict is also raised if the group has unfinished messages (leased, retrying, or blocked by their keys), which
        would be lost; `force` deletes the group with them. After TimedOut or ConnectionLost it is unknown in which
        partitions it was deleted.
        """
        request = GroupDelete(topic, check_name("group", group), FORCE if force else None)
        if not force:
            await self._check_finished(request)
        await ask_leaders_of_group(self._cluster, request, idempotent=False)

    async def _check_finished(self, request: GroupDelete) -> None:
        """Raise Conflict, without deleting anything, if a group has unfinished messages in any partition."""
        try:
            frames = await ask_leaders_of_group(self._cluster, request._replace(mode=CHECK))
        except InvalidRequest:
            return  # these nodes have a version without modes; if the request is invalid, the next one fails
        unfinished = sum(count_of(frame) for frame in frames)
        if unfinished:
            raise unfinished_conflict(request.group, unfinished)

    @timed_change
    async def update_group(
        self, /, topic: str, group: str, *, timeout: Duration | None = None, **settings: Unpack[GroupSettings]
    ) -> None:
        """Replace the group's own settings. For all other settings, the topic's settings apply.

        Possible settings: `max_attempts`, `max_snoozes`, `backoff`, `on_expiry`, `max_in_flight_per_key` (at most the
        topic's value).
        """
        request = GroupUpdate(topic, check_name("group", group), plain_settings(settings))
        await ask_leaders_of_group(self._cluster, request)

    @timed_change
    async def pause_group(
        self,
        topic: str,
        group: str,
        *,
        tenant: str | None = None,
        key: Value | None = None,
        until: Instant | None = None,
        for_: Duration | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Stop deliveries to a group until an instant, for a duration, or else until `resume_group`. Raises
        UnknownGroup; InvalidTime for an end in the past, or more than 366 days ahead.

        If the group is paused already, the new end replaces the old one. `for_` is counted by the clocks of the nodes.
        `tenant`: pause only the messages of this tenant of a fair topic, and of the tenants below it. `key`: pause only
        the messages of this key, in a topic with `ordering: key` or `max_in_flight_per_key`.
        Consumers keep the messages that they hold, and can ack them. The group stays paused across restarts. While
        paused, it does not expire for lack of consumers. After TimedOut or ConnectionLost it is unknown in which
        partitions the group was paused; repeating the call is safe. If partitions refuse the pause of a tenant or key,
        because too many are paused there, InvalidRequest names them; the pause holds in all others.
        """
        until_ms = None if until is None else instant_ms(until)
        for_ms = None if for_ is None else duration_ms(for_)
        if until_ms is not None and for_ms is not None:
            raise InvalidRequest("give until or for_, not both")
        request = GroupPause(topic, check_name("group", group), True, until_ms, for_ms, *_part(tenant, key))
        refusals: list[InvalidRequest] = []
        await ask_leaders_of_group(self._cluster, request, refusals=refusals)
        if refusals:
            partitions = len((await self._cluster.topic(topic)).partitions)
            raise merged_refusals(refusals, partitions)

    @timed_change
    async def resume_group(
        self,
        topic: str,
        group: str,
        *,
        tenant: str | None = None,
        key: Value | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Resume deliveries to a group; messages that became due during the pause are delivered first. `tenant`, `key`:
        end only the pause of this tenant or key."""
        request = GroupPause(topic, check_name("group", group), False, None, None, *_part(tenant, key))
        await ask_leaders_of_group(self._cluster, request)

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
        unit: str | None = None,
        limit: str | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Replace the limits of a group. They apply over all partitions of a topic. Without arguments, the limits are
        removed.

        `max_in_flight`: maximum number of leased messages. `rate`: maximum deliveries, as a number per second or as
        text such as "5/s" or "100/m". `burst`: maximum number of deliveries at once after a pause (default: a tenth of
        a second's deliveries, at least 1). The group need not exist yet. Messages in flight stay with their consumers.

        `unit`: a name such as "tokens". The rate and the burst then count the `cost` of each message instead of
        deliveries, and the default burst is that of one second. A message whose cost is above the burst waits for the
        whole burst, and the next message waits until the rate has paid for it.

        `limit`: name of a limit that groups of any topics share (`set_limit`). The group then has no limits of its own.
        Raises NotFound if there is no such limit.
        """
        limits = {"max_in_flight": max_in_flight, "rate": rate, "burst": burst, "unit": unit, "limit": limit}
        given = {name: value for name, value in limits.items() if value is not None}
        parse_limit(given)  # also checked here: an invalid limit may not fit into a frame
        await call(self._cluster, GroupLimit(check_name("topic", topic), check_name("group", group), given))

    @timed_change
    async def set_push(
        self,
        /,
        topic: str,
        group: str,
        url: str | None = None,
        *,
        targets: str | None = None,
        secrets: str | Sequence[str] | None = None,
        keep_secrets: bool = False,
        headers: Mapping[str, str] | None = None,
        concurrency: int | None = None,
        request_timeout: Duration | None = None,
        on_429: str | None = None,
        timeout: Duration | None = None,
    ) -> dict[str, Any]:
        """Send the messages of a group to a URL by POST, each at its time, or change this setting. Return the resulting
        setting.

        An omitted argument changes nothing. The result contains only hints of the secrets, and no values of headers.
        `targets`: with "message" instead of a URL, each message goes to its own URL (`produce(..., push=...)`); the
        topic needs `push_targets`. `headers`: up to 16 headers of the requests, for example `authorization`; {} removes
        them. `secrets`: 1 to 4 secrets,
        each of which signs the requests (`sandq.new_push_secret()` creates one). With `keep_secrets`, the former
        secrets sign as well, while a receiver changes to the new ones. `concurrency`: maximum number of concurrent
        requests per node that leads partitions (default 10). `request_timeout`: timeout of a request to the URL,
        including the response (default 30 s). `on_429`: after a response 429 with `Retry-After`, only snooze the
        message ("snooze", the default), or also pause its tenant ("pause_tenant"), the group ("pause_group") or the
        named limit of the group ("pause_limit") for this time. The group need not exist yet.

        Raises InvalidSetting, also for a URL that the nodes' configuration (`push.allow`) does not allow.
        """
        given: dict[str, Any] = {"url": url, "concurrency": concurrency, "on_429": on_429}
        given |= {"targets": targets, "headers": None if headers is None else dict(headers)}
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
        """Stop pushing the messages of a group; the group keeps its position. Requests in progress have ten seconds to
        end.

        If the group is not pushed, nothing happens.
        """
        await call(self._cluster, GroupPush(check_name("topic", topic), check_name("group", group), None))

    @timed_read
    async def pushes(self, topic: str, *, timeout: Duration | None = None) -> list[dict[str, Any]]:
        """Return the groups of a topic that are pushed, ordered by name.

        Each row has `url` (None with `targets` "message"), `secrets` (hints), `concurrency`, `request_timeout`,
        `state`, the last `error` and its `error_ms`. The states are: "pushing"; "waiting" and "probing" while all
        requests to the receiver fail; "looking" while its address is resolved; "starting". `nodes` has one row per node
        that pushes, with counts since the node started (`acked`, `retried`, `snoozed`, `dead`), and with `open_hosts`:
        up to 10 hosts of messages that fail.
        """
        return merge(await rows_of_leaders(self._cluster, PushList(check_name("topic", topic))))


def merge(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per group: its setting, the worst `state` of all nodes, the last `error` with `error_ms`, and
    `nodes`.

    `nodes` has a row for each node that pushes.
    """
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


def _part(tenant: str | None, key: Value | None) -> tuple[str | None, bytes | None]:
    """Return the tenant and the key of a pause. Raise InvalidRequest if both are given."""
    if tenant is not None and key is not None:
        raise InvalidRequest("give a tenant or a key, not both")
    return None if tenant is None else check_tenant(tenant), None if key is None else as_bytes("key", key)
