"""Tests of `sandctl kv`: its requests, output and exit codes."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from sandctl.main import main
from sandq.client.json_format import at_once, read_message, settings_json
from sandq.model.errors import InvalidRequest
from sandq.model.names import COMPACTED
from sandq.model.settings import parse_settings
from sandq.protocol.frames import Type
from tests.support.client.fake_server import FakeServer
from tests.support.sandctl.fake_client import NOW_MS, Ctl, connected_to
from tests.support.sandctl.fake_keys import FakeKeys, change, entry, version_text

V1 = version_text(1)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> FakeKeys:
    made: Any = FakeKeys()
    monkeypatch.setattr("sandctl.options.common.connected", connected_to(made))
    return made  # type: ignore[no-any-return]


@pytest.fixture
def kv(keys: FakeKeys) -> Ctl:
    """`kv("get", "t", "a")`."""
    return lambda *args, input=None: CliRunner().invoke(main, ["kv", *args], input=input)


def test_get_one(kv: Ctl, keys: FakeKeys) -> None:
    keys.rows[b"a"] = entry(b"a", b"dark", expires_ms=NOW_MS, headers={"by": "ada", "b": b"\xff"})
    lines = kv("get", "t", "a").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["key", "text", "headers", "version", "expires_at", "partition"]
    expected = {
        "key": "a",
        "text": "dark",
        "headers": {"by": "ada", "b": {"base64": "/w=="}},
        "version": V1,
        "expires_at": "2030-03-17T17:46:40.000Z",
        "partition": 0,
    }
    assert json.loads(kv("get", "t", "a", "-o", "json").stdout) == expected
    assert json.loads(kv("get", "t", "a", "-o", "jsonl").stdout) == expected
    assert kv("get", "t", "a", "--raw").stdout_bytes == b"dark", "only the value, without a line feed"
    keys.rows[b"long"] = entry(b"long", b"x" * 5000)
    assert "5,000 characters" in kv("get", "t", "long").stdout
    assert len(json.loads(kv("get", "t", "long", "-o", "json").stdout)["text"]) == 5000


def test_get_many(kv: Ctl, keys: FakeKeys) -> None:
    keys.rows = {b"a": entry(b"a", b"1"), b"b": entry(b"b", b"\xff", 2)}
    lines = kv("get", "t", "b", "a").stdout.splitlines()
    assert lines[0].split() == ["KEY", "VERSION", "EXPIRES", "VALUE"] and [line[0] for line in lines[1:]] == ["b", "a"]
    found = json.loads(kv("get", "t", "b", "a", "-o", "json").stdout)
    assert [row["key"] for row in found] == ["b", "a"] and found[0]["value"] == "/w=="
    result = kv("get", "t", "a", "x", "y z", "-o", "jsonl")
    assert result.exit_code == 1 and json.loads(result.stdout)["key"] == "a"
    assert result.stderr == "sandctl: no value: 'x'\nsandctl: no value: 'y z'\n"
    result = kv("get", "t", "x", "y")
    assert (result.exit_code, result.stdout) == (1, "")


@pytest.mark.parametrize("output", ["table", "json", "jsonl"])
def test_a_key_that_is_not_there(kv: Ctl, output: str) -> None:
    result = kv("get", "t", "a\x1b", "-o", output)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", "sandctl: no value: 'a\\x1b'\n")


def test_stale(kv: Ctl, keys: FakeKeys) -> None:
    keys.rows[b"a"] = entry(b"a", b"1")
    result = kv("get", "t", "a", "--stale", "--raw")
    assert (result.stdout, result.stderr) == ("1", "sandctl: state of 12 ms ago, or later\n")
    kv("get", "t", "a")
    kv("scan", "t", "--stale")
    asked = [call.arguments["consistency"] for call in keys.calls]
    assert asked == ["stale", "linearizable", "stale"]


def test_put(kv: Ctl, keys: FakeKeys, tmp_path: Path) -> None:
    result = kv("put", "t", "a", "dark", "--ttl", "90s", "--header", "by=ada", "--header", "x=1=2")
    assert (result.exit_code, result.stdout) == (0, version_text(101) + "\n")
    assert json.loads(kv("put", "t", "a", "", "-o", "json").stdout) == {"key": "a", "version": version_text(102)}
    (tmp_path / "f").write_bytes(b"\x00\xff\n")
    kv("put", "t", "a", "--file", str(tmp_path / "f"))
    kv("put", "t", "a", "-f", "-", input=b"from stdin\n")
    assert keys.asked("put") == [
        {"key": b"a", "value": b"dark", "ttl": timedelta(seconds=90), "headers": {"by": "ada", "x": "1=2"}},
        {"key": b"a", "value": b""},
        {"key": b"a", "value": b"\x00\xff\n"},
        {"key": b"a", "value": b"from stdin\n"},
    ]


def test_cas(kv: Ctl, keys: FakeKeys) -> None:
    keys.rows[b"a"] = entry(b"a", b"1")
    assert kv("cas", "t", "a", "2", "--version", V1.lower(), "--ttl", "1m").stdout == version_text(101) + "\n"
    assert kv("cas", "t", "b", "2", "--absent").exit_code == 0
    result = kv("cas", "t", "a", "2", "--absent")
    assert (result.exit_code, result.stdout) == (1, "") and V1 in result.stderr
    assert keys.asked("cas")[0] == {"key": b"a", "value": b"2", "expected": V1, "ttl": timedelta(minutes=1)}


def test_delete(kv: Ctl, keys: FakeKeys) -> None:
    keys.rows[b"a"] = entry(b"a", b"1")
    assert kv("delete", "t", "a", "b", "a").stdout == (
        f"deleted 'a' ({version_text(101)})\ndeleted 'b' ({version_text(102)})\n"
    )
    assert keys.asked("put_many") == [{"items": [(b"a", None), (b"b", None)]}]
    assert json.loads(kv("delete", "t", "a", "-o", "json").stdout) == {"key": "a", "version": version_text(103)}
    assert [row["key"] for row in json.loads(kv("delete", "t", "a", "b", "-o", "json").stdout)] == ["a", "b"]
    assert kv("delete", "t", "a", "--version", V1).exit_code == 0
    assert kv("delete", "t", "a", "--version", version_text(2)).exit_code == 1


def test_scan(kv: Ctl, keys: FakeKeys) -> None:
    keys.rows = {b"k%d" % n: entry(b"k%d" % n, b"v", n, headers={"n": n}) for n in range(5)}
    lines = kv("scan", "t").stdout.splitlines()
    assert len(lines) == 6 and lines[1].split() == ["k0", version_text(0), "-", "v"]
    result = kv("scan", "t", "--prefix", "k", "--limit", "2", "--keys-only")
    assert len(result.stdout.splitlines()) == 3 and "only the first 2" in result.stderr
    assert result.stdout.splitlines()[0].split() == ["KEY", "VERSION"]
    row = json.loads(
        kv("scan", "t", "--start", "a", "--stop", "z", "--limit", "1", "--keys-only", "-o", "jsonl").stdout
    )
    assert row == {"key": "k0", "version": version_text(0), "expires_at": None, "partition": 0}
    assert len(json.loads(kv("scan", "t", "-o", "json", "--limit", "all").stdout)) == 5
    assert [{**asked, "consistency": None} for asked in keys.asked("scan")] == [
        {"limit": 101, "consistency": None},
        {"prefix": b"k", "limit": 3, "consistency": None},
        {"start": b"a", "stop": b"z", "limit": 2, "consistency": None},
        {"consistency": None},
    ]
    keys.rows.clear()
    assert kv("scan", "t").stderr == "none\n"


def test_watch(kv: Ctl, keys: FakeKeys) -> None:
    keys.changes = [change(b"a", b"1\x1b\n2", 1), change(b"b", None, 2), change(b"c", b"", 3)]
    at = "2030-03-17T17:46:40.000Z"
    assert kv("watch", "t").stdout.splitlines() == [
        f"{at}  {V1}  a  1\\x1b\\n2",
        f"{at}  {version_text(2)}  b  (deleted)",
        f"{at}  {version_text(3)}  c  ",
    ]
    rows = [json.loads(line) for line in kv("watch", "t", "-o", "jsonl", "--max", "2").stdout.splitlines()]
    assert rows == [
        {"key": "a", "text": "1\x1b\n2", "deleted": False, "version": V1, "created_at": at, "partition": 0},
        {"key": "b", "value": None, "deleted": True, "version": version_text(2), "created_at": at, "partition": 0},
    ]
    assert len(json.loads(kv("watch", "t", "-o", "json", "--max", "3").stdout)) == 3
    keys.changes = []
    assert json.loads(kv("watch", "t", "-o", "json").stdout) == []
    kv("watch", "t", "--key", "a", "--start", "earliest", "--latest")
    kv("watch", "t", "--prefix", "a/", "--start", V1.lower())
    assert keys.asked("watch")[-2:] == [
        {"key": b"a", "start": "earliest", "latest": True},
        {"prefix": b"a/", "start": V1, "latest": False},
    ]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["get", "t"], "KEY"),
        (["get", "t", "a", "b", "--raw"], "--raw needs exactly one KEY"),
        (["get", "t", "a", "--raw", "-o", "json"], "cannot be used with --output"),
        (["put", "t", "a"], "either VALUE or --file"),
        (["put", "t", "a", "x", "--file", "-"], "either"),
        (["put", "t", "a", "--file", "/nowhere/at/all"], "No such file"),
        (["put", "t", "a", "x", "--ttl", "soon"], "--ttl"),
        (["put", "t", "a", "x", "--header", "by"], "NAME=VALUE"),
        (["cas", "t", "a", "x"], "either --version VERSION or --absent"),
        (["cas", "t", "a", "x", "--absent", "--version", V1], "either"),
        (["cas", "t", "a", "x", "--version", "5"], "26 characters"),
        (["cas", "t", "a", "--absent"], "give the value"),
        (["delete", "t"], "KEY"),
        (["delete", "t", "a", "b", "--version", V1], "exactly one KEY"),
        (["scan", "t", "--prefix", "a", "--start", "a"], "--prefix cannot be used with"),
        (["scan", "t", "--prefix", "a", "--stop", "a"], "--prefix cannot be used with"),
        (["scan", "t", "--limit", "0"], "--limit"),
        (["watch", "t", "--key", "a", "--prefix", "a"], "cannot be used together"),
        (["watch", "t", "--start", "soon"], "neither now nor earliest nor a version"),
        (["watch", "t", "--max", "0"], "--max"),
        (["gett", "t", "a"], "Did you mean 'get'"),
    ],
)
def test_wrong_usage(kv: Ctl, keys: FakeKeys, args: list[str], words: str) -> None:
    result = kv(*args)
    assert result.exit_code == 2 and words in result.stderr, result.stderr
    assert keys.calls == []


def test_help(kv: Ctl) -> None:
    assert [line.split()[0] for line in kv("--help").output.split("Commands:")[1].splitlines() if line.strip()] == [
        "cas", "delete", "get", "put", "scan", "watch"
    ]  # fmt: skip
    for command in ("cas", "delete", "get", "put", "scan", "watch"):
        result = kv(command, "--help")
        assert result.exit_code == 0 and f"sandctl kv {command} " in result.output


def test_requests_that_fail(kv: Ctl) -> None:
    for args in (["get", "x", "a"], ["put", "x", "a", "b"], ["scan", "x"], ["watch", "x"], ["delete", "x", "a"]):
        result = kv(*args)
        assert (result.exit_code, result.stderr) == (1, "sandctl: there is no topic 'x'\n"), args


# Topics of this kind and their messages as JSON.


def test_making_a_compacted_topic(ctl: Any, server: FakeServer) -> None:
    options = ["--history", "10m", "--tombstone-retention", "7d", "--ttl", "30d"]
    assert ctl("topic", "create", "c", "--kind", "compacted", *options).exit_code == 0
    (frame,) = server.of_type(Type.TOPIC_CREATE)
    assert frame[3] == "compacted" and frame[6] == {"history": "10m", "tombstone_retention": "7d", "ttl": "30d"}
    assert ctl("topic", "update", "c", "--history", "1m", "--ttl", "none").exit_code == 0
    assert server.of_type(Type.TOPIC_UPDATE)[0][2:] == ["c", {"history": "1m", "ttl": "none"}]
    result = ctl("topic", "create", "d", "--kind", "fast")
    assert result.exit_code == 2 and "'compacted'" in result.stderr


def test_settings_of_a_compacted_topic() -> None:
    given = {"lease": "1m", "ttl": "30d", "history": "10m", "tombstone_retention": "1w"}
    shown = settings_json(parse_settings(given, COMPACTED).record(), COMPACTED)
    general = {"lease", "max_attempts", "max_snoozes", "backoff", "group_ttl", "max_message_bytes", "max_lease"}
    general |= {"max_request_rate", "max_request_burst", "partition_delimiter", "dead_retention", "max_dead_letters"}
    assert shown.keys() == {*general, "ttl", "history", "tombstone_retention"}
    assert parse_settings(shown, COMPACTED) == parse_settings(given, COMPACTED), "shown settings can be used as options"


def test_deletions_as_json() -> None:
    assert read_message({"key": "a", "value": None}) == {"key": b"a", "value": None}
    for wrong in ({"key": "a"}, {"key": "a", "value": None, "text": "x"}, {"key": "a", "text": None}):
        with pytest.raises(InvalidRequest):
            read_message(wrong)


def test_a_time_that_has_come() -> None:
    message = {"value": b"x", "deliver_at": "2030-03-17T17:46:40.000Z"}
    assert at_once(message, NOW_MS) == {"value": b"x"}
    for kept in (message, {"value": b"x"}, {"value": b"x", "deliver_at": "soon"}, {"value": b"x", "delay": 0}):
        assert at_once(kept, NOW_MS - 1) == kept
