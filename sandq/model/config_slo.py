"""Objective for the lateness of deliveries: the section `slo` of a node's configuration (docs/slo.md)."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from sandq.model import schema
from sandq.model.shares import PPM
from sandq.model.times import format_duration

LATENESS_MS: Final = (1, 5, 10, 25, 50, 100, 250, 500, 1000, 5000, 10_000, 30_000, 60_000)
"""Values allowed for the lateness, in ms: the bounds of the histogram that counts it."""
_PERCENT = re.compile(r"([0-9]{2}(?:\.[0-9]{1,4})?) ?%")
_LEAST, _GREATEST = Decimal(50), Decimal("99.999")
_DAY_MS = 86_400_000
_any_duration = schema.duration(0, 3_600_000).func


def _lateness(value: object) -> int:
    """Return a lateness in ms that is the bound of a bucket, so that it can be counted exactly."""
    ms: int = _any_duration(value)  # type: ignore[call-arg]
    if ms not in LATENESS_MS:
        words = ", ".join([format_duration(known) for known in LATENESS_MS])
        raise schema.mistake(f"{format_duration(ms)} is none of {words}, by which lateness is counted")
    return ms


def _percent(value: object) -> str:
    """Return a share such as `99.9%` within the allowed range."""
    match = _PERCENT.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise schema.mistake(f"{value!r:.40} is no share: text like 99.9% is expected")
    if not _LEAST <= Decimal(match[1]) <= _GREATEST:
        raise schema.mistake(f"{value} is not within {_LEAST}% to {_GREATEST}%")
    return f"{match[1]}%"


class SloSection(schema.Section):
    """The lateness objective: the share of deliveries that must be at most this late, over a window of time."""

    lateness_ms: Annotated[int, BeforeValidator(_lateness)] = Field(default=100, alias="lateness")
    target: Annotated[str, BeforeValidator(_percent)] = "99.9%"
    window_ms: Annotated[int, schema.duration(3_600_000, 90 * _DAY_MS)] = Field(default=30 * _DAY_MS, alias="window")

    @property
    def target_ppm(self) -> int:
        """Number of deliveries per million that must be in time."""
        return int(Decimal(self.target.rstrip("%")) * PPM / 100)
