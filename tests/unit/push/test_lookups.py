"""Tests of name look-ups in threads with a resolver that may hang."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import trio

from sandq.push.lookups import LOOKUPS_MOST, SHARED_S, Lookups


class FakeResolver:
    """A resolver that finds 192.0.2.1 for each name. Names with "hang" wait for `go`."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.go = threading.Event()

    def getaddrinfo(self, host: bytes, port: int, **more: Any) -> list[tuple[Any, ...]]:
        self.asked.append(host)
        if host.startswith(b"hang"):
            self.go.wait()
        if host != b"a.test" and host != b"my_service":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", port))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeResolver]:
    found = FakeResolver()
    monkeypatch.setattr(socket, "getaddrinfo", found.getaddrinfo)
    yield found
    found.go.set()


async def test_a_name_is_found_as_it_is_written(resolver: FakeResolver) -> None:
    assert await Lookups().find("my_service", 443) == ["192.0.2.1"]
    assert resolver.asked == [b"my_service"]


async def test_an_address_needs_no_resolver(resolver: FakeResolver) -> None:
    assert await Lookups().find("2606:4700::1", 443) == ["2606:4700::1"]
    assert resolver.asked == []


async def test_caller_during_a_look_up_shares_its_result(
    resolver: FakeResolver, autojump_clock: trio.testing.MockClock
) -> None:
    lookups = Lookups()
    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(lookups.find, "a.test", 443)
    assert resolver.asked == [b"a.test"]
    await trio.sleep(SHARED_S)
    await lookups.find("a.test", 443)
    assert resolver.asked == [b"a.test"] * 2


async def test_concurrent_lookups_share_a_failure(resolver: FakeResolver) -> None:
    lookups = Lookups()
    failures: list[OSError] = []

    async def ask() -> None:
        with pytest.raises(OSError, match="Temporary failure") as failure:
            await lookups.find("nobody.test", 443)
        failures.append(failure.value)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
    assert resolver.asked == [b"nobody.test"]
    assert {(failure.errno, failure.strerror) for failure in failures} == {
        (socket.EAI_AGAIN, "Temporary failure in name resolution")
    }


async def test_hung_name_server_delays_no_other_look_up(resolver: FakeResolver) -> None:
    """Waiting look-ups of one name use one thread. They use no threads of the node's other work."""
    lookups = Lookups()
    async with trio.open_nursery() as nursery:
        for number in range(LOOKUPS_MOST // 2 - 1):
            nursery.start_soon(lookups.find, f"hang{number}.test", 443)
        for _ in range(LOOKUPS_MOST):
            nursery.start_soon(lookups.find, "hang0.test", 443)
        await trio.testing.wait_all_tasks_blocked()
        assert await lookups.find("a.test", 443) == ["192.0.2.1"]
        assert trio.to_thread.current_default_thread_limiter().borrowed_tokens == 0
        nursery.cancel_scope.cancel()


async def test_name_that_was_found_does_not_wait_for_hung_look_ups(
    resolver: FakeResolver, mock_clock: trio.testing.MockClock
) -> None:
    lookups = Lookups()
    await lookups.find("a.test", 443)
    async with trio.open_nursery() as nursery:
        for number in range(2 * LOOKUPS_MOST):
            nursery.start_soon(lookups.find, f"hang{number}.test", 443)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(SHARED_S)
        assert await lookups.find("a.test", 443) == ["192.0.2.1"]
        nursery.cancel_scope.cancel()
