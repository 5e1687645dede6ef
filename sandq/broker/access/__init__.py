"""Authenticate clients, and determine their rights."""
