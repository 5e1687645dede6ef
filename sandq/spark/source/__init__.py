"""The source: planning, positions, reading a partition's log as Arrow's record batches."""
