"""The log events of a node about connections and requests, and their number."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
import trio
from structlog.testing import capture_logs

from sandq.model.errors import StorageFailed
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from sandq.server import logs
from sandq.server.client_stats import LOGGED_PER_S, LogLimiter
from tests.support.nodes.raw_client import RawClient
from tests.support.waiting import until_answer

Lines = list[Any]


@pytest.fixture
def lines() -> Iterator[Lines]:
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as captured:
        yield captured


async def test_refused_request_is_logged_at_debug_level(lines: Lines, node: Serving, client: RawClient) -> None:
    await client.call(Type.TOPIC_DELETE, "nosuch")
    (line,) = [line for line in lines if line["event"] == "a request was refused"]
    assert line.pop("peer").startswith("127.0.0.1:")
    assert line.pop("error") == "there is no topic 'nosuch'"
    assert line == {
        "event": "a request was refused",
        "log_level": "debug",
        "node": "node1",
        "connection": 1,
        "principal": "anonymous",
        "request_id": 2,
        "request": "topic_delete",
        "topic": "nosuch",
        "code": "UNKNOWN_TOPIC",
    }


async def test_a_fault_of_the_node_is_a_warning_but_not_a_flood(lines: Lines, node: Serving, client: RawClient) -> None:
    await client.create()
    node.broker.node_log.fail(StorageFailed("the disk is gone"))
    for _ in range(5 * LOGGED_PER_S):
        assert (await client.produce(b"x"))[2] == "STORAGE_FAILED"
    warnings = [line for line in lines if line["event"] == "a request failed"]
    assert {(line["log_level"], line["code"], line["request"]) for line in warnings} == {
        ("warning", "STORAGE_FAILED", "produce")
    }
    assert LOGGED_PER_S <= len(warnings) < 5 * LOGGED_PER_S
    assert len({line["request_id"] for line in warnings}) == len(warnings)


async def test_log_events_of_a_request_name_its_connection(lines: Lines, node: Serving, client: RawClient) -> None:
    await client.create()
    (line,) = [line for line in lines if line["event"] == "topic created"]
    assert (line["node"], line["connection"], line["topic"]) == ("node1", 1, "t")


async def test_connections_come_and_go(lines: Lines, node: Serving) -> None:
    for _ in range(2):
        raw = await RawClient.connect(node.client_port)
        await trio.aclose_forcefully(raw.stream)

    async def gone() -> int:
        return len([line for line in lines if line["event"] == "a client has gone"])

    await until_answer(gone, lambda count: count == 2)
    told = [(line["event"], line["connection"]) for line in lines if line["log_level"] == "debug"]
    assert sorted(told) == [
        ("a client has connected", 1),
        ("a client has connected", 2),
        ("a client has gone", 1),
        ("a client has gone", 2),
    ]


def test_log_limiter_counts_suppressed_events() -> None:
    now = 100.0
    seldom = LogLimiter(2, lambda: now)
    assert [seldom.held_back() for _ in range(5)] == [0, 0, None, None, None]
    now = 101.5
    assert [seldom.held_back() for _ in range(3)] == [3, 0, None]


@pytest.fixture
def untouched() -> Iterator[None]:
    """Restore the logging configuration of the process after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()


@pytest.mark.usefixtures("untouched")
def test_json_log_has_lines_of_sandq_and_of_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("json", "info", "n7")
    structlog.get_logger("x").info("hello", topic="t", key=b"\x00")
    structlog.get_logger("x").debug("too much")
    logging.getLogger("library").warning("beware of %s", "dogs")
    logging.getLogger("library").info("chatter")
    ours, theirs = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (ours["event"], ours["level"], ours["node"], ours["topic"]) == ("hello", "info", "n7", "t")
    assert (theirs["event"], theirs["level"], theirs["node"]) == ("beware of dogs", "warning", "n7")
    assert ours["timestamp"].endswith("Z")


@pytest.mark.usefixtures("untouched")
def test_log_level_is_applied(capsys: pytest.CaptureFixture[str]) -> None:
    logs.set_up("json", "error", "n7")
    structlog.get_logger("x").warning("no")
    structlog.get_logger("x").error("yes")
    assert [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()] == ["yes"]
    logs.set_up("text", "debug", "n7")
    structlog.get_logger("x").debug("all of it")
    assert "all of it" in capsys.readouterr().err
