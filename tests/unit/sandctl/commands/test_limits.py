"""Tests of sandctl limit with a client that records its calls."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from tests.support.sandctl.fake_client import NAMED_LIMIT, Ctl, FakeClient


@pytest.fixture
def ctl(offline: Ctl) -> Ctl:
    return offline


def test_limit_set_and_delete(ctl: Ctl, client: FakeClient) -> None:
    given = ["--rate", "90000/m", "--unit", "tokens", "--max-in-flight", "50", "--burst", "9"]
    assert ctl("limit", "set", "llm", *given).stdout == "set limit llm\n"
    assert ctl("limit", "delete", "llm").stdout == "deleted limit llm\n"
    assert client.asked("set_limit") == [
        {"name": "llm", "rate": "90000/m", "unit": "tokens", "max_in_flight": 50, "burst": 9}
    ]
    assert client.asked("delete_limit") == [{"name": "llm"}]
    assert ctl("limit", "set", "llm").exit_code == 2


def test_limit_pause_and_resume(ctl: Ctl, client: FakeClient) -> None:
    assert ctl("limit", "pause", "llm", "--for", "1m").stdout == "paused limit llm for 1m\n"
    assert ctl("limit", "pause", "llm", "--until", "2030-01-31T08:00:00Z").stdout.startswith(
        "paused limit llm until 2030"
    )
    assert ctl("limit", "pause", "llm").stdout == "paused limit llm\n"
    assert ctl("limit", "resume", "llm").stdout == "resumed limit llm\n"
    first, second, third = client.asked("pause_limit")
    assert first == {"name": "llm", "for_": timedelta(minutes=1)} and third == {"name": "llm"}
    assert second.keys() == {"name", "until"}
    assert client.asked("resume_limit") == [{"name": "llm"}]
    assert ctl("limit", "pause", "llm", "--for", "1m", "--until", "18:00").exit_code == 2


def test_limit_list_and_show(ctl: Ctl, client: FakeClient) -> None:
    heading, row = ctl("limit", "list").stdout.splitlines()
    assert heading.split() == [
        "LIMIT",
        "IN",
        "FLIGHT",
        "GIVEN",
        "RATE",
        "UNIT",
        "BURST",
        "MEMBERS",
        "UNHEARD",
        "PAUSED",
    ]
    assert row.split() == ["llm", "50", "12", "1500/s", "tokens", "1500", "3", "0", "yes"]
    (listed,) = json.loads(ctl("limit", "list", "-o", "json").stdout)
    assert listed.pop("paused_until") == "2030-03-17T17:46:40.000Z"
    assert listed == {name: value for name, value in NAMED_LIMIT.items() if name != "paused_until_ms"}
    shown = json.loads(ctl("limit", "show", "llm", "-o", "json").stdout)
    assert shown["limit"] == "llm" and shown["members"][0]["topic"] == "chat"
    assert "chat" in ctl("limit", "show", "llm").stdout
