"""The metadata state machine: nodes, topics, assignments, identities. Pure, no I/O, no clock (floor F1)."""
