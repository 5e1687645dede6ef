"""Compacted topics as maps: get, put, scan, watch."""

from __future__ import annotations

from sandq.client.kv.scan import KeyRange
from sandq.client.kv.watch_positions import NOW

__all__ = ["NOW", "KeyRange"]
