"""Closes descriptors in forked child processes.

A child inherits all descriptors. If a program that runs a node in its process forks, the child must not keep the lock
of the data directory or the listening socket when the program has ended.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Protocol


class Closable(Protocol):
    """An object that holds a descriptor."""

    def close(self) -> None: ...


_held: weakref.WeakSet[Closable] = weakref.WeakSet()


def close_in_children(held: Closable) -> None:
    """Close an object in each child process that is forked from now on."""
    _held.add(held)


def _close_all() -> None:
    for held in list(_held):
        with contextlib.suppress(Exception):  # the child has no event loop; the descriptor is closed nevertheless
            held.close()
    _held.clear()


os.register_at_fork(after_in_child=_close_all)
