"""Partitions read for backups, and restored from them."""
