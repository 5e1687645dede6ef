"""What of a partition is ready and waits its turn, in topics whose messages have priorities, and tenants that share."""
