"""Consumers: subscriptions, leases, acknowledgements, workers."""
