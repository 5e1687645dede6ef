"""MySQL's wire protocol, as far as a read-only server speaks it."""
