"""The clients in docs/examples/typescript and docs/examples/go are generated, built and run as in docs/http.md.

The tests need programs and packages of other ecosystems, which a development machine may not have. So `make check`
does not run them. `tests/integration/http` checks that the document is fit for generators."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.documents import document
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.waiting import wait_until

PAGE = document("http")
CACHES = ROOT / "build" / "caches"
SAID = [
    "scheduled 2 messages",
    "cancelled the one to bob@example.org",
    'took {"to":"ada@example.org"}, attempt 1',
    "acked 1",
]
NEEDS = {
    "typescript": {"npm": "Node.js 20 or newer with npm"},
    "go": {"go": "Go 1.26 or newer"},
}
ENVIRON = {
    "npm_config_cache": str(CACHES / "npm"),
    "GOCACHE": str(CACHES / "go"),
    "GOMODCACHE": str(CACHES / "go-modules"),
    # `make clean` can remove its files.
    "GOFLAGS": "-modcacherw",
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, str]]:
    """Return the HTTP port and a token of a node, which requires authentication."""
    number = free_port()
    environ = {"SANDQ_LISTEN__HTTP": f"127.0.0.1:{number}", "SANDQ_SECURITY__AUTHENTICATION": "require"}
    node = NodeProcess(tmp_path_factory.mktemp("node"), **environ)
    node.start(wait=False)
    token = node.data_dir / "admin.token"
    wait_until(token.is_file)
    wait_until(lambda: _answers(number))
    yield number, token.read_text().strip()
    node.close()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.long
@pytest.mark.parametrize("language", NEEDS)
def test_generated_client_example_runs(tmp_path: Path, node: tuple[int, str], language: str) -> None:
    port, token = node
    for program, what in NEEDS[language].items():
        if shutil.which(program) is None:
            pytest.skip(f"`{program}` is not installed: {what} is needed")
    (commands,) = re.findall(rf"^    cd docs/examples/{language}\n((?:    .+\n)+)", PAGE, re.M)
    directory = shutil.copytree(ROOT / "docs" / "examples" / language, tmp_path / language)
    out = ""
    for number in range(2):  # the second time, the topic exists already
        for line in commands.splitlines()[-1 if number else 0 :]:
            command = line.strip().replace("localhost:2108", f"127.0.0.1:{port}")
            out = output(command, directory, SANDQ_TOKEN=token)
        assert out.splitlines() == SAID


def output(command: str, directory: Path, **environ: str) -> str:
    done = subprocess.run(
        command.split(),
        cwd=directory,
        env=os.environ | ENVIRON | environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"`{command}` (packages come from the registries of npm and Go):\n{done.stderr}"
    return done.stdout


@pytest.mark.parametrize("name", ["typescript/package-lock.json", "go/go.sum"])
def test_locks_name_no_registry(name: str) -> None:
    lock = (ROOT / "docs" / "examples" / name).read_text()
    assert "sha512-" in lock or " h1:" in lock
    assert not re.search(r'"resolved"|https?://[^ "]*(registry|proxy)', lock)
