"""Cluster metadata: changing it, following it, and placing replicas by it."""
