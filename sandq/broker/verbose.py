"""Whether this process logs at level debug: for lines that cost more to make than to drop."""

from __future__ import annotations

_is_on = [False]


def is_on() -> bool:
    """Whether lines of single requests and entries are to be logged."""
    return _is_on[0]


def switch(on: bool) -> None:
    """Log them from now on, or not any more."""
    _is_on[:] = [on]
