"""Limits of groups and paces of tenants: allowances, buckets, the ledger of who may have what."""
