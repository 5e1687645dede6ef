"""Membership of nodes: the sockets of gossip, and the other backends (floor F4 of docs/architecture.md)."""
