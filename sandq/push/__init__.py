"""Push the messages of groups to URLs (ADR 39).

A group with a URL needs no consumers. Each node is a consumer for the partitions that it leads: it POSTs each message
at its time, and acks or nacks it by the response. It consumes through the client port like any other consumer, so the
broker ensures that no message is lost or early.
"""
