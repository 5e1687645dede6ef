"""The server for clients: the binary protocol, HTTP, metrics and the audit log."""
