"""The commands of the README, docs/start.md, docs/tour.md and docs/topics.md run as they are, with ports of the
test."""

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

import pytest

import sandq
from sandq.model.names import INTERNAL
from tests.support.documents import document
from tests.support.paths import ROOT
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Run, Shell, run_with_commands
from tests.support.waiting import PATIENCE_S, wait_until

README, START, TOUR = [(ROOT / name).read_text() for name in ("README.md", "docs/start.md", "docs/tour.md")]
TOPICS = document("topics")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path_factory.mktemp("node"))
    process.start()
    yield process
    process.close()


@pytest.fixture
def node(shared: NodeProcess) -> Iterator[NodeProcess]:
    """Return the node that all tests of this module share. Delete its topics and limits after each test."""
    yield shared
    with sandq.sync.connect(shared.address, timeout=PATIENCE_S) as client:
        # Delete the topics that use a dead-letter topic before it.
        for record in sorted(client.admin.list_topics(), key=lambda record: "dead_letter_topic" not in record.settings):
            if record.name not in INTERNAL:
                client.admin.delete_topic(record.name)
        for limit in client.admin.limits():
            client.admin.delete_limit(limit["limit"])


@pytest.fixture
def shell(node: NodeProcess, tmp_path: Path) -> Callable[[str], str]:
    """`shell(line)` checks that the pages contain the line, runs it, and returns its standard output."""
    here = Shell(tmp_path, SANDCTL_SERVERS=node.address)

    def run(line: str) -> str:
        assert any(line in page for page in (README, START, TOUR)), f"the pages no longer show: {line}"
        return here(line.replace(".venv/bin/", ""))

    return run


def test_first_commands_run(shell: Callable[[str], str]) -> None:
    shell(".venv/bin/sandctl topic create t")
    before = time.time()
    shell("echo hi | .venv/bin/sandctl produce t --file - --in 2s")
    printed = shell(".venv/bin/sandctl consume t --group g --max 1")
    assert printed == "hi\n\n", "the unchanged bytes, and a line end"
    assert time.time() - before >= 2


@pytest.fixture
def tour(shell: Callable[[str], str]) -> Callable[[str], str]:
    return lambda words: shell(f".venv/bin/sandctl {words}")


def test_tour_of_seek_runs(tour: Callable[[str], str]) -> None:
    tour("topic create orders --retention 1d")
    tour('produce orders "17 parcels"')
    assert tour("consume orders --group desk") == "17 parcels\n"
    tour("group seek orders desk --to -5m --yes")
    assert tour("consume orders --group desk") == "17 parcels\n"


def test_tour_of_pending_messages_runs(tour: Callable[[str], str]) -> None:
    tour("topic create orders --retention 1d")
    message_id = tour('produce orders "call Ada" --unique-key call-ada --in 1h').strip()
    assert f"message {message_id} of topic orders: delayed" in tour("message why orders --unique-key call-ada")
    assert "moved unique key 'call-ada'" in tour("message move orders --unique-key call-ada --in 30m")
    *buckets, later = tour("topic forecast orders").splitlines()
    assert [bucket.split()[1] for bucket in buckets] == ["0", "1"] and later.split() == ["later", "0"]
    assert "cancelled" in tour("message cancel orders --unique-key call-ada")


def test_tour_of_dead_letters_runs(tour: Callable[[str], str]) -> None:
    tour("topic create orders --retention 1d")
    tour("consume orders --group desk")
    tour('produce orders "lunch is ready" --ttl 1s')
    wait_until(lambda: "expired" in tour("dead list orders --group desk --values"))
    assert "lunch is ready" in tour("dead list orders --group desk --values")
    tour("dead redrive orders --group desk --all")
    assert tour("consume orders --group desk") == "lunch is ready\n"


def test_tour_of_keys_runs(tour: Callable[[str], str]) -> None:
    assert "created topic config" in tour("topic create config --kind compacted")
    version = tour("kv put config theme dark").strip()
    with pytest.raises(AssertionError, match=rf"VERSION_CHANGED|{version}"):
        tour("kv cas config theme light --absent")
    assert "dark" in tour("kv get config theme")
    assert "theme" in tour("kv scan config")
    assert "dark" in tour("kv watch config --start earliest --max 1")


def test_tour_of_priorities_and_tenants_runs(tour: Callable[[str], str]) -> None:
    tour("topic create chores --kind priority")
    tour('produce chores "tidy up" --priority 9')
    tour('produce chores "call the doctor" --priority 1')
    assert tour("consume chores --group family") == "call the doctor\ntidy up\n"
    tour("topic create letters --kind fair")
    tour("produce letters newsletter --tenant acme --count 3")
    tour('produce letters "your new password" --tenant shop')
    assert "at 50/s, 10 at once" in tour("tenant set letters '*' --rate 50/s --burst 10")
    found = tour("consume letters --group senders").splitlines()
    assert found == ["newsletter", "your new password", "newsletter", "newsletter"]


def test_examples_of_topics_page_run(node: NodeProcess, tmp_path: Path) -> None:
    """Run all examples as one function, because later examples use names of earlier ones."""
    shown: list[str] = []
    source = ""
    for kind, block in re.findall(r"^```(sh|python) run\n(.*?)^```", TOPICS, re.MULTILINE | re.DOTALL):
        source += block if kind == "python" else "".join(f"await run({line!r})\n" for line in block.splitlines())
    names: dict[str, Any] = {"print": lambda *parts: shown.append(" ".join(map(str, parts)))}
    exec(f"async def page(client):\n{textwrap.indent(source, '    ')}", names)
    page: Callable[[sandq.Client], Awaitable[None]] = names["page"]

    async def main(run: Run) -> None:
        async def show(line: str) -> None:
            done = await run(line)
            assert done.code == 0, (line, done)
            shown.append(done.out)

        names["run"] = show
        async with sandq.connect(node.address, timeout=PATIENCE_S) as client:
            await page(client)

    run_with_commands(main, Shell(tmp_path, SANDCTL_SERVERS=node.address))
    everything = "\n".join(shown)
    for text in ("{'nacked': 1}", "no such account", "b'opened'", "signed up", "17 euros", "pack\nship\n", "call Ada"):
        assert text in everything


def test_shown_configuration_is_valid(tmp_path: Path) -> None:
    assert ".venv/bin/sandq --config configs/single.yaml" in START
    done = subprocess.run(
        [sys.executable, "-m", "sandq.cli", "check-config", str(ROOT / "configs" / "single.yaml")],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0


def _python_blocks(page: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


ASYNC, BLOCKING = _python_blocks(START)


def _output_of(source: str, node: NodeProcess) -> str:
    """Run a program of the blocking client to its end, and return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", source.replace("sync.connect()", f'sync.connect("{node.address}")')],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout


def test_program_of_the_readme_runs(node: NodeProcess) -> None:
    (source,) = _python_blocks(README)
    assert _output_of(source, node) == "b'pay order 7'\n"


def test_blocking_example_runs(node: NodeProcess, shell: Callable[[str], str]) -> None:
    shell(".venv/bin/sandctl topic create t")
    before = time.time()
    assert _output_of(BLOCKING, node) == "b'call the bank'\n"
    assert time.time() - before >= 2


def test_python_example_runs(node: NodeProcess, shell: Callable[[str], str], tmp_path: Path) -> None:
    shell(".venv/bin/sandctl topic create t")
    script = tmp_path / "example.py"
    script.write_text(ASYNC.replace("sandq.connect()", f'sandq.connect("{node.address}")'))
    before = time.time()
    environ = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen([sys.executable, str(script)], env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.kill()
    assert line.startswith("b'call the bank'")
    assert time.time() - before >= 2
