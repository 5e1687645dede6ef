"""Limits of groups and paces of tenants: allowances, token buckets, and the ledger that divides limits over
partitions."""
