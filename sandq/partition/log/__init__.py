"""The time-ordered message log of a partition: append, find, cancel and move; counts, holds, trimming."""
