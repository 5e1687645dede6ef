"""Whether this process logs at level debug. Used for log lines that are expensive to create."""

from __future__ import annotations

_is_on = [False]


def is_on() -> bool:
    """Return whether lines about single requests and entries are logged."""
    return _is_on[0]


def switch(on: bool) -> None:
    """Switch the lines about single requests and entries on or off."""
    _is_on[:] = [on]
