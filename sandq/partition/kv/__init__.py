"""Keys of a compacted partition."""
