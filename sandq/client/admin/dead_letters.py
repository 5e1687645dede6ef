"""`client.dead(topic, group)`: the messages that a group does not get any more."""

from __future__ import annotations

import builtins
from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from sandq.client.admin.admin import Admin
from sandq.client.arguments import suggesting
from sandq.client.messages.jobs import Progress, bulk_prefix, run_job
from sandq.client.messages.merged_pages import Merged
from sandq.client.messages.messages import check_limit
from sandq.client.messages.stored_message import DeadLetter, DeadOutcome, JobResult
from sandq.client.positions import span_ms
from sandq.client.producer.validation import Value, as_bytes
from sandq.client.timeouts import timed_change, timed_read, within
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call_leader, each, fresh_topic
from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest, UnknownGroup
from sandq.model.times import Duration, Instant
from sandq.protocol.replies_messages import (
    DEAD_OUTCOMES,
    NOT_DEAD,
    NOT_FOUND,
    NOT_YET,
    DeadRecord,
    Outcome,
    outcomes,
    page,
)
from sandq.protocol.requests_admin import DeadList, DeadPurge, DeadRedrive
from sandq.protocol.requests_messages import DEAD_REASONS, NEWEST, PAGE_MAX, check_error, check_prefix

IDS_MAX: Final = 10_000
"""Dead letters that one call names."""


@suggesting
class DeadLetters:
    """The dead letters of one group, over all partitions of the topic.

    Those that are meant can be named by their ids, or chosen by any of these, all of which hold then. `reason` is why a
    message died: "nacked" or "lease_expired" at its last attempt, "expired" when its ttl had passed, "rejected" when a
    consumer gave it up. `since` and `until` bound when it died, the latter is not included. `error` is part of its last
    error, upper and lower case as they are. `key_prefix` is the beginning of its key.
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
        since: Instant | None = None,
        until: Instant | None = None,
        error: str | None = None,
        key_prefix: Value | None = None,
        limit: int | None = None,
        after: str | None = None,
        values: bool = True,
        newest: bool = False,
        timeout: Duration | None = None,
    ) -> Merged[DeadRecord, DeadLetter]:
        """`async for letter in dead.list():` in the order of delivery, those of all partitions.

        `after` is the offset of the last one that is known. `newest`: the latest delivery time comes first; every node
        must run a version that knows it.
        """
        check_limit(limit)
        which = _which(reason, since, until, error, key_prefix)

        async def get(partition: int, after: bytes | None, count: int) -> tuple[list[DeadRecord], bytes | None]:
            request = DeadList(
                self.topic,
                partition,
                self.group,
                which["reason"],
                count,
                after,
                bool(values),
                which["from_ms"],
                which["until_ms"],
                which.get("error"),
                which.get("key_prefix"),
                NEWEST if newest else None,
            )
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

        asked, pages = within(partitions, timeout, "list"), within(get, timeout, "list")
        made = partial(DeadLetter.of, self.topic, self.group)
        return Merged(asked, pages, made, limit, after, newest=newest)

    @timed_read
    async def counts(self, *, timeout: Duration | None = None) -> dict[str, int]:
        """How many there are for each reason that occurs."""
        rows = [row for row in await self._admin.groups(self.topic) if row.get("group") == self.group]
        if not rows:
            raise UnknownGroup(f"topic {self.topic!r} has no group {self.group!r}")
        counts: dict[str, int] = {}
        for row in rows:
            for reason, count in (row.get("dead_reasons") or {}).items():
                counts[reason] = counts.get(reason, 0) + count
        return counts

    @timed_change
    async def redrive(
        self,
        *,
        reason: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        error: str | None = None,
        key_prefix: Value | None = None,
        rate: int | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        timeout: Duration | None = None,
    ) -> JobResult:
        """Deliver those that are chosen once more, as at their first attempt.

        `rate`: messages a second, shared out evenly among the partitions (each gets one at least). `dry_run`,
        `progress` and cancellation as with `messages.cancel_all`.
        """
        if key_prefix is not None:
            key_prefix = bulk_prefix("key_prefix", key_prefix)
        arguments = self._arguments(_which(reason, since, until, error, key_prefix), dry_run)
        if rate is not None:
            if type(rate) is not int or rate < 1:
                raise InvalidRequest(f"rate: an int from 1 on is expected, not {rate!r}")
            partitions = len((await fresh_topic(self._cluster, self.topic)).partitions)
            arguments["rate"] = -(-rate // partitions)
        return await run_job(self._cluster, self.topic, "redrive", arguments, progress)

    @timed_change
    async def purge(
        self,
        *,
        reason: str | None = None,
        since: Instant | None = None,
        until: Instant | None = None,
        error: str | None = None,
        key_prefix: Value | None = None,
        dry_run: bool = False,
        progress: Progress | None = None,
        timeout: Duration | None = None,
    ) -> JobResult:
        """Forget those that are chosen. Otherwise as `redrive`."""
        if key_prefix is not None:
            key_prefix = bulk_prefix("key_prefix", key_prefix)
        arguments = self._arguments(_which(reason, since, until, error, key_prefix), dry_run)
        return await run_job(self._cluster, self.topic, "purge_dead", arguments, progress)

    @timed_change
    async def redrive_ids(self, ids: Iterable[str], *, timeout: Duration | None = None) -> builtins.list[DeadOutcome]:
        """Deliver these once more, as at their first attempt; what became of each, in their order.

        10,000 at most in one call. One that is `not_dead` or `not_found` stops none of the others. When an answer was
        lost they are asked for again: one that was redriven by then is `not_dead`, or `not_found` once it is acked.
        InvalidRequest before anything is done, when an id is none.
        """
        return await self._each(DeadRedrive, ids)

    @timed_change
    async def purge_ids(self, ids: Iterable[str], *, timeout: Duration | None = None) -> builtins.list[DeadOutcome]:
        """Forget these; what became of each, in their order. Otherwise as `redrive_ids`: when an answer was lost, one
        that was purged by then is `not_found`."""
        return await self._each(DeadPurge, ids)

    async def _each(
        self, request: type[DeadRedrive] | type[DeadPurge], ids: Iterable[str]
    ) -> builtins.list[DeadOutcome]:
        named = _ids(ids)
        if not named:
            return []
        partitions = len((await fresh_topic(self._cluster, self.topic)).partitions)
        by_partition: dict[int, builtins.list[bytes]] = {}
        for data in named.values():
            by_partition.setdefault(offset_model.unpack(data).partition, []).append(data)
        asked = [partition for partition in by_partition if partition < partitions]
        found: dict[bytes, Outcome] = {}
        unknown: builtins.list[UnknownGroup] = []

        async def settle(partition: int) -> None:
            left = by_partition[partition]
            try:
                while left:
                    some = left[:PAGE_MAX]
                    frame = await call_leader(self._cluster, request(self.topic, partition, self.group, some))
                    told = dict(zip(some, outcomes(frame, len(some), DEAD_OUTCOMES), strict=True))
                    found.update({data: one for data, one in told.items() if one.verdict != NOT_YET})
                    left = [data for data in left if data not in found]
            except UnknownGroup as error:
                unknown.append(error)

        await each(settle, asked)
        if len(unknown) == len(asked):
            await self.counts()  # raises UnknownGroup: it need not be known in these partitions, but somewhere
        return [_outcome(text, found.get(data)) for text, data in named.items()]

    def _arguments(self, which: dict[str, Any], dry_run: bool) -> dict[str, Any]:
        return {"group": self.group, **which, "dry_run": bool(dry_run)}


def _which(
    reason: str | None, since: Instant | None, until: Instant | None, error: str | None, key_prefix: Value | None
) -> dict[str, Any]:
    """Which dead letters, as the wire says it: error and key only where they are given, for older brokers know neither.
    InvalidRequest."""
    if reason is not None and reason not in DEAD_REASONS:
        raise InvalidRequest(f"reason: one of {', '.join(DEAD_REASONS)} is expected, not {reason!r}")
    from_ms, until_ms = span_ms(since, until)
    which: dict[str, Any] = {"reason": reason, "from_ms": from_ms, "until_ms": until_ms}
    if error is not None:
        if type(error) is not str:
            raise InvalidRequest(f"error: a str is expected, not {error!r}")
        which["error"] = error
    if key_prefix is not None:
        which["key_prefix"] = as_bytes("key_prefix", key_prefix)
    problem = None if error is None else check_error(error)
    if problem is None and key_prefix is not None:
        problem = check_prefix(which["key_prefix"])
    if problem is not None:
        raise InvalidRequest(problem)
    return which


def _ids(ids: Iterable[str]) -> dict[str, bytes]:
    """Each id as it was given, once, and as the wire says it."""
    if isinstance(ids, (str, bytes)):
        raise InvalidRequest("ids: several are expected, as a list; one alone in a list, too")
    named: dict[str, bytes] = {}
    for text in ids:
        named[text] = offset_model.from_text(str(text))
        if len(named) > IDS_MAX:
            raise InvalidRequest(f"ids: {IDS_MAX:,} are the limit of one call")
    return named


def _outcome(text: str, outcome: Outcome | None) -> DeadOutcome:
    """`outcome` None: there is no such partition, or the group is not known there."""
    if outcome is None:
        return DeadOutcome(text, NOT_FOUND)
    verdict, detail = outcome
    return DeadOutcome(text, verdict, str(detail) if verdict == NOT_DEAD else None)
