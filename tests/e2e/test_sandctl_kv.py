"""`sandctl kv` and compacted topics work against a real node. Each command is a process."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pytest

from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Ctl, interrupt


@pytest.fixture(scope="module")
def ctl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ctl]:
    node = NodeProcess(tmp_path_factory.mktemp("node"))
    node.start()
    yield Ctl(node)
    node.close()


def test_settings(ctl: Ctl) -> None:
    ctl("topic create set --kind compacted --partitions 2 --history 10m --tombstone-retention 7d --ttl 30d --lease 1m")
    shown = ctl.json("topic show set")
    settings = shown["settings"]
    assert shown["kind"] == "compacted" and settings.keys() == {
        "lease", "max_attempts", "max_snoozes", "backoff", "group_ttl", "ttl", "history", "tombstone_retention",
        "max_message_bytes", "max_lease", "max_request_rate", "max_request_burst",
        "partition_delimiter", "dead_retention", "max_dead_letters",
    }  # fmt: skip
    assert (settings["history"], settings["tombstone_retention"], settings["ttl"]) == ("10m", "7d", "30d")
    ctl("topic update set --history 0s --ttl none --tombstone-retention 1h")
    settings = ctl.json("topic show set")["settings"]
    assert (settings["history"], settings["tombstone_retention"], settings["ttl"]) == ("0s", "1h", None)
    assert "for ever" in ctl("topic update set --partitions 3", code=2).err
    assert "retention" in ctl("topic update set --retention 1h", code=2).err
    assert "history" in ctl("topic create other --history 1m", code=2).err
    assert "put or delete its key" in ctl("topic purge set --yes", code=2).err


def test_keys(ctl: Ctl) -> None:
    ctl("topic create keys --kind compacted --partitions 3")
    version = ctl("kv put keys a/1 one").out.strip()
    assert ctl.json("kv get keys a/1")["version"] == version
    refused = ctl("kv cas keys a/1 two --absent", code=1)
    assert refused.out == "" and version in refused.err
    second = ctl("kv cas keys a/1 two --version", version).out.strip()
    assert "no value" in ctl("kv cas keys nothing x --version", version, code=1).err
    assert second in ctl("kv delete keys a/1 --version", version, code=1).err
    ctl("kv put keys b --file -", stdin="from\nstdin\n")
    assert ctl("kv get keys b --raw").out == "from\nstdin\n"
    assert [row["key"] for row in ctl("kv scan keys -o jsonl").rows] == ["a/1", "b"]
    assert [row["key"] for row in ctl("kv scan keys --prefix a -o jsonl").rows] == ["a/1"]
    assert ctl("kv delete keys a/1 nothing").out.startswith("deleted 'a/1' (")
    assert ctl("kv get keys a/1", code=1).err == "sandctl: no value: 'a/1'\n"
    ctl("topic create timed")
    for words in ("get timed a", "put timed a b", "scan timed", "watch timed", "delete timed a"):
        assert "timer topic" in ctl(f"kv {words}", code=2).err


def test_consumed_log_can_be_produced_again(ctl: Ctl) -> None:
    ctl("topic create from --kind compacted --history 1h")
    ctl("kv put from a 1 --header by=ada")
    ctl("kv put from b 2")
    ctl("kv delete from a")
    assert ctl("consume from --group look").out == "1\n2\n(deleted: a)\n"
    copied = ctl("consume from --group copy -o jsonl").out
    rows = [json.loads(line) for line in copied.splitlines()]
    assert [(row["key"], row.get("text"), row.get("value", 0)) for row in rows] == [
        ("a", "1", 0), ("b", "2", 0), ("a", None, None)
    ]  # fmt: skip
    ctl("topic create into --kind compacted --partitions 2")
    ctl("produce into --jsonl", stdin=copied)
    assert [row["key"] for row in ctl("kv scan into -o jsonl").rows] == ["b"]
    ctl("produce into --jsonl --key b", stdin='{"value": null}\n')
    assert ctl("kv scan into").err == "none\n"
    ctl("topic create plain")
    assert "without keys to delete" in ctl("produce plain --jsonl", stdin='{"key": "b", "value": null}\n', code=1).err
    assert "no deliver_ms" in ctl("produce into --jsonl", stdin='{"key": "b", "text": "x", "delay": 9}', code=1).err


@pytest.mark.parametrize("output", ["table", "json", "jsonl"])
def test_a_watch_until_it_is_interrupted(ctl: Ctl, output: str) -> None:
    topic = f"watched-{output}"
    ctl(f"topic create {topic} --kind compacted --partitions 2")
    ctl(f"kv put {topic} a before")
    gone = b"(deleted)" if output == "table" else b'"value": null'
    deleted = False

    def is_enough(printed: bytes) -> bool:
        nonlocal deleted
        if not deleted and b"before" in printed:
            ctl(f"kv delete {topic} a")
            deleted = True
        return gone in printed

    command = [sys.executable, "-m", "sandctl", "kv", "watch", topic, "--start", "earliest", "-o", output]
    code, printed, errors = interrupt(command, is_enough, env=ctl.environ)
    assert (code, errors) == (0, b"")
    if output == "json":
        assert [row["key"] for row in json.loads(printed)] == ["a", "a"]
    else:
        assert len(printed.splitlines()) == 2


def test_a_watch_of_some(ctl: Ctl) -> None:
    ctl("topic create some --kind compacted --history 1h")
    first = ctl("kv put some a 1").out.strip()
    ctl("kv put some a 2")
    ctl("kv put some b 1")

    def seen(*more: str) -> list[tuple[str, str]]:
        return [(row["key"], row["text"]) for row in ctl("kv watch some -o jsonl", *more).rows]

    assert seen("--start", "earliest", "--max", "3") == [("a", "1"), ("a", "2"), ("b", "1")]
    assert seen("--start", "earliest", "--latest", "--max", "2") == [("a", "2"), ("b", "1")]
    assert seen("--start", first, "--key", "a", "--max", "1") == [("a", "2")]
    assert seen("--start", "earliest", "--prefix", "b", "--max", "1") == [("b", "1")]
