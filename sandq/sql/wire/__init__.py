"""MySQL's wire protocol: the part that a read-only server needs."""
