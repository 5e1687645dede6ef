"""The state of consumer groups: cursors, leases, waiting and dead messages, unique keys, each with its rows."""
