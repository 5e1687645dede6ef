"""Measures a node through its client protocol, over loopback. `python -m benchmarks`, `make bench`.

The node is a process of its own, with a new data directory for each measurement; it syncs before it answers, as
always. Where the Python client would be the bottleneck the load comes from raw sockets (`wire`), and the table says
which is which. A measurement asserts nothing about times: it prints them beside the design's goals.
"""
