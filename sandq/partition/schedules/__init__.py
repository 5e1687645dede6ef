"""Schedules: named recurring messages. Each occurrence is one message."""
