"""Requests of clients about messages, keys and schedules of a partition."""
