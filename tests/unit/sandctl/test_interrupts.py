"""Tests of Ctrl-C while sandctl works. Tests with separate processes: test_process.py."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from sandctl.interrupts import Interrupts


@pytest.fixture
def handled() -> Iterator[None]:
    """Use Python's default Ctrl-C handling, and restore the timer afterwards: it may be pytest's."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    alarm, (left_s, _) = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)
    yield
    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, left_s)


def test_timer_of_the_caller_continues(handled: None) -> None:
    signal.setitimer(signal.ITIMER_REAL, 1000)
    with Interrupts():
        pass
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0


def test_timer_is_cancelled_at_exit(handled: None) -> None:
    cancelled: list[bool] = []
    signal.setitimer(signal.ITIMER_REAL, 0)
    with Interrupts() as interrupts:
        interrupts.cancel = lambda: cancelled.append(True)
        signal.raise_signal(signal.SIGINT)
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    assert cancelled == [True] and signal.getitimer(signal.ITIMER_REAL)[0] == 0


def test_interrupted_it_gives_the_caller_its_timer_back(handled: None) -> None:
    def ring(*args: object) -> None: ...

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 1000, 7)
    with Interrupts() as interrupts:
        interrupts.cancel = lambda: None
        signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGALRM) is not ring
    left_s, interval_s = signal.getitimer(signal.ITIMER_REAL)
    assert signal.getsignal(signal.SIGALRM) is ring and 900 < left_s <= 1000 and interval_s == 7
