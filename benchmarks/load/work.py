"""The interface of all loads: a work that is ready to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.result import Latency, LoadResult

Seconds = Callable[[], Latency | None]
"""Summarizes latencies, once the resource use of the load is known."""


@dataclass(slots=True)
class Done:
    """The result of a run. `latency` is called later, because the summary is not part of the load."""

    result: LoadResult
    latency: Seconds = lambda: None


@dataclass(frozen=True, slots=True)
class Ready:
    """`run` gets the start time of the load, of `time.perf_counter`; `about` is sent to the parent."""

    run: Callable[[float], Done]
    about: dict[str, Any] = field(default_factory=dict)


Work = Callable[..., Ready]
