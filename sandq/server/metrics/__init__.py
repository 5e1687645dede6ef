"""The metrics of a node, for Prometheus."""
