"""The job report: what groups have before them, what comes due on the next days, what died when, of what and how often
it was tried.

Brokers keep all but the last of these as counts. Dead letters are read page by page, without their values, those of
several partitions at a time, and counted by day, reason and attempts: what is held in memory is a page of each of
these partitions and the counts, however many dead letters there are. Spark would only wait for the same pages.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from sandq.client import Client, cluster_of, offset_time_ms
from sandq.client.transport import call_leader, each
from sandq.model.errors import InvalidRequest, UnknownGroup
from sandq.model.names import COMPACTED
from sandq.model.times import Instant, format_instant, instant_ms
from sandq.protocol.replies_messages import DeadRecord, page
from sandq.protocol.requests_admin import DeadList
from sandq.protocol.requests_messages import PAGE_MAX
from sandq.spark.jobs.calling import called
from sandq.spark.jobs.summary import DeadDay, DueDay, GroupBacklog, ReportSummary

DAYS: Final = 7
DAYS_MAX: Final = 149
"""Brokers count 3600 hours ahead, and the first day is one that has begun."""
LATER: Final = "later"
_DAY_MS: Final = 86_400_000
_HOURS: Final = 24
_HOUR_MS: Final = 3_600_000

Rows = Sequence[dict[str, Any]]
Told = Callable[[int, int], object]
"""`told(read, total)`: so many dead letters are read, of about so many."""
DeadPage = tuple[list[DeadRecord], bytes | None]
GetPage = Callable[["Grave", bytes | None], Awaitable[DeadPage]]


class Grave(NamedTuple):
    """Where dead letters lie."""

    topic: str
    group: str
    partition: int


def report(
    topics: Sequence[str] = (),
    *,
    days: int = DAYS,
    dead_since: Instant | None = None,
    servers: Sequence[str] = (),
) -> ReportSummary:
    """What stands in these topics (none: in all): `days` ahead, and the dead letters that died at `dead_since` or
    later. UnknownTopic."""
    return called(servers, lambda client: collect_report(client, topics, days=days, dead_since=dead_since))


async def collect_report(
    client: Client,
    topics: Sequence[str] = (),
    *,
    days: int = DAYS,
    dead_since: Instant | None = None,
    told: Told | None = None,
) -> ReportSummary:
    """The same, for a client that is there."""
    if type(days) is not int or not 1 <= days <= DAYS_MAX:
        raise InvalidRequest(f"days: 1 to {DAYS_MAX} are expected, not {days!r}")
    since_ms = 0 if dead_since is None else instant_ms(dead_since)
    began_s = time.monotonic()
    records = await client.admin.list_topics()
    names = list(dict.fromkeys(topics)) or [record.name for record in records]
    compacted = {record.name for record in records if record.kind == COMPACTED}
    now_ms = time.time_ns() // 1_000_000
    due: list[DueDay] = []
    backlogs: list[GroupBacklog] = []
    graves: list[Grave] = []
    total = 0
    for name in names:
        if name not in compacted:  # there, nothing is for later
            ahead = await client.admin.forecast(name, unit="hour", count=(days + 1) * _HOURS)
            now_ms = max(now_ms, ahead.now_ms)
            due += due_days(name, ahead.now_ms, ahead.together(), ahead.later, days)
        rows = await client.admin.groups(name)
        backlogs += await _backlogs(client, name, rows, now_ms)
        graves += [Grave(name, str(row["group"]), row["partition"]) for row in rows if row.get("dead")]
        total += sum(row.get("dead") or 0 for row in rows)
    dead = Dead(since_ms, total, told)
    await each(lambda grave: dead.read(grave, lambda grave, after: _page(client, grave, after)), graves)
    return ReportSummary(now_ms, len(names), backlogs, due, dead.rows(), dead.count, time.monotonic() - began_s)


# ------------------------------------------------------------------------------------------------ what comes due


def due_days(topic: str, now_ms: int, buckets: Sequence[tuple[int, int]], later: int, days: int) -> list[DueDay]:
    """Counts by hour as counts by day: what is left of today, the next ones, and all that comes behind them."""
    first = now_ms // _DAY_MS
    counts: Counter[int] = Counter()
    for start_ms, messages in buckets:
        counts[min(start_ms // _DAY_MS - first, days)] += messages
    counts[days] += later
    names = [*(_day((first + at) * _DAY_MS) for at in range(days)), LATER]
    return [DueDay(topic, name, counts[at]) for at, name in enumerate(names)]


def _day(ms: int) -> str:
    return format_instant(ms).partition("T")[0]


# ------------------------------------------------------------------------------------------------ what is due


async def _backlogs(client: Client, topic: str, rows: Rows, now_ms: int) -> list[GroupBacklog]:
    async def oldest(row: dict[str, Any]) -> int | None:
        if not (row["ready"] or row["leased"] or row["waiting"]):
            return None
        # Where a group stands need not be where a message is.
        async for message in client.fetch(topic, row["partition"], row["committed"], limit=1):
            return offset_time_ms(message.offset)
        return None

    times = await each(oldest, rows)
    found = []
    for name in sorted({str(row["group"]) for row in rows}):
        own = [(row, ms) for row, ms in zip(rows, times, strict=True) if row["group"] == name]
        oldest_ms = min((ms for _, ms in own if ms is not None), default=None)
        counts = {key: sum(row.get(key) or 0 for row, _ in own) for key in ("ready", "leased", "waiting", "dead")}
        late_ms = None if oldest_ms is None else max(0, now_ms - oldest_ms)
        consumers = sum(row.get("consumers") or 0 for row, _ in own)
        found.append(
            GroupBacklog(topic=topic, group=name, **counts, consumers=consumers, oldest_ms=oldest_ms, late_ms=late_ms)
        )
    return found


# ------------------------------------------------------------------------------------------------ what died


class Dead:
    """Counts of dead letters that died at `since_ms` (epoch ms) or later."""

    def __init__(self, since_ms: int = 0, total: int = 0, told: Told | None = None) -> None:
        self.count = 0
        self._since_ms = since_ms
        self._total = total
        self._told = told
        self._counts: Counter[tuple[str, str, int, str, int]] = Counter()

    async def read(self, grave: Grave, get: GetPage) -> None:
        """Count those of one partition of a group, page by page."""
        after: bytes | None = None
        while True:
            letters, after = await get(grave, after)
            own = Counter(
                (letter.dead_ms // _DAY_MS, letter.reason, letter.attempts)
                for letter in letters
                if letter.dead_ms >= self._since_ms
            )
            for (day, reason, attempts), messages in own.items():
                self._counts[grave.topic, grave.group, day, reason, attempts] += messages
            self.count += len(letters)
            if self._told is not None:
                self._told(self.count, max(self.count, self._total))
            if after is None:
                return

    def rows(self) -> list[DeadDay]:
        """By topic, group, day, reason and attempts."""
        return [
            DeadDay(topic, group, _day(day * _DAY_MS), reason, attempts, messages)
            for (topic, group, day, reason, attempts), messages in sorted(self._counts.items())
        ]


async def _page(client: Client, grave: Grave, after: bytes | None) -> DeadPage:
    request = DeadList(grave.topic, grave.partition, grave.group, None, PAGE_MAX, after, False)
    try:
        frame = await call_leader(cluster_of(client), request)
    except UnknownGroup:  # deleted meanwhile, with its dead letters
        return [], None
    return page(frame, DeadRecord.from_map)
