"""Limits of consumer groups: what a partition may have of them, and the ledger of who may have what."""
