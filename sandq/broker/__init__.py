"""The broker: Raft groups, producing, delivery and timers, on trio (layer F4 of docs/architecture.md)."""
