"""Membership of nodes (floor F4, trio): the sockets of the gossip protocol, and the backends that use other means."""
