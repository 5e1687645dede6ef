"""The lives that a message had in a group: each ends with its death, and a redrive begins the next.

Attempts count from 1 again in each. What the earlier ones were like stays with the message: in the row that its
group keeps of it once it was redriven, and in that of its death. Packed:
`[[number, attempts, reason, error, dead_ms, redriven_ms, history], ...]`, the oldest first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sandq.partition.records.leases import HISTORY_ERROR_CHARS, History, load_history

EARLIER_LIVES = 4
"""Lives before the present one that are remembered: of more, the last ones."""


class Life(NamedTuple):
    """One that is over; of its attempts the last `HISTORY_ATTEMPTS`."""

    number: int
    """1: the first."""
    attempts: int
    reason: str
    error: str | None
    dead_ms: int
    redriven_ms: int
    history: History


Lives = tuple[Life, ...]


def load_lives(packed: Sequence[Sequence[Any]]) -> Lives:
    """Return the lives that a row has."""
    return tuple([Life._make([*fields, load_history(history)]) for *fields, history in packed])


def number_of(earlier: Lives) -> int:
    """Return the number of the life behind these."""
    return earlier[-1].number + 1 if earlier else 1


def with_ended(
    earlier: Lives, attempts: int, reason: str, error: str | None, dead_ms: int, redriven_ms: int, history: History
) -> Lives:
    """Return the earlier lives of a message whose present one has ended, and which is redriven now."""
    short = None if error is None else error[:HISTORY_ERROR_CHARS]
    ended = Life(number_of(earlier), attempts, reason, short, dead_ms, redriven_ms, history)
    return (*earlier, ended)[-EARLIER_LIVES:]


def summary(earlier: Lives) -> list[list[Any]]:
    """Return what is said of lives beside a history that begins with theirs: `[number, rows of the history, attempts,
    reason, error, dead_ms, redriven_ms]` of each."""
    return [[number, len(history), *rest] for number, *rest, history in earlier]


def whole_history(earlier: Lives, history: History) -> list[list[Any]]:
    """Return the attempts of all lives, the oldest first."""
    return [list(one) for life in earlier for one in life.history] + [list(one) for one in history]
