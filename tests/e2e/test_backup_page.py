"""The commands of docs/how-to/backup-and-restore.md work in an empty directory, as do those of docs/backup.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import document
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Done, Shell
from tests.support.waiting import PATIENCE_S, wait_until

WALK = (ROOT / "docs" / "how-to" / "backup-and-restore.md").read_text(encoding="utf-8")
PAGE = document("backup")


class Reader:
    """Runs the commands of the page, with a free port."""

    def __init__(self, directory: Path) -> None:
        ports = {address: f"127.0.0.1:{free_port()}" for address in set(re.findall(r"127\.0\.0\.1:717\d", WALK))}
        self.page = re.sub(r"127\.0\.0\.1:717\d", lambda found: ports[found[0]], WALK)
        self.directory = directory
        self.shell = Shell(directory, XDG_CONFIG_HOME=str(directory / "config"))
        self.node: subprocess.Popen[bytes] | None = None

    def section(self, title: str) -> str:
        _, found, after = self.page.partition(f"\n## {title}\n")
        assert found, f"the page has no section {title!r}"
        return after.partition("\n## ")[0]

    def do(self, title: str) -> dict[str, Done]:
        text = re.sub(r"```.*?```", "", self.section(title), flags=re.S)
        found = {}
        for line in [line[4:] for line in text.splitlines() if line.startswith("    ")]:
            if line.startswith("export "):
                name, _, value = line.removeprefix("export ").partition("=")
                self.shell._environ |= {name: value}
            elif line.startswith("sandq "):
                self.start(line.split()[-1])
            elif line == "rm -r data":
                self.stop()
                self.shell.run(line)
            else:
                command, _, comment = line.partition("  # exit ")
                found[command] = done = self.shell.run(command)
                assert done.code == int(comment or 0), (line, done)
        return found

    def start(self, config: str) -> None:
        log = self.directory / "log"
        with log.open("wb") as stream:
            self.node = subprocess.Popen(
                [sys.executable, "-m", "sandq.cli", "--config", config],
                cwd=self.directory,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=stream,
                stderr=stream,
                stdin=subprocess.DEVNULL,
            )
        node = self.node
        wait_until(lambda: '"event": "ready"' in log.read_text() or node.poll() is not None)
        assert node.poll() is None, log.read_text()

    def delayed(self) -> dict[str, str]:
        """Return the delivery times of delayed messages, by id."""
        rows = self.shell.run("sandctl message list reminders --state delayed -o jsonl").rows
        return {row["id"]: row["deliver_at"] for row in rows}

    def stop(self) -> None:
        if self.node is not None:
            self.node.terminate()
            assert self.node.wait(PATIENCE_S) == 0
            self.node = None


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    try:
        yield reader
    finally:
        if reader.node is not None:
            reader.node.kill()
            reader.node.wait()


def test_backup_page_restores_everything(reader: Reader) -> None:
    (config,) = re.findall(r"```yaml\n(.*?)```", reader.page, re.S)
    (reader.directory / "node.yaml").write_text(config, encoding="utf-8")
    reader.do("A node with messages")
    reader.do("A backup")
    assert "sandq_backup_kept 1" in (reader.directory / "backup.prom").read_text()
    beside = reader.do("Restore one topic under a different name")
    assert "ada" in beside["sandctl message list reminders-before"].out
    refused = reader.do("Increments")
    assert (
        "nearest times" in refused["sandctl backup restore backups --at +1h --prefix later- --key-file backup.key"].err
    )
    assert "sandq_backup_increment_failures 0" in (reader.directory / "follow.prom").read_text()
    before = reader.delayed()
    found = reader.do("Lose all data and restore it")
    assert "hello" in found["sandctl kv get config greeting"].out
    assert "stretch" in found["sandctl schedule list reminders"].out
    assert "paused" in found["sandctl group list reminders"].out
    assert reader.delayed() == before != {}
    reader.stop()


def test_commands_of_the_page_run(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path / "node", SANDQ_LISTEN__HTTP="none")
    (tmp_path / "node").mkdir()
    node.start()
    try:
        shell = Shell(tmp_path, SANDCTL_SERVERS=node.address, XDG_CONFIG_HOME=str(tmp_path))
        assert shell.run("sandctl topic create orders").code == 0
        lines = [line[4:] for line in PAGE.splitlines() if re.match("    (sandctl|openssl) ", line)]
        assert len(lines) >= 7
        for line in lines:
            line = re.sub(r"(?<= )/(?=backups|nightly|daily|encrypted)", "", line)
            if "--at " in line:
                (row,) = shell.run("sandctl backup list backups -o jsonl").rows
                line = re.sub(r"--at \S+", f"--at {row['reach_ms']}", line)
            done = shell.run(line)
            assert done.code == 0, (line, done)
    finally:
        node.close()
