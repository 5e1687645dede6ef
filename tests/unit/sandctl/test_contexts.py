"""Tests of `sandctl context`, and of the servers, TLS files and token of a command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from sandctl import settings
from sandctl.main import main
from sandctl.options import common
from sandctl.options.contexts import Context, Contexts, contexts_file, read_contexts, write_contexts

Invoke = Callable[..., Result]


@pytest.fixture
def ctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Return a function that runs sandctl with an empty configuration directory."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("SANDCTL_SERVERS", "SANDCTL_TOKEN", "SANDCTL_CONTEXT", "SANDCTL_CA", "SANDCTL_TLS"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "token").write_text("sandq_secret\n")
    (tmp_path / "ca.pem").write_text("ca")

    def invoke(*args: str, code: int = 0, **env: str) -> Result:
        found = CliRunner(env=env).invoke(main, args)
        assert found.exit_code == code, found.output
        return found

    return invoke


def used(*args: str, **environ: str) -> settings.Settings:
    """Return the settings of a command with these options."""
    found: list[settings.Settings] = []

    @click.command()
    @common.common_options
    def probe() -> None:
        found.append(common.effective())

    result = CliRunner(env=environ).invoke(probe, args)
    assert result.exit_code == 0, result.output
    return found[0]


def test_contexts_are_added_used_listed_shown_and_deleted(ctl: Invoke, tmp_path: Path) -> None:
    assert ctl("context", "list").stderr == "none\n"
    token, ca = str(tmp_path / "token"), str(tmp_path / "ca.pem")
    ctl("context", "add", "prod", "-s", "db1:7170", "-s", "db2", "--token-file", token, "--ca", ca)
    ctl("context", "add", "local", "--use", SANDCTL_SERVERS="127.0.0.1:7171")
    rows = [json.loads(line) for line in ctl("context", "list", "-o", "jsonl").stdout.splitlines()]
    none = {"ca": None, "cert": None, "key": None}
    assert rows == [
        {
            "context": "prod",
            "current": False,
            "servers": ["db1:7170", "db2"],
            "tls": True,
            **none,
            "ca": ca,
            "token": True,
        },
        {"context": "local", "current": True, "servers": ["127.0.0.1:7171"], "tls": False, **none, "token": False},
    ]
    assert json.loads(ctl("context", "show", "-o", "json").stdout) == rows[1]
    assert json.loads(ctl("context", "show", "prod", "-o", "json").stdout) == rows[0]
    assert "using context prod" in ctl("context", "use", "prod").stdout
    assert read_contexts().current == "prod"
    ctl("context", "delete", "prod")
    assert (read_contexts().current, [*read_contexts().named]) == (None, ["local"])
    for words in (["show"], ["show", "prod"], ["use", "prod"], ["delete", "prod"]):
        assert "context" in ctl("context", *words, code=2).stderr


def test_contexts_file_is_private_and_tokens_are_not_printed(ctl: Invoke, tmp_path: Path) -> None:
    added = ctl("context", "add", "prod", "-s", "db1", "--token-file", str(tmp_path / "token"), "--use")
    assert os.stat(contexts_file()).st_mode & 0o777 == 0o600
    assert "sandq_secret" in contexts_file().read_text()
    for output in ("table", "json", "jsonl"):
        told = [added, ctl("context", "list", "-o", output), ctl("context", "show", "-o", output)]
        assert not any("sandq_secret" in one.output for one in told)
    contexts_file().chmod(0o644)
    assert "chmod 600" in ctl("context", "list", code=2).stderr
    contexts_file().chmod(0o600)
    for content in ("{", "[]", '{"contexts": {"a": {"servers": []}}}', '{"contexts": {"a": {"servers": [1]}}}'):
        contexts_file().write_text(content)
        assert "is damaged" in ctl("context", "list", code=2).stderr


def test_a_context_that_cannot_be_added_is_refused(ctl: Invoke, tmp_path: Path) -> None:
    ctl("context", "add", "prod", "-s", "db1")
    wrong = [
        (["prod", "-s", "db2"], "--replace"),
        (["a/b", "-s", "db1"], "not allowed"),
        (["other"], "--server HOST:PORT"),
        (["other", "-s", "http://db1"], "is a URL"),
        (["other", "-s", "db1", "--ca", str(tmp_path / "none.pem")], "there is no such file"),
        (["other", "-s", "db1", "--token-file", str(tmp_path / "none")], "--token-file"),
    ]
    for args, words in wrong:
        assert words in ctl("context", "add", *args, code=2).stderr, args
    ctl("context", "add", "prod", "-s", "db2", "--replace")
    assert read_contexts().named["prod"].servers == ("db2",)


@pytest.fixture
def two(ctl: Invoke) -> None:
    """Two contexts, of which `one` is current."""
    one = Context(("one:1",), None, {"ca": "/one.pem"}, "sandq_one")
    write_contexts(Contexts("one", {"one": one, "two": Context(("two:1",), True, {}, None)}))


USES: list[tuple[list[str], dict[str, str], tuple[Any, ...]]] = [
    # Arguments, environment; servers, token, files, tls.
    ([], {}, (("one:1",), "sandq_one", {"ca": "/one.pem"}, None)),
    ([], {"SANDCTL_CONTEXT": "two"}, (("two:1",), None, {}, True)),
    (["--context", "two"], {}, (("two:1",), None, {}, True)),
    (["--context", "one"], {"SANDCTL_CONTEXT": "two"}, (("one:1",), "sandq_one", {"ca": "/one.pem"}, None)),
    # Servers that are named without the context get none of its settings.
    (["-s", "x:1"], {}, (("x:1",), None, {}, None)),
    ([], {"SANDCTL_SERVERS": "x:1,y:1"}, (("x:1", "y:1"), None, {}, None)),
    ([], {"SANDCTL_SERVERS": "x:1", "SANDCTL_CONTEXT": "one"}, (("x:1",), None, {}, None)),
    # --context wins over the environment, and options over --context.
    (["--context", "one"], {"SANDCTL_SERVERS": "x:1"}, (("one:1",), "sandq_one", {"ca": "/one.pem"}, None)),
    (["--context", "one"], {"SANDCTL_TOKEN": "sandq_x"}, (("one:1",), "sandq_one", {"ca": "/one.pem"}, None)),
    (["--context", "one", "-s", "x:1"], {}, (("x:1",), "sandq_one", {"ca": "/one.pem"}, None)),
    (["--context", "one", "--ca", "/x.pem"], {}, (("one:1",), "sandq_one", {"ca": "/x.pem"}, None)),
    (["--context", "one", "--token-file", "/x"], {}, (("one:1",), None, {"ca": "/one.pem"}, None)),
    (["--context", "one", "--no-tls"], {}, (("one:1",), "sandq_one", {}, False)),
    # The environment wins over the current context.
    ([], {"SANDCTL_TOKEN": "sandq_x"}, (("one:1",), None, {"ca": "/one.pem"}, None)),
    ([], {"SANDCTL_CA": "/x.pem"}, (("one:1",), "sandq_one", {}, None)),
    ([], {"SANDCTL_CONTEXT": "two", "SANDCTL_TLS": "0"}, (("two:1",), None, {}, None)),
]


@pytest.mark.parametrize(("args", "environ", "expected"), USES)
def test_options_win_over_a_context_and_its_token_goes_to_its_servers(
    two: None, args: list[str], environ: dict[str, str], expected: tuple[Any, ...]
) -> None:
    found = used(*args, **environ)
    assert (found.servers, found.token, found.files, found.tls) == expected


def test_without_contexts_the_default_server_is_asked(ctl: Invoke) -> None:
    assert used().servers == common.DEFAULT_SERVERS


def test_a_context_that_is_not_there_is_named(two: None, ctl: Invoke) -> None:
    assert "there is no context 'no': there are one, two" in ctl("--context", "no", "topic", "list", code=2).stderr
    assert "there is no context 'no'" in ctl("topic", "list", code=2, SANDCTL_CONTEXT="no").stderr
