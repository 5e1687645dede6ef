"""Deduplication: producers' sequences, remembered answers, unique keys."""
