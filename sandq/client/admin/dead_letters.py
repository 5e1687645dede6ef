"""`client.dead(topic, group)`: the messages that a group no longer gets, because their last attempt failed."""

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
"""Maximum number of ids in one call."""


@suggesting
class DeadLetters:
    """The dead letters of one group, in all partitions of the topic.

    Methods name dead letters by their ids, or select dead letters that match all given conditions:

    - `reason`: "nacked" or "lease_expired" (at the last attempt), "expired" (its ttl had passed), "rejected" (a
      consumer made it dead);
    - `since` and `until`: its time of death, from `since` on and before `until`;
    - `error`: a part of its last error, case-sensitive;
    - `key_prefix`: the beginning of its key.
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
        """Iterate over dead letters of all partitions in delivery order: `async for letter in dead.list():`.

        `after`: the offset after which to begin. `newest`: the latest delivery time comes first; all nodes must run a
        version with this feature.
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
            except UnknownGroup:  # some partitions may not know the group, but at least one must
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
        """Return the number of dead letters by reason."""
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
        """Deliver the selected dead letters again, starting with attempt 1.

        `rate`: messages per second, shared equally among the partitions (at least one each). `dry_run`, `progress` and
        cancellation as for `messages.cancel_all`.
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
        """Delete the selected dead letters. The arguments are those of `redrive`."""
        if key_prefix is not None:
            key_prefix = bulk_prefix("key_prefix", key_prefix)
        arguments = self._arguments(_which(reason, since, until, error, key_prefix), dry_run)
        return await run_job(self._cluster, self.topic, "purge_dead", arguments, progress)

    @timed_change
    async def redrive_ids(self, ids: Iterable[str], *, timeout: Duration | None = None) -> builtins.list[DeadOutcome]:
        """Deliver dead letters again, starting with attempt 1; return their outcomes, in order.

        At most 10,000 ids per call. Outcomes `not_dead` and `not_found` do not affect the other ids. After a lost
        reply, the request is retried. If the first attempt has redriven a letter, its outcome is then `not_dead`, or
        `not_found` if it was acked meanwhile. Raises InvalidRequest for an invalid id before anything is done.
        """
        return await self._each(DeadRedrive, ids)

    @timed_change
    async def purge_ids(self, ids: Iterable[str], *, timeout: Duration | None = None) -> builtins.list[DeadOutcome]:
        """Delete dead letters; return their outcomes, in order.

        Limits and errors are as for `redrive_ids`. After a lost reply, a letter that was already purged has the outcome
        `not_found`.
        """
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
                    results = dict(zip(some, outcomes(frame, len(some), DEAD_OUTCOMES), strict=True))
                    found.update({data: one for data, one in results.items() if one.verdict != NOT_YET})
                    left = [data for data in left if data not in found]
            except UnknownGroup as error:
                unknown.append(error)

        await each(settle, asked)
        if len(unknown) == len(asked):
            await self.counts()  # raises UnknownGroup, unless other partitions know the group
        return [_outcome(text, found.get(data)) for text, data in named.items()]

    def _arguments(self, which: dict[str, Any], dry_run: bool) -> dict[str, Any]:
        return {"group": self.group, **which, "dry_run": bool(dry_run)}


def _which(
    reason: str | None, since: Instant | None, until: Instant | None, error: str | None, key_prefix: Value | None
) -> dict[str, Any]:
    """Return the conditions on dead letters in the form that the request needs. Raises InvalidRequest.

    `error` and `key_prefix` are included only if they are given, because older brokers do not know them.
    """
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
    """Return the ids without duplicates, each with its 16 bytes. Raises InvalidRequest."""
    if isinstance(ids, (str, bytes)):
        raise InvalidRequest("ids: several are expected, as a list; one alone in a list, too")
    named: dict[str, bytes] = {}
    for text in ids:
        named[text] = offset_model.from_text(str(text))
        if len(named) > IDS_MAX:
            raise InvalidRequest(f"ids: {IDS_MAX:,} are the limit of one call")
    return named


def _outcome(text: str, outcome: Outcome | None) -> DeadOutcome:
    """Return the outcome for one id. `outcome` is None if the partition does not exist or does not know the group."""
    if outcome is None:
        return DeadOutcome(text, NOT_FOUND)
    verdict, detail = outcome
    return DeadOutcome(text, verdict, str(detail) if verdict == NOT_DEAD else None)
