"""Deliver messages to consumers, on the leader of a partition."""
