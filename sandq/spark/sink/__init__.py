"""The sink: rows cut into chunks, each stored once."""
