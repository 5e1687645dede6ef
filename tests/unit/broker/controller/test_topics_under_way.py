"""Topics that are being made because somebody uses them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.controller.topics_under_way import TopicsUnderWay
from sandq.model.errors import Overloaded, Unavailable
from sandq.model.names import AUTO_CREATED


def view(index: int, made: int, others: int = 3) -> Any:
    topics = [{AUTO_CREATED: True}] * made + [{}] * others
    named = {str(number): SimpleNamespace(first_settings=settings) for number, settings in enumerate(topics)}
    return SimpleNamespace(applied_index=index, topics=named)


def test_what_was_made_is_counted_once_for_each_entry() -> None:
    under_way = TopicsUnderWay(10)
    assert under_way.made(view(1, 2)) == 2
    assert under_way.made(view(1, 5)) == 2, "nothing has changed since"
    assert under_way.made(view(2, 5)) == 5


def test_no_more_are_under_way_than_may_be_made() -> None:
    under_way = TopicsUnderWay(4)
    with (
        under_way.attempt("a", view(1, 2)),
        under_way.attempt("b", view(1, 2)),
        pytest.raises(Overloaded, match="2 others are being made"),
        under_way.attempt("c", view(1, 2)),
    ):
        pass
    with under_way.attempt("c", view(2, 3)):
        pass
    with pytest.raises(Overloaded), under_way.attempt("d", view(3, 4)):
        pass


async def test_one_attempt_of_a_name_at_a_time() -> None:
    under_way = TopicsUnderWay(4)
    assert not await under_way.until_ended("a")
    ended: list[bool] = []

    async def wait() -> None:
        ended.append(await under_way.until_ended("a"))

    async with trio.open_nursery() as nursery:
        with pytest.raises(ZeroDivisionError), under_way.attempt("a", view(1, 0)):
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert ended == []
            raise ZeroDivisionError
    assert ended == [True] and not await under_way.until_ended("a")


async def test_who_waited_fails_with_the_attempt() -> None:
    """Each made an attempt of its own, one after the other: of a hundred the last waited a hundred times as long."""
    under_way = TopicsUnderWay(4)
    told: list[Unavailable] = []

    async def wait() -> None:
        with pytest.raises(Unavailable, match="no majority") as refused:
            await under_way.until_ended("a")
        told.append(refused.value)

    async with trio.open_nursery() as nursery:
        with pytest.raises(Unavailable) as first, under_way.attempt("a", view(1, 0)):
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            raise Unavailable("no majority", topic="a")
    assert len({first.value, *told}) == 3 and all(one.details == {"topic": "a"} for one in told)
    assert not await under_way.until_ended("a")
