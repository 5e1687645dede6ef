"""Requests of a connection: parsed, handed to the broker, answered."""
