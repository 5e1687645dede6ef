"""Tests of `timeout=` of single calls: every call accepts it. Tests of the raised error."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import anyio
import pytest

import sandq
import sandq.sync
from sandq.client.admin.admin import Admin
from sandq.client.timeouts import timed_change, timed_read, within
from sandq.errors import InvalidRequest, TimedOut
from sandq.protocol.frames import Type
from sandq.sync import wrappers
from sandq.sync.keys import Keys
from tests.support.client.fake_server import SILENCE, FakeServer

FACES = (sandq.Client, Admin, sandq.Keys, sandq.Messages, sandq.Schedules, sandq.DeadLetters, sandq.Leases)
BLOCKING: dict[type, type] = {
    Admin: wrappers.Admin,
    sandq.Keys: Keys,
    sandq.Messages: wrappers.Messages,
    sandq.Schedules: wrappers.Schedules,
    sandq.DeadLetters: wrappers.DeadLetters,
    sandq.Leases: wrappers.Leases,
}
WITHOUT = {
    *("kv", "messages", "schedules", "dead", "leases", "processing"),  # no request is sent
    *("producer", "subscribe", "watch"),  # context managers of unlimited duration
    *("send", "produce_many"),  # return receipts, which have their own wait
}


def methods(api: type) -> list[Any]:
    return [
        method
        for name, method in inspect.getmembers(api, inspect.isfunction)
        if not name.startswith("_") and not (api is sandq.Client and name in WITHOUT) and name != "watch"
    ]


@pytest.mark.parametrize("api", FACES)
def test_every_call_has_a_timeout(api: type) -> None:
    found = methods(api)
    assert found
    for method in found:
        parameter = inspect.signature(method).parameters.get("timeout")
        assert parameter is not None, method.__qualname__
        assert parameter.kind == parameter.KEYWORD_ONLY and parameter.default is None, method.__qualname__


@pytest.mark.parametrize("api", FACES)
def test_blocking_calls_accept_timeout(api: type) -> None:
    """The blocking methods are the same functions or accept the same arguments."""
    blocking = sandq.sync.Client if api is sandq.Client else BLOCKING[api]
    for method in methods(api):
        found = getattr(blocking, method.__name__)
        assert "timeout" in inspect.signature(found).parameters, method.__qualname__


@pytest.fixture
def work() -> Callable[[float], Any]:
    """Return a class with a method that reads and one that changes something, each with a timeout."""

    class Part:
        @timed_read
        async def check(self, pause_s: float, *, timeout: Any = None) -> str:  # noqa: ASYNC109
            await anyio.sleep(pause_s)
            return "seen"

        @timed_change
        async def change(self, pause_s: float, *, timeout: Any = None) -> str:  # noqa: ASYNC109
            await anyio.sleep(pause_s)
            return "done"

    return Part  # type: ignore[return-value]


async def test_call_beyond_its_timeout_raises(work: Any, autojump_clock: Any) -> None:
    part = work()
    assert await part.check(5) == "seen"
    assert await part.check(1, timeout="2s") == "seen"
    assert await part.change(0.1, timeout=0.2) == "done"
    with pytest.raises(TimedOut, match=r"^check: no answer in 1 s$"):
        await part.check(3600, timeout="1s")
    with pytest.raises(TimedOut, match=r"^change: no answer in 0\.5 s; the outcome is unknown: it may be done, now or"):
        await part.change(3600, timeout="500ms")
    for bad in (0, "0s"):
        with pytest.raises(InvalidRequest, match="timeout: it must be greater than 0"):
            await part.check(0, timeout=bad)
    with pytest.raises(InvalidRequest):
        await part.check(0, timeout="soon")


async def test_timeout_applies_to_each_page(autojump_clock: Any) -> None:
    async def page(pause_s: float) -> int:
        await anyio.sleep(pause_s)
        return 1

    assert within(page, None, "list") is page
    assert await within(page, "1s", "list")(0.5) == 1
    with pytest.raises(TimedOut, match=r"^list: no answer in 1 s$"):
        await within(page, "1s", "list")(2)


def test_a_node_that_says_nothing(with_client: Any) -> None:
    async def test(server: FakeServer, client: sandq.Client) -> None:
        server.script[Type.GET].extend([SILENCE] * 9)
        server.script[Type.TOPIC_CREATE].extend([SILENCE] * 9)
        with pytest.raises(TimedOut, match="get: no answer"):
            await client.messages("t").get(unique_key="k", timeout="50ms")
        with pytest.raises(TimedOut, match=r"create_topic: no answer in 0\.05 s; the outcome is unknown"):
            await client.admin.create_topic("u", timeout="50ms")
        assert await client.admin.topic("t", timeout="1m")  # the client continues

    with_client(test, timeout_s=60.0)


def test_invalid_timeout_is_rejected_at_once(with_client: Any) -> None:
    async def test(server: FakeServer, client: sandq.Client) -> None:
        for begin in (
            client.messages("t").list,
            client.dead("t", "g").list,
            client.schedules("t").list,
            client.kv("t").scan,
            lambda **timeout: client.fetch("t", 0, **timeout),
        ):
            with pytest.raises(InvalidRequest, match="timeout: it must be greater than 0"):
                begin(timeout=0)

    with_client(test)


def test_blocking_calls_are_no_coroutines() -> None:
    for blocking in (sandq.sync.Client, *BLOCKING.values()):
        found = [
            member for name, member in inspect.getmembers(blocking, inspect.isfunction) if not name.startswith("_")
        ]
        assert found and not any(inspect.iscoroutinefunction(member) for member in found), blocking
