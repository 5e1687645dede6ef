"""Shares as integers, in parts per million."""

from __future__ import annotations

from typing import Final

PPM: Final = 1_000_000
"""The share of 100 %."""
