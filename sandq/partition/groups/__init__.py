"""Consumer groups of a partition: leases, settlement, retries, dead letters."""
