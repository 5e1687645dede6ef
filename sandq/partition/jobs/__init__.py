"""Bulk work in a partition, in steps: cancels, moves, redrives and purges of many messages."""
