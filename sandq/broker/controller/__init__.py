"""Cluster metadata: change it, act on it, and place replicas according to it."""
