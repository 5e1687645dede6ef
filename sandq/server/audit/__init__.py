"""The audit log: changes with the principals that made them, refused requests, and failed logins."""
