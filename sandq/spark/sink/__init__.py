"""The sink: splits rows into chunks, and stores each chunk once."""
