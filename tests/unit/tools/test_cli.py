"""Tests of the command `sandq`: check-config, its help, and its exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandq.cli import main
from sandq.model.config import load_config
from sandq.model.errors import ConfigError
from sandq.model.show_config import without_secrets
from tests.support.paths import ROOT

CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))


def run(*args: object, env: dict[str, str] | None = None) -> Result:
    return CliRunner(env=env).invoke(main, [str(arg) for arg in args])


def process(*args: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-m", "sandq.cli", *args], env=environ, timeout=120, check=False, **more)


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_a_file_that_is_fine(path: Path) -> None:
    result = run("check-config", path)
    assert result.exit_code == 0 and f"{path}: fine (node " in result.stdout


@pytest.mark.parametrize("path", [None, *CONFIGS], ids=lambda path: path.name if path else "defaults")
@pytest.mark.parametrize(
    "environ",
    [
        {},
        {
            "SANDQ_NODE__ID": "n-7",
            "SANDQ_NODE__DATA_DIR": "/srv/data: with # signs",
            "SANDQ_LISTEN__HTTP": "none",
            "SANDQ_LISTEN__CLIENT": "[::1]:7171",
            "SANDQ_HTTP__ALLOWED_ORIGINS": "https://a.example,https://b.example",
            "SANDQ_STORAGE__SEGMENT_BYTES": "65537",
            "SANDQ_SHUTDOWN_GRACE": "1m30s",
        },
        {
            "SANDQ_CLUSTER__MEMBERSHIP": "static",
            "SANDQ_CLUSTER__SEEDS": "",
            "SANDQ_CLUSTER__PEERS": "[{id: n2, peer: 'h:1', client: 'h:2', http: 'h:3'}]",
        },
    ],
)
def test_shown_configuration_loads_equally(path: Path | None, environ: dict[str, str], tmp_path: Path) -> None:
    args = [] if path is None else [path]
    result = run("check-config", *args, "--show", env=environ)
    assert result.exit_code == 0, result.output
    (tmp_path / "shown.yaml").write_text(result.stdout)
    assert load_config(tmp_path / "shown.yaml", {}) == load_config(path, environ)
    for name in environ:
        assert f"# from {name}\n" in result.stdout
    if path is None:
        assert "  zone: default  # default\n" in result.stdout


def test_content_of_a_secret_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("swordfish")
    (tmp_path / "one.yaml").write_text(f"cluster: {{bootstrap: true, secret_file: {tmp_path / 'secret'}}}\n")
    result = run("check-config", tmp_path / "one.yaml", "--show")
    assert str(tmp_path / "secret") in result.stdout and "swordfish" not in result.output


def test_configuration_of_node_hides_origins_and_query_values() -> None:
    environ = {
        "SANDQ_JWT__ISSUER": "https://id.example",
        "SANDQ_JWT__JWKS_URL": "https://id.example/keys?code=swordfish",
    }
    lines = list(without_secrets(load_config(None, environ)))
    assert '  jwks_url: "https://id.example/keys?code=…"' in lines and "  issuer: https://id.example" in lines
    assert not [line for line in lines if "# default" in line or "swordfish" in line]
    with pytest.raises(ConfigError, match="jwks_url: a URL with a name and a password") as raised:
        load_config(None, environ | {"SANDQ_JWT__JWKS_URL": "https://me:swordfish@id.example/keys"})
    assert "swordfish" not in str(raised.value)


def test_every_mistake_is_reported_with_its_path(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("node:\n  id: '!'\n  zoen: a\nlisten:\n  client: here\nlimits:\n  batch_bytes: 1\nclock: 5\n")
    environ = {"SANDQ_NODE__IDD": "x", "SANDQ_DELIVERY__LEASE_AHEAD": "1h"}
    places = [":2:7: node.id", ":3:3: node.zoen", ":5:11: listen.client", ":7:16: limits.batch_bytes", ":8:8: clock"]
    for args in (["check-config", bad], ["check-config", bad, "--show"], ["--config", bad]):
        result = run(*args, env=environ)
        assert result.exit_code == 1 and result.stdout == "", args
        for place in places:
            assert f"{bad}{place}" in result.stderr, place
        assert (
            "SANDQ_NODE__ID?" in result.stderr and "SANDQ_DELIVERY__LEASE_AHEAD: delivery.lease_ahead" in result.stderr
        )


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "is not UTF-8"),
        (b"[" * 5000, ":1:"),
        (b"a: *b", "alias"),
        (b"- 1\n- 2\n", "a mapping of sections is expected"),
        (b"node: {id: \x1b[31m}", "bad.yaml"),
        (b"node: {id: a}\nnode: {id: b}\n", "twice"),
    ],
)
def test_a_file_that_is_anything(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "bad.yaml").write_bytes(content)
    result = run("check-config", tmp_path / "bad.yaml")
    assert result.exit_code == 1 and words in result.stderr and "\x1b" not in result.stderr
    assert isinstance(result.exception, SystemExit)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    for args in (["check-config", tmp_path / "x"], ["--config", tmp_path / "x"], ["check-config", tmp_path]):
        result = run(*args)
        assert result.exit_code in (1, 2) and result.stderr


@pytest.mark.parametrize("args", [["chek-config"], ["--confg", "x"], ["wal", "dmp"], ["check-config", "a", "b"]])
def test_wrong_usage(args: list[str]) -> None:
    result = run(*args)
    assert result.exit_code == 2 and "Usage: sandq" in result.stderr


@pytest.mark.parametrize(
    ("args", "env", "words"),
    [
        (["--listen", "here"], {}, "--listen: 'here' is not an address"),
        (["--server", "a:b"], {}, "'a:b' is not a server"),
        (["--server", ","], {}, "--server has no server: at least one"),
        ([], {"SANDQ_LISTEN__HTTP": "none"}, "listen.http is none"),
        ([], {"SANDQ_LIMITS__HTTP_WAITING": "0"}, "SANDQ_LIMITS__HTTP_WAITING"),
        (["--config", "nowhere.yaml"], {}, "nowhere.yaml: cannot be read"),
        (
            ["--server", "127.0.0.1:1", "--listen", "127.1:0"],
            {},
            "HTTP on 127.1 would be without TLS: set tls.http",
        ),
    ],
)
def test_wrong_gateway_settings_are_refused(args: list[str], env: dict[str, str], words: str) -> None:
    result = run("http", *args, env=env)
    assert result.exit_code == 1 and words in result.stderr and result.stdout == ""


def test_did_you_mean() -> None:
    assert "'check-config'" in run("chek-config").stderr
    assert "--config" in run("--confg", "x").stderr


@pytest.mark.parametrize("args", [[], ["check-config"], ["doctor"], ["http"], ["wal"], ["wal", "dump"]], ids=" ".join)
def test_help_has_an_example_and_imports_no_node(args: list[str]) -> None:
    code = (
        "import sys; from sandq.cli import main\n"
        f"try: main({[*args, '--help']!r})\n"
        "except SystemExit: pass\n"
        "names = ('trio', 'plyvel', 'pysyncobj', 'fastapi', 'uvicorn', 'pydantic', 'yaml', 'structlog')\n"
        "print([name for name in names if name in sys.modules])"
    )
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    result = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"
    if args != ["wal"]:
        assert f"  sandq {' '.join([*args, '']).strip()}".rstrip() in result.stdout


def test_a_reader_that_leaves_and_a_full_disk_are_quiet(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = process("check-config", "--show", stdout=writing, stderr=subprocess.PIPE)
    os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")
    with open("/dev/full", "wb") as full:
        done = process("check-config", "--show", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 1 and done.stderr == b"sandq: No space left on device\n"


def test_interrupted(tmp_path: Path) -> None:
    """Ctrl-C during the work ends the command with exit code 130 and without output."""
    code = (
        "import os, signal, sandq.tools.doctor.check_machine as machine\n"
        "machine.check_python = lambda: os.kill(os.getpid(), signal.SIGINT)\n"
        "import sandq.tools.doctor.doctor as doctor\n"
        "from sandq.cli import main\n"
        "main(['doctor'])\n"
    )
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, check=False)
    assert (done.returncode, done.stderr.strip()) == (130, b"")
