"""Tests of sandctl produce and consume."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sandctl.output.jsonl import BadLine, parse_line
from sandctl.output.results import to_json
from sandq.model.batch import Batch, Column, headers_unpack
from sandq.model.errors import StorageFailed
from sandq.protocol.frames import Type
from tests.support.client.fake_server import FakeServer
from tests.support.waiting import PATIENCE_S, wait_until


def stored(server: FakeServer) -> list[bytes]:
    return [row.value for row in server.stored["t", 0]]


def test_produce_one(ctl: Any, server: FakeServer) -> None:
    result = ctl("produce", "t", "hello", "--key", "k", "--header", "a=1=2", "--header", "b=", "--in", "1m")
    assert result.exit_code == 0 and len(result.output) == 27
    batch = Batch.parse(server.produced[0].batch)
    assert batch.values() == [b"hello"] and batch.bytes_column(Column.KEY) == [b"k"]
    cells = batch.bytes_column(Column.HEADERS)
    assert cells is not None and headers_unpack(cells[0]) == {"a": "1=2", "b": ""}
    assert batch.relative and batch.int_column(Column.DELIVER_MS) == [60_000]
    assert ctl("produce", "t", "x", "--at", "1893456000000").exit_code == 0
    assert ctl("produce", "t", "x", "--at", "2030-01-01T00:00:00Z", "--partition", "0").exit_code == 0
    for request in server.produced[1:]:
        assert Batch.parse(request.batch).int_column(Column.DELIVER_MS) == [1_893_456_000_000]
    result = ctl("produce", "t", "x", "-o", "json")
    assert list(json.loads(result.output)[0]) == ["offset"]
    assert ctl("produce", "t", "x", "-o", "jsonl").output.startswith('{"offset": "')


def test_produce_a_file_as_it_is(ctl: Any, server: FakeServer, tmp_path: Path) -> None:
    data = bytes(range(256)) + b"\n\n"
    (tmp_path / "data").write_bytes(data)
    assert ctl("produce", "t", "--file", str(tmp_path / "data")).exit_code == 0
    assert ctl("produce", "t", "--file", "-", input=data).exit_code == 0
    assert stored(server) == [data, data]


def test_produce_reads_a_message_per_line(ctl: Any, server: FakeServer, tmp_path: Path) -> None:
    result = ctl("produce", "t", "--lines", input=b"a\nb\r\n\nlast")
    assert result.exit_code == 0 and len(result.output.splitlines()) == 4
    assert stored(server) == [b"a", b"b", b"", b"last"]
    (tmp_path / "many").write_bytes(b"".join(b"%d\n" % number for number in range(5000)))
    result = ctl("produce", "t", "--lines", "-f", str(tmp_path / "many"), "-o", "json")
    assert len(json.loads(result.output)) == 5000
    assert stored(server)[4:] == [b"%d" % number for number in range(5000)]
    assert json.loads(ctl("produce", "t", "--lines", "-o", "json", input=b"").output) == []


def test_produce_jsonl(ctl: Any, server: FakeServer) -> None:
    lines = [
        {"text": "é", "key": "k", "headers": {"a": 1, "b": {"base64": "AP8="}}, "partition": 77, "offset": "x"},
        {"value": "AP8=", "key_base64": "/w==", "delay": "5s"},
        {"json": {"b": [1, None]}, "deliver_at": 1_893_456_000_000},
    ]
    data = "\n".join(json.dumps(line) for line in lines).encode()
    result = ctl("produce", "t", "--jsonl", "--key", "common", "--in", "9s", input=data)
    assert result.exit_code == 0, result.output
    rows = server.stored["t", 0]
    assert sorted(row.value for row in rows) == sorted(["é".encode(), b"\x00\xff", b'{"b":[1,null]}'])
    by_value = {row.value: row for row in rows}
    assert [by_value[value].key for value in ("é".encode(), b"\x00\xff", b'{"b":[1,null]}')] == [
        b"k",
        b"\xff",
        b"common",
    ]
    assert headers_unpack(by_value["é".encode()].headers) == {"a": 1, "b": b"\x00\xff"}
    times = {
        (batch.relative, time_ms)
        for batch in (Batch.parse(request.batch) for request in server.produced)
        for time_ms in batch.int_column(Column.DELIVER_MS) or []
    }
    assert times == {(True, 9000), (True, 5000), (False, 1_893_456_000_000)}


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ('{"text": "\udc80"}'.encode("utf-8", "surrogatepass").decode("latin-1"), "half a surrogate|not JSON"),
        ("[]", "object is expected"),
        ("{}", "one of text, value and json is expected, not none"),
        ('{"text": "a", "json": 1}', "text and json"),
        ('{"text": 5}', "text: text is expected"),
        ('{"value": "?"}', "value: not base64"),
        ('{"text": "a", "colour": 1}', "colour: no such field"),
        ('{"text": "a", "priority": 1}', "priority: topic 't' is a timer topic"),
        ('{"text": "a", "priority": "1"}', "priority: a whole number"),
        ('{"text": "a", "tenant": "a/b"}', "tenant: 'a/b' is not allowed"),
        ('{"text": "a", "key": 5}', "key: text"),
        ('{"text": "a", "key": "k", "key_base64": "aw=="}', "not both"),
        ('{"text": "a", "key_base64": 5}', "base64 text"),
        ('{"text": "a", "headers": []}', "headers: an object"),
        ('{"text": "a", "headers": {"b": {"base64": "?"}}}', r"headers\.b: not base64"),
        ('{"text": "a", "headers": {"b": {"c": 1}}}', "headers"),
        ('{"text": "a", "delay": -1}', "-1"),
        ('{"text": "a", "deliver_at": 5}', "seconds"),
        ('{"text": "a", "deliver_at": "2030-01-01T00:00:00Z", "delay": 5}', "not both"),
        ("[" * 100_000, "not JSON|object"),
    ],
)
def test_invalid_line_is_named_and_stops(ctl: Any, server: FakeServer, line: str, words: str) -> None:
    data = b'{"text": "1"}\n{"text": "2"}\n' + line.encode("latin-1") + b'\n{"text": "4"}\n'
    result = ctl("produce", "t", "--jsonl", input=data)
    assert result.exit_code == 1
    assert len(result.stdout.splitlines()) == 2
    import re

    assert re.search(rf"^Error: line 3: .*({words}).*; 2 messages sent$", result.stderr.strip()), result.stderr
    assert stored(server) == [b"1", b"2"]


def test_any_line_is_a_message_or_invalid() -> None:
    with pytest.raises(BadLine):
        parse_line(b"\xff\xfe")
    with pytest.raises(BadLine):
        parse_line(b'{"text": "\\ud800"}')
    typed = {"content-type": "application/json"}
    assert parse_line(b'{"json": null}') == {"value": b"null", "headers": typed}
    assert parse_line(b'{"json": 1}', {"a": "b"}) == {"value": b"1", "headers": {"a": "b", **typed}}
    assert parse_line(b'{"json": 1, "headers": {}}', {"a": "b"}) == {"value": b"1", "headers": typed}


def test_refused_line_is_named(ctl: Any, server: FakeServer) -> None:
    server.script[Type.PRODUCE] += [StorageFailed("disk full")] * 2  # both messages may come in one batch or in two
    result = ctl("produce", "t", "--lines", input=b"a\nb\n")
    assert result.exit_code == 1 and "line 1: disk full; 1 more failed; 0 messages sent" in result.stderr
    result = ctl("produce", "nope", "--lines", input=b"a\n")
    assert result.exit_code == 1 and "nope" in result.stderr


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["x", "--file", "-"],
        ["x", "--lines"],
        ["--lines", "--jsonl"],
        ["x", "--at", "1893456000000", "--in", "5s"],
        ["x", "--header", "novalue"],
        ["--file", "/no/such/file"],
    ],
)
def test_wrong_usage_of_produce(ctl: Any, args: list[str]) -> None:
    assert ctl("produce", "t", *args).exit_code == 2


def test_consume_prints_and_acks_ready_messages(ctl: Any, server: FakeServer) -> None:
    ctl("produce", "t", "--lines", input=b"a\nb\nc\n")
    result = ctl("consume", "t", "--group", "g")
    assert (result.exit_code, result.output) == (0, "a\nb\nc\n")
    assert [row.state for row in server.stored["t", 0]] == ["acked"] * 3
    assert ctl("consume", "t", "-g", "g", "-o", "json").output == "[]\n"


def test_consume_max_and_no_ack(ctl: Any, server: FakeServer) -> None:
    ctl("produce", "t", "--lines", input=b"a\nb\nc\n")
    assert ctl("consume", "t", "-g", "g", "--max", "2", "--no-ack").output == "a\nb\n"
    assert [(row.state, row.attempt) for row in server.stored["t", 0]] == [("ready", 0)] * 3
    assert ctl("consume", "t", "-g", "g", "--max", "2", "--lease", "90s").output == "a\nb\n"
    assert server.subscribed[-1].lease_ms == 90_000 and server.subscribed[-1].credit == 2
    assert [row.state for row in server.stored["t", 0]] == ["acked", "acked", "ready"]
    assert ctl("consume", "t", "-g", "g", "--no-ack").output == "c\n"
    assert ctl("consume", "nope", "-g", "g").exit_code == 1


def test_consume_output_is_valid_produce_input(ctl: Any, server: FakeServer) -> None:
    lines = [
        {"text": "é", "key": "k", "headers": {"a": 1, "b": {"base64": "AP8="}}},
        {"value": "AP8=", "key_base64": "/w=="},
    ]
    ctl("produce", "t", "--jsonl", input="\n".join(map(json.dumps, lines)).encode())
    result = ctl("consume", "t", "-g", "g", "-o", "jsonl")
    found = [json.loads(line) for line in result.output.splitlines()]
    assert [{key: one[key] for key in line} for line, one in zip(lines, found, strict=True)] == lines
    assert found[0]["deliver_at"] == "2023-11-14T22:13:20.000Z" and found[0]["attempt"] == 1
    assert found[0].keys() >= {"offset", "id", "topic", "partition", "created_at", "lease_token"}
    before = [(row.value, row.key, row.headers) for row in server.stored["t", 0]]
    server.stored.clear()
    assert ctl("produce", "t", "--jsonl", input=result.output.encode()).exit_code == 0
    assert [(row.value, row.key, row.headers) for row in server.stored["t", 0]] == before
    result = ctl("consume", "t", "-g", "h", "-o", "json", "--max", "2")
    assert [one["offset"] for one in json.loads(result.output)] == sorted(
        one["offset"] for one in json.loads(result.output)
    )


def test_follow_until_interrupted(spawn: Any, server: FakeServer) -> None:
    process = spawn("consume", "t", "--group", "g", "--follow")
    wait_until(lambda: server.subscribed)
    producer = spawn("produce", "t", "--lines")
    producer.stdin.write(b"one\ntwo\n")
    producer.stdin.flush()
    assert [process.stdout.readline(), process.stdout.readline()] == [b"one\n", b"two\n"]
    assert len(producer.stdout.readline()) == 27  # confirmed although the input is still open
    producer.communicate()
    assert producer.returncode == 0
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert process.stderr.read().strip() == b""
    assert [row.state for row in server.stored["t", 0]] == ["acked", "acked"]
    assert server.unsubscribed


def test_interrupted_while_reading_standard_input(spawn: Any, server: FakeServer) -> None:
    process = spawn("produce", "t", "--lines")
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert len(process.stdout.readline()) == 27
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert process.stderr.read().strip() == b""


def test_a_reader_that_leaves_is_quiet(spawn: Any, ctl: Any, server: FakeServer) -> None:
    ctl("produce", "t", "--lines", input=b"x" * 500 + b"\n" + b"y" * 500 + b"\n")
    reading, writing = os.pipe()
    process = spawn("consume", "t", "--group", "g", "--follow", stdout=writing)
    os.close(writing)
    assert os.read(reading, 1) == b"x"
    os.close(reading)
    ctl("produce", "t", "--lines", input=b"z\n" * 100)
    assert process.wait(PATIENCE_S) == 1
    assert process.stderr.read() == b""
    assert "ready" in [row.state for row in server.stored["t", 0]]  # a message that was not printed was not acked


def test_leases_are_extended_while_output_is_blocked(spawn: Any, server: FakeServer) -> None:
    # Leases of a minute are extended early.
    often = "subscription._EXTEND_PART = 1.003"
    process = spawn("consume", "t", "--group", "g", "--max", "40", "--lease", "60s", change=often)
    wait_until(lambda: server.subscribed)
    with_process = spawn("produce", "t", "--lines")
    with_process.communicate(b"\n".join([b"x" * 10_000] * 40))
    wait_until(lambda: server.extends)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, len(output), errors) == (0, 40 * 10_001, b"")


def test_a_message_of_json_is_checked_and_has_its_content_type(ctl: Any, server: FakeServer) -> None:
    assert ctl("produce", "t", '{"n": 12345678901234567890}', "--json", "--header", "a=b").exit_code == 0
    assert stored(server) == [b'{"n":12345678901234567890}']
    for value, args in (("{", []), ("NaN", []), ("1", ["--lines"]), ('{"a":1,"a":2}', [])):
        result = ctl("produce", "t", *(args if args else [value]), "--json", input=b"")
        assert result.exit_code == 2 and "--json" in result.stderr, value


def test_json_of_message_keeps_its_numbers() -> None:
    assert to_json({"json": {"n": 2**60}, "size": 2**60}) == f'{{"json": {{"n": {2**60}}}, "size": "{2**60}"}}'


def test_empty_lines_of_json_lines_are_skipped_and_counted(ctl: Any, server: FakeServer) -> None:
    data = b'{"text": "1"}\r\n\n  \r\n{"text": "2"}\n\n'
    result = ctl("produce", "t", "--jsonl", input=data)
    assert result.exit_code == 0 and len(result.stdout.splitlines()) == 2
    assert stored(server) == [b"1", b"2"]
    result = ctl("produce", "t", "--jsonl", input=b"\n{")
    assert result.exit_code == 1 and "line 2" in result.stderr


def test_lines_lose_their_line_feed_and_carriage_return(ctl: Any, server: FakeServer) -> None:
    ctl("produce", "t", "--lines", input=b"a\r\nb\n\r\n c\r d\r")
    assert stored(server) == [b"a", b"b", b"", b" c\r d"]
