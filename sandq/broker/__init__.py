"""The broker on trio: Raft groups, producing, delivery and timers (floor F4)."""
