"""The node as its HTTP process knows it: what it says is believed for a while, what it counts is asked for."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.memory_budget import Account
from sandq.model.errors import Unavailable
from sandq.server.http.routes_node import livez
from sandq.server.http.worker import METRICS_S, NodeAfar
from sandq.server.http.worker_pipe import STALE_S
from sandq.server.metrics.http_requests import HttpRequests

WELL = {"health": [None, None, None]}


class Bed:
    def __init__(self) -> None:
        self.said: list[dict[str, Any]] = []
        self.now_s = 100.0
        self.requests = HttpRequests()
        self.account = Account(1000)
        self.node = NodeAfar(
            lambda data: self.said.append(json.loads(data)), self.requests, self.account, now_s=lambda: self.now_s
        )

    def tell(self, message: dict[str, Any], body: bytes = b"") -> None:
        self.node.on_message(message, body)

    @property
    def unwell(self) -> tuple[str | None, str | None, str | None]:
        return self.node.failure(), self.node.stalled(), self.node.ready()


def test_it_is_not_ready_before_the_node_said_so() -> None:
    bed = Bed()
    assert bed.unwell == (None, None, "the node has not said yet how it is")
    bed.tell(WELL)
    assert bed.unwell == (None, None, None)


def test_a_node_that_never_says_how_it_is_is_taken_for_stalled() -> None:
    bed = Bed()
    bed.now_s += STALE_S + 0.1
    silent = "the node has not said for 2 s how it is"
    assert bed.unwell == (None, silent, silent)
    bed.tell(WELL)
    assert bed.unwell == (None, None, None)


async def test_its_process_is_alive_while_the_node_says_anything() -> None:
    bed = Bed()
    request: Any = SimpleNamespace(state=SimpleNamespace(gateway=SimpleNamespace(node=bed.node), request_id="1"))
    bed.tell({"health": ["the disk failed", "the disk hangs", "no leader"]})
    assert await livez(request) == {"status": "ok"}, "to start it anew would mend nothing"
    bed.now_s += STALE_S + 0.1
    assert (await livez(request)).status_code == 503


def test_what_the_node_said_is_handed_on() -> None:
    bed = Bed()
    bed.tell({"health": ["the disk failed", "the disk hangs", "no leader"]})
    assert bed.unwell == ("the disk failed", "the disk hangs", "no leader")


def test_what_the_node_said_too_long_ago_counts_for_nothing() -> None:
    bed = Bed()
    bed.tell(WELL)
    bed.now_s += STALE_S
    assert bed.unwell == (None, None, None)
    bed.now_s += 0.1
    silent = "the node has not said for 2 s how it is"
    assert bed.unwell == (None, silent, silent)
    bed.tell(WELL)
    assert bed.unwell == (None, None, None)


def test_whenever_it_is_told_it_tells_what_was_counted_since() -> None:
    bed = Bed()
    bed.requests.observe("GET", "/healthz", 200, 0.1)
    bed.account.take(7)
    bed.tell(WELL)
    bed.tell(WELL)
    first, second = (message["report"] for message in bed.said)
    assert first["requests"]["counts"] == [["GET", "/healthz", "200", 1]] and first["held_bytes"] == 7
    assert second["requests"] == {"counts": [], "durations": []}
    again = HttpRequests()
    again.add(first["requests"])
    assert again.take() == first["requests"]


async def test_metrics_are_asked_for(autojump_clock: trio.testing.MockClock) -> None:
    """An answer that comes too late, to another question, is not the answer to this one."""
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
        assert bed.said[-1] == {"metrics": 2, "accept": "b"} and "report" in bed.said[-2]
        bed.tell({"metrics": 1, "content_type": "text/plain"}, b"old")
        await trio.testing.wait_all_tasks_blocked()
        assert not found
        bed.tell({"metrics": 2, "content_type": "text/plain"}, b"new")
    assert found == [(b"new", "text/plain")]


def test_it_stops_when_it_is_told_to() -> None:
    bed = Bed()
    assert not bed.node.stop.is_set()
    bed.tell({"stop": True})
    assert bed.node.stop.is_set()
