"""The edge of gossip (floor F4, trio): sockets for the protocol, and the backends that need no protocol of ours."""
