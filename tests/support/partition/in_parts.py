"""Repeat commands that one entry can execute only in part, as leaders do.

Tests choose a small budget, so that random command sequences exceed the budget of an entry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from sandq.broker.replication.in_parts import submit_in_parts
from sandq.partition import commands as c
from sandq.partition import shared_state
from sandq.partition.state_machine import TimerPartition

Apply = Callable[[c.Command], Any]
"""Function that applies an entry with one command, and returns the result of the command."""


@contextmanager
def small_budget(messages: int | None) -> Iterator[None]:
    """Let an entry copy at most `messages` small messages; None for the normal budget."""
    if messages is None:
        yield
        return
    with patch.object(shared_state, "BUDGET_BYTES", messages * shared_state.COPIED_LEAST_BYTES):
        yield


class _Host:
    def __init__(self, apply: Apply) -> None:
        self._apply = apply

    def submit(self, command: Any, done: Callable[[Any], None], **how: Any) -> None:
        done(self._apply(command))


def nack(apply: Apply, command: c.Nack) -> list[Any]:
    """Nack leases, in as many entries as necessary."""
    answers: list[Any] = []
    submit_in_parts(_Host(apply), command, answers.append, size=1, work=1, line=None)
    return list(answers[0])


def expire(apply: Apply, machine: TimerPartition) -> int:
    """Expire leases, in as many entries as necessary. Return the number of messages that were given back or died."""
    count: int = apply(c.Expire())
    while machine.shared.is_budget_spent:
        count += apply(c.Expire())
    return count


def reclaim(apply: Apply, command: c.Reclaim) -> tuple[int, int]:
    """Reclaim leases, in as many entries as necessary. Return the result of `c.Reclaim`."""
    renewed, left = apply(command)
    while left:
        more, left = apply(command)
        renewed += more
    return renewed, left
