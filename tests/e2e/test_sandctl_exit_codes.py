"""Exit codes of `sandctl`: 2 for invalid usage, found by any component; 1 for failures; 3 without a server."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import sandq.testing
from tests.support.processes.shell import run_here

ID = "01HN7K2B6R0000000001000000"


@pytest.fixture(scope="module")
def broker() -> Iterator[sandq.testing.Broker]:
    with sandq.testing.broker() as node:
        for name, kind in (("t", "timer"), ("c", "compacted"), ("p", "priority"), ("f", "fair")):
            node.create_topic(name, kind=kind)
        yield node


USAGE = [
    *(f"schedule create t s x {how}" for how in ("--cron x", "--every 0s", "--cron @daily --zone Mars/Base", "")),
    "schedule create t '' x --every 1h",
    *(f"produce t x {how}" for how in ("--ttl 0s", "--priority 5", "--tenant a", "--partition -1", "--in 4000d")),
    *(f"produce t x {how}" for how in ("--unique-key ''", "--at 5", "--header =x", "--timeout 0s")),
    "produce p x --priority 99999999999",
    "produce f x --tenant 'a b'",
    "produce c x",
    "kv get c ''",
    "kv put c '' x",
    "kv put t k x",
    *(f"-s {server} topic list" for server in ("nonsense:port:x", "127.0.0.1:99999", "h:abc", "''", "'a b:1'", "':'")),
    "topic list -s http://127.0.0.1:7170",
    "message get t nonsense",
    "message get t --unique-key ''",
    f"message move t {ID} --priority 3",
    "topic create a/b",
    "topic create q --lease 1ms",
    "topic create q --partitions 99999",
    "topic update c --partitions 3",
    "group limit t g --rate nonsense",
    "group update t g --max-attempts 0",
    "consume t --group 'a b'",
    "lease take t -g g --wait 5m",
    "lease take t -g g --lease 1ms",
    "identity create xx --grant read",
    "tenant set f 'a b' --weight 2",
    "tenant set t a --weight 2",
    "sql 'selec 1'",
]
FAILED = ["topic show no", "produce no x", "produce t x --partition 99", f"message why t {ID}", "group show t no"]


@pytest.mark.parametrize(("code", "line"), [*((2, line) for line in USAGE), *((1, line) for line in FAILED)])
def test_exit_code_distinguishes_wrong_usage_from_failure(
    broker: sandq.testing.Broker, tmp_path: Path, code: int, line: str
) -> None:
    done = run_here(shlex.split(line), {"SANDCTL_SERVERS": broker.address}, tmp_path, "")
    assert (done.code, done.out) == (code, "") and done.err, done


def test_a_server_that_is_not_there_is_exit_code_3(tmp_path: Path) -> None:
    done = run_here(["topic", "list", "-s", "127.0.0.1:1"], {}, tmp_path, "")
    assert done.code == 3, done


def test_a_damaged_backup_is_exit_code_1(broker: sandq.testing.Broker, tmp_path: Path) -> None:
    env = {"SANDCTL_SERVERS": broker.address}
    assert run_here(["backup", "create", "b"], env, tmp_path, "").code == 0
    for path in (tmp_path / "b").rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-1])
    done = run_here(["backup", "verify", "b"], env, tmp_path, "")
    assert done.code == 1, done
