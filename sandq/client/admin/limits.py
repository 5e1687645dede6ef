"""Administration of named limits, which groups of any topics share."""

from __future__ import annotations

from typing import Any, Final

from sandq.client.admin.requests import ask_leaders, rows_of_leaders
from sandq.client.timeouts import timed_change, timed_read
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import ask_topic, call
from sandq.model.errors import InvalidRequest, NotFound, UnknownTopic
from sandq.model.group_limits import limits_of, parse_limit
from sandq.model.names import LIMITS_TOPIC, check_name
from sandq.model.times import Duration, Instant, duration_ms, instant_ms
from sandq.protocol.requests_admin import GroupLimit, GroupPause, LimitList

_STATE: Final = ("given", "given_burst", "members", "unheard", "paused", "paused_until_ms", "paused_by", "unpaused")


class LimitAdmin:
    """The part of `client.admin` for named limits."""

    _cluster: Cluster

    @timed_change
    async def set_limit(
        self,
        /,
        name: str,
        *,
        max_in_flight: int | None = None,
        rate: str | float | None = None,
        burst: int | None = None,
        unit: str | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Create a named limit, or replace it. All groups that use it together stay within it, in any topics.

        The arguments are those of `limit_group`, and at least one of `max_in_flight` and `rate` is required. A group
        uses the limit after `limit_group(topic, group, limit=name)`. After a change, nothing is delivered to the groups
        until each of their partitions has confirmed the change. Raises InvalidRequest if there are too many limits
        (`named_limits`).
        """
        limits = {"max_in_flight": max_in_flight, "rate": rate, "burst": burst, "unit": unit}
        given = {option: value for option, value in limits.items() if value is not None}
        if parse_limit(given) is None:
            raise InvalidRequest("a named limit needs max_in_flight or a rate; delete_limit removes a limit")
        await call(self._cluster, GroupLimit(LIMITS_TOPIC, check_name("limit", name), given))

    @timed_change
    async def delete_limit(self, name: str, *, timeout: Duration | None = None) -> None:
        """Delete a named limit. Raises NotFound; Conflict while a group uses it."""
        await call(self._cluster, GroupLimit(LIMITS_TOPIC, check_name("limit", name), {}))

    @timed_change
    async def pause_limit(
        self,
        /,
        name: str,
        *,
        until: Instant | None = None,
        for_: Duration | None = None,
        timeout: Duration | None = None,
    ) -> None:
        """Pause a named limit until an instant, for a duration, or else until `resume_limit`. Meanwhile, no group that
        uses it gets messages, also if the group begins to use it later.

        A new pause replaces the earlier one, with its end. Consumers keep the messages that they hold, and can ack
        them. The limit stays paused across restarts, and if it is set again. Raises NotFound; InvalidTime for an end in
        the past, or more than 366 days ahead. Raises TimedOut if partitions do not confirm the pause in time: the error
        says how many have, and the others follow when their leaders answer. Repeating the call is safe.
        """
        until_ms = None if until is None else instant_ms(until)
        for_ms = None if for_ is None else duration_ms(for_)
        if until_ms is not None and for_ms is not None:
            raise InvalidRequest("give until or for_, not both")
        await self._pause(GroupPause(LIMITS_TOPIC, check_name("limit", name), True, until_ms, for_ms))

    @timed_change
    async def resume_limit(self, /, name: str, *, timeout: Duration | None = None) -> None:
        """End the pause of a named limit, also one by a consumer. Raises NotFound, and TimedOut as `pause_limit`
        does."""
        await self._pause(GroupPause(LIMITS_TOPIC, check_name("limit", name), False))

    async def _pause(self, request: GroupPause) -> None:
        """Send a pause to the leader of the named limits."""
        try:
            await ask_leaders(self._cluster, request)
        except UnknownTopic:
            raise NotFound(f"there is no limit {request.group!r}", limit=request.group) from None

    @timed_read
    async def limits(self, *, timeout: Duration | None = None) -> list[dict[str, Any]]:
        """Return the named limits, each as a mapping.

        `limit`: its name. `max_in_flight`, `rate`, `burst`, `unit`: as they were set. `given`, `given_burst`: what the
        groups may use at present, as numbers of messages in flight and of units of the rate. `members`: number of
        groups that have used the limit, counted once per partition. `unheard`: number of these that have not confirmed
        the last change yet; until then, nothing is delivered. `paused`: whether it is paused. `paused_until_ms`: end of
        the pause in epoch ms; None if it has no end, or if the limit is not paused. `paused_by`: who has paused it.
        `unpaused`: number of members that have not confirmed the last pause, or its end. All but the definition are
        None if the leader of the limits cannot be reached.
        """
        return await self._limits(None)

    @timed_read
    async def limit(self, name: str, *, timeout: Duration | None = None) -> dict[str, Any]:
        """Return one named limit as `limits` does, with a list of `members`. Raises NotFound.

        Each member is a mapping with `topic`, `partition`, `group`, `given`, `given_burst`, `unheard`, and `unpaused`.
        At most 1,000 members are listed.
        """
        for row in await self._limits(check_name("limit", name)):
            if row["limit"] == name:
                return row
        raise NotFound(f"there is no limit {name!r}", limit=name)

    async def _limits(self, name: str | None) -> list[dict[str, Any]]:
        """Return the definitions of limits, with their states."""
        try:
            record = await ask_topic(self._cluster, LIMITS_TOPIC)
            rows = await rows_of_leaders(self._cluster, LimitList(LIMITS_TOPIC, name))
        except UnknownTopic:
            return []
        states, unknown = {row["limit"]: row for row in rows}, dict.fromkeys(_STATE)
        return [
            {"limit": limit, **definition.shown(), **unknown, **states.get(limit, {})}
            for limit, definition in sorted(limits_of(record.settings).items())
        ]
