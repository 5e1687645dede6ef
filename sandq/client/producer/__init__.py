"""The producer: batches, and their way to the partitions' leaders."""
