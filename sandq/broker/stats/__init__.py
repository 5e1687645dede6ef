"""Statistics about a node's own work, and about the lateness of its deliveries."""
