"""Tests of sandctl message with a client that records its calls."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from sandctl.output.jsonl import parse_line
from sandq.client import Attempt, Life
from sandq.model.times import format_instant
from tests.support.sandctl.fake_client import NOW_MS, Ctl, FakeClient, stored, text

HOUR_MS = 3_600_000
ID = text(NOW_MS + HOUR_MS, 1)
OTHER = text(NOW_MS + HOUR_MS, 2)


@pytest.fixture
def ctl(offline: Ctl) -> Ctl:
    return offline


# Reading messages.


def test_message_list(ctl: Ctl, client: FakeClient) -> None:
    client.rows = [stored(1, key=b"ada", unique_key=b"\xff"), stored(2, state="leased", value=None)]
    window = ("--since", "-1h", "--until", "+5m", "--key-prefix", "a", "--unique-key-prefix", "u")
    result = ctl("message", "list", "t", "--state", "delayed", *window)
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["ID", "STATE", "DELIVER", "AT", "KEY", "UNIQUE", "KEY", "BYTES"]
    assert lines[1].split() == [ID, "delayed", format_instant(NOW_MS + HOUR_MS), "ada", "ff", "42"]
    assert lines[2].split()[:2] == [OTHER, "leased"] and result.stderr == ""
    asked = {"state": "delayed", "since": NOW_MS - HOUR_MS, "until": NOW_MS + 300_000, "key_prefix": b"a"}
    asked["unique_key_prefix"] = b"u"
    assert client.asked("list") == [{**asked, "limit": 101, "values": False, "newest": False}]
    assert "value 1" in ctl("message", "list", "t", "--values").output
    client.rows = []
    result = ctl("message", "list", "t", "--newest")
    assert client.asked("list")[-1]["newest"] is True
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "none\n")
    assert ctl("message", "list", "t", "-o", "json").stdout == "[]\n"


def test_truncated_lists_report_the_limit(ctl: Ctl, client: FakeClient) -> None:
    client.rows = [stored(place) for place in range(5)]
    for output in ("table", "json", "jsonl"):
        result = ctl("message", "list", "t", "--limit", "3", "-o", output)
        assert result.stderr == "sandctl: only the first 3 are shown; --limit changes that\n"
        shown = json.loads(result.stdout) if output == "json" else result.stdout.splitlines()
        assert len(shown) == (4 if output == "table" else 3)
    for limit in ("5", "all"):
        result = ctl("message", "list", "t", "--limit", limit)
        assert (len(result.stdout.splitlines()), result.stderr) == (6, "")
    assert [call.get("limit") for call in client.asked("list")] == [4, 4, 4, 6, None]
    for bad in ("0", "-1", "many", "1.5", "9" * 20):
        result = ctl("message", "list", "t", "--limit", bad)
        assert result.exit_code == 2 and "neither a number of 1 or more nor all" in result.stderr


def test_message_list_output_is_valid_produce_input(ctl: Ctl, client: FakeClient) -> None:
    client.rows = [
        stored(1, key=b"ada", headers={"a": 1, "b": b"\xff"}, ttl_ms=90_000, unique_key=b"u"),
        stored(2, value=b"\xff", key=b"\xfe", unique_key=b"\xfd"),
        stored(3, priority=-5, tenant="acme.mail"),
    ]
    first, second, third = ctl("message", "list", "t", "--values", "-o", "jsonl").stdout.splitlines()
    deliver_at = format_instant(NOW_MS + HOUR_MS)
    assert parse_line(first.encode()) == {
        "value": b"value 1", "key": b"ada", "unique_key": b"u", "headers": {"a": 1, "b": b"\xff"},
        "deliver_at": deliver_at, "ttl": "1m30s",
    }  # fmt: skip
    assert parse_line(second.encode()) == {
        "value": b"\xff", "key": b"\xfe", "unique_key": b"\xfd", "deliver_at": deliver_at
    }  # fmt: skip
    assert parse_line(third.encode()) == {
        "value": b"value 3", "deliver_at": deliver_at, "priority": -5, "tenant": "acme.mail"
    }  # fmt: skip
    record = json.loads(first)
    assert (record["id"], record["state"], record["due_at"], record["moves"]) == (ID, "delayed", deliver_at, 0)
    assert "text" not in json.loads(ctl("message", "list", "t", "-o", "jsonl").stdout.splitlines()[0])


def test_message_get(ctl: Ctl, client: FakeClient) -> None:
    client.rows = [stored(1, value=b"x" * 3000, unique_key=b"u", moves=1, moved_ms=NOW_MS)]
    result = ctl("message", "get", "t", ID.lower())
    assert (
        result.exit_code == 0
        and "x" * 2000 + "… (3,000 characters" in result.stdout
        and "x" * 2001 not in result.stdout
    )
    record = json.loads(ctl("message", "get", "t", "--unique-key", "u", "-o", "json").stdout)
    assert (record["text"], record["moved_at"]) == ("x" * 3000, format_instant(NOW_MS))
    assert client.asked("get") == [{"id": ID}, {"unique_key": b"u"}]
    assert ctl("message", "get", "t", OTHER).exit_code == 1
    for args, words in (
        ([], "name the message"),
        ([ID, "--unique-key", "u"], "either"),
        (["nonsense"], "is not an offset"),
    ):
        result = ctl("message", "get", "t", *args)
        assert result.exit_code == 2 and words in result.stderr


BIOGRAPHY = {
    "id": ID,
    "offset": text(NOW_MS - 1000, 4),
    "topic": "t",
    "partition": 0,
    "state": "leased",
    "created_ms": NOW_MS - 7_200_000,
    "deliver_ms": NOW_MS - 1000,
    "due_ms": NOW_MS + HOUR_MS,
    "key": b"ada",
    "headers": {"a": 1},
    "headers_bytes": b"\x81\xa1a\x01",
    "ttl_ms": 60_000,
    "unique_key": b"\xff\x00",
    "moves": 2,
    "moved_ms": NOW_MS - 60_000,
    "size": 1234,
    "groups": [
        {
            "group": "billing", "state": "leased", "attempt": 2, "consumer": "worker-2", "token": 2**60,
            "lease_token": f"7.0.{2**60}",
            "deadline_ms": NOW_MS + 30_500, "due_ms": None, "error": None, "consumers": 2,
            "reason": "worker-2 holds it until its lease ends",
            "history": [[1, "worker-1", NOW_MS - 900, NOW_MS - 400, "nacked", "no\n  stock"]],
        },
        {
            "group": "audit", "state": "waiting", "attempt": 1, "consumer": None, "token": None, "deadline_ms": None,
            "due_ms": NOW_MS + 5000, "error": "broken", "consumers": 0, "reason": "its back-off ends", "history": [],
        },
    ],
}  # fmt: skip


def test_why_prints_the_history_of_a_message(ctl: Ctl, client: FakeClient) -> None:
    client.biography = BIOGRAPHY
    at = {ms: format_instant(NOW_MS + ms) for ms in (-7_200_000, HOUR_MS, -60_000, -1000, 59_000, -900, 30_500, 5000)}
    result = ctl("message", "why", "t", ID)
    assert result.stdout.splitlines() == [
        f"message {ID} of topic t: leased",
        "  key        ada",
        "  unique key ff00",
        "  size       1,234 bytes",
        f"  created    {at[-7_200_000]} (2h ago)",
        f"  due first  {at[HOUR_MS]} (in 1h)",
        f"  moved      2 times, last {at[-60_000]} (1m ago)",
        f"  due        {at[-1000]} (1s ago)",
        f"  expires    {at[59_000]} (in 59s), its ttl is 1m",
        "",
        "group billing: leased",
        f"  attempt 1  {at[-900]} (900ms ago) by worker-1, nacked after 500ms: no stock",
        f"  held by    worker-2, attempt 2, until {at[30_500]} (in 30s)",
        f"  lease      7.0.{2**60}",
        "  consumers  2 connected",
        "  waits for  worker-2 holds it until its lease ends",
        "",
        "group audit: waiting",
        f"  back       {at[5000]} (in 5s), after attempt 1",
        "  error      broken",
        "  consumers  none connected",
        "  waits for  its back-off ends",
    ]
    client.biography = {**BIOGRAPHY, "groups": [], "moves": 0}
    assert "no group has subscribed" in ctl("message", "why", "t", "--unique-key", "u").stdout
    assert client.asked("why") == [{"id": ID}, {"unique_key": b"u"}]


def test_a_biography_goes_life_by_life(ctl: Ctl, client: FakeClient) -> None:
    """Attempts count from 1 in each life. Without the lives the attempts could not be distinguished."""
    rows = [[1, "w", NOW_MS - 90_000, NOW_MS - 89_000, "nacked", "e1"], [2, "w", NOW_MS - 80_000, NOW_MS - 79_000,
            "nacked", "e2"], [1, "w", NOW_MS - 2000, NOW_MS - 1000, "nacked", "e3"]]  # fmt: skip
    first = Life(1, 2, "nacked", "e2", NOW_MS - 79_000, NOW_MS - 60_000, [Attempt(*row) for row in rows[:2]])
    second = Life(2, 0, "expired", None, NOW_MS - 50_000, NOW_MS - 30_000, [])
    group = {**BIOGRAPHY["groups"][1], "history": rows, "lives": [first, second]}
    client.biography = {**BIOGRAPHY, "groups": [group]}
    told = ctl("message", "why", "t", ID).stdout.partition("group audit: waiting\n")[2].splitlines()[:6]
    at = {ms: format_instant(NOW_MS + ms) for ms in (-79_000, -60_000, -90_000, -80_000, -50_000, -30_000, -2000)}
    assert told == [
        f"  life 1     died {at[-79_000]} (1m19s ago) after 2 attempts (nacked), redriven {at[-60_000]} (1m ago): e2",
        f"  attempt 1  {at[-90_000]} (1m30s ago) by w, nacked after 1s: e1",
        f"  attempt 2  {at[-80_000]} (1m20s ago) by w, nacked after 1s: e2",
        f"  life 2     died {at[-50_000]} (50s ago) after 0 attempts (expired), redriven {at[-30_000]} (30s ago)",
        f"  life 3     since {at[-30_000]} (30s ago)",
        f"  attempt 1  {at[-2000]} (2s ago) by w, nacked after 1s: e3",
    ]
    record = json.loads(ctl("message", "why", "t", ID, "-o", "json").stdout)["groups"][0]
    assert [(one["life"], one["attempt"]) for one in record["history"]] == [(1, 1), (1, 2), (3, 1)]
    assert (record["life"], [life["reason"] for life in record["lives"]]) == (3, ["nacked", "expired"])


@pytest.mark.parametrize(("reclaims", "words"), [(1, "once"), (4, "4 times")])
def test_why_prints_the_number_of_reclaims(ctl: Ctl, client: FakeClient, reclaims: int, words: str) -> None:
    (_, audit) = BIOGRAPHY["groups"]  # type: ignore[misc]
    client.biography = {**BIOGRAPHY, "groups": [{**audit, "reclaims": reclaims}]}
    assert f"  reclaimed  {words}" in ctl("message", "why", "t", ID).stdout.splitlines()


@pytest.mark.parametrize(("rule", "end"), [("dead", "becomes a dead letter"), ("drop", "is dropped")])
def test_why_prints_when_a_message_expires(ctl: Ctl, client: FakeClient, rule: str, end: str) -> None:
    (_, audit) = BIOGRAPHY["groups"]  # type: ignore[misc]
    client.biography = {**BIOGRAPHY, "groups": [{**audit, "expires_ms": NOW_MS + 60_000, "on_expiry": rule}]}
    lines = [line for line in ctl("message", "why", "t", ID).stdout.splitlines() if line.startswith("  expires")]
    assert lines[-1].endswith(f"(in 1m); unless it is leased, it {end} then")


@pytest.mark.parametrize(("snoozes", "words"), [(1, "once"), (1200, "1,200 times")])
def test_snoozes_are_part_of_the_biography(ctl: Ctl, client: FakeClient, snoozes: int, words: str) -> None:
    history = [[1, "worker-1", NOW_MS - 900, NOW_MS - 400, "snoozed", "429"]]
    (_, audit) = BIOGRAPHY["groups"]  # type: ignore[misc]
    client.biography = {**BIOGRAPHY, "groups": [{**audit, "snoozes": snoozes, "history": history}]}
    lines = ctl("message", "why", "t", ID).stdout.splitlines()
    assert f"  snoozed    {words}" in lines
    assert [line for line in lines if "worker-1, snoozed after 500ms: 429" in line]


def test_a_rank_is_part_of_the_biography(ctl: Ctl, client: FakeClient) -> None:
    client.biography = {**BIOGRAPHY, "priority": -3, "tenant": "acme"}
    lines = ctl("message", "why", "t", "--unique-key", "u", "--tenant", "acme").stdout.splitlines()
    assert lines[3:5] == ["  priority   -3", "  tenant     acme"]
    record = json.loads(ctl("message", "why", "t", ID, "-o", "json").stdout)
    assert (record["priority"], record["tenant"]) == (-3, "acme")
    assert client.asked("why") == [{"unique_key": b"u", "tenant": "acme"}, {"id": ID}]


def test_a_unique_key_is_looked_for_where_its_tenant_is(ctl: Ctl, client: FakeClient) -> None:
    client.rows = [stored(1, unique_key=b"u", priority=7, tenant="acme")]
    record = json.loads(ctl("message", "get", "t", "--unique-key", "u", "--tenant", "acme", "-o", "json").stdout)
    assert (record["priority"], record["tenant"]) == (7, "acme")
    named = ("--unique-key", "u", "--tenant", "acme", "-o", "json")
    assert json.loads(ctl("message", "move", "t", *named, "--in", "5s").stdout)[0]["tenant"] == "acme"
    (row,) = json.loads(ctl("message", "cancel", "t", *named).stdout)
    assert (row["unique_key"], row["tenant"], row["outcome"]) == ("u", "acme", "cancelled")
    key = {"unique_key": b"u", "tenant": "acme"}
    assert client.asked("get") == client.asked("cancel") == [key]
    assert client.asked("move") == [{**key, "delay": timedelta(seconds=5)}]
    for command in ("get", "why", "cancel"):
        result = ctl("message", command, "t", ID, "--tenant", "acme")
        assert result.exit_code == 2 and "needs --unique-key" in result.stderr


def test_message_with_a_key_is_named_by_both(ctl: Ctl, client: FakeClient) -> None:
    client.rows = [stored(1, unique_key=b"u", key=b"ada"), stored(2, unique_key=b"u", key=b"bob")]
    named = ("--unique-key", "u", "--key", "bob", "-o", "json")
    assert json.loads(ctl("message", "get", "t", *named).stdout)["key"] == "bob"
    (row,) = json.loads(ctl("message", "move", "t", *named, "--in", "5s").stdout)
    assert (row["unique_key"], row["key"], row["outcome"]) == ("u", "bob", "moved")
    assert json.loads(ctl("message", "update", "t", *named, "--value", "v").stdout)[0]["outcome"] == "updated"
    assert json.loads(ctl("message", "cancel", "t", *named).stdout)[0]["outcome"] == "cancelled"
    key = {"unique_key": b"u", "key": b"bob"}
    assert client.asked("get") == client.asked("cancel") == [key]
    assert client.asked("move") == [{**key, "delay": timedelta(seconds=5)}]
    assert ctl("message", "cancel", "t", "--unique-key", "u", "--key", "eve").stderr == (
        "unique key 'u' of key 'eve': not found\n"
    )
    wrong = {
        "needs --unique-key": (ID, "--key", "k"),
        "--key and --tenant cannot be used together": ("--unique-key", "u", "--key", "k", "--tenant", "acme"),
    }
    for command in ("get", "why", "cancel"):
        for words, arguments in wrong.items():
            result = ctl("message", command, "t", *arguments)
            assert result.exit_code == 2 and words in result.stderr


def test_why_prints_json(ctl: Ctl, client: FakeClient) -> None:
    client.biography = BIOGRAPHY
    record = json.loads(ctl("message", "why", "t", ID, "-o", "json").stdout)
    assert (record["key"], record["unique_key_base64"], record["ttl"], record["headers"]) == (
        "ada",
        "/wA=",
        "1m",
        {"a": 1},
    )
    assert record["deliver_at"] == format_instant(NOW_MS - 1000)
    billing, audit = record["groups"]
    assert (billing["token"], billing["deadline_at"]) == (str(2**60), format_instant(NOW_MS + 30_500))
    assert billing["history"][0]["leased_at"] == format_instant(NOW_MS - 900)
    assert (audit["due_at"], audit["consumer"]) == (format_instant(NOW_MS + 5000), None)


# Changing them.


def test_cancel_named_messages(ctl: Ctl, client: FakeClient) -> None:
    client.rows = [stored(1), stored(2, state="leased"), stored(3, unique_key=b"u")]
    assert ctl("message", "cancel", "t", ID).stdout == f"cancelled {ID}\n"
    gone = text(NOW_MS, 77)
    result = ctl("message", "cancel", "t", ID, OTHER, gone, ID)
    assert (result.exit_code, result.stdout) == (1, f"cancelled {ID}\n")
    assert result.stderr == f"{OTHER}: too late, it is leased\n{gone}: not found\n"
    result = ctl("message", "cancel", "t", ID, OTHER, "-o", "jsonl")
    assert result.exit_code == 1
    assert [json.loads(line) for line in result.stdout.splitlines()] == [
        {"id": ID, "outcome": "cancelled"},
        {"id": OTHER, "outcome": "too_late", "state": "leased"},
    ]
    result = ctl("message", "cancel", "t", "--unique-key", "u", "-o", "json")
    assert json.loads(result.stdout) == [{"unique_key": "u", "id": text(NOW_MS + HOUR_MS, 3), "outcome": "cancelled"}]
    assert ctl("message", "cancel", "t", "--unique-key", "v").stderr == (
        "unique key 'v': not found; if the message has a key, give --key too\n"
    )
    client.missed = {"tenant": "default"}
    said = "unique key 'v': not found for tenant default; name the tenant with --tenant\n"
    assert ctl("message", "cancel", "t", "--unique-key", "v").stderr == said
    result = ctl("message", "cancel", "t", "--unique-key", "v", "-o", "json")
    assert json.loads(result.stdout) == [{"unique_key": "v", "tenant": "default", "outcome": "not_found"}]
    result = ctl("message", "cancel", "nope", ID)
    assert (result.exit_code, result.stderr) == (1, "sandctl: there is no topic 'nope'\n")


def test_a_window_is_counted_confirmed_and_cancelled(ctl: Ctl, client: FakeClient, answers: None) -> None:
    window = ["--since", str(NOW_MS), "--until", "+1h", "--key-prefix", "c-"]
    asked = {"since": NOW_MS, "until": NOW_MS + HOUR_MS, "key_prefix": b"c-"}
    client.matched = 1234
    result = ctl("message", "cancel", "t", *window, input="y\n")
    assert result.stdout.startswith("cancelled 1,233 of 1,234 messages of t due from ")
    assert result.stdout.endswith("; too late for 1\n")
    assert "Cancel 1,234 messages of t due from" in result.stderr and "'c-'? [y/N]" in result.stderr
    assert client.asked("cancel_all") == [{**asked, "dry_run": True}, asked]
    result = ctl("message", "cancel", "t", *window, input="n\n")
    assert result.exit_code == 1 and "nothing was cancelled" in result.stderr
    assert len(client.asked("cancel_all")) == 3
    client.matched = 0
    assert ctl("message", "cancel", "t", "--all").stdout == "no pending messages of t\n"


def test_a_window_without_anybody_to_ask(ctl: Ctl, client: FakeClient) -> None:
    result = ctl("message", "cancel", "t", "--all")
    assert result.exit_code == 2 and "say --yes" in result.stderr and not client.calls
    result = ctl("message", "cancel", "t", "--all", "--yes", "-o", "json")
    assert json.loads(result.stdout) == {"matched": 3, "done": 2, "too_late": 1}
    result = ctl("message", "cancel", "t", "--since", "now", "--dry-run")
    assert result.stdout == f"3 messages of t due from {format_instant(NOW_MS)} on would be cancelled\n"
    assert client.asked("cancel_all") == [{}, {"since": NOW_MS, "dry_run": True}]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "name the messages"),
        ([ID, "--all"], "not several"),
        ([ID, "--unique-key", "u"], "not several"),
        (["--all", "--since", "-1h"], "not several"),
        (["--since", "+1h", "--until", "-1h"], "not later than --since"),
        (["--since", "5m"], "its sign"),
        (["--since", "1700000000"], "seconds"),
        (["--until", "+soon"], "not a duration"),
        ([ID, "--dry-run"], "--dry-run counts"),
        (["x" * 26 + "u"], "not an offset"),
    ],
)
def test_wrong_usage_of_cancel(ctl: Ctl, client: FakeClient, args: list[str], words: str) -> None:
    result = ctl("message", "cancel", "t", *args)
    assert result.exit_code == 2 and words in " ".join(result.stderr.split()), result.stderr
    assert not client.calls


def test_move_named_messages(ctl: Ctl, client: FakeClient) -> None:
    client.rows = [stored(1), stored(2, state="acked"), stored(3, unique_key=b"u")]
    at_ms = NOW_MS + 86_400_000
    result = ctl("message", "move", "t", ID, "--at", format_instant(at_ms))
    assert result.stdout == f"moved {ID} to {format_instant(at_ms)} ({text(at_ms, 9)})\n"
    assert ctl("message", "move", "t", "--unique-key", "u", "--in", "1m30s").exit_code == 0
    ctl("message", "move", "t", ID, "--shift", "-30m")
    ctl("message", "move", "t", ID, "--shift", "1h")
    ctl("message", "move", "t", ID, "--shift", "-80000d")
    assert client.asked("move") == [
        {"id": ID, "deliver_at": at_ms},
        {"unique_key": b"u", "delay": timedelta(seconds=90)},
        {"id": ID, "deliver_at": NOW_MS + HOUR_MS // 2},
        {"id": ID, "deliver_at": NOW_MS + 2 * HOUR_MS},
        {"id": ID, "deliver_at": 10**11},
    ]
    result = ctl("message", "move", "t", OTHER, "--in", "1s", "-o", "jsonl")
    assert (result.exit_code, json.loads(result.stdout)) == (1, {"id": OTHER, "outcome": "too_late", "state": "acked"})


def test_move_a_window(ctl: Ctl, client: FakeClient) -> None:
    assert ctl("message", "move", "t", "--all", "--shift", "-1h", "--yes").stdout == (
        "moved 2 of 3 messages of t 1h earlier; too late for 1\n"
    )
    assert "1h later would be moved" in ctl("message", "move", "t", "--all", "--shift", "+1h", "--dry-run").stdout
    ctl("message", "move", "t", "--since", "now", "--in", "5m", "--yes")
    ctl("message", "move", "t", "--key-prefix", "é", "--at", "+1d", "--yes")
    assert client.asked("move_all") == [
        {"shift": timedelta(hours=-1)},
        {"shift": timedelta(hours=1), "dry_run": True},
        {"to": NOW_MS + 300_000, "since": NOW_MS},
        {"to": NOW_MS + 86_400_000, "key_prefix": "é".encode()},
    ]
    for where in ([], ["--at", "+1h", "--in", "1h"], ["--in", "-5m"], ["--shift", "x"]):
        assert ctl("message", "move", "t", "--all", "--yes", *where).exit_code == 2


def test_progress_is_for_terminals(
    ctl: Ctl, client: FakeClient, answers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ctl("message", "cancel", "t", "--all", "--yes").stderr == ""
    monkeypatch.setattr("sandctl.output.progress._is_terminal", lambda: True)
    assert ctl("message", "cancel", "t", "--all", "--yes").stderr == "\rcancelled 2\r           \r"
    asked = ctl("message", "cancel", "t", "--all", input="y\n").stderr
    assert asked.endswith("\rcancelled 2 of 3 █████████████▎        66%\r" + " " * 42 + "\r")


def test_move_to_another_priority(ctl: Ctl, client: FakeClient) -> None:
    client.rows = [stored(1)]
    result = ctl("message", "move", "t", ID, "--priority", "-5")
    assert result.exit_code == 0 and ", priority -5 (" in result.stdout
    (row,) = json.loads(ctl("message", "move", "t", ID, "--in", "1m", "--priority", "2", "-o", "json").stdout)
    assert (row["id"], row["outcome"], row["priority"]) == (ID, "moved", 2)
    assert client.asked("move") == [
        {"id": ID, "priority": -5},
        {"id": ID, "delay": timedelta(minutes=1), "priority": 2},
    ]
    assert "messages of t to priority -5;" in ctl("message", "move", "t", "--all", "--priority", "-5", "--yes").stdout
    shown = ctl("message", "move", "t", "--all", "--shift", "1h", "--priority", "-5", "--dry-run").stdout
    assert "1h later, with priority -5 would be moved" in shown
    assert [asked["priority"] for asked in client.asked("move_all")] == [-5, -5]


@pytest.mark.parametrize("option", ["--key-prefix", "--unique-key-prefix"])
@pytest.mark.parametrize("command", [["cancel"], ["move", "--in", "1h"]])
def test_a_window_of_an_empty_prefix_is_refused(ctl: Ctl, client: FakeClient, command: list[str], option: str) -> None:
    result = ctl("message", *command, "t", option, "", "--yes")
    assert result.exit_code == 2 and f"{option}: it is empty" in result.stderr
    assert client.asked("cancel_all") == client.asked("move_all") == []
