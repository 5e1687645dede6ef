"""Tests of the destination of log lines: structlog if it is configured, otherwise `logging`."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import LogCapture

from sandq.model.logger import get_logger
from tests.support.paths import ROOT

log = get_logger("sandq.test")


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def test_events_go_to_logging_without_a_configuration(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with structlog.contextvars.bound_contextvars(node="node1"):
        log.warning("a %s event", topic="t")
        log.bind(peer="p").error("another")
        log.debug("a detail")
    assert [(record.name, record.levelname, record.getMessage()) for record in caplog.records] == [
        ("sandq.test", "WARNING", "a %s event topic='t' node='node1'"),
        ("sandq.test", "ERROR", "another peer='p' node='node1'"),
    ]
    assert capfd.readouterr() == ("", "")


def test_level_of_logging_applies(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "sandq.test"):
        log.debug("a detail")
    assert [record.getMessage() for record in caplog.records] == ["a detail"]


def test_exception_has_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ValueError("a bug")
    except ValueError:
        log.exception("failed")
    (record,) = caplog.records
    assert record.exc_info is not None and record.exc_info[0] is ValueError


def test_events_go_to_structlog_once_it_is_configured(caplog: pytest.LogCaptureFixture) -> None:
    capture = LogCapture()
    structlog.configure(processors=[capture])
    log.info("an event", topic="t")
    assert capture.entries == [{"event": "an event", "topic": "t", "log_level": "info"}]
    assert caplog.records == []


def test_every_module_uses_these_loggers() -> None:
    """A logger of structlog would print to standard output of a program that has not configured structlog."""
    sources = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "sandq").rglob("*.py")}
    assert [name for name, text in sources.items() if "structlog.get_logger" in text] == ["logger.py"]
