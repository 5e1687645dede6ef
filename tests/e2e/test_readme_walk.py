"""What the README and docs/topics.md show, run as it stands (with ports of the test's own)."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

import sandq
from tests.support.paths import ROOT
from tests.support.processes.node import NodeProcess

README = (ROOT / "README.md").read_text()
TOPICS = (ROOT / "docs" / "topics.md").read_text()
COMMANDS = {".venv/bin/sandq": "-m sandq.cli", ".venv/bin/sandctl": "-m sandctl"}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path)
    process.start()
    yield process
    process.close()


def shell(line: str, node: NodeProcess) -> str:
    """Run a line of the README; it must stand there. Its standard output."""
    assert line in README, f"the README no longer shows: {line}"
    for name, module in COMMANDS.items():
        line = line.replace(name, f"{sys.executable} {module}")
    environ = os.environ | {"PYTHONPATH": str(ROOT), "SANDCTL_SERVERS": node.address}
    done = subprocess.run(line, shell=True, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_minutes(node: NodeProcess) -> None:
    shell(".venv/bin/sandctl topic create t", node)
    before = time.time()
    shell("echo hi | .venv/bin/sandctl produce t --file - --in 2s", node)
    printed = shell(".venv/bin/sandctl consume t --group g --max 1", node)
    assert printed == "hi\n\n", "its bytes as they are, and a line end"
    assert time.time() - before >= 2


def tour(node: NodeProcess, *arguments: str) -> str:
    return shell(f".venv/bin/sandctl {' '.join(arguments)}", node)


def test_the_tour_back_in_time(node: NodeProcess) -> None:
    tour(node, "topic create orders --retention 1d")
    tour(node, 'produce orders "17 parcels"')
    assert tour(node, "consume orders --group desk") == "17 parcels\n"
    tour(node, "group seek orders desk --to -5m --yes")
    assert tour(node, "consume orders --group desk") == "17 parcels\n"


def test_the_tour_of_a_message_that_is_still_to_come(node: NodeProcess) -> None:
    tour(node, "topic create orders --retention 1d")
    message_id = tour(node, 'produce orders "call Ada" --unique-key call-ada --in 1h').strip()
    assert f"message {message_id} of topic orders: delayed" in tour(node, "message why orders --unique-key call-ada")
    assert "moved unique key 'call-ada'" in tour(node, "message move orders --unique-key call-ada --in 30m")
    *buckets, later = tour(node, "topic forecast orders").splitlines()
    assert [bucket.split()[1] for bucket in buckets] == ["0", "1"] and later.split() == ["later", "0"]
    assert "cancelled" in tour(node, "message cancel orders --unique-key call-ada")


def test_the_tour_of_dead_letters(node: NodeProcess) -> None:
    tour(node, "topic create orders --retention 1d")
    tour(node, "consume orders --group desk")
    tour(node, 'produce orders "lunch is ready" --ttl 1s')
    time.sleep(1.2)
    dead = tour(node, "dead list orders --group desk --values")
    assert "expired" in dead and "lunch is ready" in dead
    tour(node, "dead redrive orders --group desk")
    assert tour(node, "consume orders --group desk") == "lunch is ready\n"


def test_the_tour_of_keys(node: NodeProcess) -> None:
    assert "created topic config" in tour(node, "topic create config --kind compacted")
    version = tour(node, "kv put config theme dark").strip()
    with pytest.raises(AssertionError, match=rf"VERSION_CHANGED|{version}"):
        tour(node, "kv cas config theme light --absent")
    assert "dark" in tour(node, "kv get config theme")
    assert "theme" in tour(node, "kv scan config")
    assert "dark" in tour(node, "kv watch config --start earliest --max 1")


def test_the_page_about_topics(node: NodeProcess) -> None:
    """One function of the whole page: what one example names, a later one may use."""
    environ = os.environ | {"PYTHONPATH": str(ROOT), "SANDCTL_SERVERS": node.address}
    shown: list[str] = []

    async def run(line: str) -> None:
        command = line.replace("sandctl", f"{sys.executable} -m sandctl", 1)
        done = await anyio.run_process(command, env=environ, check=False)
        assert done.returncode == 0, f"{line}\n{done.stderr.decode()}"
        shown.append(done.stdout.decode())

    source = ""
    for kind, block in re.findall(r"^```(sh|python) run\n(.*?)^```", TOPICS, re.MULTILINE | re.DOTALL):
        source += block if kind == "python" else "".join(f"await run({line!r})\n" for line in block.splitlines())
    names: dict[str, Any] = {"run": run, "print": lambda *parts: shown.append(" ".join(map(str, parts)))}
    exec(f"async def page(client):\n{textwrap.indent(source, '    ')}", names)
    page: Callable[[sandq.Client], Awaitable[None]] = names["page"]

    async def main() -> None:
        async with sandq.connect(node.address) as client:
            await page(client)

    anyio.run(main)
    everything = "\n".join(shown)
    for text in ("{'nacked': 1}", "no such account", "b'opened'", "signed up", "17 euros", "pack\nship\n", "call Ada"):
        assert text in everything


def test_the_configuration_that_is_shown(tmp_path: Path) -> None:
    assert ".venv/bin/sandq --config configs/single.yaml" in README
    done = subprocess.run(
        [sys.executable, "-m", "sandq.cli", "check-config", str(ROOT / "configs" / "single.yaml")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0


PYTHON = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_blocking_example(node: NodeProcess) -> None:
    _, source = PYTHON
    shell(".venv/bin/sandctl topic create t", node)
    before = time.time()
    done = subprocess.run(
        [sys.executable, "-c", source.replace("sync.connect()", f'sync.connect("{node.address}")')],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("b'call the bank'\n", "")
    assert time.time() - before >= 2


def test_the_python_example(node: NodeProcess, tmp_path: Path) -> None:
    source, _ = PYTHON
    shell(".venv/bin/sandctl topic create t", node)
    script = tmp_path / "example.py"
    script.write_text(source.replace("sandq.connect()", f'sandq.connect("{node.address}")'))
    before = time.time()
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([sys.executable, str(script)], env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    assert line.startswith("b'call the bank'")
    assert time.time() - before >= 2
