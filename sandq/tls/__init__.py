"""TLS for the ports of a node: certificates as `ssl` contexts, handshakes with a CPU budget, and streams.

    files --read, reloaded--> Certificates --context of a port--> handshake (within its budget) --> TlsSession

This package does not know the protocols inside TLS.
"""
