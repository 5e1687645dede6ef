"""The lives of a message in a group: each life ends with the message's death, and a redrive begins the next one.

Attempts count from 1 again in each life. The earlier lives are stored with the message: in the kept row after a
redrive, and in the row of the dead message. Packed: `[[number, attempts, reason, error, dead_ms, redriven_ms, history],
...]`, the oldest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sandq.partition.records.leases import HISTORY_ERROR_CHARS, History, load_history

EARLIER_LIVES = 4
"""Maximum number of earlier lives that are stored. The oldest lives are dropped first."""


class Life(NamedTuple):
    """A life that has ended. `history` contains its last `HISTORY_ATTEMPTS` attempts."""

    number: int
    """Number of the life, counted from 1."""
    attempts: int
    reason: str
    error: str | None
    dead_ms: int
    redriven_ms: int
    history: History


Lives = tuple[Life, ...]


def load_lives(packed: Sequence[Sequence[Any]]) -> Lives:
    """Return the lives in a row, unpacked."""
    return tuple([Life._make([*fields, load_history(history)]) for *fields, history in packed])


def number_of(earlier: Lives) -> int:
    """Return the number of the current life. `earlier`: the stored earlier lives."""
    return earlier[-1].number + 1 if earlier else 1


def with_ended(
    earlier: Lives, attempts: int, reason: str, error: str | None, dead_ms: int, redriven_ms: int, history: History
) -> Lives:
    """Return the earlier lives of a message that is redriven now: `earlier` and the life that has ended."""
    short = None if error is None else error[:HISTORY_ERROR_CHARS]
    ended = Life(number_of(earlier), attempts, reason, short, dead_ms, redriven_ms, history)
    return (*earlier, ended)[-EARLIER_LIVES:]


def summary(earlier: Lives) -> list[list[Any]]:
    """Return the earlier lives, for a reply whose history lists the attempts of all lives, the oldest first.

    For each life: `[number, number of its attempts in the history, attempts, reason, error, dead_ms, redriven_ms]`.
    """
    return [[number, len(history), *rest] for number, *rest, history in earlier]


def whole_history(earlier: Lives, history: History) -> list[list[Any]]:
    """Return the attempts of all lives, the oldest first."""
    return [list(one) for life in earlier for one in life.history] + [list(one) for one in history]
