"""Changes of messages that no consumer holds: cancel, move, change of the priority, the value or the headers."""
