"""The leader of a partition: leases, deadlines, consumers and schedules, by the clock."""
