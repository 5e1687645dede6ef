"""Replicated groups on this node: log, raft, apply."""
