"""Tests of the health of an HTTP gateway that runs without a node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from sandq.server.http.standalone import STALE_S, GatewayState
from sandq.server.metrics.http_requests import HttpRequests


async def test_readiness_waits_for_an_overdue_check(autojump_clock: trio.testing.MockClock) -> None:
    state, answers = GatewayState(HttpRequests()), trio.Event()
    answers.set()

    async def cluster() -> dict[str, Any]:
        await answers.wait()
        return {"waiting": None}

    client: Any = SimpleNamespace(admin=SimpleNamespace(cluster=cluster))
    assert state.ready() == "the cluster has not answered yet"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(state.run, client)
        await trio.testing.wait_all_tasks_blocked()
        await state.catch_up()
        assert state.ready() is None
        answers = trio.Event()
        await trio.sleep(STALE_S + 0.1)
        assert state.ready() == "no node of the cluster answers"
        nursery.start_soon(lambda: _set_later(answers))
        await state.catch_up()
        assert state.ready() is None
        nursery.cancel_scope.cancel()


async def _set_later(event: trio.Event) -> None:
    await trio.sleep(0.1)
    event.set()
