"""The job schedule sends each row of its files to a broker once, or rejects the row with all reasons."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sandq.model.errors import Conflict, InvalidRequest, SandqError, UnknownTopic
from sandq.model.times import instant_ms
from sandq.spark import jobs
from sandq.spark.jobs.schedule import Allowed
from sandq.testing import Broker

AT_MS = instant_ms("2030-06-01T00:00:00Z")
"""Delivery time of the rows: months ahead of the broker's clock."""
MAPPING = {"value": "body", "deliver_at": "at"}

Schedule = Callable[..., jobs.ScheduleSummary]


@pytest.fixture
def schedule(spark: Any, node: Broker) -> Schedule:
    """`schedule(paths, mapping, ...)` to topic "t" of `node`."""
    node.create_topic("t", partitions=3)

    def run(*paths: Path, mapping: dict[str, str] = MAPPING, topic: str = "t", **more: Any) -> jobs.ScheduleSummary:
        return jobs.schedule(spark, topic, [str(path) for path in paths], mapping, servers=[node.address], **more)

    return run


def lines(path: str) -> list[dict[str, Any]]:
    parts = sorted(Path(path).glob("part-*.json"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


def sent(node: Broker, topic: str = "t") -> list[bytes]:
    return sorted(message.value or b"" for message in node.messages(topic))


def test_parquet_and_again(schedule: Schedule, node: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandq.spark.jobs.files.SPLIT_BYTES", 25_000)
    monkeypatch.setattr("sandq.spark.jobs.files.OPEN_BYTES", 1_000)
    count = 1000
    for name in "ab":
        numbers = range(count)
        table = {
            "body": [f"{name}{number}" for number in numbers],
            "at": pa.array([(AT_MS + number) * 1000 for number in numbers], pa.timestamp("us", tz="UTC")),
            "user": [f"u{number}" for number in numbers],
            "ttl": [60_000 + number for number in numbers],
            "source": ["shop" if number % 2 else None for number in numbers],
        }
        # Brackets in the name of a file are no pattern.
        pq.write_table(pa.table(table), tmp_path / f"[{name}] {{1}}*.parquet", row_group_size=250)
    mapping = {**MAPPING, "key": "user", "ttl_ms": "ttl", "header.source": "source"}
    stages: list[str] = []
    found = schedule(tmp_path, mapping=mapping, stage=stages.append)
    assert stages == ["checking", "sending"]
    assert (found.files, found.rows, found.sent, found.rejected) == (2, 2 * count, 2 * count, 0)
    assert (found.first_ms, found.last_ms) == (AT_MS, AT_MS + count - 1) and found.rate is not None

    def check() -> None:
        messages = node.messages("t")
        assert len(messages) == 2 * count
        for message in messages:
            number = int(message.value[1:])
            assert message.deliver_at_ms == AT_MS + number and message.state == "delayed"
            assert (message.key, message.ttl_ms) == (b"u%d" % number, 60_000 + number)
            assert message.headers == ({"source": "shop"} if number % 2 else {})

    check()
    again = schedule(tmp_path, mapping=mapping)
    assert again.write_id == found.write_id and again.sent == 2 * count
    check()


GOOD = {"body": "good", "at": "2030-06-01T00:00:00Z"}
BAD: list[tuple[Any, set[str]]] = [
    ({**GOOD, "body": None}, {"value: missing"}),
    ({"body": "x"}, {"deliver_at and delay_ms: missing, and there is no default delay"}),
    ({**GOOD, "at": "soon"}, {"deliver_at: not a time: RFC 3339"}),
    ({**GOOD, "at": "2030-06-01 00:00:00"}, {"deliver_at: it has no time zone"}),
    ({**GOOD, "at": 1_900_000_000}, {"deliver_at: it looks like seconds"}),
    ({**GOOD, "at": "1970-01-01T00:00:00Z"}, {"deliver_at: it is before March 1973"}),
    ({**GOOD, "at": "1960-01-01T00:00:00Z"}, {"deliver_at: it is before March 1973"}),
    ({**GOOD, "at": 2**48}, {"deliver_at: it is before March 1973 or after the year 10889"}),
    ({**GOOD, "at": 10**30}, {"deliver_at: not a time"}),
    ({**GOOD, "delay": 5}, {"delay_ms: deliver_at is set as well"}),
    ({"body": "x", "delay": -5}, {"delay_ms: not a whole number"}),
    ({"body": "x", "delay": 1.5}, {"delay_ms: not a whole number"}),
    ({**GOOD, "ttl": 0}, {"ttl_ms: not a whole number"}),
    ({**GOOD, "body": "x" * 3000}, {"value: more than 2,048 bytes"}),
    ({**GOOD, "user": "k" * 200}, {"key: more than 100 bytes"}),
    ({**GOOD, "unique": ""}, {"unique_key: empty"}),
    ({**GOOD, "unique": "u" * 1025}, {"unique_key: more than 1,024 bytes"}),
    ({**GOOD, "headers": {"h": "v" * 500}}, {"headers: more than 400 bytes"}),
    ({**GOOD, "headers": "text"}, {"headers: not a JSON object"}),
    ({"body": None, "at": "soon", "ttl": "x"}, {"value: missing", "deliver_at: not a time", "ttl_ms: not"}),
    ("nonsense", {"line: not a JSON object"}),
    ("[1]", {"line: not a JSON object"}),
    ("null", {"line: not a JSON object"}),
    ('{"body": "x", "at": 1900000000000} {"body": "y"}', {"line: not a JSON object"}),
    ('{"body": "x", "at": 1900000000000', {"line: not a JSON object"}),
    (b'{"body": "\xff", "at": 1900000000000}', {"line: not UTF-8"}),
]
LIMITS = {"LIMITS__MESSAGE_BYTES": "2048", "LIMITS__KEY_BYTES": "100", "LIMITS__HEADERS_BYTES": "400"}


def test_bad_rows_of_every_kind(spark: Any, tmp_path: Path) -> None:
    """Each row is sent or rejected with all of its reasons, and no good row is rejected."""
    from sandq.testing import broker

    raw = [
        row if isinstance(row, bytes) else (row if isinstance(row, str) else json.dumps(row)).encode() for row, _ in BAD
    ]
    good = [
        json.dumps({**GOOD, "body": f"good {n}", "headers": {"n": "1"}, "unique": f"u{n}"}).encode() for n in range(40)
    ]
    mixed = [line for pair in zip(good, raw, strict=False) for line in pair] + good[len(raw) :]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(mixed))
    parts = {
        **MAPPING,
        "key": "user",
        "unique_key": "unique",
        "delay_ms": "delay",
        "ttl_ms": "ttl",
        "headers": "headers",
    }
    with broker(settings=LIMITS) as node:
        node.create_topic("t", partitions=2)

        def run(**more: Any) -> jobs.ScheduleSummary:
            paths, place = [str(tmp_path / "in.jsonl")], str(tmp_path / "bad")
            return jobs.schedule(spark, "t", paths, parts, rejected=place, servers=[node.address], **more)

        with pytest.raises(jobs.TooManyRejected) as caught:
            run(max_rejected=len(BAD) - 1)
        assert f"{len(BAD):,} of {len(mixed):,} rows are bad" in caught.value.message
        assert "nothing was sent" in caught.value.message and "in.jsonl" in caught.value.message
        assert sent(node) == [] and caught.value.summary.rejected == len(BAD)
        found = run(max_rejected=len(BAD))
        assert (found.rows, found.sent, found.rejected) == (len(mixed), len(good), len(BAD))
        assert sent(node) == sorted(b"good %d" % number for number in range(40))
    assert found.rejected_path == f"{tmp_path}/bad/{found.write_id}"
    rejected = lines(found.rejected_path)
    assert len(rejected) == len(BAD)
    for (_, reasons), line, row in zip(BAD, raw, rejected, strict=True):
        assert row["file"].endswith("/in.jsonl")
        assert len(row["reasons"]) == len(reasons), row
        assert all(any(told.startswith(reason) for told in row["reasons"]) for reason in reasons), (row, reasons)
        if "line: not UTF-8" in reasons:
            import base64

            assert base64.b64decode(row["line_base64"]) == line and row["line"] is None
        else:
            assert row["line"].encode() == line
    assert sum(reason.rows for reason in found.reasons) == sum(len(reasons) for _, reasons in BAD)


def test_csv(schedule: Schedule, node: Broker, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(
        b'id,body,at,k\n1,"with, comma",2030-06-01 08:00:00,k\n2,"two\nlines, ""quoted""",2030-06-01T00:00:00Z,\n'
        b"3,short\n4,too,long,2030-06-01T00:00:00Z,x\n5,\xff,2030-06-01T00:00:00Z,\n6,,2030-06-01T00:00:00Z,k\n7,late,,k\n"
    )
    more = {"time_zone": "Europe/Vienna", "default_delay": "2h", "rejected": str(tmp_path / "bad")}
    found = schedule(tmp_path / "a.csv", mapping={**MAPPING, "key": "k", "header.id": "id"}, max_rejected="60%", **more)
    assert (found.rows, found.sent, found.rejected) == (7, 3, 4)
    messages = {message.headers["id"]: message for message in node.messages("t")}
    assert {number: message.value for number, message in messages.items()} == {
        **{"1": b"with, comma", "2": b'two\nlines, "quoted"', "7": b"late"}
    }
    assert messages["1"].deliver_at_ms == instant_ms("2030-06-01T06:00:00Z")
    assert messages["7"].deliver_at_ms == node.now_ms() + 7_200_000
    assert messages["1"].key == b"k" and messages["2"].key is None
    assert found.rejected_path is not None
    rows = {row["row"]["id"]: row for row in lines(found.rejected_path)}
    assert set(rows) == {"3", "4", "5", "6"} and rows["6"]["row"] == {
        **{"id": "6", "body": None, "at": "2030-06-01T00:00:00Z", "k": "k"}
    }
    assert rows["4"]["line"] == "4,too,long,2030-06-01T00:00:00Z,x"
    assert rows["6"]["reasons"] == ["value: missing"] and "not UTF-8" in rows["5"]["reasons"][0]
    # All files must have the same headings. Otherwise columns of one file would be read as other columns.
    (tmp_path / "b.csv").write_text("body,id,at,k\nx,9,1900000000000,k\n")
    with pytest.raises(SandqError, match=r"schedule: .*CSV header does not conform"):
        schedule(tmp_path / "a.csv", tmp_path / "b.csv", **more)
    assert len(node.messages("t")) == 3


def test_invalid_input_is_refused_before_anything_is_sent(schedule: Schedule, node: Broker, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"body": "x", "at": 1900000000000}\n{"body": 1}\n')
    with pytest.raises(jobs.TooManyRejected) as caught:
        schedule(tmp_path / "a.json")
    assert "1 of 2 rows are bad, 0 are allowed" in caught.value.message and '{"body": 1}' in caught.value.message
    assert caught.value.summary.rejected_path is None
    with pytest.raises(InvalidRequest, match="give a directory"):
        schedule(tmp_path / "a.json", max_rejected=1)
    for bad in ("../x", "", "a/b", "x" * 201):
        with pytest.raises(InvalidRequest, match="write_id"):
            schedule(tmp_path / "a.json", write_id=bad)
    with pytest.raises(UnknownTopic):
        schedule(tmp_path / "a.json", topic="nosuch")
    node.create_topic("config", kind="compacted")
    with pytest.raises(InvalidRequest, match="it stores values of keys"):
        schedule(tmp_path / "a.json", topic="config")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1" + b"x" * 100)
    with pytest.raises(SandqError, match="schedule: "):
        schedule(tmp_path / "bad.parquet")
    (tmp_path / "empty.json").write_text("\n")
    assert schedule(tmp_path / "empty.json").rows == 0
    assert sent(node) == []


def test_dry_run_sends_nothing(schedule: Schedule, node: Broker, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"body": "x", "at": 1700000000000}\n{"body": "y", "at": 4000000000000}\n{}\n')
    found = schedule(tmp_path / "a.json", dry_run=True, rejected=str(tmp_path / "bad"))
    assert (found.rows, found.sent, found.rejected, found.already_due) == (3, 0, 1, 1)
    assert (found.first_ms, found.last_ms) == (1_700_000_000_000, 4_000_000_000_000)
    assert found.rejected_path is not None and len(lines(found.rejected_path)) == 1
    assert sent(node) == []


def test_priorities_and_tenants(schedule: Schedule, node: Broker, tmp_path: Path) -> None:
    with node.client() as client:
        client.admin.create_topic("fair", kind="fair", partitions=3)
        client.admin.create_topic("priority", kind="priority")
    rows = [
        "a,7,acme",
        "b,-2147483648,acme.eu",
        "c,,",
        "d,2147483648,acme",
        "e,1.5,acme",
        "f,1,a b",
        "g,1,a.b.c.d.e.f.g.h.i",
    ]
    rows += [f"h,1,{'x' * 256}", 'i,1,"acme\n"']
    (tmp_path / "a.csv").write_text("id,p,account\n" + "\n".join(rows) + "\n")
    mapping = {"value": "id", "priority": "p", "tenant": "account", "key": "id", "unique_key": "account"}
    options = {"default_delay": "1h", "rejected": str(tmp_path / "bad"), "max_rejected": "90%"}
    found = schedule(tmp_path / "a.csv", mapping=mapping, topic="fair", **options)
    assert (found.sent, found.rejected) == (3, 6)
    told = {(message.value, message.priority, message.tenant or "default") for message in node.messages("fair")}
    assert told == {(b"a", 7, "acme"), (b"b", -(2**31), "acme.eu"), (b"c", 0, "default")}
    assert {reason.text[:27]: reason.rows for reason in found.reasons} == {
        **{"priority: not a whole numbe": 2, "tenant: not allowed; the ru": 4}
    }
    del mapping["tenant"], mapping["unique_key"]
    assert schedule(tmp_path / "a.csv", mapping=mapping, topic="priority", **options).sent == 7
    assert sorted(message.priority for message in node.messages("priority")) == [-(2**31), 0, 1, 1, 1, 1, 7]
    with pytest.raises(InvalidRequest, match="priority: topic 't' is a timer topic; only priority or fair topics"):
        schedule(tmp_path / "a.csv", mapping=mapping, **options)


def test_unique_keys_are_unique_within_keys(schedule: Schedule, node: Broker, tmp_path: Path) -> None:
    lines = [f'{{"body": "{n}", "at": {AT_MS}, "u": "i{n % 2}", "user": "k{n // 4}"}}\n' for n in range(8)]
    (tmp_path / "a.json").write_text("".join(lines))
    assert schedule(tmp_path / "a.json", mapping={**MAPPING, "unique_key": "u", "key": "user"}).sent == 8
    assert sent(node) == [b"0", b"1", b"4", b"5"]


def test_unique_keys(schedule: Schedule, node: Broker, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("".join(f'{{"body": "{n}", "at": {AT_MS}, "u": "k{n % 3}"}}\n' for n in range(9)))
    mapping = {**MAPPING, "unique_key": "u"}
    with node.client() as client:
        client.produce("t", b"first", unique_key="k0", delay="300d")
    assert schedule(tmp_path / "a.json", mapping=mapping, write_id="keep").sent == 9
    assert sent(node) == [b"1", b"2", b"first"], "existing messages, and the first of equal keys, stay"
    assert schedule(tmp_path / "a.json", mapping=mapping, on_conflict="replace").sent == 9
    assert sent(node) == [b"6", b"7", b"8"]
    # Without the same write id, it is another job.
    with pytest.raises(SandqError, match="sending: ") as caught:
        schedule(tmp_path / "a.json", mapping=mapping, on_conflict="reject")
    assert "stored" in caught.value.__notes__[0]


def test_file_names_ignored_by_spark_are_found_or_rejected(schedule: Schedule, tmp_path: Path) -> None:
    for name in ("a.csv", "_b.csv", "_temporary/c.csv", "_day=2/d.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("body,at\nx,2030-02-01T00:00:00Z\n")
    for path in (tmp_path, tmp_path / "*"):
        found = schedule(path, dry_run=True)
        assert (found.files, found.rows) == (2, 2)
    (tmp_path / "_day=2" / "_e=3.csv").write_text("")
    with pytest.raises(InvalidRequest, match=r"_e=3\.csv: Spark does not read files with such a name"):
        schedule(tmp_path, dry_run=True)
    with pytest.raises(InvalidRequest, match=r"_b\.csv: Spark does not read files with such a name"):
        schedule(tmp_path / "a.csv", tmp_path / "_b.csv", dry_run=True)


def test_changed_rows_with_same_write_id_conflict(schedule: Schedule, tmp_path: Path) -> None:
    rows = [f"{number},2030-02-01T00:00:00Z\n" for number in range(50)]
    (tmp_path / "a.csv").write_text("body,at\n" + "".join(rows))
    schedule(tmp_path / "a.csv", write_id="w")
    (tmp_path / "a.csv").write_text("body,at\n" + "".join(rows[::-1]))
    with pytest.raises(Conflict, match="the rows differ between attempts of a task") as refused:
        schedule(tmp_path / "a.csv", write_id="w")
    assert not hasattr(refused.value, "__notes__"), "a repetition of the command would fail again"


def test_foreign_directory_is_not_replaced(schedule: Schedule, tmp_path: Path) -> None:
    rejected = tmp_path / "rejected"
    (rejected / "mine").mkdir(parents=True)
    (rejected / "mine" / "a.txt").write_text("x")
    (tmp_path / "a.csv").write_text("body,at\n,soon\n")
    options: dict[str, Any] = {"rejected": str(rejected), "max_rejected": 1, "dry_run": True}
    with pytest.raises(InvalidRequest, match="give a different path"):
        schedule(tmp_path / "a.csv", write_id="mine", **options)
    assert (rejected / "mine" / "a.txt").read_text() == "x"
    for _ in range(2):
        found = schedule(tmp_path / "a.csv", write_id="w", **options)
        assert len(lines(str(found.rejected_path))) == 1


def test_rejected_rows_do_not_become_input(schedule: Schedule, tmp_path: Path) -> None:
    place = tmp_path / "in"
    (place / "bad" / "w").mkdir(parents=True)
    (place / "a.jsonl").write_text('{"body": "x", "at": "soon"}\n')
    for paths, bad in (((place,), place / "bad"), ((place / "a.jsonl",), place), ((place / "*",), place / "bad")):
        (place / "bad" / "w" / "part-00000-x.json").write_text('{"body": "x", "at": "soon"}\n')
        with pytest.raises(InvalidRequest, match="it is part of the input"):
            schedule(*paths, rejected=str(bad), max_rejected=1, write_id="w", format="json", dry_run=True)


def test_a_share_is_exact() -> None:
    assert [Allowed.parse(text).of(100) for text in ("29%", "0.5%", "100%", "7")] == [29, 0, 100, 7]
