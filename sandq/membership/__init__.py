"""The edge of gossip (floor F4, trio): the sockets of the protocol, and the backends that do not use it."""
