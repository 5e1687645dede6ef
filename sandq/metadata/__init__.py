"""The metadata state machine: what the cluster must remember. Pure, no I/O, no clock (floor F1)."""
