"""Requests about stored messages and keys, and consistent reads."""
