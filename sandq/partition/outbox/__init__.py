"""What a partition sends to other partitions: rows that are deleted once those have stored it (ADR 35)."""
