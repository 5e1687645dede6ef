"""The source: plans tasks, keeps the positions of streams, and reads partitions as Arrow record batches."""
