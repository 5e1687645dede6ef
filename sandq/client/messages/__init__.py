"""Stored messages: lists, logs, dead letters, jobs."""
