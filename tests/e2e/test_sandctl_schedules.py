"""`sandctl schedule` works against a node."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Done, run_here

Ctl = Callable[..., Done]
TOPICS = itertools.count()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path_factory.mktemp("node"), SANDQ_LISTEN__HTTP="none")
    process.start()
    yield process
    process.close()


@pytest.fixture
def topic() -> str:
    return f"t{next(TOPICS)}"


@pytest.fixture
def ctl(node: NodeProcess, topic: str, tmp_path: Path) -> Ctl:
    """Return a function: `ctl("list", topic)` runs `sandctl schedule list TOPIC`. Each test has its own topic."""

    def run(*args: str, stdin: str = "", code: int = 0, command: str = "schedule") -> Done:
        done = run_here([command, *args], {"SANDCTL_SERVERS": node.address}, tmp_path, stdin)
        assert done.code == code, done
        return done

    run("create", topic, "--partitions", "3", command="topic")
    return run


def test_a_schedule_from_beginning_to_end(ctl: Ctl, topic: str) -> None:
    at = ("--cron", "0 9 * * MON-FRI", "--zone", "Europe/Berlin")
    assert re.fullmatch(
        rf"created schedule daily of {topic}: next \S+T0[78]:00:00\.000Z \(\S+T09:00:00\+0[12]:00 in Europe/Berlin\)\n",
        ctl("create", topic, "daily", "make it", *at).out,
    )
    refused = ctl("create", topic, "daily", "make it well", *at, code=1)
    assert "a different schedule 'daily'" in refused.err
    (shown,) = ctl("show", topic, "daily", "-o", "jsonl").rows
    assert (shown["cron"], shown["zone"], shown["text"], shown["state"]) == (at[1], at[3], "make it", "active")
    assert "0 9 * * MON-FRI" in ctl("show", topic, "daily").out
    assert len(ctl("next", topic, "daily", "--count", "3", "-o", "jsonl").rows) == 3
    (changed,) = ctl("update", topic, "daily", "soon", "--every", "2h", "--jitter", "5m", "-o", "jsonl").rows
    assert (changed["every"], changed["jitter"], changed["text"]) == ("2h", "5m", "soon")
    (changed,) = ctl("update", topic, "daily", "--reset", "jitter", "-o", "jsonl").rows
    assert "jitter" not in changed and changed["every"] == "2h"
    assert ctl("pause", topic, "daily").out == f"paused schedule daily of {topic}\n"
    assert ctl("next", topic, "daily", "-o", "jsonl").rows == []
    assert ctl("resume", topic, "daily").out.startswith(f"resumed schedule daily of {topic}: next 20")
    sent = ctl("trigger", topic, "daily").out.strip()
    (message,) = ctl("get", topic, sent, "-o", "jsonl", command="message").rows
    assert message["text"] == "soon"
    assert ctl("delete", topic, "daily").out == f"deleted schedule daily of {topic}\n"
    assert "daily" in ctl("show", topic, "daily", code=1).err


def test_create_from_listed_schedules_changes_nothing(ctl: Ctl, topic: str) -> None:
    for number in range(5):
        ctl("create", topic, f"s{number}", f"v{number}", "--every", f"{number + 1}h", "--header", "a=b", "--key", "k")
    lines = ctl("list", topic, "--values", "--limit", "all", "-o", "jsonl").out
    assert [json.loads(line)["name"] for line in lines.splitlines()] == [f"s{number}" for number in range(5)]
    again = ctl("create", topic, "--jsonl", stdin=lines)
    assert again.out == f"5 schedules of {topic}: 0 created, 0 changed, 5 unchanged\n"
    ctl("delete", topic, "s3")
    ctl("update", topic, "s4", "--every", "1d")
    assert (
        ctl("create", topic, "--jsonl", stdin=lines).out
        == f"5 schedules of {topic}: 1 created, 1 changed, 3 unchanged\n"
    )
    assert ctl("list", topic, "--values", "-o", "jsonl").out.count('"headers": {"a": "b"}') == 5
    page = ctl("list", topic, "--limit", "2", "--prefix", "s")
    assert page.out.count("every") == 2 and "only the first 2" in page.err


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["create", "t", "s", "v"], 2, "--cron EXPRESSION or --every DURATION"),
        (
            ["create", "t", "s", "v", "--cron", "@daily", "--every", "1h"],
            2,
            "either --cron EXPRESSION or --every DURATION",
        ),
        (["create", "t", "s", "--every", "1h"], 2, "VALUE"),
        (["create", "t", "--every", "1h"], 2, "NAME"),
        (["create", "t", "s", "v", "--cron", "99 * * * *"], 2, "minute"),
        (["create", "t", "s", "v", "--cron", "@daily", "--zone", "Mars/Base"], 2, "Mars/Base"),
        (["create", "no", "s", "v", "--every", "1h"], 1, "no"),
        (["update", "t", "s"], 2, "nothing to change"),
        (["update", "t", "s", "--every", "1h", "--reset", "every"], 2, "--reset every"),
        (["preview"], 2, "--cron EXPRESSION"),
        (["preview", "--every", "1h", "--count", "1001"], 2, "1000"),
    ],
)
def test_invalid_schedule_commands_are_refused(ctl: Ctl, topic: str, args: list[str], code: int, said: str) -> None:
    done = ctl(*[topic if arg == "t" else arg for arg in args], code=code)
    assert said in done.err and not done.out


def test_create_with_invalid_json_creates_nothing(ctl: Ctl, topic: str) -> None:
    good = '{"name": "a", "text": "", "every": "1h"}\n'
    for bad in ("{", "[]", '{"name": "b"}', '{"name": "b", "text": "", "every": "1h", "colour": 1}'):
        assert "line 2: " in ctl("create", topic, "--jsonl", stdin=good + bad + "\n", code=1).err, bad
    assert ctl("list", topic, "-o", "jsonl").rows == []
