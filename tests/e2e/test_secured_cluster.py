"""All files and commands of docs/how-to/secured-cluster.md work in an empty directory, and no output has a secret."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.forks import Fork
from tests.support.processes.node import SEGMENT_BYTES
from tests.support.processes.shell import Shell
from tests.support.waiting import PATIENCE_S, wait_until

PAGE = (ROOT / "docs" / "how-to" / "secured-cluster.md").read_text(encoding="utf-8")
NODES = ("node1", "node2", "node3")
_EXPORT = re.compile(r"(\w+)=(\S+)")


class Walk:
    """Runs the commands of the page, with free ports instead of those on the page."""

    def __init__(self, directory: Path) -> None:
        ports = {port: free_port() for port in sorted(set(re.findall(r"127\.0\.0\.1:(\d+)", PAGE)))}
        self.page = re.sub(r"127\.0\.0\.1:(\d+)", lambda found: f"127.0.0.1:{ports[found[1]]}", PAGE)
        self.directory = directory
        self.shell = Shell(directory, XDG_CONFIG_HOME=str(directory / "config"))
        self.nodes: dict[str, Fork] = {}
        self.said = ""
        """Output of the commands, without tokens that a command printed on request."""
        self.secrets: set[str] = set()

    def section(self, title: str) -> str:
        _, found, after = self.page.partition(f"\n## {title}\n")
        assert found, f"the page has no section {title!r}"
        return after.partition("\n## ")[0]

    def lines(self, title: str) -> list[str]:
        text = re.sub(r"```.*?```", "", self.section(title), flags=re.S)
        return [line[4:] for line in text.splitlines() if line.startswith("    ")]

    def do(self, title: str) -> None:
        for line in self.lines(title):
            self.line(line)

    def line(self, line: str) -> None:
        if line.startswith("export "):
            self.shell._environ |= dict(_EXPORT.findall(line))
            return
        if line.startswith("sandq --config "):
            self.start(line.split()[-1].removesuffix(".yaml"))
            return
        command, _, comment = line.partition("  # ")
        done = self.shell.run(command)
        self.said += done.out + done.err
        if comment.isdecimal():
            assert f'"status": {comment}' in done.out, line
        else:
            assert done.code == int(comment.removeprefix("exit ") or 0), (line, done)
        for name in ("admin.token", "ada.token", "billing.token", "billing.token.new"):
            for path in self.directory.rglob(name):
                self.secrets.add(path.read_text(encoding="utf-8").strip())

    def start(self, name: str) -> None:
        environ = os.environ | {"PYTHONPATH": str(ROOT), "SANDQ_STORAGE__SEGMENT_BYTES": SEGMENT_BYTES}
        with (self.directory / f"{name}.log").open("ab") as log:
            arguments = ["--config", f"{name}.yaml"]
            self.nodes[name] = Fork("sandq.cli", arguments, env=environ, cwd=self.directory, out=log.fileno())
        wait_until(lambda: "ready" in self.log(name) or "HTTP: " in self.log(name))

    def log(self, name: str) -> str:
        return (self.directory / f"{name}.log").read_text(encoding="utf-8")

    def stop(self) -> None:
        for node in self.nodes.values():
            node.send_signal(signal.SIGTERM)
        for node in self.nodes.values():
            assert node.wait(PATIENCE_S) == 0


def processes_of(node: Fork) -> list[int]:
    """Return the process ids of a node and of the processes that it started."""
    children = [task.read_text().split() for task in Path(f"/proc/{node.pid}/task").glob("*/children")]
    return [node.pid, *(int(pid) for pids in children for pid in pids)]


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    walk = Walk(tmp_path)
    try:
        yield walk
    finally:
        for node in walk.nodes.values():
            node.send_signal(signal.SIGKILL)
            node.wait(PATIENCE_S)


def test_page_runs_and_reveals_no_secret(walk: Walk) -> None:
    walk.do("Certificates and a secret")
    for name, text in re.findall(r"`(node\d)\.yaml`.*?```yaml\n(.*?)```", walk.section("Three configurations"), re.S):
        (walk.directory / f"{name}.yaml").write_text(text, encoding="utf-8")
    walk.do("Three configurations")
    walk.do("The first token")
    walk.do("An application")
    (program,) = re.findall(r"```python\n(.*?)```", walk.section("An application"), re.S)
    walk.line(f"python3 -c {shlex.quote(program)}".replace("python3", sys.executable))
    walk.do("Refused requests and the audit log")
    assert "FORBIDDEN" in walk.said and "UNAUTHENTICATED" in walk.said and "token:billing" in walk.said
    for line in walk.lines("Changes while the cluster runs"):
        walk.line(line)

    # The following output must not contain secrets.
    for name in NODES:
        walk.line(f"sandq check-config {name}.yaml --show")
    walk.line("sandctl cluster info -o json")
    walk.line("sandctl identity list -o json")
    walk.line("sandctl audit --last 1000 -o jsonl")
    web = re.findall(r"http: (127\.0\.0\.1:\d+)", walk.page)[0]
    walk.line(f'curl -s --cacert certs/ca.pem -H "Authorization: Bearer $(cat ada.token)" https://{web}/metrics')
    assert "sandq_insecure 0" in walk.said
    pids = [pid for node in walk.nodes.values() for pid in processes_of(node)]
    assert len(pids) > len(NODES), "a process serves HTTP"
    processes = b"".join(Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)
    walk.stop()
    walk.line("sandq wal dump data/node1 --json --values")

    keys = [path.read_text(encoding="utf-8").splitlines()[1] for path in walk.directory.rglob("*-key.pem")]
    secrets = [*walk.secrets, *keys, (walk.directory / "cluster.secret").read_text(encoding="utf-8").strip()]
    assert len(walk.secrets) == 4 and len(keys) == 4 and all(len(secret) > 30 for secret in secrets)
    said = {"said": walk.said.encode(), "processes": processes}
    for path in walk.directory.rglob("*"):
        is_kept = path.is_file() and (path.suffix == ".log" or path.is_relative_to(walk.directory / "data"))
        if is_kept and path.name != "admin.token":
            said[str(path.relative_to(walk.directory))] = path.read_bytes()
    assert len(said) > 20
    assert not [(where, secret) for where, text in said.items() for secret in secrets if secret.encode() in text]
