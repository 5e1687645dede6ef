"""Delivery to consumers by the leader of a partition."""
