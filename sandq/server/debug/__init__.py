"""Diagnostics of a node: stacks of threads and tasks, stalls of the event loop, queues, and log levels."""
