"""The broker on trio: hosts of Raft groups, publishing, delivering, timers (floor F4)."""
