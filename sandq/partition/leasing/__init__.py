"""Leases: granted, settled by ack and nack, extended, expired, reclaimed, retried."""
