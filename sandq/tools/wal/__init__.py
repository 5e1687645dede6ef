"""`sandq wal`: print the records of a log."""
