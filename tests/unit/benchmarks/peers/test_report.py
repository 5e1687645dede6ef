"""Tests from samples to a report: medians, ratios, tables, charts, and the order of the rounds."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.peers import charts, rabbitmq, server
from benchmarks.peers.__main__ import _short, schedule
from benchmarks.peers.driver import Sample, percentiles
from benchmarks.peers.figures import Outcome, ratio, rows
from benchmarks.peers.loop import DueTimes, value
from benchmarks.peers.nats import config
from benchmarks.peers.registry import OURS, PEERS
from benchmarks.peers.report import Run, as_json, head, markdown, number, table_of
from benchmarks.peers.workloads import BY_NAME, VALUE_BYTES, WORKLOADS
from demo.node import ROOT
from tests.support.waiting import wait_until

T_MS = 1_700_000_000_000
BUSY = """
import os, subprocess, sys, time
busy = "import time\\nwhile time.process_time() < 0.1: pass"
exec(busy)
subprocess.run([sys.executable, "-c", busy])
ended = os.times()
print(time.process_time() + ended.children_user + ended.children_system, flush=True)
input()
"""
"""A program that computes, like its child process. It prints their CPU time in s, and waits for a line."""


def sample(rate: float, server_us: float, **more: object) -> Sample:
    return Sample(1000, 1000 / rate, server_us * 1e-3, 5e-4, **more)  # type: ignore[arg-type]


def of(peer: str, workload: str, *samples: Sample) -> list[Outcome]:
    return [Outcome(at, peer, workload, one) for at, one in enumerate(samples, 1)]


def a_run() -> Run:
    """Return the outcomes of a run with several brokers, one of which failed."""
    outcomes = [
        *of(OURS, "produce_batched", sample(300, 2), sample(100, 4), sample(200, 3)),
        *of("nats", "produce_batched", sample(100, 6), sample(100, 6), sample(100, 6)),
        *of("postgres", "produce_batched", sample(50, 1, syncs=10), sample(50, 1, syncs=30)),
        Outcome(1, "rabbitmq", "produce_batched", None, "it said no | twice"),
        *of(OURS, "lateness", sample(200, 9, times_ms=[1.0, 2.0, 5.0], early=0)),
        *of("redis-always", "lateness", sample(200, 9, times_ms=[1.0, 4.0, 6.0], early=1)),
        *of("redis-always", "lateness", sample(200, 9, times_ms=[1.0, 4.0, 8.0], early=2)),
    ]
    left_out = {"beanstalkd-f0": "beanstalkd is not installed"}
    return Run({"cores": 2}, {"nats": "nats-server: v2"}, left_out, [*PEERS.values()], outcomes)


# ------------------------------------------------------------------------------------------------------------- figures


def test_rows_are_medians_with_their_spread_and_ratios_are_ours_through_theirs() -> None:
    ours, nats, postgres = rows(a_run().outcomes, "produce_batched")
    assert ours.rate == pytest.approx((200, 100, 300)) and ours.server_us == pytest.approx((3, 2, 4))
    assert (ours.rate_ratio, ours.cpu_ratio) == (None, None)
    assert nats.rate_ratio == pytest.approx(2) and nats.cpu_ratio == pytest.approx(0.5)
    assert postgres.per_sync == pytest.approx(50) and nats.per_sync is None
    assert nats.client_us == pytest.approx(0.5)


def test_lateness_row_has_the_maximum_and_the_sum_of_early_messages() -> None:
    ours, redis = rows(a_run().outcomes, "lateness")
    assert (ours.early, redis.early, redis.max_ms) == (0, 3, 8.0)
    assert redis.p99_ratio == pytest.approx(0.5)


def test_without_sandq_there_are_no_ratios() -> None:
    (row,) = rows(of("nats", "produce_batched", sample(1, 1)), "produce_batched")
    assert row.rate_ratio is None
    assert ratio(1, 0) is None


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentiles([7.0]) == [7.0, 7.0, 7.0]
    assert percentiles([float(at) for at in range(1000, 0, -1)]) == [500.0, 990.0, 1000.0]


@pytest.mark.parametrize(("given", "text"), [(None, ""), (0.123, "0.12"), (12.34, "12.3"), (12345.6, "12,346")])
def test_numbers_have_three_digits(given: float | None, text: str) -> None:
    assert number(given) == text


# -------------------------------------------------------------------------------------------------------------- report


def test_report_lists_every_peer_or_the_reason_for_its_absence() -> None:
    text = markdown(a_run(), {"lateness": "peers-lateness.png"})
    first, _, second = text.partition("## produce_batched")[2].partition("## lateness")
    assert "| sandq |" in first and "| nats * |" in first
    assert "failed: rabbitmq, round 1: it said no" in first
    assert "beanstalkd-f0: left out: beanstalkd is not installed" in first
    assert "nats: cannot do it: no delayed delivery" in second and "![lateness](peers-lateness.png)" in second
    assert "nats-server: v2" in text and "## Conditions" in text


@pytest.mark.parametrize("name", BY_NAME)
def test_every_table_has_as_many_cells_as_columns(name: str) -> None:
    timed = sample(10, 1, times_ms=[1.0, 2.0, 3.0], early=0)
    run = Run({}, {}, {}, [*PEERS.values()], of(OURS, name, timed) + of("nats", name, timed))
    (ours, nats) = table_of(run, BY_NAME[name])
    assert len(ours) == len(nats) == len(head(BY_NAME[name]))


def test_json_report_has_all_figures() -> None:
    found = json.loads(as_json(a_run()))
    assert len(found["outcomes"]) == len(a_run().outcomes)
    assert found["rows"]["produce_batched"][1]["cpu_ratio"] == pytest.approx(0.5)
    assert found["syncs_before_it_answers"]["nats"] is False


def test_errors_contain_no_path_of_the_machine() -> None:
    assert str(ROOT) not in _short(OSError(f"no such file: {ROOT}/demo/x"))


def test_charts_are_images_and_mark_brokers_that_sync_later(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert charts.write_charts(tmp_path, a_run()) == {
        "produce_batched": "peers-produce_batched.png",
        "lateness": "peers-lateness.png",
    }
    assert (tmp_path / "peers-lateness.png").read_bytes().startswith(b"\x89PNG")
    assert "hatch" in charts.style(PEERS["nats"]) and "hatch" not in charts.style(PEERS["redis-always"])


# --------------------------------------------------------------------------------------------------------------- order


def test_every_peer_does_every_load_it_can_in_every_round_and_none_is_always_first() -> None:
    peers = [*PEERS.values()]
    order = [(round_, peer.name, workload.name) for round_, peer, workload in schedule(peers, WORKLOADS, 2)]
    able = [(peer.name, one.name) for peer in peers for one in WORKLOADS if one.name not in peer.cannot]
    assert sorted(order) == sorted((round_, *pair) for round_ in (1, 2) for pair in able)
    firsts = [name for at, (_, name, load) in enumerate(order) if at == 0 or order[at - 1][2] != load]
    assert len(set(firsts)) > 4


# ------------------------------------------------------------------------------------------------------------- servers


def test_cpu_time_of_a_server_includes_its_child_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    line = "{} (a) b) S {} 1 1 0 -1 0 0 0 0 0 100 200 30 40 20 0 1 0 {} 0 0"
    found = [server.parse_stat(line.format(*ids)) for ids in ((10, 1, 5), (11, 10, 6), (12, 11, 7), (13, 1, 8))]
    ticks = os.sysconf("SC_CLK_TCK")
    assert found[0] == (10, 1, 5, 300 / ticks, 70 / ticks)
    assert [process.pid for process in server.descend(found, 10)] == [10, 11, 12]
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as busy:
        assert busy.stdout is not None
        used_s = float(busy.stdout.readline())
        assert used_s > 0.15 and server.cpu_s(busy.pid) == pytest.approx(used_s, abs=0.1)
        busy.communicate(b"\n")
    ended = [process._replace(pid=process.pid + (1 << 22), parent=process.parent + (1 << 22)) for process in found]
    monkeypatch.setattr(server, "tree", lambda pid: server.descend(ended, pid + (1 << 22)))
    assert server.cpu_s(11) == pytest.approx(2 * 370 / ticks)


def test_server_is_ended_with_its_children_and_its_log_is_shown(tmp_path: Path) -> None:
    with server.running(["sh", "-c", "sleep 600 & wait"], tmp_path) as pid:
        wait_until(lambda: len(server.tree(pid)) >= 2)
        below = os.pidfd_open(server.tree(pid)[1].pid)
    assert not server.tree(pid)
    with os.fdopen(below):
        assert select.select([below], [], [], 0)[0], "the process has ended, even before its exit code is read"
    with (
        pytest.raises(server.NotServing, match="what went wrong"),
        server.running(["sh", "-c", "echo what went wrong; exit 3"], tmp_path) as pid,
    ):
        server.wait_until_ready(_refuse, pid)


def _refuse() -> None:
    raise ConnectionRefusedError


def test_servers_listen_here_only(tmp_path: Path) -> None:
    assert 'listen: "127.0.0.1:4222"' in config(4222, tmp_path)
    found = rabbitmq.settings(tmp_path, 1, 2, 3)
    assert found["RABBITMQ_NODE_IP_ADDRESS"] == found["ERL_EPMD_ADDRESS"] == "127.0.0.1"
    assert "inet_dist_use_interface {127,0,0,1}" in found["RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"]
    files = [path for name, path in found.items() if name.endswith(("_BASE", "_FILE", "HOME")) and path != "/dev/null"]
    assert len(files) == 5 and all(path.startswith(str(tmp_path)) for path in files)


# -------------------------------------------------------------------------------------------------------------- values


def test_values_have_their_size_and_due_times_are_found_wherever_they_are_cut() -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    assert len(value()) == len(value(T_MS, 7)) == VALUE_BYTES
    assert value(T_MS, 1) != value(T_MS, 2)
    stream = b"".join(value(T_MS + at, at) + b"\r\n" * rng.randrange(3) for at in range(20))
    for _ in range(50):
        due_times, found, at = DueTimes(), [], 0
        while at < len(stream):
            step = rng.randrange(1, 60)
            found += due_times.feed(stream[at : at + step])
            at += step
        assert found == [T_MS + at for at in range(20)], f"seed {seed}"
