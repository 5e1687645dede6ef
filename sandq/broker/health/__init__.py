"""Whether this node makes progress with its work, and which other nodes report that they do not."""
