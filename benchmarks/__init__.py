"""Measures a node through its client protocol, over loopback. `python -m benchmarks`, `make bench`.

The node is a process of its own, with a new data directory for each measurement; it syncs before it answers, as
always, and tells how often it did. The load comes from another process (`load`): raw sockets and prepared frames, or
the Python client where that is what is measured. The table says which is which. A measurement asserts nothing about
times: it prints them beside the design's goals.
"""
