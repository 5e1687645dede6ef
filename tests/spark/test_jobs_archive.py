"""The jobs archive, sql and replay run one after the other over the same messages."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from sandq.errors import InvalidRequest, SandqError
from sandq.model.headers import headers_unpack
from sandq.model.times import instant_ms
from sandq.spark import jobs
from sandq.spark.datasource import SandqDataSource
from sandq.spark.jobs.archive import archived, without_news
from sandq.testing import Broker
from tests.support.spark.session_helpers import fill, reading, values

START_MS = instant_ms("2030-01-01T00:00:00Z")
HEADERS = {"number": 7, "bytes": b"\xff", "none": None, "true": True}


def test_archive_and_sql(spark: Any, node: Broker, tmp_path: Path) -> None:
    node.create_topic("welcome_emails", partitions=2)
    node.create_topic("other", partitions=1)
    place = str(tmp_path / "archive")
    servers = [node.address]
    fill(node, "welcome_emails", range(300))
    node.advance("1s")  # messages that are due at the same instant are archived together
    fill(node, "other", range(300, 350))
    fill(node, "welcome_emails", range(350, 400), delay="30h")
    node.advance("1m")
    progress: list[tuple[int, int]] = []
    run = jobs.archive(
        spark,
        ["welcome_emails", "other"],
        place,
        servers=servers,
        batch_messages=200,
        progress=lambda *so: progress.append(so),
    )
    assert run.messages == 350 and run.batches >= 2 and progress[-1] == (350, run.batches)
    written = sorted((tmp_path / "archive").glob("**/*"))
    assert jobs.archive(spark, ["welcome_emails", "other"], place, servers=servers).record() | {"seconds": 0} == {
        **dict(job="archive", topics="welcome_emails, other", path=place, messages=0, batches=0, seconds=0, rate=None)
    }
    known = without_news(["welcome_emails", "other"], place, servers=servers)
    assert known is not None and known.messages == 0, "without Spark"
    assert without_news(["other"], str(tmp_path / "new"), servers=servers) is None
    assert sorted((tmp_path / "archive").glob("**/*")) == written
    assert values(archived(spark, place)) == [*range(350)]
    assert sorted(path.name for path in (tmp_path / "archive").glob("topic=*/*")) == ["date=2030-01-01"] * 2
    fill(node, "welcome_emails", range(400, 420))
    node.advance("1m")
    assert without_news(["welcome_emails", "other"], place, servers=servers) is None

    def ask(query: str, **options: Any) -> list[Any]:
        return jobs.sql(spark, query, ["welcome_emails", "other"], archive=place, servers=servers, **options).collect()

    rows = ask("select value, archived from messages")
    assert sorted(int(row.value) for row in rows) == [*range(420)], "each once"
    assert {int(row.value) for row in rows if row.archived} == {*range(350)}
    # Archived messages may be trimmed.
    rows = ask("select topic, count(*) as n from messages group by topic order by topic", until="2030-01-01T12:00:00Z")
    assert [tuple(row) for row in rows] == [("other", 50), ("welcome_emails", 320)]
    rows = ask(
        "select * from tasks where queue = 'welcome_emails' and deliver_at between '2030-01-02' and '2030-01-03' "
        "and get_json_object(headers['meta'], '$.lang') = 'de'",
        views={"tasks": "select topic as queue, * from messages"},
    )
    assert rows == []
    with node.client() as client:
        client.produce("welcome_emails", b"420", headers={"meta": '{"lang": "de"}'}, deliver_at="2030-01-02T08:00:00Z")
    (row,) = ask(
        "select * from tasks where queue = 'welcome_emails' and deliver_at between '2030-01-02' and '2030-01-03' "
        "and get_json_object(headers['meta'], '$.lang') = 'de'",
        views={"tasks": "select topic as queue, * from messages"},
    )
    assert row.value == "420" and row.topic == "welcome_emails" and not row.archived
    with pytest.raises(SandqError, match="nonsense"):
        ask("select nonsense from messages")
    with pytest.raises(InvalidRequest, match="view"):
        ask("select 1", views={"a b": "select 1"})


def test_a_source_that_begins_late(spark: Any, node: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node.create_topic("welcome_emails", partitions=1)
    fill(node, "welcome_emails", range(10))
    node.advance("1m")
    marker, python = tmp_path / "began", tmp_path / "python"
    # Delay the first start of the source, as on a busy machine, for longer than Spark waits.
    python.write_text(
        f"#!/bin/sh\ncase \"$*\" in *streaming_source*) mkdir '{marker}' 2>/dev/null && sleep 11;; esac\n"
        f"exec '{sys.executable}' \"$@\"\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
    late = spark.newSession()
    late.dataSource.register(SandqDataSource)
    run = jobs.archive(late, ["welcome_emails"], str(tmp_path / "archive"), servers=[node.address])
    assert marker.exists() and run.messages == 10
    assert values(archived(spark, str(tmp_path / "archive"))) == [*range(10)]


def test_an_archive_that_lost_its_checkpoint(spark: Any, node: Broker, tmp_path: Path) -> None:
    node.create_topic("t")
    place = tmp_path / "archive"
    with node.client() as client, client.producer("t") as producer:
        for number in range(20):
            producer.send(b"%d" % number, deliver_at=START_MS + 1000 * number)
    node.advance("1h")
    jobs.archive(spark, ["t"], str(place), servers=[node.address])
    rows = jobs.sql(
        spark, "select value from messages", ["t"], archive=str(place), until=START_MS + 5000, servers=[node.address]
    )
    assert values(rows) == [*range(5)], "the requested range ends before the archived one"
    shutil.rmtree(place / "_checkpoint")
    with pytest.raises(InvalidRequest, match=r"its checkpoint .* has 0"):
        jobs.archive(spark, ["t"], str(place), servers=[node.address])


def test_priorities_and_tenants(spark: Any, node: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Priorities and tenants are archived, and kept in a replay.

    An archive that an older version began, without these columns, can be continued."""
    for topic, kind in (("t", "fair"), ("again", "fair"), ("ranked", "priority"), ("plain", "timer")):
        with node.client() as client:
            client.admin.create_topic(topic, kind=kind, partitions=2)
    place, servers = str(tmp_path / "archive"), [node.address]

    def add(numbers: range) -> None:
        with node.client() as client, client.producer("t") as producer:
            for number in numbers:
                producer.send(b"%d" % number, tenant=f"tenant-{number % 3}", priority=number)
            producer.send(b"-1")
        node.advance("1m")

    add(range(10))
    with monkeypatch.context() as patch:
        module = sys.modules[jobs.archive.__module__]
        start = module._start  # type: ignore[attr-defined]

        def start_without(spark: Any, options: dict[str, str], *rest: str) -> Any:
            return start(spark, {name: text for name, text in options.items() if name != "includeRank"}, *rest)

        patch.setattr(module, "_start", start_without)
        assert jobs.archive(spark, ["t"], place, servers=servers).messages == 11
    assert "tenant" not in spark.read.parquet(place).columns
    add(range(10, 20))
    assert jobs.archive(spark, ["t"], place, servers=servers).messages == 11

    def ranks(rows: Any) -> list[tuple[int, int | None, str | None]]:
        return sorted((int(row.value), row.priority, row.tenant) for row in rows.collect() if int(row.value) >= 0)

    new = [(number, number, f"tenant-{number % 3}") for number in range(10, 30)]
    assert ranks(archived(spark, place)) == [(number, None, None) for number in range(10)] + new[:10]
    add(range(20, 30))
    with node.client() as client:
        client.produce("t", b"30", tenant="tenant-0", priority=30, delay="1h")
    view = jobs.sql(spark, "select * from messages where tenant is not null", ["t"], archive=place, servers=servers)
    assert ranks(view) == [*new, (30, 30, "tenant-0")], "archived, due and pending messages"

    options: dict[str, Any] = {"servers": servers, "where": "cast(cast(value as string) as int) >= 5"}
    for _ in range(2):
        assert jobs.replay(spark, place, "again", **options).left_out == ()
    report = jobs.replay(spark, place, "ranked", dry_run=True, **options)
    assert report.left_out == ("tenant",) and "  left out  tenant: topic ranked does not accept it" in report.lines()
    report = jobs.replay(spark, place, "plain", **options)
    assert report.messages == 15 and report.record()["left_out"] == ["priority", "tenant"]
    node.advance("1m")
    rows = reading(spark.read, node, subscribe="again", includeRank=True).load()
    assert ranks(rows) == [(number, None, None) for number in range(5, 10)] + new[:10]
    assert values(reading(spark.read, node, subscribe="plain").load()) == [*range(5, 20)]


def test_replay(spark: Any, node: Broker, tmp_path: Path) -> None:
    node.create_topic("t", partitions=2)
    node.create_topic("again", partitions=3)
    place = str(tmp_path / "archive")
    servers = [node.address]
    with node.client() as client, client.producer("t") as producer:
        for number in range(200):
            producer.send(
                b"%d" % number,
                key=b"k%d" % (number % 5),
                headers=HEADERS | {"n": str(number)},
                ttl="1h" if number % 4 == 0 else None,
                deliver_at=START_MS + 1000 * number,
            )
    node.advance("1h")
    jobs.archive(spark, ["t"], place, servers=servers)
    options: dict[str, Any] = {"servers": servers, "until": START_MS + 100_000}
    shifted = {**options, "shift": "1d", "where": "cast(cast(value as string) as int) % 2 = 0"}
    assert jobs.replay(spark, place, "again", dry_run=True, **shifted).messages == 50
    report = jobs.replay(spark, place, "again", **shifted)
    assert (report.messages, report.first_ms, report.last_ms) == (
        50,
        START_MS + 86_400_000,
        START_MS + 86_400_000 + 98_000,
    )
    jobs.replay(spark, place, "again", **shifted)
    rows = reading(spark.read, node, subscribe="again", view="pending", includeRaw=True).load().collect()
    assert sorted(int(row.value) for row in rows) == [*range(0, 100, 2)], "each message once, after repeated runs"
    for row in rows:
        number = int(row.value)
        assert bytes(row.key) == b"k%d" % (number % 5)
        assert headers_unpack(bytes(row.raw_headers)) == HEADERS | {"n": str(number)}, "each of its type"
        assert row.ttl_ms == (3_600_000 if number % 4 == 0 else None)
        assert int(row.deliver_at.timestamp() * 1000) == START_MS + 86_400_000 + 1000 * number
    start_ms = START_MS + 7_200_000
    capped = jobs.replay(spark, place, "again", start=start_ms, rate=10, **options)
    assert capped.messages == 100 and capped.first_ms == start_ms
    window = {"startingTimestamp": start_ms, "endingTimestamp": start_ms + 3_600_000}
    rows = reading(spark.read, node, subscribe="again", view="pending", **window).load().collect()
    times = sorted(int(row.deliver_at.timestamp() * 1000) for row in rows)
    assert len(times) == 100
    assert all(later - earlier >= 1000 for earlier, later in zip(times, times[10:], strict=False)), "10 a second"
    with pytest.raises(InvalidRequest, match="rate"):
        jobs.replay(spark, place, "again", rate=10, servers=servers)
