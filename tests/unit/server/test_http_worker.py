"""Tests of the HTTP process's view of its node: reports are valid for a while, and counts are requested."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.memory_budget import Account
from sandq.model.errors import Unavailable
from sandq.model.quotas import Quota
from sandq.server.http.node_link import CATCH_UP_S, STALE_S, STARTING
from sandq.server.http.routes_node import healthz, livez
from sandq.server.http.worker import METRICS_S, ReportedNode
from sandq.server.metrics.http_requests import HttpRequests
from sandq.server.quota_meters import QuotaMeters
from tests.support.paths import ROOT

WELL = {"health": [None, None, None]}


class Bed:
    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.now_s = 100.0
        self.requests = HttpRequests()
        self.account = Account(1000)
        self.quotas = QuotaMeters(lambda: self.now_s)
        self.node = ReportedNode(
            lambda data: self.sent.append(json.loads(data)),
            self.requests,
            self.account,
            self.quotas,
            now_s=lambda: self.now_s,
        )

    def notify(self, message: dict[str, Any], body: bytes = b"") -> None:
        self.node.on_message(message, body)

    @property
    def unwell(self) -> tuple[str | None, str | None, str | None]:
        return self.node.failure(), self.node.stalled(), self.node.ready()


def test_process_is_not_ready_before_the_first_report() -> None:
    """A node that recovers its storage cannot report. It must not be treated as a node that hangs."""
    bed = Bed()
    assert bed.unwell == (None, None, STARTING)
    bed.now_s += 100 * STALE_S
    assert bed.unwell == (None, None, STARTING)
    bed.notify({"health": [None, None, STARTING]})
    bed.now_s += 100 * STALE_S
    assert bed.unwell == (None, None, STARTING) and bed.node.silent() is None
    bed.notify(WELL)
    assert bed.unwell == (None, None, None)


async def test_health_check_waits_for_an_overdue_report(autojump_clock: trio.testing.MockClock) -> None:
    """After the machine was suspended, the report may be in this process and not be handled yet."""
    bed = Bed()
    request: Any = SimpleNamespace(state=SimpleNamespace(gateway=SimpleNamespace(node=bed.node), request_id="1"))
    bed.notify(WELL)
    bed.now_s += STALE_S + 0.1

    async def report(after_s: float) -> None:
        await trio.sleep(after_s)
        bed.notify(WELL)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(report, CATCH_UP_S - 0.1)
        assert await livez(request) == await healthz(request) == {"status": "ok"}
    bed.now_s += STALE_S + 0.1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(report, CATCH_UP_S + 0.1)
        assert (await healthz(request)).status_code == 503


async def test_livez_is_ok_while_the_node_reports(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed()
    request: Any = SimpleNamespace(state=SimpleNamespace(gateway=SimpleNamespace(node=bed.node), request_id="1"))
    bed.notify({"health": ["the disk failed", "the disk hangs", "no leader"]})
    assert await livez(request) == {"status": "ok"}, "a restart of the process would not help"
    bed.now_s += STALE_S + 0.1
    assert (await livez(request)).status_code == 503


def test_reported_health_is_returned() -> None:
    bed = Bed()
    bed.notify({"health": ["the disk failed", "the disk hangs", "no leader"]})
    assert bed.unwell == ("the disk failed", "the disk hangs", "no leader")


def test_outdated_health_report_is_an_error() -> None:
    bed = Bed()
    bed.notify(WELL)
    bed.now_s += STALE_S
    assert bed.unwell == (None, None, None)
    bed.now_s += 0.1
    silent = "the node has not reported its state for 2 s"
    assert bed.unwell == (None, silent, silent)
    bed.notify(WELL)
    assert bed.unwell == (None, None, None)


def test_worker_answers_each_message_with_new_counts() -> None:
    bed = Bed()
    bed.requests.observe("GET", "/healthz", 200, 0.1)
    bed.account.take(7)
    bed.quotas.take("token:a", Quota(requests_per_s=5), 2, 30)
    bed.notify(WELL)
    bed.notify(WELL)
    first, second = (message["report"] for message in bed.sent)
    assert first["requests"]["counts"] == [["GET", "/healthz", "200", 1]] and first["held_bytes"] == 7
    assert first["identities"] == [["token:a", 2, 30, 0]] and second["identities"] == []
    assert second["requests"] == {"counts": [], "durations": []}
    again = HttpRequests()
    again.add(first["requests"])
    assert again.take() == first["requests"]


async def test_metrics_are_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    """A late answer to an earlier question does not count for this question."""
    bed = Bed()
    with pytest.raises(Unavailable):
        await bed.node.metrics("a")
    assert trio.current_time() == pytest.approx(METRICS_S)
    found: list[tuple[bytes, str]] = []

    async def ask() -> None:
        found.append(await bed.node.metrics("b"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        assert bed.sent[-1] == {"metrics": 2, "accept": "b"} and "report" in bed.sent[-2]
        bed.notify({"metrics": 1, "content_type": "text/plain"}, b"old")
        await trio.testing.wait_all_tasks_blocked()
        assert not found
        bed.notify({"metrics": 2, "content_type": "text/plain"}, b"new")
    assert found == [(b"new", "text/plain")]


def test_worker_stops_on_request() -> None:
    bed = Bed()
    assert not bed.node.stop.is_set()
    bed.notify({"stop": True})
    assert bed.node.stop.is_set()


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("sandq.node", ("fastapi", "plyvel", "sandq.client", "sandq.broker.broker", "sandq.partition.state_machine")),
        ("sandq.server.http.worker", ("plyvel", "pysyncobj", "sandq.partition.state_machine", "sandq.raft")),
    ],
)
def test_start_of_a_node_and_of_http_imports_little(module: str, heavy: tuple[str, ...]) -> None:
    """The node launches HTTP before it loads itself: what both import delays the first reply."""
    code = f"import sys, {module}; print([name for name in {heavy!r} if name in sys.modules])"
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
