"""Idempotent producers: the numbers of their batches, and the answers that are given again."""
