"""Tests of commands that wait: their durations, messages and ends."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import click
import pytest

from sandctl import interrupts, main, settings
from sandctl.options import common
from sandq.model.errors import InvalidName, InvalidSetting, InvalidTime, SandqError
from sandq.protocol.frames import Type
from tests.support.client.fake_server import FakeServer
from tests.support.documents import document


@pytest.mark.parametrize(
    ("words", "deadlines"),
    [
        (("topic", "list"), (settings.CONNECT_S, settings.REQUEST_S, settings.DELIVERY_S)),
        (("--timeout", "7s", "topic", "list"), (7.0, 7.0, 7.0)),
        (("topic", "list", "--timeout", "250ms"), (0.25, 0.25, 0.25)),
        (("--timeout", "1m", "topic", "list", "--timeout", "3"), (3.0, 3.0, 3.0)),
    ],
)
def test_timeout_option_works_in_each_position(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], deadlines: tuple[float, ...]
) -> None:
    seen = []

    @asynccontextmanager
    async def connected() -> AsyncIterator[Any]:
        seen.append(settings.settings().deadlines_s)
        raise common.CannotConnect("nobody is there")
        yield

    monkeypatch.setattr(common, "connected", connected)
    with pytest.raises(SystemExit) as ended:
        main.main(list(words))
    assert (ended.value.code, seen) == (3, [deadlines])


@pytest.mark.parametrize("wrong", ["5x", "0", "-1s", ""])
def test_timeout_is_a_duration(ctl: Any, wrong: str) -> None:
    result = ctl("topic", "list", "--timeout", wrong)
    assert result.exit_code == 2 and "--timeout" in result.stderr


def test_drain_has_a_timeout_of_its_own(ctl: Any) -> None:
    words = " ".join(ctl("cluster", "drain", "--help").output.split())
    assert "the work continues in any case" in words and words.count("--timeout") == 1


def run_with(
    monkeypatch: pytest.MonkeyPatch, *, terminal: bool, waits: bool = False, connects: bool = True
) -> list[str]:
    """Return the messages while no event comes. The work ends at the time of the first message."""
    said: list[str] = []
    heard = anyio.Event
    waiting: list[anyio.Event] = []

    def echo(text: str, **_: object) -> None:
        said.append(text)
        waiting[0].set()

    @asynccontextmanager
    async def connected() -> AsyncIterator[Any]:
        waiting.append(heard())
        if not connects:
            await waiting[0].wait()
        yield None

    async def work(client: Any) -> str:
        if terminal and not waits:
            await waiting[0].wait()
        else:
            await anyio.sleep(0.01)
        return "done"

    monkeypatch.setattr(common, "connected", connected)
    monkeypatch.setattr(common, "ALOUD_S", 0.0)
    monkeypatch.setattr(common.click, "echo", echo)
    monkeypatch.setattr(common.sys.stderr, "isatty", lambda: terminal, raising=False)
    with click.Context(click.Command("x"), obj=settings.Settings(servers=("n1:7170",))):
        assert common.run(work, waits=waits) == "done"
    return said


def test_terminal_shows_the_awaited_change(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_with(monkeypatch, terminal=True) == [
        "sandctl: waiting for the cluster's response; giving up within 60 s (--timeout; Ctrl-C ends it at once)"
    ]
    assert run_with(monkeypatch, terminal=True, connects=False) == [
        "sandctl: no response from n1:7170 yet; giving up after 5 s (--timeout; Ctrl-C ends it at once)"
    ]


def test_scripts_and_commands_that_wait_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_with(monkeypatch, terminal=False) == []
    assert run_with(monkeypatch, terminal=True, waits=True) == []


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "create", "no good"),
        ("produce", "t", "x", "--in", "5x"),
        ("produce", "t", "x", "--in", "2000000000"),
        ("produce", "t", "x", "--at", "1800000000000000000"),
        ("consume", "t", "--group", "g", "--lease", "5x"),
    ],
)
def test_wrong_arguments_exit_with_code_2(ctl: Any, words: tuple[str, ...]) -> None:
    result = ctl(*words)
    assert result.exit_code == 2 and result.stderr
    for python in ("timedelta", "datetime", " int ", " str ", "NoneType", "Traceback"):
        assert python not in result.stderr


@pytest.mark.parametrize("error", [InvalidSetting("lease: '5x' is not a duration"), InvalidName("n"), InvalidTime("t")])
def test_invalid_argument_found_by_the_node_is_exit_code_2(ctl: Any, server: FakeServer, error: SandqError) -> None:
    server.script[Type.TOPIC_CREATE] += [error]
    result = ctl("topic", "create", "x", "--lease", "5x")
    assert (result.exit_code, result.stderr) == (2, f"sandctl: {error.message}\n")


def test_documented_exit_codes_match(ctl: Any, server: FakeServer) -> None:
    page = document("sandctl")
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)}
    assert told == {
        0,
        main.EXIT_FAILED,
        main.EXIT_USAGE,
        main.EXIT_CANNOT_CONNECT,
        interrupts.EXIT_INTERRUPTED,
    }
    assert ctl("topic", "show", "t").exit_code == 0
    assert ctl("topic", "show", "none").exit_code == main.EXIT_FAILED
    assert ctl("topic", "sho", "t").exit_code == main.EXIT_USAGE
    nobody = ctl("topic", "list", "--server", "127.0.0.1:1", "--timeout", "100ms")
    assert nobody.exit_code == main.EXIT_CANNOT_CONNECT
