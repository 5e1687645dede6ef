"""Compacted topics: the partition with keys, writes to them, the table of their values, compaction, watching."""
