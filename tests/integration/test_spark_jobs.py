"""The jobs `forecast` and `report` with a real node."""

from __future__ import annotations

import sys
from functools import partial

import pytest
import trio

import sandq
from sandq.errors import ConnectionLost, UnknownTopic
from sandq.model.times import format_instant
from sandq.node.running import Serving
from sandq.spark import jobs
from sandq.spark.jobs.forecast import collect_forecast
from sandq.spark.jobs.report import collect_report
from tests.support.nodes.working import take
from tests.support.ports import free_port
from tests.support.waiting import until_answer

HOUR_MS = 3_600_000
DEAD = 250
"""Number of messages: more than one page of PAGE for each of two partitions."""
PAGE = 100


async def test_forecast_of_several_topics(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("a", partitions=3)
    await api.admin.create_topic("b")
    now_ms = node.broker.clock.now_ms()
    hour_ms = now_ms - now_ms % HOUR_MS
    for topic, hours in (("a", (2, 2, 3)), ("b", (2, 50))):
        for number, hour in enumerate(hours):
            await api.produce(topic, b"x", key=b"%d" % number, deliver_at=hour_ms + hour * HOUR_MS)
    found = await collect_forecast(api, ahead="40h", unit="hour")
    assert [(one.topic, one.messages, one.later) for one in found.topics] == [("a", 3, 0), ("b", 1, 1)]
    # The span begins with the current hour. Meanwhile, the next hour may have begun.
    assert {start_ms: count for start_ms, count in found.total() if start_ms >= hour_ms + 2 * HOUR_MS} == {
        hour_ms + 2 * HOUR_MS: 3,
        hour_ms + 3 * HOUR_MS: 1,
    }
    assert [one.topic for one in (await collect_forecast(api, ["b", "b"])).topics] == ["b"]
    with pytest.raises(UnknownTopic):
        await collect_forecast(api, ["a", "nosuch"])


async def test_report(node: Serving, api: sandq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[collect_report.__module__], "PAGE_MAX", PAGE)
    await api.admin.create_topic("t", partitions=2, max_attempts=1)
    await api.admin.create_topic("config", kind="compacted")
    await api.kv("config").put("k", b"v")
    first_ms = sandq.offset_time_ms(await api.produce("t", b"keep", key=b"k"))
    later_ms = first_ms + 3 * 24 * HOUR_MS
    async with api.producer("t") as producer:
        await producer.send_many([{"value": b"dead", "key": b"%d" % number} for number in range(DEAD)])
        await producer.send(b"later", deliver_at=later_ms)
    await api.admin.create_topic("ranked", kind="priority")
    await api.produce("ranked", b"later", deliver_at=later_ms, priority=3)
    async with api.subscribe("t", group="g", credit=5000) as subscription:
        for message in await take(subscription, DEAD + 1, ack=False):
            if message.value == b"dead":
                message.nack(error="no")
        await until_answer(lambda: api.dead("t", "g").counts(), lambda counts: counts == {"nacked": DEAD})
    totals: list[int] = []
    found = await collect_report(api, days=5, progress=lambda done, total: totals.append(total))
    (group,) = found.groups
    assert (group.topic, group.group, group.dead, group.ready + group.leased + group.waiting) == ("t", "g", DEAD, 1)
    assert group.oldest_ms == first_ms and group.late_ms is not None and 0 <= group.late_ms < 120_000
    (dead,) = found.dead
    assert (dead.reason, dead.attempts, dead.messages, found.dead_read) == ("nacked", 1, DEAD, DEAD)
    assert set(totals) == {DEAD} and len(totals) >= 3
    # The first day includes messages that became due in the current second.
    due = [(row.topic, row.day, row.messages) for row in found.due if row.messages and row.day > found.due[0].day]
    assert due == [(topic, format_instant(later_ms)[:10], 1) for topic in ("ranked", "t")]
    assert {row.topic for row in found.due} == {"ranked", "t"}, "a compacted topic has no delayed messages"
    late = await collect_report(api, ["t"], dead_since=node.broker.clock.now_ms() + HOUR_MS)
    assert late.dead == [] and late.dead_read == DEAD


async def test_blocking_callers(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    server = f"127.0.0.1:{node.client_port}"
    found = await trio.to_thread.run_sync(partial(jobs.forecast, ["t"], ahead="1h", servers=[server]))
    assert (found.unit, found.count) == ("minute", 60)
    report = await trio.to_thread.run_sync(partial(jobs.report, servers=[server]))
    assert report.topics == 1 and not report.groups
    with pytest.raises(ConnectionLost):
        await trio.to_thread.run_sync(partial(jobs.report, servers=[f"127.0.0.1:{free_port()}"]))
