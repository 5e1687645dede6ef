"""Whether this process logs at level debug. Callers check this before they create expensive log lines."""

from __future__ import annotations

_is_on = [False]


def is_on() -> bool:
    """Return whether log lines about single requests and single Raft entries are enabled."""
    return _is_on[0]


def switch(on: bool) -> None:
    """Enable or disable log lines about single requests and single Raft entries."""
    _is_on[:] = [on]
