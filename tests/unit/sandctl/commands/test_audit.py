"""Tests that `sandctl audit` shows the notes of all nodes and names missing parts."""

from __future__ import annotations

import json

from sandq.client import AuditPage
from tests.support.sandctl.fake_client import Ctl, FakeClient

LINE = {
    "time": "2030-01-31T08:00:00.000Z",
    "node": "node1",
    "principal": "token:ada",
    "peer": "10.0.0.9:51000",
    "request": "topic_delete",
    "about": {"topic": "orders"},
    "result": "ok",
    "request_id": 7,
}
LOST = {"time": "2030-01-31T08:00:01.000Z", "node": "node1", "request": "lines_lost", "lost": 3}


def test_lines_are_shown_as_a_table(offline: Ctl, client: FakeClient) -> None:
    client.audit = AuditPage([LINE, LOST], "node1=1:10", {"node1": 3}, {"node2": "it cannot be reached"})
    result = offline("audit", "--last", "5", "--node", "node1")
    assert result.exit_code == 0
    assert client.asked("audit") == [{"last": 5, "node": "node1"}]
    head, first, second = result.stdout.splitlines()
    assert head.split() == ["TIME", "NODE", "PRINCIPAL", "PEER", "REQUEST", "ABOUT", "RESULT"]
    assert "topic=orders" in first and "token:ada" in first
    assert "lost=3" in second
    assert "node1 has lost 3 lines" in result.stderr and "no record of node2" in result.stderr


def test_programs_get_the_lines_unchanged(offline: Ctl, client: FakeClient) -> None:
    client.audit = AuditPage([LINE], "node1=1:10", {}, {})
    (text,) = offline("audit", "-o", "jsonl").stdout.splitlines()
    assert json.loads(text) == LINE


def test_follow_continues_from_the_position(offline: Ctl, client: FakeClient) -> None:
    client.audit = AuditPage([LINE], "node1=1:10", {}, {})
    offline("audit", "--follow", "-o", "jsonl")
    assert client.asked("audit") == [{"last": 100}, {"last": 1000, "after": "node1=1:10"}]


def test_control_characters_are_removed(offline: Ctl, client: FakeClient) -> None:
    client.audit = AuditPage([{**LINE, "principal": "token:\x1b[2J"}], "node1=1:10", {}, {})
    assert "\x1b" not in offline("audit").stdout
