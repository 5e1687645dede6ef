"""Tests that embedded brokers log only warnings unless the program has configured structlog."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from sandq.testing.quiet import quiet_logs


@pytest.fixture(autouse=True)
def defaults() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    structlog.get_logger("sandq.test").debug("a detail")
    structlog.get_logger("sandq.test").warning("a warning")
    return capsys.readouterr().out


def test_details_are_silent_while_a_broker_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with quiet_logs(), quiet_logs():
        found = printed(capsys)
        assert "a warning" in found and "a detail" not in found
    assert "a detail" in printed(capsys)


def test_details_are_silent_after_a_capture_of_logs(capsys: pytest.CaptureFixture[str]) -> None:
    """`capture_logs` leaves the default configuration but marks it as configured."""
    with capture_logs():
        pass
    assert structlog.is_configured()
    with quiet_logs():
        assert "a detail" not in printed(capsys)


def test_a_configuration_of_the_caller_stays(capsys: pytest.CaptureFixture[str]) -> None:
    for change in (
        {"wrapper_class": structlog.make_filtering_bound_logger(logging.DEBUG)},
        {"processors": [structlog.processors.JSONRenderer()]},
    ):
        structlog.reset_defaults()
        structlog.configure(**change)
        with quiet_logs():
            assert "a detail" in printed(capsys)
