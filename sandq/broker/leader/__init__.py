"""The leader of a partition: leases, deadlines, subscriptions and schedules."""
