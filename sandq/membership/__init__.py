"""Membership of nodes: the sockets of gossip, and the other backends (layer F4 of docs/architecture.md)."""
