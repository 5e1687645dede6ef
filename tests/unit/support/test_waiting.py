"""Tests of the helpers that wait for a condition."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from sandq.errors import UnknownTopic
from tests.support import waiting
from tests.support.waiting import until_holds, wait_until


def by_polls(*answers: object) -> Callable[[], object]:
    """Return a function that gives these answers in order and then repeats the last. Errors are raised."""
    left = list(answers)

    def check() -> object:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return check


NOT_YET = (False, UnknownTopic("there is no topic 't'"), KeyError("node2"), None)


async def test_wait_continues_while_the_condition_raises(autojump_clock: trio.testing.MockClock) -> None:
    await until_holds(by_polls(*NOT_YET, "it holds"))
    wait_until(by_polls(*NOT_YET, "it holds"))


async def test_condition_that_never_holds_is_reported(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 3.0)
    with pytest.raises(AssertionError, match=r"never held in 3 s: .*by_polls\(False\)"):
        await until_holds(lambda: by_polls(False)())
    with pytest.raises(UnknownTopic):
        await until_holds(by_polls(UnknownTopic("there is no topic 't'")))
    with pytest.raises(ZeroDivisionError):
        await until_holds(by_polls(ZeroDivisionError()))


def test_condition_that_never_holds_is_reported_without_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "PATIENCE_S", 0.0)
    with pytest.raises(AssertionError, match="never held"):
        wait_until(by_polls(False))
    with pytest.raises(KeyError):
        wait_until(by_polls(KeyError("node2")))
