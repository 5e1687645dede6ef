"""Tests of `sandctl bench` with a server that keeps messages: it deletes its topics and prints its measurements."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from sandq.model.errors import StorageFailed
from sandq.protocol.frames import Type
from tests.support.client.fake_server import FakeServer
from tests.support.waiting import PATIENCE_S, wait_until


def test_produce(ctl: Any, server: FakeServer) -> None:
    result = ctl("bench", "produce", "--messages", "500", "--size", "10", "-o", "json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["bench"], found["messages"], found["wanted"], found["size"]) == ("produce", 500, 500, 10)
    assert found["rate"] > 0 and found["cpu_us"] > 0 and found["latency"].keys() == {"p50_ms", "p99_ms", "max_ms"}
    assert set(server.topics) == {"t"}, "the topic of the bench is gone"
    (made,) = server.of_type(Type.TOPIC_CREATE)
    assert made[4] == 4 and made[2].startswith("bench-")
    lines = ctl("bench", "produce", "--messages", "40", "--batch", "7", "--partitions", "1").stdout.splitlines()
    assert lines[0].startswith("produce: 40 messages of 100 bytes in ")
    assert [line.split()[0] for line in lines[1:]] == ["rate", "CPU", "latency"]


def test_latency_at_a_rate_counts_from_the_planned_time(ctl: Any, server: FakeServer) -> None:
    def late(connection: Any, frame: Any) -> None:
        time.sleep(0.2)  # the server's only thread stands still
        server.answer(connection, frame)

    server.script[Type.PRODUCE] += [late]
    result = ctl("bench", "produce", "--rate", "100", "--messages", "30", "-o", "jsonl")
    found = json.loads(result.stdout)
    assert found["messages"] == 30 and found["seconds"] >= 0.25
    assert found["latency"]["max_ms"] >= 150, "messages that waited meanwhile have a high latency"


def test_a_topic_that_is_named_stays(ctl: Any, server: FakeServer) -> None:
    assert ctl("bench", "produce", "--topic", "t", "--messages", "5").exit_code == 0
    assert "t" in server.topics and not server.of_type(Type.TOPIC_CREATE)
    for what in ("consume", "lateness"):
        result = ctl("bench", what, "--topic", "t", "--messages", "5")
        assert result.exit_code == 1 and "holds 3 messages, which this would consume" in result.stderr
        assert result.stdout == "" and "t" in server.topics
    assert not server.subscribed


def test_consume(ctl: Any, server: FakeServer) -> None:
    result = ctl("bench", "consume", "--messages", "50", "--batch", "20", "-o", "json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["messages"], len(server.acks) > 0) == (0, 50, True)
    assert set(server.topics) == {"t"}


def test_a_server_that_refuses(ctl: Any, server: FakeServer) -> None:
    server.script[Type.PRODUCE] += [StorageFailed("disk full")]
    result = ctl("bench", "produce", "--messages", "5")
    assert result.exit_code == 1 and "disk full" in result.stderr and set(server.topics) == {"t"}
    assert ctl("bench", "produce", "--topic", "nope").exit_code == 1
    assert ctl("-s", "127.0.0.1:1", "bench", "produce").exit_code == 3


def test_interrupted_bench_prints_its_measurement(spawn: Any, server: FakeServer) -> None:
    process = spawn("-o", "json", "bench", "produce", "--rate", "200", "--duration", "500s")
    # About twenty messages may be unanswered at any time.
    wait_until(lambda: len(server.produced) >= 60)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130 and b"Traceback" not in errors, errors
    found = json.loads(output)
    assert 10 < found["messages"] < found["wanted"] == 100_000
    assert set(server.topics) == {"t"}, "the bench deletes its topic"


@pytest.mark.parametrize(
    "args",
    [
        ["produce", "--messages", "0"],
        ["produce", "--messages", "5000001"],
        ["produce", "--messages", "x"],
        ["produce", "--size", "-1"],
        ["produce", "--size", "9000000"],
        ["produce", "--rate", "nan"],
        ["produce", "--rate", "10000000", "--duration", "1h"],
        ["produce", "--duration", "0"],
        ["produce", "--duration", "soon"],
        ["produce", "--batch", "0"],
        ["produce", "--partitions", "5000"],
        ["consume", "--rate", "5"],
        ["lateness", "--size", "5"],
        ["lateness", "--batch", "5"],
        ["latenes"],
        [],
    ],
    ids=" ".join,
)
def test_wrong_usage(ctl: Any, server: FakeServer, args: list[str]) -> None:
    result = ctl("bench", *args)
    assert result.exit_code == 2 and set(server.topics) == {"t"} and not server.of_type(Type.TOPIC_CREATE)
