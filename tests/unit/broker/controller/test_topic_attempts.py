"""Tests of topics that are created by their first use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.controller.topic_attempts import TopicAttempts
from sandq.broker.peers.metadata_barrier import Unsure
from sandq.model.errors import Overloaded, Unavailable, UnknownTopic
from sandq.model.names import AUTO_CREATED


def view(index: int, made: int, others: int = 3) -> Any:
    topics = [{AUTO_CREATED: True}] * made + [{}] * others
    named = {str(number): SimpleNamespace(first_settings=settings) for number, settings in enumerate(topics)}
    return SimpleNamespace(applied_index=index, topics=named)


def test_created_messages_are_counted_once_per_entry() -> None:
    attempts = TopicAttempts(10)
    assert attempts.made(view(1, 2)) == 2
    assert attempts.made(view(1, 5)) == 2, "nothing has changed since"
    assert attempts.made(view(2, 5)) == 5


def test_topic_attempts_in_flight_are_limited() -> None:
    attempts = TopicAttempts(4)
    with (
        attempts.attempt("a", view(1, 2)),
        attempts.attempt("b", view(1, 2)),
        pytest.raises(Overloaded, match="2 others are being created"),
        attempts.attempt("c", view(1, 2)),
    ):
        pass
    with attempts.attempt("c", view(2, 3)):
        pass
    with pytest.raises(Overloaded), attempts.attempt("d", view(3, 4)):
        pass


async def test_attempts_of_one_name_run_one_at_a_time() -> None:
    attempts = TopicAttempts(4)
    assert not await attempts.until_ended("a")
    ended: list[bool] = []

    async def wait() -> None:
        ended.append(await attempts.until_ended("a"))

    async with trio.open_nursery() as nursery:
        with pytest.raises(ZeroDivisionError), attempts.attempt("a", view(1, 0)):
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            assert ended == []
            raise ZeroDivisionError
    assert ended == [True] and not await attempts.until_ended("a")


async def test_waiter_fails_with_the_attempt() -> None:
    """Each caller once made its own attempt, one after another. So the last of a hundred waited a hundred times as
    long."""
    attempts = TopicAttempts(4)
    refusals: list[Unavailable] = []

    async def wait() -> None:
        with pytest.raises(Unavailable, match="no majority") as refused:
            await attempts.until_ended("a")
        refusals.append(refused.value)

    async with trio.open_nursery() as nursery:
        with pytest.raises(Unavailable) as first, attempts.attempt("a", view(1, 0)):
            nursery.start_soon(wait)
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            raise Unavailable("no majority", topic="a")
    assert len({first.value, *refusals}) == 3 and all(one.details == {"topic": "a"} for one in refusals)
    assert not await attempts.until_ended("a")


async def test_waiter_receives_an_error_that_asks_the_leader() -> None:
    """`Unsure` has more fields than a message and details, and raising its copy once ended in a TypeError."""
    attempts = TopicAttempts(4)

    async def settle() -> UnknownTopic:
        return claim

    claim = UnknownTopic("topic 'a' does not exist", topic="a")
    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            with pytest.raises(Unsure, match="as far as this node knows") as refused:
                await attempts.until_ended("a")
            assert await refused.value.settled() is claim and refused.value.details == {"topic": "a"}

        with pytest.raises(Unsure), attempts.attempt("a", view(1, 0)):
            nursery.start_soon(wait)
            await trio.testing.wait_all_tasks_blocked()
            raise Unsure(claim, settle)
