"""Compacted topics as maps: get, put, scan, watch."""
