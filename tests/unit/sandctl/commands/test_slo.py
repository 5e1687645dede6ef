"""Tests of `sandctl slo`: a summary for people, all data for programs, and the exit code for a missed objective."""

from __future__ import annotations

import json

from sandq.client.admin.slo import merge
from tests.support.sandctl.fake_client import Ctl, FakeClient
from tests.unit.client.admin.test_slo import report


def test_table_shows_the_objective(offline: Ctl, client: FakeClient) -> None:
    nodes = {"n1": report(1990, 10, hour=(9, 1), topics=[["orders", 2000, 10]]), "n2": report(unproven=0)}
    client.slo = merge(nodes, {"n3": "it cannot be reached"})
    result = offline("slo")
    assert (result.exit_code == 0 and client.asked("slo") == [{"node": None}]) or client.asked("slo") == [{}]
    shown = dict(
        line.split("  ", 1) for line in result.stdout.splitlines() if "  " in line and not line.startswith(" ")
    )
    found = {name: value.strip() for name, value in shown.items()}
    assert found["promise"] == "99% within 100ms, over 30d"
    assert (found["deliveries"], found["late"], found["in time"], found["budget left"]) == (
        "2,000",
        "10",
        "99.5%",
        "50.0%",
    )
    assert (found["burn rate, 1h"], found["early"], found["proven"]) == ("10.00", "0", "no")
    assert "  n3 did not report: it cannot be reached" in result.stdout.splitlines()
    assert any(line.startswith("100 ms") and line.endswith("#") for line in result.stdout.splitlines())
    assert result.stdout.splitlines()[-1].split() == ["orders", "10", "2,000"]


def test_programs_get_everything(offline: Ctl, client: FakeClient) -> None:
    client.slo = merge({"n1": report(1)}, {})
    found = json.loads(offline("slo", "--node", "n1", "-o", "json").stdout)
    assert client.asked("slo") == [{"node": "n1"}]
    assert found["in_time"] == 1.0 and found["is_proven"] is True
    assert found["histogram"][1] == {"up_to_ms": 100.0, "deliveries": 1}


def test_a_promise_that_is_broken_ends_with_1(offline: Ctl, client: FakeClient) -> None:
    for node in (report(1, 1), report(9, early=1)):
        client.slo = merge({"n1": node}, {})
        assert offline("slo", "--check").exit_code == 1
        assert offline("slo").exit_code == 0, "a report without --check does not fail"
    client.slo = merge({"n1": report()}, {})
    assert offline("slo", "--check").exit_code == 0, "without deliveries the objective is not missed"
