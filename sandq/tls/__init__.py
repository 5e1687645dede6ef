"""TLS of the ports of a node: its certificates as contexts of `ssl`, handshakes and what they may cost, and streams.

    files --read, read again--> Certificates --context of a port--> handshake (within its budget) --> TlsSession

Nothing in here knows what is spoken inside.
"""
