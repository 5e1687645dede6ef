"""Changes of messages that no consumer has yet: cancel, move, another priority, other values."""
