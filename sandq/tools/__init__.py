"""What the command `sandq` can do besides running a node: look at configurations, data directories and their logs.

Nothing here writes into a data directory, and all of it may be used beside a running node.
"""
