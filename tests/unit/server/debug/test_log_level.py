"""Tests of the log level of a node and its duration."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
import trio
import trio.testing

from sandq.broker import verbose
from sandq.model.caller import Caller
from sandq.server import logs
from sandq.server.debug.log_level import LogLevel

ADA = Caller("token:ada", "127.0.0.1:1")


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """The level is a setting of the whole process."""
    before = structlog.get_config()["wrapper_class"]
    assert logs.level() == "info"
    yield
    logs.reset_level()
    assert structlog.get_config()["wrapper_class"] is before


async def test_temporary_log_level_ends_at_its_time(autojump_clock: trio.testing.MockClock) -> None:
    level = LogLevel(lambda: round(trio.current_time() * 1000))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(level.run)
        assert level.change(None, None, ADA) == {"level": "info", "configured": "info", "until_ms": None}
        begun_ms = round(trio.current_time() * 1000)
        found = level.change("debug", 60_000, ADA)
        assert found == {"level": "debug", "configured": "info", "until_ms": begun_ms + 60_000}
        assert verbose.is_on()
        await trio.sleep(59)
        assert logs.level() == "debug"
        level.change("warning", 10_000, ADA)  # the later request counts
        assert not verbose.is_on()
        await trio.sleep(9)
        assert logs.level() == "warning"
        await trio.sleep(2)
        assert level.change(None, None, ADA) == {"level": "info", "configured": "info", "until_ms": None}
        nursery.cancel_scope.cancel()


async def test_log_level_without_time_lasts_until_the_node_stops(autojump_clock: trio.testing.MockClock) -> None:
    level = LogLevel(lambda: 0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(level.run)
        level.change("error", None, ADA)
        await trio.sleep(10**6)
        assert level.change(None, None, ADA)["level"] == "error"
        assert level.change("info", 5, ADA)["until_ms"] is None, "the level is the configured level"
        level.change("error", None, ADA)
        nursery.cancel_scope.cancel()
    assert logs.level() == "info", "another node of this process starts with its configured level"
