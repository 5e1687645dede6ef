"""Whether a node gets on with its work, and who else says that it does not."""
