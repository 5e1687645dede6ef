"""Membership of the nodes by gossip: which nodes are alive, suspected, failed or have left.

This package is pure (floor F1 of docs/architecture.md): the wire protocol of memberlist and Serf, and the state machine
that speaks it. Time, randomness and received data are arguments. `sandq.membership` (F4) has the sockets and the other
two backends.
"""
