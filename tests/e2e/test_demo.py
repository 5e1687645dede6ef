"""The demo runs with a small input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.waiting import wait_until_gone


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Return the environment of the demo, whose temporary files are in `tmp_path`."""
    return os.environ | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT), "COLUMNS": "120"}


@pytest.fixture
def reminders(tmp_path: Path) -> Path:
    source = tmp_path / "reminders.jsonl"
    lines = [
        {
            "id": f"r{n}",
            "customer": f"c{n % 7}",
            "text": f"Do number {n}",
            "in": 300 + n * 37 % 2000 if n % 2 else "1.2s",
        }
        for n in range(120)
    ]
    source.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return source


def demo(environ: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "demo", *options]
    return subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)


def left(tmp_path: Path) -> list[Path]:
    return list(tmp_path.glob("sandq-demo-*"))


def test_demo_across_kill_and_fourth_node_succeeds(tmp_path: Path, environ: dict[str, str], reminders: Path) -> None:
    done = demo(environ, "--reminders", str(reminders), "--seconds", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "a cluster: node1 has founded it, node2 and node3 have found it by gossip\n" in done.stdout
    assert re.search(r"kill -9 of node\d, leader of partitions? \d", done.stdout)
    assert re.search(r"\d+ ms after the kill all partitions are led by node\d \(\d", done.stdout)
    assert re.search(r"node\d is back over its own data", done.stdout)
    assert "produced    120 of 120" in done.stdout
    assert "lost        0\n" in done.stdout
    assert "early       0 " in done.stdout
    assert re.search(r"lateness    p50 [\d.]+ ms, p99 [\d.]+ ms", done.stdout)
    assert "doubled     0\n" in done.stdout
    assert re.search(r"  failover  (p50|none)", done.stdout) and "  the rest  p50 " in done.stdout
    assert re.search(r"failover    from the kill of node\d to new leaders \d+ ms", done.stdout)
    assert re.search(r"nodes: .*node\d failed, holds 4, leads ", done.stdout)
    assert re.search(r"nodes: .*node4 new, holds \d, leads none", done.stdout)
    assert re.search(r"node4 +joined the cluster [\d.]+ s after its start; its share had settled after", done.stdout)
    assert (
        "replicas    before: node1 4, node2 4, node3 4; after: node1 3, node2 3, node3 3, node4 3 (it leads partition"
    ) in done.stdout
    assert ("PASSED: nothing lost, nothing early across a kill -9 of a leader; node4 holds its share\n") in done.stdout
    assert "\x1b" not in done.stdout  # without a terminal, the demo prints plain lines
    assert left(tmp_path) == []


@pytest.mark.long
def test_without_a_kill_and_keeping_the_data(tmp_path: Path, environ: dict[str, str], reminders: Path) -> None:
    done = demo(environ, "--reminders", str(reminders), "--seconds", "2", "--no-kill", "--keep")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9" not in done.stdout
    assert "PASSED: nothing lost, nothing early; node4 holds its share\n" in done.stdout
    (kept,) = left(tmp_path)
    assert str(kept) in done.stdout
    assert all((kept / name / "data").is_dir() for name in ("node1", "node2", "node3", "node4"))


def test_bad_input_is_named(tmp_path: Path, environ: dict[str, str], reminders: Path) -> None:
    with reminders.open("a") as file:
        file.write('{"id": "x", "text": "no time"}\n')
    done = demo(environ, "--reminders", str(reminders))
    assert done.returncode == 2
    assert "reminders.jsonl:121: in: the delay is missing" in done.stderr
    assert left(tmp_path) == []


def test_any_file(tmp_path: Path, environ: dict[str, str]) -> None:
    source = tmp_path / "any"
    lines = [b"same", b"", b"same", b"\xff\x00 no text", b"{no json", b"with \r", b"[1, 2]"]
    lines += [json.dumps({"text": f"t{n}", "key": f"k{n % 3}", "delay": n / 50}).encode() for n in range(40)]
    lines += [b'{"value": {"a": 1}, "deliver_at": "2001-01-01T00:00:00Z"}', b'{"text": "late", "delay": "900d"}']
    source.write_bytes(b"\n".join(lines))
    done = demo(environ, "--input", str(source), "--seconds", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (
        f"input       {source}: 48 lines, ",
        "42 at their own times (multiplied by",
        "skipped     1 empty lines",
        "produced    48 of 48 lines",
        "lost        0\n",
        "too often   0\n",
        "early       0 ",
        "PASSED: each line was delivered exactly as often as it stands in the file, and none early\n",
    ):
        assert words in done.stdout
    assert re.search(r"lateness    p50 [\d.]+ ms, p99 [\d.]+ ms", done.stdout)
    assert left(tmp_path) == []


def test_demo_with_largest_messages_succeeds(tmp_path: Path, environ: dict[str, str]) -> None:
    source = tmp_path / "large"
    source.write_bytes(b"x" * (8 * 1024 * 1024) + b"\n" + b"y" * (8 * 1024 * 1024) + b"\n")
    done = demo(environ, "--input", str(source), "--seconds", "1")
    assert done.returncode == 0 and "produced    2 of 2 lines" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "nothing to send, it is empty"),
        (b"\n\n", "its 2 lines are empty"),
        (b"a\n" + b"x" * (8 * 1024 * 1024 + 1), "any:2: the line is longer than a message can be"),
        (None, "does not exist"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path: Path, environ: dict[str, str], content: bytes | None, words: str) -> None:
    source = tmp_path / "any"
    if content is not None:
        source.write_bytes(content)
    done = demo(environ, "--input", str(source))
    assert done.returncode == 2 and words in done.stderr and done.stdout == ""
    assert demo(environ, "--input", str(tmp_path)).returncode == 2
    assert left(tmp_path) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_demo_leaves_no_node(
    how: signal.Signals, tmp_path: Path, environ: dict[str, str], reminders: Path
) -> None:
    command = [sys.executable, "-m", "demo", "--reminders", str(reminders)]
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            nodes = _nodes_that_deliver(process.stdout)
            process.send_signal(how)
            rest = process.stdout.read() if process.stdout is not None else ""
            assert process.wait() == (130 if how is signal.SIGINT else -signal.SIGKILL), rest
        finally:
            process.kill()
    assert len(nodes) == 3
    for node in nodes:
        wait_until_gone(node)
    if how is signal.SIGINT:
        assert left(tmp_path) == []


def test_demo_keeps_data_after_its_reader_leaves(tmp_path: Path, environ: dict[str, str]) -> None:
    source = tmp_path / "any"
    source.write_bytes(b"one\ntwo\n")
    command = [sys.executable, "-m", "demo", "--input", str(source), "--seconds", "1", "--keep"]
    with subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.wait() == 0
        assert process.stderr.read() == b""
    (kept,) = left(tmp_path)
    assert list(kept.rglob("wal"))


def _nodes_that_deliver(output: Iterable[str] | None) -> list[int]:
    """Wait until the demo has delivered messages. Return the process ids of its nodes."""
    nodes: list[int] = []
    for line in output or ():
        nodes += map(int, re.findall(r"\(process (\d+)", line))
        if nodes and re.search(r"delivered [1-9]", line):
            return nodes
    raise AssertionError("the demo ended")
