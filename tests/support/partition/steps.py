"""Provide the `Step` argument for tests that call parts of a partition without an entry."""

from __future__ import annotations

from sandq.partition.base.step import Step
from sandq.partition.base.view import View


def step_at(now_ms: int, view: View) -> Step:
    """Return a step of an entry with the time `now_ms` and the Raft index 1."""
    return Step(view, index=1, stamp_ms=now_ms, now_ms=now_ms, floor_ms=now_ms)
