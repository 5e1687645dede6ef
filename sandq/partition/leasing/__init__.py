"""Grants leases, and settles, extends, expires and reclaims them. Computes when messages are retried."""
