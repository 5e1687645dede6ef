"""The partition state machine: pure, no I/O, no clock (floor F1).

`TimerPartition.apply` turns one committed Raft entry into row changes and results. A replica decides only from the
entry, from its own state, and from the rows that it reads through a `View`. So replicas that applied the same entries
are equal.
"""
