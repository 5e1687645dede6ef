"""Shares, as whole numbers of millionths."""

from __future__ import annotations

from typing import Final

PPM: Final = 1_000_000
"""The whole."""
