"""Schedules: named messages that recur."""
