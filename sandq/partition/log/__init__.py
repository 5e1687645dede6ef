"""The time-ordered message log of a partition."""
