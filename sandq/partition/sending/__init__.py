"""Messages that a partition sends to others: by acks, and from the outbox (ADR 35)."""
