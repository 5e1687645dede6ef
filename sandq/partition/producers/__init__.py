"""Idempotent producers: the numbers of their batches, and the replies to repeated batches."""
