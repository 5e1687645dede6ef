"""Bulk work in a partition, and changes of pending messages."""
