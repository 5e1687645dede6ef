"""Tests of logins: a node's reply about a token is cached for half a second.

Wrong tokens are not cached, and are slowed down.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import anyio
import pytest
import trio
from trio.testing import MockClock

from sandq.model.errors import Unauthenticated, Unavailable
from sandq.protocol.frames import Type
from sandq.protocol.requests_access import Identify
from sandq.server.http import logins
from sandq.server.http.logins import KEPT_S, OFF, PAUSED_MOST, REQUIRE, HttpLogins
from sandq.server.http.problems import Revoked

BEARER = {b"authorization": b"Bearer sandq_one"}


class Nodes:
    """A client that answers IDENTIFY as the test decides and counts the requests."""

    def __init__(self, mode: int) -> None:
        self.hello = SimpleNamespace(limits={"authentication": mode})
        self.refused: Unauthenticated | None = None
        self.asked: list[Identify] = []
        self.answer: Any = ["token:one", ["read:t"], None, {"requests_per_s": 5}]

    def connections(self) -> list[Any]:
        return [self]

    async def call(self, cluster: Any, request: Identify) -> list[Any]:
        assert cluster is self
        self.asked.append(request)
        await trio.sleep(0.01)
        if isinstance(self.answer, Exception):
            raise self.answer
        return [Type.REPLY, 1, *self.answer]


def of(monkeypatch: pytest.MonkeyPatch, mode: int) -> tuple[HttpLogins, Nodes]:
    nodes = Nodes(mode)
    monkeypatch.setattr(logins, "call", nodes.call)
    monkeypatch.setattr(logins, "cluster_of", lambda client: nodes)
    return HttpLogins(None), nodes  # type: ignore[arg-type]


async def test_no_node_is_asked_if_authentication_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    found, nodes = of(monkeypatch, OFF)
    assert await found.caller({}, None, "a") is None
    assert nodes.asked == []


async def test_an_answer_is_believed_for_a_while(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    found, nodes = of(monkeypatch, REQUIRE)
    first = await found.caller(BEARER, None, "a")
    assert first is not None and first.access is not None
    # type: ignore[arg-type]
    assert (first.principal, first.access.allows("read", "t"), first.quota.requests_per_s) == ("token:one", True, 5)
    assert await found.caller(BEARER, None, "b") is first
    await trio.sleep(KEPT_S)
    nodes.answer = Unauthenticated("it was revoked")
    with pytest.raises(Revoked, match="revoked"):
        await found.caller(BEARER, None, "a")
    assert [request.token for request in nodes.asked] == ["sandq_one"] * 2


async def test_simultaneous_questions_are_sent_once(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    found, nodes = of(monkeypatch, REQUIRE)
    async with anyio.create_task_group() as tasks:
        for _ in range(50):
            tasks.start_soon(found.caller, BEARER, None, "a")
    assert len(nodes.asked) == 1


async def test_waiting_caller_learns_of_revocation_or_change(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    found, nodes = of(monkeypatch, REQUIRE)
    caller = await found.caller(BEARER, None, "a")
    assert caller is not None
    with trio.move_on_after(60):
        await caller.until_revoked()
        pytest.fail("nothing has changed")
    nodes.answer = ["token:one", ["read:other"], None, {}]
    since_s = trio.current_time()
    with pytest.raises(Unavailable, match="have changed"):
        await caller.until_revoked()
    nodes.answer = Unauthenticated("it was revoked")
    with pytest.raises(Revoked):
        await caller.until_revoked()
    assert trio.current_time() - since_s < 3


async def test_waiting_caller_is_kept_for_ten_seconds_without_a_node(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    found, nodes = of(monkeypatch, REQUIRE)
    caller = await found.caller(BEARER, None, "a")
    assert caller is not None
    nodes.answer = Unavailable("nobody leads")
    since_s = trio.current_time()
    with pytest.raises(Unavailable, match="no node can identify the caller"):
        await caller.until_revoked()
    assert 9 < trio.current_time() - since_s < 12


async def test_wrong_tokens_are_slowed_down_by_where_they_come_from(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    found, nodes = of(monkeypatch, REQUIRE)
    nodes.answer = Unauthenticated("wrong")

    async def seconds(source: str) -> float:
        since_s = trio.current_time()
        with pytest.raises(Revoked):
            await found.caller(BEARER, None, source)
        return trio.current_time() - since_s

    for _ in range(30):
        await seconds("a")
    assert await seconds("a") > 0.5
    assert await seconds("b") < 0.1


async def test_wrong_tokens_hold_few_slots(monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock) -> None:
    found, nodes = of(monkeypatch, REQUIRE)
    nodes.answer = Unauthenticated("wrong")
    waited: list[float] = []

    async def show(number: int) -> None:
        since_s = trio.current_time()
        with pytest.raises(Revoked):
            await found.caller({b"authorization": b"Bearer sandq_%d" % number}, None, "a")
        waited.append(trio.current_time() - since_s)

    async with anyio.create_task_group() as tasks:
        for number in range(500):
            tasks.start_soon(show, number)
    assert 10 < sum(seconds > 0.5 for seconds in waited) <= PAUSED_MOST
    assert max(waited) < 6


async def test_few_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "KEPT", 3)
    found, _ = of(monkeypatch, REQUIRE)
    for number in range(10):
        await found.caller({b"authorization": b"Bearer sandq_%d" % number}, None, "a")
    assert len(found._kept) == 3
    assert not any(b"sandq" in key for key in found._kept)


async def test_caller_is_identified_by_certificate(monkeypatch: pytest.MonkeyPatch) -> None:
    found, nodes = of(monkeypatch, REQUIRE)
    await found.caller({}, "ada", "a")
    assert nodes.asked == [Identify(None, "ada")]


async def test_certificate_name_in_a_header_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found, nodes = of(monkeypatch, REQUIRE)
    await found.caller({}, "ada", "a")
    for header in (b"certificate ada", b"ada", b"header ada"):
        with pytest.raises(Revoked, match="only the scheme Bearer"):
            await found.caller({b"authorization": header}, None, "a")
    assert nodes.asked == [Identify(None, "ada")]


async def test_refused_gateway_raises_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    found, nodes = of(monkeypatch, REQUIRE)
    nodes.refused = Unauthenticated("give a token")
    monkeypatch.setattr(nodes, "connections", list)
    with pytest.raises(Unavailable, match="gateway_secret_file"):
        await found.caller(BEARER, None, "a")
