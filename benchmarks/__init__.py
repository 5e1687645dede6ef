"""Measures a node through its client protocol, over loopback. `python -m benchmarks`, `make bench`.

The node is a process with a new data directory for each measurement. The node syncs before it responds, as always, and
counts its syncs. The load comes from another process (`load`): raw sockets and prepared frames, or the Python client
where the client is measured. The table says which kind of client each row uses. A measurement does not fail if a time
is too long: it prints the times next to the goals of the design.
"""
