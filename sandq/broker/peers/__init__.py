"""Connections between nodes: handshake, links, dispatch of what comes over them."""
