"""Schedules: named messages that recur. The exported functions convert schedules from and to JSON."""

from __future__ import annotations

from sandq.client.schedules.schedule_json import (
    FROM_BROKERS,
    fire_json,
    local,
    read_changes,
    read_schedule,
    schedule_json,
)

__all__ = ["FROM_BROKERS", "fire_json", "local", "read_changes", "read_schedule", "schedule_json"]
