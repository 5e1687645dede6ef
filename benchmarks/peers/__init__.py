"""Compare sandq with other brokers: the same loads of 100-byte messages, interleaved in one run.

`python -m benchmarks.peers`, or `make bench-peers`.
"""
