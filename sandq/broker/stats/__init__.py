"""Numbers that a node counts of its own work, and how punctual it was."""
