"""TLS for the ports of a node: certificates as `ssl` contexts, handshakes with a CPU budget, and streams.

    files --read, reloaded--> Certificates --context of a port--> handshake (within its budget) --> TlsSession

This package is independent of the protocols inside TLS.
"""
