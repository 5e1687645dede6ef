"""Connections to nodes, what is known of the cluster, and single requests."""
