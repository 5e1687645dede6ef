"""The process that follows a cluster is killed repeatedly under load. No message is lost or damaged in the backup."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

import sandq.sync
from tests.support.paths import ROOT
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Shell
from tests.support.waiting import PATIENCE_S

KILLS = 4


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_backup_chain_across_follower_kills_is_complete(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    (tmp_path / "node").mkdir()
    node = NodeProcess(tmp_path / "node", SANDQ_LISTEN__HTTP="none")
    node.start()
    environ = os.environ | {"PYTHONPATH": str(ROOT), "SANDCTL_SERVERS": node.address, "XDG_CONFIG_HOME": str(tmp_path)}
    command = [sys.executable, "-m", "sandctl", "backup", "follow", "backups", "--every", "1s"]
    shell = Shell(tmp_path, SANDCTL_SERVERS=node.address, XDG_CONFIG_HOME=str(tmp_path))
    try:
        with sandq.sync.connect(node.address, timeout=PATIENCE_S) as client:
            client.admin.create_topic("t", partitions=2)
            shell("sandctl backup follow backups --times 1")
            sent: set[str] = set()
            for _ in range(KILLS):
                # Without a new message, the follower prints nothing for a minute.
                sent.add(client.produce("t", b"news", delay="5h"))
                follower = subprocess.Popen(
                    command, cwd=tmp_path, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
                )
                assert follower.stdout is not None
                if random.random() < 0.5:
                    follower.stdout.readline()  # the follower has written an increment
                for number in range(random.randrange(200)):
                    sent.add(client.produce("t", b"%d" % number, delay="5h", partition=number % 2))
                follower.kill()
                follower.wait(PATIENCE_S)
                follower.stdout.close()
            shell("sandctl backup follow backups --times 1")
            shell("sandctl backup verify backups --replay")
            restored = shell.run("sandctl backup restore backups --prefix r-")
            assert restored.code == 0, (seed, restored)
            there = {one.id for one in client.messages("r-t").list()}
            assert there == sent, (seed, len(there), len(sent))
    finally:
        node.close()
