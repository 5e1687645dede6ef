"""Schedules: named recurring messages, each occurrence one message."""
