"""The membership of nodes: who is there, who has gone, who does not answer.

Pure (floor F1): the wire protocol of memberlist and Serf, and the state machine that speaks it. Time, randomness and
what arrived are arguments. `sandq.membership` (F4) holds the sockets and the other two backends.
"""
