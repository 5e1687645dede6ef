"""The partition state machine: pure, no I/O, no clock (floor F1).

`TimerPartition.apply` turns one committed Raft entry into row changes and results. Everything a replica
decides comes from the entry, from its state and from the rows it sees through a `View`, so that replicas that
applied the same entries are equal.
"""
