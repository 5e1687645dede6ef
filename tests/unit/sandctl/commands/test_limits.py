"""Tests of sandctl limit with a client that records its calls."""

from __future__ import annotations

import json

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


def test_limit_list_and_show(ctl: Ctl, client: FakeClient) -> None:
    heading, row = ctl("limit", "list").stdout.splitlines()
    assert heading.split() == ["LIMIT", "IN", "FLIGHT", "GIVEN", "RATE", "UNIT", "BURST", "MEMBERS", "UNHEARD"]
    assert row.split() == ["llm", "50", "12", "1500/s", "tokens", "1500", "3", "0"]
    assert json.loads(ctl("limit", "list", "-o", "json").stdout) == [NAMED_LIMIT]
    shown = json.loads(ctl("limit", "show", "llm", "-o", "json").stdout)
    assert shown["limit"] == "llm" and shown["members"][0]["topic"] == "chat"
    assert "chat" in ctl("limit", "show", "llm").stdout
