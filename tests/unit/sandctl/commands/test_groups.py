"""Tests of sandctl dead, group and topic with a client that records its calls. Tests of the help and the document of
all commands."""

from __future__ import annotations

import json
import re
import shlex
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click import Command, Context, Group
from click.testing import CliRunner

import sandq
from sandctl.main import main
from sandctl.output.jsonl import parse_line
from sandq.client import DeadOutcome, Forecast, GroupConsumer, GroupConsumers, GroupPauses, Life, PausedPart
from sandq.model.times import format_instant
from tests.support.documents import document
from tests.support.sandctl.fake_client import NOW_MS, Ctl, FakeClient, letter, text

HOUR_MS = 3_600_000
ID = text(NOW_MS + HOUR_MS, 1)


@pytest.fixture
def ctl(offline: Ctl) -> Ctl:
    return offline


# Dead letters.


def test_dead_list(ctl: Ctl, client: FakeClient) -> None:
    client.letters = [letter(1, key=b"k", unique_key=b"order-1"), letter(2, reason="expired", error=None, history=[])]
    result = ctl("dead", "list", "t", "--group", "g", "--reason", "nacked", "--limit", "1")
    assert result.stdout.splitlines()[1].split() == [
        text(NOW_MS, 1), "nacked", "1", "3", format_instant(NOW_MS), "k", "order-1", "6", r"no\nstock",
    ]  # fmt: skip
    assert result.stderr.splitlines() == [
        "sandctl: only the first 1 are shown; --limit changes that",
        "1,203 dead in group g: 3 expired, 1,200 nacked",
    ]
    assert client.asked("dead.list") == [
        {"group": "g", "reason": "nacked", "limit": 2, "values": False, "newest": False}
    ]
    line = ctl("dead", "list", "t", "-g", "g", "--values", "--newest", "-o", "jsonl").stdout.splitlines()[0]
    assert client.asked("dead.list")[-1]["newest"] is True
    assert parse_line(line.encode()) == {
        "value": b"dead 1", "key": b"k", "unique_key": b"order-1", "deliver_at": format_instant(NOW_MS - 5000)
    }  # fmt: skip
    record = json.loads(line)
    assert (record["attempts"], record["error"], record["history"][0]["consumer"]) == (3, "no\nstock", "worker-1")
    assert (record["unique_key"], record["life"], record["lives"], record["history"][0]["life"]) == (
        "order-1",
        1,
        [],
        1,
    )


def test_dead_list_shows_letters_that_were_not_forwarded(ctl: Ctl, client: FakeClient) -> None:
    client.letters = [
        letter(1, error="boom", not_forwarded="the topic was deleted"),
        letter(2, reason="undeliverable", error="it is too large"),
    ]
    first, second = ctl("dead", "list", "t", "-g", "g").stdout.splitlines()[1:]
    assert "boom (not forwarded: the topic was deleted)" in first and "undeliverable" in second
    found = [json.loads(line) for line in ctl("dead", "list", "t", "-g", "g", "-o", "jsonl").stdout.splitlines()]
    assert [row.get("not_forwarded") for row in found] == ["the topic was deleted", None]


def test_dead_list_of_some(ctl: Ctl, client: FakeClient) -> None:
    which = ["--since", "-1h", "--until", "now", "--error", "no stock", "--key-prefix", "eu/"]
    assert ctl("dead", "list", "t", "-g", "g", *which).exit_code == 0
    (asked,) = client.asked("dead.list")
    assert asked.items() >= {
        "since": NOW_MS - 3_600_000, "until": NOW_MS, "error": "no stock", "key_prefix": b"eu/"
    }.items()  # fmt: skip
    ended = Life(1, 3, "nacked", "no\nstock", NOW_MS - 90, NOW_MS - 60, [])
    client.letters = [letter(1, lives=[ended])]
    row = ctl("dead", "list", "t", "-g", "g").stdout.splitlines()[1].split()
    assert row[1:4] == ["nacked", "2", "3"], "its second life"
    for command in ("list", "redrive", "purge"):
        result = ctl("dead", command, "t", "-g", "g", "--error", "")
        assert result.exit_code == 2 and "text is expected" in result.stderr


@pytest.mark.parametrize(("command", "word"), [("redrive", "redriven"), ("purge", "purged")])
def test_dead_by_id(ctl: Ctl, client: FakeClient, command: str, word: str) -> None:
    ids = [text(NOW_MS, place) for place in range(3)]
    named = [argument for one in ids for argument in ("--id", one)]
    client.dead_outcomes = [DeadOutcome(one, word) for one in ids]
    result = ctl("dead", command, "t", "-g", "g", *named)
    assert (result.exit_code, result.stdout) == (0, "".join(f"{word} {one}\n" for one in ids))
    client.dead_outcomes[1:] = [DeadOutcome(ids[1], "not_dead", "leased"), DeadOutcome(ids[2], "not_found")]
    result = ctl("dead", command, "t", "-g", "g", *named)
    assert (result.exit_code, result.stdout) == (1, f"{word} {ids[0]}\n")
    assert result.stderr.splitlines() == [
        f"{ids[1]}: not dead, it is leased",
        f"{ids[2]}: the group has no such dead letter",
    ]
    result = ctl("dead", command, "t", "-g", "g", *named, "-o", "jsonl")
    assert result.exit_code == 1 and [json.loads(line) for line in result.stdout.splitlines()] == [
        {"id": ids[0], "outcome": word},
        {"id": ids[1], "outcome": "not_dead", "state": "leased"},
        {"id": ids[2], "outcome": "not_found"},
    ]
    assert client.asked(f"{command}_ids") == [{"group": "g", "ids": ids}] * 3
    for more in (["--reason", "nacked"], ["--error", "x"], ["--key-prefix", "k"], ["--dry-run"], ["--since", "-1h"]):
        result = ctl("dead", command, "t", "-g", "g", *named, *more)
        assert result.exit_code == 2 and f"it goes without {more[0]}" in result.stderr
    assert ctl("dead", command, "t", "-g", "g", "--id", "nonsense").exit_code == 2


def test_dead_redrive(ctl: Ctl, client: FakeClient) -> None:
    window = ["--reason", "expired", "--since", "-1d", "--until", "now"]
    result = ctl("dead", "redrive", "t", "-g", "g", *window, "--rate", "5")
    assert result.stdout == "redriven 2 of 3 dead letters\n"
    assert ctl("dead", "redrive", "t", "-g", "g", "--dry-run").stdout == "3 dead letters would be redriven\n"
    asked = {"group": "g", "reason": "expired", "since": NOW_MS - 86_400_000, "until": NOW_MS}
    assert client.asked("redrive") == [{**asked, "rate": 5}, {"group": "g", "dry_run": True}]
    for args in (["--rate", "0"], ["--reason", "bored"], ["--since", "now", "--until", "-1h"]):
        assert ctl("dead", "redrive", "t", "-g", "g", *args).exit_code == 2


@pytest.mark.parametrize("command", ["redrive", "purge"])
def test_dead_letters_chosen_by_nothing_are_refused(ctl: Ctl, client: FakeClient, command: str) -> None:
    cases: list[tuple[list[str], str]] = [
        ([], "or --all"),
        (["--key-prefix", ""], "--key-prefix: it is empty"),
        (["--error", ""], "--error: text is expected"),
        (["--all", "--reason", "nacked"], "--all cannot be used with --reason"),
        (["--all", "--id", "01HN7K2B6R0000000001000000"], "it goes without --all"),
    ]
    for args, words in cases:
        result = ctl("dead", command, "t", "-g", "g", *args, *(["--yes"] if command == "purge" else []))
        assert result.exit_code == 2 and words in result.stderr
    assert client.asked(command) == []


def test_dead_purge(ctl: Ctl, client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ctl("dead", "purge", "t", "-g", "g", "--all").exit_code == 2
    assert ctl("dead", "purge", "t", "-g", "g", "--dry-run", "-o", "json").stdout.split() == [
        "{", '"matched":', "3,", '"dry_run":', "true", "}",
    ]  # fmt: skip
    assert ctl("dead", "purge", "t", "-g", "g", "--all", "--yes").stdout == "purged 2 of 3 dead letters\n"
    monkeypatch.setattr("sandctl.options.confirmation.can_ask", lambda: True)
    result = ctl("dead", "purge", "t", "-g", "g", "--all", input="\n")
    assert result.exit_code == 1 and "Delete 3 dead letters of group g for good? [y/N]" in result.stderr
    client.matched = 0
    assert ctl("dead", "purge", "t", "-g", "g", "--all").stdout == "no dead letters\n"
    assert [call.get("dry_run") for call in client.asked("purge")] == [True, None, True, True]


# Groups.


@pytest.fixture
def two_groups(client: FakeClient) -> None:
    """Give the client two groups: one with settings of its own, one without."""
    row = {"cursor": text(NOW_MS, 1), "committed": text(NOW_MS, 0), "ready": 5, "leased": 1, "waiting": 0, "dead": 2}
    row |= {"dead_reasons": {"nacked": 2}, "consumers": 1, "reason": None}
    own = {"max_attempts": None, "backoff": {"kind": "fixed", "first_ms": 5000, "factor_permille": 2000}}
    client.groups = [
        {"group": "a", "partition": 0, **row, "settings": own},
        {"group": "a", "partition": 1, **row, "settings": own},
        {"group": "b", "partition": 0, **row, "settings": None},
    ]


def test_max_snoozes_of_group_is_set(ctl: Ctl, client: FakeClient) -> None:
    for text_of, value in (("7", 7), ("none", None)):
        assert ctl("group", "update", "t", "g", "--max-snoozes", text_of).exit_code == 0
        assert client.asked("update_group")[-1]["settings"] == {"max_snoozes": value}
    result = ctl("group", "update", "t", "g", "--max-snoozes", "few")
    assert result.exit_code == 2 and "--max-snoozes: 'few' is neither a number nor none" in result.stderr


def test_group_show_adds_up(ctl: Ctl, two_groups: None) -> None:
    record = json.loads(ctl("group", "show", "t", "a", "-o", "json").stdout)
    assert record["settings"] == {"max_attempts": None, "backoff": {"kind": "fixed", "first": "5s", "factor": 2.0}}
    assert {name: record[name] for name in ("ready", "dead", "consumers", "dead_reasons")} == {
        "ready": 10, "dead": 4, "consumers": 1, "dead_reasons": {"nacked": 4}
    }  # fmt: skip
    assert [row["partition"] for row in record["partitions"]] == [0, 1]
    lines = ctl("group", "show", "t", "b").stdout.splitlines()
    assert "settings      the topic's" in lines
    result = ctl("group", "show", "t", "c")
    assert (result.exit_code, result.stderr) == (1, "sandctl: topic 't' has no group 'c'\n")
    result = ctl("group", "list", "t", "--limit", "2")
    assert len(result.stdout.splitlines()) == 3 and "only the first 2" in result.stderr


def test_group_show_counts_dropped_and_removed_messages(ctl: Ctl, client: FakeClient, two_groups: None) -> None:
    assert "dropped" not in ctl("group", "show", "t", "a").stdout
    for row in client.groups:
        row |= {"dropped": 3, "dead_removed": 4}
    record = json.loads(ctl("group", "show", "t", "a", "-o", "json").stdout)
    assert (record["dropped"], record["dead_removed"]) == (6, 8)
    lines = ctl("group", "show", "t", "a").stdout.replace("_", " ").splitlines()
    assert [line.split()[-1] for line in lines if line.startswith(("dropped", "dead removed"))] == ["6", "8"]


def test_on_expiry_of_group_is_set(ctl: Ctl, client: FakeClient) -> None:
    assert ctl("group", "update", "t", "g", "--on-expiry", "drop").exit_code == 0
    assert client.asked("update_group")[-1]["settings"] == {"on_expiry": "drop"}
    assert ctl("group", "update", "t", "g", "--on-expiry", "keep").exit_code == 2


def test_group_consumers_lists_consumers_with_leases(ctl: Ctl, client: FakeClient) -> None:
    ada = GroupConsumer("ada", "192.0.2.7:4711", NOW_MS - 1000, 9, 2, 3, NOW_MS)
    client.consumers = GroupConsumers([ada, GroupConsumer("h", None, None, None, 0, 1, NOW_MS)], 4)
    result = ctl("group", "consumers", "t", "g")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["CONSUMER", "ADDRESS", "SINCE", "PARTITIONS", "CREDIT", "MESSAGES", "OLDEST"]
    assert lines[1].split()[:2] == ["ada", "192.0.2.7:4711"] and lines[1].split()[3:6] == ["2", "9", "3"]
    assert result.stderr == "sandctl: 4 consumers more are not shown\n"
    first, second = json.loads(ctl("group", "consumers", "t", "g", "-o", "json").stdout)
    assert (first["since"], first["leased_at"]) == (format_instant(NOW_MS - 1000), format_instant(NOW_MS))
    assert (second["address"], second["since"], second["credit"]) == (None, None, None)


def test_group_pauses_lists_tenants_and_keys_with_ends(ctl: Ctl, client: FakeClient) -> None:
    tenant = PausedPart("tenant", "acme", None, NOW_MS, 2)
    keys = [PausedPart("key", None, key, None, 1) for key in (b"k", b"\xff", None)]
    client.pauses = GroupPauses([tenant, *keys], 4)
    result = ctl("group", "pauses", "t", "g")
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["PART", "NAME", "UNTIL", "PARTITIONS"],
        ["tenant", "acme", format_instant(NOW_MS), "2"],
        ["key", "k", "it", "is", "resumed", "1"],
        ["key", "ff", "it", "is", "resumed", "1"],
        ["key", "(a", "key", "above", "1,024", "bytes)", "it", "is", "resumed", "1"],
    ]
    assert result.stderr == "sandctl: 4 paused tenants and keys more are not shown\n"
    assert json.loads(ctl("group", "pauses", "t", "g", "-o", "json").stdout) == [
        {"part": "tenant", "tenant": "acme", "paused_until": format_instant(NOW_MS), "partitions": 2},
        {"part": "key", "key": "k", "paused_until": None, "partitions": 1},
        {"part": "key", "key_base64": "/w==", "paused_until": None, "partitions": 1},
        {"part": "key", "paused_until": None, "partitions": 1},
    ]


def test_group_list_with_paused_parts_counts_them(ctl: Ctl, client: FakeClient, two_groups: None) -> None:
    assert "PAUSED" not in ctl("group", "list", "t").stdout
    client.groups[0] |= {"paused_tenants": 3, "paused_keys": 0}
    heading, row, *_ = ctl("group", "list", "t").stdout.splitlines()
    at = heading.index("PAUSED TENANTS")
    assert row[at:].split()[0] == "3" and "PAUSED KEYS" not in heading


def test_group_list_and_show_count_messages_blocked_by_keys(ctl: Ctl, client: FakeClient, two_groups: None) -> None:
    assert "BLOCKED BY KEY" not in ctl("group", "list", "t").stdout
    assert "blocked_by_key" not in ctl("group", "show", "t", "a").stdout.replace(" ", "_").lower()
    assert "blocked_by_key" not in json.loads(ctl("group", "show", "t", "a", "-o", "json").stdout)
    for row, blocked in zip(client.groups, (3, 1, 0), strict=True):
        row["blocked_by_key"] = blocked
    assert json.loads(ctl("group", "show", "t", "a", "-o", "json").stdout)["blocked_by_key"] == 4
    heading, *rows = ctl("group", "list", "t").stdout.splitlines()
    at = heading.index("BLOCKED BY KEY")
    assert [row[at:].split()[0] for row in rows] == ["3", "1", "0"]
    assert "blocked by key  4" in ctl("group", "show", "t", "a").stdout.replace("_", " ")


def test_group_seek(ctl: Ctl, client: FakeClient, answers: None) -> None:
    result = ctl("group", "seek", "t", "g", "--to", "-2h", input="y\n")
    assert result.exit_code == 0 and result.stdout.splitlines()[1].split() == ["0", text(NOW_MS, 1)]
    assert "begin at 2030-" in result.stderr
    for to in ("earliest", "latest", ID.lower(), format_instant(NOW_MS)):
        assert ctl("group", "seek", "t", "g", "--to", to, "--yes").exit_code == 0
    assert [call["to"] for call in client.asked("seek_group")] == [
        NOW_MS - 2 * HOUR_MS, "earliest", "latest", ID, NOW_MS,
    ]  # fmt: skip
    assert ctl("group", "seek", "t", "g", "--to", "latest", input="n\n").exit_code == 1
    for to in ("soon", "5m", "1700000000"):
        result = ctl("group", "seek", "t", "g", "--to", to, "--yes")
        assert result.exit_code == 2 and "not a position in a topic" in result.stderr
    assert ctl("group", "seek", "t", "g", "--yes").exit_code == 2


def test_group_update_and_delete(ctl: Ctl, client: FakeClient) -> None:
    args = ["--max-attempts", "none", "--backoff", "fixed", "--backoff-first", "5s", "--backoff-jitter", "0"]
    assert ctl("group", "update", "t", "g", *args).stdout == "updated group g of t\n"
    assert ctl("group", "update", "t", "g", "--reset").exit_code == 0
    assert ctl("group", "update", "t", "g", "--max-in-flight-per-key", "2").exit_code == 0
    backoff = {"kind": "fixed", "first": "5s", "jitter_percent": 0}
    assert [call["settings"] for call in client.asked("update_group")] == [
        {"max_attempts": None, "backoff": backoff},
        {},
        {"max_in_flight_per_key": "2"},
    ]
    for bad in ([], ["--reset", "--max-attempts", "3"], ["--lease", "1m"], ["--max-attempts", "²"]):
        assert ctl("group", "update", "t", "g", *bad).exit_code == 2
    assert ctl("group", "delete", "t", "g").exit_code == 2
    assert ctl("group", "delete", "t", "g", "--yes").stdout == "deleted group g of t\n"
    assert ctl("group", "delete", "t", "g", "--yes", "--force").exit_code == 0
    assert client.asked("delete_group") == [{"topic": "t", "group": "g", "force": force} for force in (False, True)]


def test_group_pause_and_resume(ctl: Ctl, client: FakeClient) -> None:
    assert ctl("group", "pause", "t", "g").stdout == "paused group g of t\n"
    record = json.loads(ctl("group", "resume", "t", "g", "-o", "json").stdout)
    assert record == {"group": "g", "topic": "t", "paused": False}
    assert client.asked("pause_group") == client.asked("resume_group") == [{"topic": "t", "group": "g"}]
    assert ctl("group", "pause", "t").exit_code == 2


def test_group_pause_with_an_end(ctl: Ctl, client: FakeClient) -> None:
    assert ctl("group", "pause", "t", "g", "--for", "10m").stdout == "paused group g of t for 10m\n"
    shown = ctl("group", "pause", "t", "g", "--until", "2030-01-31T18:00:00Z").stdout
    assert shown == "paused group g of t until 2030-01-31T18:00:00.000Z\n"
    assert ctl("group", "pause", "t", "g", "--until", "18:00").exit_code == 0
    first, second, third = client.asked("pause_group")
    assert first == {"topic": "t", "group": "g", "for_": timedelta(minutes=10)}
    assert second == {"topic": "t", "group": "g", "until": 1_896_112_800_000}
    until = datetime.fromtimestamp(third["until"] / 1000)
    assert (until.hour, until.minute, until.second) == (18, 0, 0)
    assert 0 < until.timestamp() * 1000 - NOW_MS <= 90_000_000
    for wrong in (["--for", "10m", "--until", "18:00"], ["--until", "25:00"], ["--for", "soon"]):
        assert ctl("group", "pause", "t", "g", *wrong).exit_code == 2


def test_group_pause_of_a_tenant_or_a_key(ctl: Ctl, client: FakeClient) -> None:
    shown = ctl("group", "pause", "t", "g", "--tenant", "acme.eu", "--for", "10m").stdout
    assert shown == "paused tenant acme.eu of group g of t for 10m\n"
    record = json.loads(ctl("group", "resume", "t", "g", "--key", "k", "-o", "json").stdout)
    assert record == {"group": "g", "topic": "t", "paused": False, "key": "k"}
    assert client.asked("pause_group") == [
        {"topic": "t", "group": "g", "tenant": "acme.eu", "for_": timedelta(minutes=10)}
    ]
    assert client.asked("resume_group") == [{"topic": "t", "group": "g", "key": b"k"}]
    assert ctl("group", "pause", "t", "g", "--tenant", "a", "--key", "k").exit_code == 2


def test_group_limit(ctl: Ctl, client: FakeClient) -> None:
    assert ctl("group", "limit", "t", "g", "--max-in-flight", "10").stdout == "limited group g of t\n"
    assert ctl("group", "limit", "t", "g", "--rate", "50/s", "--burst", "5").exit_code == 0
    assert ctl("group", "limit", "t", "g", "--none").stdout == "group g of t has no limits\n"
    assert ctl("group", "limit", "t", "g", "--limit", "llm").stdout == "limited group g of t\n"
    assert client.asked("limit_group") == [
        {"topic": "t", "group": "g", "max_in_flight": 10},
        {"topic": "t", "group": "g", "rate": "50/s", "burst": 5},
        {"topic": "t", "group": "g"},
        {"topic": "t", "group": "g", "limit": "llm"},
    ]
    for wrong in (["--none", "--rate", "5"], []):
        assert ctl("group", "limit", "t", "g", *wrong).exit_code == 2


def test_group_push_set(ctl: Ctl, client: FakeClient, tmp_path: Path) -> None:
    url = "https://shop.example/hooks"
    result = ctl("group", "push", "set", "t", "g", "--url", url, "--new-secret", "--concurrency", "5")
    first, second = result.stdout.splitlines()
    assert first == f"group g of t is pushed to {url}"
    secret = second.removeprefix("its new secret, which is not shown again: ")
    (asked,) = client.asked("set_push")
    assert asked == {"topic": "t", "group": "g", "url": url, "secrets": [secret], "concurrency": 5}
    sandq.verify_push(sandq.sign_push("m", b"", secret), b"", asked["secrets"])
    file = tmp_path / "secrets"
    file.write_text(f"{secret}\nwhsec_other\n")
    more = ["--secret-file", str(file), "--keep-secrets", "--request-timeout", "10s"]
    told = json.loads(ctl("group", "push", "set", "t", "g", *more, "-o", "json").stdout)
    assert "secret" not in told
    assert client.asked("set_push")[1] == {
        "topic": "t", "group": "g", "secrets": [secret, "whsec_other"], "keep_secrets": True,
        "request_timeout": timedelta(seconds=10),
    }  # fmt: skip
    assert ctl("group", "push", "set", "t", "g", "--secret-file", "-", input=f"{secret}\n").exit_code == 0
    assert client.asked("set_push")[2]["secrets"] == [secret]
    told = json.loads(ctl("group", "push", "set", "t", "g", "--new-secret", "-o", "json").stdout)
    assert told["secret"] == client.asked("set_push")[3]["secrets"][0]
    (tmp_path / "empty").write_text("\n")
    for wrong in (
        [],
        ["--new-secret", "--secret-file", str(file)],
        ["--secret-file", str(tmp_path / "nowhere")],
        ["--secret-file", str(tmp_path / "empty")],
        ["--concurrency", "x"],
        ["--secret", secret],
    ):
        assert ctl("group", "push", "set", "t", "g", *wrong).exit_code == 2


def test_group_push_set_with_targets_of_messages(ctl: Ctl, client: FakeClient) -> None:
    result = ctl("group", "push", "set", "t", "g", "--targets", "message", "--new-secret")
    assert result.exit_code == 0
    (asked,) = client.asked("set_push")
    assert asked["targets"] == "message" and "url" not in asked


def test_group_push_headers_are_read_from_a_file(ctl: Ctl, client: FakeClient, tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("authorization = Bearer a=b\n\nx-team=7\n")
    assert ctl("group", "push", "set", "t", "g", "--header-file", str(file)).exit_code == 0
    assert ctl("group", "push", "set", "t", "g", "--header-file", "-", input="").exit_code == 0
    assert [asked["headers"] for asked in client.asked("set_push")] == [
        {"authorization": "Bearer a=b", "x-team": "7"},
        {},
    ]
    file.write_text("a=b\nBearer secret\n")
    wrong = ctl("group", "push", "set", "t", "g", "--header-file", str(file))
    assert wrong.exit_code == 2 and "line 2: NAME=VALUE is expected" in wrong.stderr and "secret" not in wrong.stderr


def test_group_push_is_shown_and_removed(ctl: Ctl, client: FakeClient) -> None:
    assert ctl("group", "push", "list", "t").stderr == "none\n"
    assert "is not pushed" in ctl("group", "push", "show", "t", "g").stderr
    node = {"node": "node1", "state": "waiting", "error": "HTTP 500", "error_ms": NOW_MS, "partitions": [0]}
    client.pushes = [
        {
            "group": "g", "url": "https://shop.example/", "secrets": ["whsec_…LaSw"], "concurrency": 10,
            "request_timeout": "30s", "state": "waiting", "error": "HTTP 500", "error_ms": NOW_MS, "nodes": [node],
        }
    ]  # fmt: skip
    lines = ctl("group", "push", "list", "t").stdout.splitlines()
    assert lines[1].split() == ["g", "https://shop.example/", "waiting", "10", "30s", "HTTP", "500"]
    told = json.loads(ctl("group", "push", "show", "t", "g", "-o", "json").stdout)
    assert (told["error_at"], told["nodes"][0]["error_at"]) == (format_instant(NOW_MS), format_instant(NOW_MS))
    assert "whsec_…LaSw" in ctl("group", "push", "show", "t", "g").stdout
    client.groups = [{"group": "g", "partition": 0}]
    assert "https://shop.example/ (waiting; last error: HTTP 500)" in ctl("group", "show", "t", "g").stdout
    assert json.loads(ctl("group", "show", "t", "g", "-o", "json").stdout)["push"]["state"] == "waiting"
    client.pushes = [{**client.pushes[0], "url": None, "targets": "message"}]
    assert "the URLs of its messages" in ctl("group", "push", "list", "t").stdout
    assert json.loads(ctl("group", "push", "show", "t", "g", "-o", "json").stdout)["url"] is None
    assert "the URLs of its messages (waiting" in ctl("group", "show", "t", "g").stdout
    assert ctl("group", "push", "remove", "t", "g").stdout == "group g of t is not pushed\n"
    assert client.asked("remove_push") == [{"topic": "t", "group": "g"}]


def test_deleting_has_the_name_typed(ctl: Ctl, client: FakeClient, answers: None) -> None:
    result = ctl("group", "delete", "t", "g", input="h\n")
    assert result.exit_code == 2 and "nothing was deleted" in result.stderr and not client.calls
    assert ctl("group", "delete", "t", "g", input="g\n").exit_code == 0


# Topics.


def test_topic_update(ctl: Ctl, client: FakeClient) -> None:
    args = [
        *("--ttl", "none", "--retention", "1h", "--retain", "--retain-for", "30d", "--retain-bytes", "10GiB"),
        *("--group-ttl", "1d", "--dedup-window", "0", "--backoff-cap", "1m", "--max-attempts", "7", "--lease", "90s"),
    ]
    assert ctl("topic", "update", "t", *args).stdout == "updated topic t\n"
    (asked,) = client.asked("update_topic")
    assert asked["settings"] == {
        "ttl": "none", "retention": "1h", "delete_on_ack": False, "retain": "30d", "retain_bytes": "10GiB",
        "group_ttl": "1d", "dedup_window": "0", "backoff": {"cap": "1m"}, "max_attempts": 7, "lease": "90s",
    }  # fmt: skip
    record = json.loads(ctl("topic", "update", "t", "--ttl", "1h", "-o", "json").stdout)
    assert record["settings"] == {"lease": "1m", "ttl": None, "backoff": {"first": "1s", "factor": 1.5}}
    assert ctl("topic", "update", "t", "--partitions", "12", "--replicas", "3").exit_code == 0
    assert client.asked("update_topic")[-1] == {"name": "t", "partitions": 12, "replicas": 3, "settings": {}}
    assert ctl("topic", "update", "t").exit_code == 2
    assert ctl("topic", "update", "t", "--ordering", "key").exit_code == 2


def test_topic_purge(ctl: Ctl, client: FakeClient, two_groups: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ctl("topic", "purge", "t").exit_code == 2
    assert ctl("topic", "purge", "t", "--yes").stdout == "cancelled 2 messages of t\n"
    assert not client.asked("purge")
    result = ctl("topic", "purge", "t", "--dead", "--yes", "-o", "json")
    assert json.loads(result.stdout) == {"matched": 3, "done": 2, "too_late": 1, "dead_purged": 4}
    assert client.asked("purge") == [{"group": "a"}, {"group": "b"}]
    monkeypatch.setattr("sandctl.options.confirmation.can_ask", lambda: True)
    result = ctl("topic", "purge", "t", "--dead", input="u\n")
    assert result.exit_code == 2 and "purges its dead letters" in result.stderr


def test_topic_forecast(ctl: Ctl, client: FakeClient) -> None:
    start_ms = NOW_MS - NOW_MS % 60_000
    buckets = [(start_ms + 60_000, 8), (start_ms + 180_000, 1), (start_ms + 600_000, 1600)]
    client.forecast = Forecast(NOW_MS, buckets, 1_234_567)
    result = ctl("topic", "forecast", "t")
    at = [format_instant(start_ms + minute * 60_000) for minute in (0, 1, 2, 3, 10)]
    assert result.stdout.splitlines() == [
        f"{at[0]}          0",
        f"{at[1]}          8  ▏",
        f"{at[2]}          0",
        f"{at[3]}          1  ▏",
        "...                               0",
        f"{at[4]}      1,600  {'█' * 40}",
        "later                     1,234,567",
    ]
    record = json.loads(ctl("topic", "forecast", "t", "--unit", "hour", "--count", "3", "-o", "json").stdout)
    assert (record["later"], record["buckets"][0]) == (1_234_567, {"start": at[1], "messages": 8})
    asked = {"topic": "t", "unit": "minute", "count": 60}
    assert client.asked("forecast") == [asked, {**asked, "unit": "hour", "count": 3}]
    client.forecast = Forecast(NOW_MS, buckets[:1], 0, [(start_ms + 60_000, 4), (start_ms + 120_000, 1)], False)
    result = ctl("topic", "forecast", "t")
    assert [line.split()[1] for line in result.stdout.splitlines()] == ["0", "12", "1", "0"]
    assert result.stderr.startswith("of these 5 by schedules") and "too many to count" in result.stderr
    record = json.loads(ctl("topic", "forecast", "t", "-o", "json").stdout)
    assert (record["complete"], record["buckets"]) == (False, [{"start": at[1], "messages": 8}])
    assert record["scheduled"][1] == {"start": at[2], "messages": 1}
    client.forecast = Forecast(NOW_MS, [], 0)
    assert ctl("topic", "forecast", "t").stdout == "later                     0\n"
    for bad in (["--count", "0"], ["--count", "3601"], ["--unit", "day"]):
        assert ctl("topic", "forecast", "t", *bad).exit_code == 2


def test_every_command_of_the_document_can_be_typed(client: FakeClient) -> None:
    lines = [line.strip() for line in document("sandctl").splitlines() if line.startswith("    sandctl ")]
    typed = [shlex.split(part, comments=True) for line in lines for part in re.split(r" [|>] ", line)]
    used = set()
    for _, *args in [words for words in typed if words[0] == "sandctl"]:
        command: Command = main
        path = []
        while isinstance(command, Group) and args:
            path.append(args.pop(0))
            command = command.commands[path[-1]]
        # Use the root's context: Click keeps the names of the help option from the first use.
        command.make_context(path[-1], args, parent=Context(main, **main.context_settings))
        used.add(tuple(path))
    # The pipeline commands are on a separate page, which `tests/spark/test_spark_page.py` runs.
    used |= {("pipeline", name) for name in re.findall(r"^sandctl pipeline (\w+)", document("spark"), re.M)}
    assert set(commands(main)) <= used


def commands(group: Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of all commands."""
    found = []
    for name, command in group.commands.items():
        found += commands(command, (*path, name)) if isinstance(command, Group) else [(*path, name)]
    return found


def test_every_command_has_help() -> None:
    assert len(commands(main)) == 126
    for path in commands(main):
        result = CliRunner().invoke(main, [*path, "--help"])
        assert result.exit_code == 0 and f"Usage: sandctl {' '.join(path)}" in result.output
        assert re.search(rf"(^|\()\W*sandctl {' '.join(path)}", result.output.partition("\n")[2], re.MULTILINE), path
        assert max(map(len, result.output.splitlines())) <= 100


GROUP_COMMANDS = [
    ["group", "show"],
    ["group", "pause"],
    ["dead", "list"],
    ["dead", "redrive", "--all"],
    ["lease", "take"],
]


@pytest.mark.parametrize("words", GROUP_COMMANDS, ids=lambda words: " ".join(words))
def test_a_group_is_named_behind_the_topic_or_by_an_option(ctl: Ctl, client: FakeClient, words: list[str]) -> None:
    shown = [ctl(*words, "t", *how) for how in (["g"], ["-g", "g"], ["--group", "g"])]
    assert len({(one.exit_code, one.stdout, one.stderr) for one in shown}) == 1
    assert shown[0].exit_code != 2
    none = ctl(*words, "t")
    assert none.exit_code == 2 and "name the group: GROUP after TOPIC, or --group GROUP" in none.stderr
    twice = ctl(*words, "t", "g", "-g", "g")
    assert twice.exit_code == 2 and "the group is given twice" in twice.stderr
