"""Messages that a partition sends to others: acks that send, and what becomes of the outbox (ADR 35)."""
