"""`client.dead(topic, group)`: the messages that a group does not get any more."""

from __future__ import annotations

from typing import Any

from sandq.client.admin.admin import Admin
from sandq.client.arguments import suggesting
from sandq.client.messages.jobs import Progress, run_job
from sandq.client.messages.merged_pages import Merged
from sandq.client.messages.messages import check_limit
from sandq.client.messages.stored_message import DeadLetter, JobResult
from sandq.client.positions import span_ms
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call_leader, fresh_topic
from sandq.model.errors import InvalidRequest, UnknownGroup
from sandq.model.times import Instant
from sandq.protocol.replies_messages import DeadRecord, page
from sandq.protocol.requests_admin import DeadList
from sandq.protocol.requests_messages import DEAD_REASONS


@suggesting
class DeadLetters:
    """The dead letters of one group, over all partitions of the topic.

    `reason` is why a message died: "nacked" or "lease_expired" at its last attempt, "expired" when its ttl had passed.
    """

    def __init__(self, cluster: Cluster, admin: Admin, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        self._cluster = cluster
        self._admin = admin

    def list(
        self,
        *,
        reason: str | None = None,
        limit: int | None = None,
        after: str | None = None,
        values: bool = True,
    ) -> Merged[DeadRecord, DeadLetter]:
        """`async for letter in dead.list():` in the order of delivery, those of all partitions; `after` is the
        offset of the last one that is known."""
        _check_reason(reason)
        check_limit(limit)

        async def get(partition: int, after: bytes | None, count: int) -> tuple[list[DeadRecord], bytes | None]:
            request = DeadList(self.topic, partition, self.group, reason, count, after, bool(values))
            try:
                frame = await call_leader(self._cluster, request)
            except UnknownGroup:  # it need not be known everywhere, but somewhere
                known.discard(partition)
                if not known:
                    raise
                return [], None
            return page(frame, DeadRecord.from_map)

        known: set[int] = set()

        async def partitions() -> range:
            numbers = range(len((await fresh_topic(self._cluster, self.topic)).partitions))
            known.update(numbers)
            return numbers

        return Merged(partitions, get, lambda record: DeadLetter.of(self.topic, self.group, record), limit, after)

    async def counts(self) -> dict[str, int]:
        """How many there are for each reason that occurs."""
        rows = [row for row in await self._admin.groups(self.topic) if row.get("group") == self.group]
        if not rows:
            raise UnknownGroup(f"topic {self.topic!r} has no group {self.group!r}")
        counts: dict[str, int] = {}
        for row in rows:
            for reason, count in (row.get("dead_reasons") or {}).items():
                counts[reason] = counts.get(reason, 0) + count
        return counts

    async def redrive(
        self,
        *,
        reason: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        rate: int | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> JobResult:
        """Deliver them once more, as at their first attempt. `since` and `until` bound when they died.

        `rate`: messages a second, shared out evenly among the partitions (each gets one at least). `dry_run`,
        `progress` and cancellation as with `messages.cancel_all`.
        """
        arguments = self._arguments(reason, since, until, dry_run)
        if rate is not None:
            if type(rate) is not int or rate < 1:
                raise InvalidRequest(f"rate: an int from 1 on is expected, not {rate!r}")
            partitions = len((await fresh_topic(self._cluster, self.topic)).partitions)
            arguments["rate"] = -(-rate // partitions)
        return await run_job(self._cluster, self.topic, "redrive", arguments, progress)

    async def purge(
        self,
        *,
        reason: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> JobResult:
        """Forget them. Otherwise as `redrive`."""
        arguments = self._arguments(reason, since, until, dry_run)
        return await run_job(self._cluster, self.topic, "purge_dead", arguments, progress)

    def _arguments(
        self, reason: str | None, since: Instant | None, until: Instant | None, dry_run: bool
    ) -> dict[str, Any]:
        _check_reason(reason)
        from_ms, until_ms = span_ms(since, until)
        return {
            "group": self.group,
            "reason": reason,
            "from_ms": from_ms,
            "until_ms": until_ms,
            "dry_run": bool(dry_run),
        }


def _check_reason(reason: str | None) -> None:
    if reason is not None and reason not in DEAD_REASONS:
        raise InvalidRequest(f"reason: one of {', '.join(DEAD_REASONS)} is expected, not {reason!r}")
