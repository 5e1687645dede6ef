"""`sandctl schedule`, on a clock that the test moves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sandq.testing
from tests.support.processes.shell import Done, run_here

Ctl = Callable[..., Done]


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[Ctl]:
    """`ctl("list", "t")`, beside the topic "t" at midnight of 2030-01-01."""
    with sandq.testing.broker() as broker:
        broker.create_topic("t", partitions=3)

        def run(*args: str, stdin: str = "", code: int = 0, command: str = "schedule") -> Done:
            done = run_here([command, *args], {"SANDCTL_SERVERS": broker.address}, tmp_path, stdin)
            assert done.code == code, done
            return done

        yield run


def test_a_schedule_from_beginning_to_end(ctl: Ctl) -> None:
    at = ("--cron", "0 9 * * MON-FRI", "--zone", "Europe/Berlin")
    assert ctl("create", "t", "daily", "make it", *at).out == (
        "created schedule daily of t: next 2030-01-01T08:00:00.000Z (2030-01-01T09:00:00+01:00 in Europe/Berlin)\n"
    )
    refused = ctl("create", "t", "daily", "make it well", *at, code=1)
    assert "another schedule 'daily'" in refused.err
    (shown,) = ctl("show", "t", "daily", "-o", "jsonl").rows
    assert (shown["cron"], shown["zone"], shown["text"], shown["state"]) == (at[1], at[3], "make it", "active")
    assert "0 9 * * MON-FRI" in ctl("show", "t", "daily").out
    assert len(ctl("next", "t", "daily", "--count", "3", "-o", "jsonl").rows) == 3
    (changed,) = ctl("update", "t", "daily", "soon", "--every", "2h", "--jitter", "5m", "-o", "jsonl").rows
    assert (changed["every"], changed["jitter"], changed["text"]) == ("2h", "5m", "soon")
    (changed,) = ctl("update", "t", "daily", "--reset", "jitter", "-o", "jsonl").rows
    assert "jitter" not in changed and changed["every"] == "2h"
    assert ctl("pause", "t", "daily").out == "paused schedule daily of t\n"
    assert ctl("next", "t", "daily", "-o", "jsonl").rows == []
    assert ctl("resume", "t", "daily").out.startswith("resumed schedule daily of t: next 2030-01-01T0")
    sent = ctl("trigger", "t", "daily").out.strip()
    (message,) = ctl("get", "t", sent, "-o", "jsonl", command="message").rows
    assert message["text"] == "soon"
    assert ctl("delete", "t", "daily").out == "deleted schedule daily of t\n"
    assert "daily" in ctl("show", "t", "daily", code=1).err


def test_lines_that_were_listed_make_them_again(ctl: Ctl) -> None:
    for number in range(5):
        ctl("create", "t", f"s{number}", f"v{number}", "--every", f"{number + 1}h", "--header", "a=b", "--key", "k")
    lines = ctl("list", "t", "--values", "--limit", "all", "-o", "jsonl").out
    assert [json.loads(line)["name"] for line in lines.splitlines()] == [f"s{number}" for number in range(5)]
    again = ctl("create", "t", "--jsonl", stdin=lines)
    assert again.out == "5 schedules of t: 0 created, 0 changed, 5 unchanged\n"
    ctl("delete", "t", "s3")
    ctl("update", "t", "s4", "--every", "1d")
    assert ctl("create", "t", "--jsonl", stdin=lines).out == "5 schedules of t: 1 created, 1 changed, 3 unchanged\n"
    assert ctl("list", "t", "--values", "-o", "jsonl").out.count('"headers": {"a": "b"}') == 5
    page = ctl("list", "t", "--limit", "2", "--prefix", "s")
    assert page.out.count("every") == 2 and "only the first 2" in page.err


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["create", "t", "s", "v"], 2, "--cron EXPRESSION, or --every DURATION"),
        (["create", "t", "s", "v", "--cron", "@daily", "--every", "1h"], 2, "one of them"),
        (["create", "t", "s", "--every", "1h"], 2, "VALUE"),
        (["create", "t", "--every", "1h"], 2, "NAME"),
        (["create", "t", "s", "v", "--cron", "99 * * * *"], 1, "minute"),
        (["create", "t", "s", "v", "--cron", "@daily", "--zone", "Mars/Base"], 1, "Mars/Base"),
        (["create", "no", "s", "v", "--every", "1h"], 1, "no"),
        (["update", "t", "s"], 2, "nothing to change"),
        (["update", "t", "s", "--every", "1h", "--reset", "every"], 2, "--reset every"),
        (["preview"], 2, "--cron EXPRESSION"),
        (["preview", "--every", "1h", "--count", "1001"], 2, "1000"),
    ],
)
def test_what_is_wrong_is_said(ctl: Ctl, args: list[str], code: int, said: str) -> None:
    done = ctl(*args, code=code)
    assert said in done.err and not done.out


def test_lines_that_are_wrong_make_nothing(ctl: Ctl) -> None:
    good = '{"name": "a", "text": "", "every": "1h"}\n'
    for bad in ("{", "[]", '{"name": "b"}', '{"name": "b", "text": "", "every": "1h", "colour": 1}'):
        assert "line 2: " in ctl("create", "t", "--jsonl", stdin=good + bad + "\n", code=1).err, bad
    assert ctl("list", "t", "-o", "jsonl").rows == []
