"""The job report: the backlogs of groups, the messages that come due in the next days, and counts of dead letters.

Brokers keep counts of backlogs and of messages that come due. Dead letters are read page by page, without values, from
several partitions in parallel, and counted by day, reason and number of attempts. So memory use does not depend on
their number: it is one page per partition, and the counts. This needs no Spark, which would only wait for the same
pages.
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
"""Maximum number of days: brokers count 3600 hours ahead, and part of the first day has passed."""
LATER: Final = "later"
_DAY_MS: Final = 86_400_000
_HOURS: Final = 24
_HOUR_MS: Final = 3_600_000

Rows = Sequence[dict[str, Any]]
Progress = Callable[[int, int], object]
"""Called with the number of dead letters that were read, and the approximate total."""
DeadPage = tuple[list[DeadRecord], bytes | None]
GetPage = Callable[["DeadLetters", bytes | None], Awaitable[DeadPage]]


class DeadLetters(NamedTuple):
    """The dead letters of a group in one partition."""

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
    """Report on these topics (by default all).

    It covers the next `days` days, and the dead letters that died at `dead_since` or later. Raises UnknownTopic.
    """
    return called(servers, lambda client: collect_report(client, topics, days=days, dead_since=dead_since))


async def collect_report(
    client: Client,
    topics: Sequence[str] = (),
    *,
    days: int = DAYS,
    dead_since: Instant | None = None,
    progress: Progress | None = None,
) -> ReportSummary:
    """Create the report with an existing client."""
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
    sources: list[DeadLetters] = []
    total = 0
    for name in names:
        if name not in compacted:  # compacted topics have no delayed messages
            ahead = await client.admin.forecast(name, unit="hour", count=(days + 1) * _HOURS)
            now_ms = max(now_ms, ahead.now_ms)
            due += due_days(name, ahead.now_ms, ahead.together(), ahead.later, days)
        rows = await client.admin.groups(name)
        backlogs += await _backlogs(client, name, rows, now_ms)
        sources += [DeadLetters(name, str(row["group"]), row["partition"]) for row in rows if row.get("dead")]
        total += sum(row.get("dead") or 0 for row in rows)
    dead = Dead(since_ms, total, progress)
    await each(lambda source: dead.read(source, lambda source, after: _page(client, source, after)), sources)
    return ReportSummary(now_ms, len(names), backlogs, due, dead.rows(), dead.count, time.monotonic() - began_s)


# ------------------------------------------------------------------------------------------------ what comes due


def due_days(topic: str, now_ms: int, buckets: Sequence[tuple[int, int]], later: int, days: int) -> list[DueDay]:
    """Convert counts by hour into counts by day: the rest of today, the next days, and all later messages."""
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
        # The committed offset itself need not be the offset of a message, so fetch the next one.
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
    """Counts dead letters that died at `since_ms` (epoch ms) or later."""

    def __init__(self, since_ms: int = 0, total: int = 0, progress: Progress | None = None) -> None:
        self.count = 0
        self._since_ms = since_ms
        self._total = total
        self._progress = progress
        self._counts: Counter[tuple[str, str, int, str, int]] = Counter()

    async def read(self, source: DeadLetters, get: GetPage) -> None:
        """Count the dead letters of a group in one partition, page by page."""
        after: bytes | None = None
        while True:
            letters, after = await get(source, after)
            own = Counter(
                (letter.dead_ms // _DAY_MS, letter.reason, letter.attempts)
                for letter in letters
                if letter.dead_ms >= self._since_ms
            )
            for (day, reason, attempts), messages in own.items():
                self._counts[source.topic, source.group, day, reason, attempts] += messages
            self.count += len(letters)
            if self._progress is not None:
                self._progress(self.count, max(self.count, self._total))
            if after is None:
                return

    def rows(self) -> list[DeadDay]:
        """Return the counts, ordered by topic, group, day, reason and attempts."""
        return [
            DeadDay(topic, group, _day(day * _DAY_MS), reason, attempts, messages)
            for (topic, group, day, reason, attempts), messages in sorted(self._counts.items())
        ]


async def _page(client: Client, source: DeadLetters, after: bytes | None) -> DeadPage:
    request = DeadList(source.topic, source.partition, source.group, None, PAGE_MAX, after, False)
    try:
        frame = await call_leader(cluster_of(client), request)
    except UnknownGroup:  # the group was deleted meanwhile, with its dead letters
        return [], None
    return page(frame, DeadRecord.from_map)
