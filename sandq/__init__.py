"""sandq: a partitioned topic broker that delivers every message at the moment its producer chose.

    import sandq

    async with sandq.connect() as client:
        await client.produce("reminders", b"call the bank", delay="2h")

Importing it loads the client only.
"""

from sandq.client import (
    Client,
    DeadLetter,
    DeadLetters,
    FetchedMessage,
    Forecast,
    Held,
    JobResult,
    LeasedMessage,
    Leases,
    Message,
    MessageBatch,
    Messages,
    Producer,
    Receipt,
    StoredMessage,
    Subscription,
    connect,
    offset_bytes,
    offset_text,
    offset_time_ms,
)

__version__ = "0.1.0"

__all__ = [
    "Client",
    "DeadLetter",
    "DeadLetters",
    "FetchedMessage",
    "Forecast",
    "Held",
    "JobResult",
    "LeasedMessage",
    "Leases",
    "Message",
    "MessageBatch",
    "Messages",
    "Producer",
    "Receipt",
    "StoredMessage",
    "Subscription",
    "connect",
    "offset_bytes",
    "offset_text",
    "offset_time_ms",
]
