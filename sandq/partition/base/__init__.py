"""Foundations of all packages of a partition: stored rows and their keys, the view that changes them, and heaps."""
