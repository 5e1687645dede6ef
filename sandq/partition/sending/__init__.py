"""Sends messages to other partitions: by acks, and from the outbox (ADR 35)."""
