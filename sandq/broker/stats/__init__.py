"""Statistics that a node keeps of its own work, and of how punctual its deliveries are."""
