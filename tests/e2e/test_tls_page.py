"""The TLS commands of docs/security.md run as they are (with ports of the test)."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.support.documents import document
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Shell

PAGE = document("security").partition("\n## TLS\n")[2]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_commands_of_the_section_run(tmp_path: Path) -> None:
    made, used, renewed = blocks("sh")[:3]
    shell, web_port = Shell(tmp_path), free_port()
    for line in made.splitlines():
        shell(line)
    said = yaml.safe_load(blocks("yaml")[0])["tls"]
    settings = {f"SANDQ_TLS__{name.upper()}": str(tmp_path / path) for name, path in said.items()}
    node = NodeProcess(tmp_path / "node", SANDQ_LISTEN__HTTP=f"127.0.0.1:{web_port}", **settings)
    (tmp_path / "node").mkdir()
    node.start()
    try:
        at = f"--server {node.address}"
        for line in used.splitlines():
            shown = shell(line.replace("sandctl ", f"sandctl {at} ").replace("2108", str(web_port)))
        assert '"orders"' in shown  # by HTTP
        before = (tmp_path / "certs" / "node1.pem").read_bytes()
        shell(renewed.strip())
        assert (tmp_path / "certs" / "node1.pem").read_bytes() != before
        shell(f"sandctl {at} --ca certs/ca.pem topic list")
        assert "this port requires TLS" in shell.run(f"sandctl {at} topic list").err
    finally:
        node.close()
