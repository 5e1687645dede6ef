"""Connections between nodes: handshake, links, and the dispatch of frames."""
