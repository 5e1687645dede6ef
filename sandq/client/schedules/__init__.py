"""Schedules: named messages that recur. Here, for others: schedules as JSON."""

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
