"""Snapshots of groups: made, sent, taken in."""
