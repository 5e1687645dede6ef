"""Migrations of the outbox table."""
