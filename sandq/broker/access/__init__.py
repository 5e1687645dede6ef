"""Who asks, and what that one may do."""
