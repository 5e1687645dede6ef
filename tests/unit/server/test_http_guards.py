"""Tests of the time limits for the body of an HTTP request and for its wait for memory."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from sandq.broker.memory_budget import Account
from sandq.server.http.guards import BODY_BYTES_PER_S, BODY_S, RESERVE_S, Guard, Rules

LARGE = 1 << 40
Message = dict[str, Any]
RULES = Rules(
    frozenset(), frozenset(), requests=10, waiting=10, body_bytes=1 << 20, body_limit="limits.http_body_bytes"
)


class Client:
    """A client of a guard that keeps the answers. `pieces`: parts of the body that arrive. `every_s`: seconds between
    two parts."""

    def __init__(self, account: Account, *pieces: bytes, every_s: float = 0.0, ends: bool = False) -> None:
        self.answer: list[Message] = []
        self.reached = 0
        self._guard = Guard(self._app, RULES, lambda *observed: None, account)
        self._pieces = list(pieces)
        self._every_s = every_s
        self._ends = ends

    async def ask(self, method: str, path: str) -> tuple[int, Message]:
        """Send a request. Return the status and the content of the body."""
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "headers": [(b"host", b"127.0.0.1"), (b"transfer-encoding", b"chunked")],
            "client": ("10.0.0.1", 1),
        }
        await self._guard(scope, self._receive, self._send)
        body = b"".join(message.get("body", b"") for message in self.answer[1:])
        return self.answer[0]["status"], json.loads(body)

    async def _app(self, scope: Any, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        self.reached += 1
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def _receive(self) -> Message:
        if self._pieces:
            await trio.sleep(self._every_s)
            piece = self._pieces.pop(0)
            return {"type": "http.request", "body": piece, "more_body": bool(self._pieces) or not self._ends}
        await trio.sleep_forever()
        raise AssertionError

    async def _send(self, message: Message) -> None:
        self.answer.append(message)


async def test_a_body_must_come_in_time(autojump_clock: MockClock) -> None:
    account, began_s = Account(LARGE), trio.current_time()
    client = Client(account, bytes(BODY_BYTES_PER_S), bytes(BODY_BYTES_PER_S))
    status, problem = await client.ask("POST", "/topics/t")
    assert (status, problem["code"]) == (408, "TIMED_OUT") and f"{2 * BODY_BYTES_PER_S} bytes" in problem["detail"]
    assert trio.current_time() - began_s == BODY_S + 2, "and one second for each 64 KiB"
    assert client.reached == 0 and account.bytes == 0


async def test_a_body_that_comes_slowly_is_taken(autojump_clock: MockClock) -> None:
    account = Account(LARGE)
    client = Client(account, *[bytes(BODY_BYTES_PER_S)] * 4, every_s=8, ends=True)
    assert (await client.ask("POST", "/topics/t"))[0] == 200
    assert client.reached == 1 and account.bytes == 0


@pytest.mark.parametrize("gives_back_s", [None, RESERVE_S - 1, RESERVE_S + 1])
async def test_request_waits_for_memory_for_its_reply(
    autojump_clock: MockClock, nursery: trio.Nursery, gives_back_s: float | None
) -> None:
    account, began_s = Account(LARGE), trio.current_time()
    account.take(LARGE)

    async def give_back(after_s: float) -> None:
        await trio.sleep(after_s)
        account.give_back(LARGE)

    if gives_back_s is not None:
        nursery.start_soon(give_back, gives_back_s)
    client = Client(account, b"", ends=True)
    status, answer = await client.ask("GET", "/topics")
    if gives_back_s is not None and gives_back_s < RESERVE_S:
        assert (status, client.reached) == (200, 1)
    else:
        assert (status, answer["code"], client.reached) == (503, "OVERLOADED", 0)
        assert "(limits.memory_bytes)" in answer["detail"] and trio.current_time() - began_s == RESERVE_S
        assert account.bytes == LARGE, "the guard holds no memory any more"


@pytest.mark.parametrize("path", ["/livez", "/healthz", "/readyz", "/metrics"])
async def test_health_and_metrics_do_not_wait_for_memory(autojump_clock: MockClock, path: str) -> None:
    account, began_s = Account(LARGE), trio.current_time()
    account.take(LARGE)
    client = Client(account, b"", ends=True)
    assert (await client.ask("GET", path))[0] == 200 and trio.current_time() == began_s


async def test_requests_of_one_ipv6_network_share_one_limit(autojump_clock: MockClock) -> None:
    client = Client(Account(LARGE))
    guard = client._guard
    holding: list[str] = []

    async def hold(scope: Any, receive: Any, send: Any) -> None:
        holding.append(scope["client"][0])
        await trio.sleep_forever()

    guard._app = hold

    async def ask(host: str) -> None:
        body = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Message:
            if not body:
                await trio.sleep_forever()
            return body.pop()

        headers = [(b"host", b"127.0.0.1")]
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/topics",
            "raw_path": b"/topics",
            "headers": headers,
            "client": (host, 1),
        }
        await guard(scope, receive, client._send)

    async with trio.open_nursery() as nursery:
        for number in range(RULES.requests):
            nursery.start_soon(ask, f"2001:db8::{number + 1:x}")
        await trio.testing.wait_all_tasks_blocked()
        assert len(holding) == RULES.requests - RULES.requests // 4
        assert b"of this address" in client.answer[1]["body"]
        nursery.start_soon(ask, "2001:db8:0:1::1")
        await trio.testing.wait_all_tasks_blocked()
        assert holding[-1] == "2001:db8:0:1::1"
        nursery.cancel_scope.cancel()
