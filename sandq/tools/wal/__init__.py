"""`sandq wal`: the records of a log."""
