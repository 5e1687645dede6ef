"""Pushing the messages of groups to URLs (ADR 39).

A group that has a URL needs no consumer of its own: each node is one for the partitions that it leads, POSTs each
message at its time, and acks or nacks it by the answer. It takes part as any other consumer does, through the client
port: that a message is not lost and not early is the broker's doing.
"""
