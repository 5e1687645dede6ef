"""Tests of sandctl with the real client and a server that keeps messages: a command accepts the output of another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Batch, Column
from sandq.model.headers import headers_unpack
from sandq.model.times import format_instant
from sandq.protocol.frames import Type
from sandq.protocol.requests import DEBOUNCE, THROTTLE, THROTTLE_BOTH
from tests.support.client.fake_messages import NOW_MS
from tests.support.client.fake_server import FakeServer

HOUR_MS = 3_600_000
AT = format_instant(NOW_MS + HOUR_MS)


def rows(output: str) -> list[Any]:
    return [json.loads(line) for line in output.splitlines()]


def test_a_message_by_its_unique_key(ctl: Any, server: FakeServer) -> None:
    def produce(value: str, *options: str) -> Any:
        return ctl("produce", "t", value, "--unique-key", "order-7", "--at", AT, *options)

    first = produce("one", "--ttl", "90s").stdout.strip()
    batch = Batch.parse(server.produced[0].batch)
    assert (batch.bytes_column(Column.UNIQUE_KEY), batch.int_column(Column.TTL_MS)) == ([b"order-7"], [90_000])
    result = produce("two")
    assert result.exit_code == 1 and f"{first}, which is delayed" in result.stderr and result.stdout == ""
    assert produce("two", "--on-conflict", "ignore").stdout.strip() == first
    second = produce("three", "--on-conflict", "replace").stdout.strip()
    assert second != first
    (row,) = rows(ctl("message", "list", "t", "--values", "-o", "jsonl").stdout)
    assert (row["id"], row["text"], row["unique_key"], row["deliver_at"]) == (second, "three", "order-7", AT)

    moved = ctl("message", "move", "t", "--unique-key", "order-7", "--shift", "+1h", "-o", "jsonl")
    assert rows(moved.stdout)[0]["deliver_at"] == format_instant(NOW_MS + 2 * HOUR_MS)
    got = json.loads(ctl("message", "get", "t", "--unique-key", "order-7", "-o", "json").stdout)
    assert (got["id"], got["moves"], got["due_at"], got["text"]) == (second, 1, AT, "three")
    why = ctl("message", "why", "t", second)
    assert why.exit_code == 0 and "moved      once, last" in why.stdout and "it waits for its time" in why.stdout
    assert ctl("message", "cancel", "t", "--unique-key", "order-7").stdout == "cancelled unique key 'order-7'\n"
    assert ctl("message", "list", "t").stderr == "none\n"


def test_produce_with_debounce_replaces_the_pending_message(ctl: Any, server: FakeServer) -> None:
    def produce(value: str, *options: str) -> Any:
        debounced = ("--unique-key", "page-7", "--on-conflict", "debounce", "--in", "5s", "-o", "jsonl")
        return ctl("produce", "t", value, *debounced, *options)

    (first,) = rows(produce("one", "--max-wait", "1m").stdout)
    (second,) = rows(produce("two", "--max-wait", "1m").stdout)
    assert (first["outcome"], second["outcome"], second["other"]) == ("stored", "replaced", first["offset"])
    assert [tuple(request.on_conflict) for request in server.produced] == [(DEBOUNCE, 60_000)] * 2
    late = produce("three", "--max-wait", "4s")
    assert late.exit_code == 2 and "max_wait: 4s is less than the delay of 5s" in late.stderr


def test_max_wait_without_debounce_is_a_wrong_usage(ctl: Any, server: FakeServer) -> None:
    result = ctl("produce", "t", "x", "--unique-key", "k", "--on-conflict", "replace", "--max-wait", "1m")
    assert result.exit_code == 2 and "--max-wait is for --on-conflict debounce" in result.stderr
    assert server.produced == []


def test_produce_with_throttle_keeps_the_first_message(ctl: Any, server: FakeServer) -> None:
    def produce(value: str, *options: str) -> Any:
        throttled = ("--unique-key", "disk", "--on-conflict", "throttle", "-o", "jsonl")
        return ctl("produce", "t", value, *throttled, *options)

    (first,) = rows(produce("one", "--window", "1m").stdout)
    (second,) = rows(produce("two", "--window", "1m", "--edge", "both").stdout)
    assert (second["offset"], second["outcome"], second["other"]) == (first["offset"], "ignored", first["offset"])
    assert [tuple(one.on_conflict) for one in server.produced] == [(THROTTLE, 60_000), (THROTTLE_BOTH, 60_000)]
    timed = produce("three", "--window", "1m", "--edge", "both", "--in", "5s")
    assert timed.exit_code == 2 and "give no deliver_at or delay" in timed.stderr


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--on-conflict", "throttle"], "--on-conflict throttle needs --window"),
        (["--on-conflict", "ignore", "--window", "1m"], "--window and --edge are for --on-conflict throttle"),
        (["--edge", "both"], "--window and --edge are for --on-conflict throttle"),
        (["--on-conflict", "throttle", "--window", "1m", "--edge", "trailing"], "'trailing' is not one of"),
    ],
)
def test_wrong_options_of_throttle_are_a_wrong_usage(
    ctl: Any, server: FakeServer, options: list[str], problem: str
) -> None:
    result = ctl("produce", "t", "x", "--unique-key", "k", *options)
    assert result.exit_code == 2 and problem in result.stderr and server.produced == []


def test_lines_with_a_unique_key_and_a_ttl(ctl: Any, server: FakeServer) -> None:
    lines = [
        {"text": "a", "unique_key": "u", "ttl": 5, "deliver_at": AT},
        {"text": "b", "unique_key": "u", "deliver_at": AT},
        {"text": "c", "unique_key_base64": "/w==", "deliver_at": AT},
        {"text": "d", "unique_key": "u", "deliver_at": AT},
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    result = ctl("produce", "t", "--jsonl", input=data)
    assert result.exit_code == 1 and len(result.stdout.splitlines()) in (1, 2)
    stored = {row.value: row for row in server.stored["t", 0]}
    assert (stored[b"a"].ttl_ms, stored[b"c"].unique_key, b"b" in stored) == (5000, b"\xff", False)
    before = {(row.value, row.unique_key, row.ttl_ms, offsets.deliver_ms(row.offset)) for row in stored.values()}
    saved = ctl("message", "list", "t", "--values", "-o", "jsonl").stdout
    server.stored.clear()
    assert ctl("produce", "t", "--jsonl", input=saved.encode()).exit_code == 0
    after = {(row.value, row.unique_key, row.ttl_ms, offsets.deliver_ms(row.offset)) for row in server.stored["t", 0]}
    assert after == before
    for bad, words in (
        ({"text": "x", "unique_key": 5}, "unique_key: text is expected"),
        ({"text": "x", "unique_key": "u", "unique_key_base64": "/w=="}, "one of them"),
        ({"text": "x", "ttl": -1}, "-1"),
        ({"text": "x", "unique_key": "", "key": "w"}, "line 1"),
    ):
        result = ctl("produce", "t", "--jsonl", input=json.dumps(bad).encode())
        assert result.exit_code == 1 and words in result.stderr
    assert ctl("produce", "t", "--jsonl", "--unique-key", "u", input=b"").exit_code == 2


def test_windows_and_many_partitions(ctl: Any, server: FakeServer) -> None:
    server.add_topic("wide", partitions=3)
    for partition in "012":
        args = ["--lines", "--at", AT, "--partition", partition, "--key", f"k{partition}"]
        assert ctl("produce", "wide", *args, input=b"a\nb\n").exit_code == 0
    listed = rows(ctl("message", "list", "wide", "-o", "jsonl").stdout)
    assert [row["offset"] for row in listed] == sorted(row["offset"] for row in listed) and len(listed) == 6
    assert len(rows(ctl("message", "list", "wide", "--key-prefix", "k1", "-o", "jsonl").stdout)) == 2
    result = ctl("message", "list", "wide", "--limit", "4")
    assert len(result.stdout.splitlines()) == 5 and "only the first 4" in result.stderr
    result = ctl("message", "cancel", "wide", "--key-prefix", "k1", "--dry-run")
    assert result.stdout.startswith("2 messages of wide")
    result = ctl("message", "move", "wide", "--until", AT, "--shift", "1h", "--yes")
    assert result.stdout.startswith("moved 0 of 0 messages")
    result = ctl("message", "move", "wide", "--since", AT, "--shift", "-30m", "--yes", "-o", "json")
    assert json.loads(result.stdout) == {"matched": 6, "done": 6, "too_late": 0}
    ids = [row["id"] for row in listed]
    result = ctl("message", "cancel", "wide", *ids)
    assert result.stdout == "".join(f"cancelled {one}\n" for one in ids)
    assert ctl("message", "cancel", "wide", "--all", "--yes").stdout == "cancelled 0 of 0 messages of wide\n"


def test_dead_letters_and_groups(ctl: Any, server: FakeServer) -> None:
    ctl("produce", "t", "--lines", input=b"a\nb\nc\n")
    for row, reason in zip(server.stored["t", 0], ("nacked", "expired", "nacked"), strict=True):
        row.state, row.dead_reason = "dead", reason
    result = ctl("dead", "list", "t", "--group", "g", "--values", "-o", "jsonl")
    assert [row["text"] for row in rows(result.stdout)] == ["a", "b", "c"]
    assert result.stderr == "3 dead in group g: 1 expired, 2 nacked\n"
    assert ctl("dead", "list", "t", "-g", "nobody").exit_code == 1
    assert ctl("dead", "redrive", "t", "-g", "g", "--reason", "expired").stdout == "redriven 1 of 1 dead letter\n"
    assert ctl("dead", "purge", "t", "-g", "g", "--all", "--yes").stdout == "purged 2 of 2 dead letters\n"

    assert ctl("group", "update", "t", "g", "--max-attempts", "3").exit_code == 0
    assert server.groups["g"]["settings"] == {"max_attempts": 3}
    shown = json.loads(ctl("group", "show", "t", "g", "-o", "json").stdout)
    assert (shown["settings"], shown["ready"]) == ({"max_attempts": 3}, 2)
    for to, wire in (("latest", "latest"), (AT, NOW_MS + HOUR_MS), ("0" * 26, bytes(16))):
        result = ctl("group", "seek", "t", "g", "--to", to, "--yes")
        assert result.exit_code == 0 and server.groups["g"]["to"] == wire
    assert ctl("group", "delete", "t", "g", "--yes").exit_code == 0
    assert ctl("group", "delete", "t", "g", "--yes").exit_code == 1


def test_topics(ctl: Any, server: FakeServer) -> None:
    options = ["--ttl", "1h", "--retain", "--retain-for", "30d", "--retain-bytes", "10GiB", "--ordering", "key"]
    assert ctl("topic", "create", "log", *options).exit_code == 0
    (frame,) = server.of_type(Type.TOPIC_CREATE)
    settings = {"ttl": "1h", "delete_on_ack": False, "retain": "30d", "retain_bytes": "10GiB", "ordering": "key"}
    assert frame[6] == settings
    assert ctl("topic", "update", "log", "--ttl", "none").exit_code == 0
    assert server.of_type(Type.TOPIC_UPDATE)[0][2:] == ["log", {"ttl": "none"}]
    ctl("produce", "t", "--lines", "--at", AT, input=b"a\nb\n")
    result = ctl("topic", "forecast", "t", "--unit", "hour", "--count", "2")
    assert result.stdout.splitlines()[-2].split()[1] == "2"
    assert ctl("topic", "purge", "t", "--dead", "--yes").stdout == "cancelled 2 messages of t, purged 0 dead letters\n"
    result = ctl("topic", "list", "--limit", "1")
    assert len(result.stdout.splitlines()) == 2 and "only the first 1" in result.stderr


def test_consuming_under_a_name_that_lasts(ctl: Any, server: FakeServer) -> None:
    ctl("produce", "t", "x")
    assert ctl("consume", "t", "-g", "g", "--no-ack").exit_code == 0
    assert server.subscribed[-1].epoch is None
    assert ctl("consume", "t", "-g", "g", "--consumer-id", "w-1", "--no-ack").exit_code == 0
    assert server.subscribed[-1].consumer_id == "w-1" and server.subscribed[-1].epoch > 0
    assert ctl("consume", "t", "-g", "g", "--consumer-id", "w 1", "--no-ack").exit_code == 2


def test_consuming_some_partitions(ctl: Any, server: FakeServer) -> None:
    server.add_topic("three", partitions=3)
    for partition in range(3):
        ctl("produce", "three", f"p{partition}", "--partition", str(partition))
    result = ctl("consume", "three", "-g", "g", "--partition", "0", "--partition", "2", "--no-ack")
    assert result.exit_code == 0, result.stderr
    assert server.subscribed[-1].partitions == [0, 2]
    refused = ctl("consume", "three", "-g", "g", "--partition", "7")
    assert refused.exit_code != 0 and "no partition 7" in refused.stderr


def test_start_option_sets_the_group_position(ctl: Any, server: FakeServer) -> None:
    ctl("produce", "t", "x")
    for start, wire in (("latest", "latest"), (AT, NOW_MS + HOUR_MS), ("0" * 26, bytes(16)), ("earliest", "earliest")):
        assert ctl("consume", "t", "-g", "g", "--start", start, "--no-ack").exit_code == 0
        assert server.subscribed[-1].start == wire
    for args in (["--start", "soon"], ["--lease", "soon"]):
        assert ctl("consume", "t", "-g", "g", *args).exit_code == 2


def test_consuming_several_topics(ctl: Any, server: FakeServer) -> None:
    for topic in ("log.a", "log.b", "other"):
        server.add_topic(topic)
        ctl("produce", topic, f"of {topic}")
    for topics in (["log.a", "log.b"], ["log.*"], ["log.?", "log.b"]):
        result = ctl("consume", *topics, "-g", "g", "--no-ack")
        assert result.exit_code == 0, result.stderr
        assert {request.topic for request in server.subscribed} == {"log.a", "log.b"}
    assert sorted(ctl("consume", "log.*", "-g", "g").stdout.splitlines()) == ["of log.a", "of log.b"]
    assert ctl("consume", "lo/*", "-g", "g").exit_code == 2
    assert ctl("consume", "-g", "g").exit_code == 2
    refused = ctl("consume", "log.a", "log.b", "-g", "g", "--partition", "0")
    assert refused.exit_code == 2 and "a single topic" in refused.stderr


def test_message_with_a_url_is_produced_again_with_it(ctl: Any, server: FakeServer) -> None:
    target = ("--push-method", "PUT", "--push-header", "x-a=b=c", "--push-timeout", "5s")
    assert ctl("produce", "t", "x", "--push-url", "https://shop.example/", *target).exit_code == 0
    header = headers_unpack(Batch.parse(server.produced[0].batch).bytes_column(Column.HEADERS)[0])["sandq-push"]
    assert json.loads(header) == {
        "url": "https://shop.example/",
        "method": "PUT",
        "headers": {"x-a": "b=c"},
        "timeout": "5s",
    }
    lines = json.dumps({"text": "a", "push": {"url": "https://other.example/"}}) + '\n{"text": "b"}\n'
    assert ctl("produce", "t", "--jsonl", "--push-url", "https://shop.example/", input=lines).exit_code == 0
    cells = [cell for one in server.produced[1:] for cell in Batch.parse(one.batch).bytes_column(Column.HEADERS)]
    assert [json.loads(headers_unpack(cell)["sandq-push"])["url"] for cell in cells] == [
        "https://other.example/",
        "https://shop.example/",
    ]
    topics = ("--push-callback", "done", "--push-failure-callback", "failed")
    assert ctl("produce", "t", "x", "--push-url", "https://shop.example/", *topics).exit_code == 0
    cell = Batch.parse(server.produced[-1].batch).bytes_column(Column.HEADERS)[0]
    found = json.loads(headers_unpack(cell)["sandq-push"])
    assert (found["callback"], found["failure_callback"]) == ("done", "failed")
    for option in ("--push-method", "--push-failure-callback"):
        wrong = ctl("produce", "t", "x", option, "PUT")
        assert wrong.exit_code == 2 and f"{option} is for --push-url" in wrong.stderr
    wrong = ctl("produce", "t", "x", "--push-url", "ftp://shop.example/")
    assert wrong.exit_code != 0 and "begins with https://" in wrong.stderr
