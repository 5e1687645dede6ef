"""What listens: the binary protocol for clients (floor F5)."""
