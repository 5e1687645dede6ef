"""What every work gives: something that is ready to run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from benchmarks.result import Latency, Told

Seconds = Callable[[], Latency | None]
"""Sums latencies up, once what the load took is known."""


@dataclass(slots=True)
class Done:
    """What came of a run; `latency` is asked for later, because to sum up is not part of the load."""

    told: Told
    latency: Seconds = lambda: None


@dataclass(frozen=True, slots=True)
class Ready:
    """`run` is given the moment from which on the load counts, of `time.perf_counter`; `about` goes to the parent."""

    run: Callable[[float], Done]
    about: dict[str, Any] = field(default_factory=dict)


Work = Callable[..., Ready]
