"""sandq: a partitioned topic broker that delivers every message at the moment its producer chose.

    import sandq

    async with sandq.connect() as client:
        await client.produce("reminders", b"call the bank", delay="2h")

Importing it loads the client only; `sandq.sync` (the blocking face) comes with its first use.
"""

from typing import TYPE_CHECKING, Any

from sandq import errors
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
    Retry,
    StoredMessage,
    Subscription,
    connect,
    offset_bytes,
    offset_text,
    offset_time_ms,
)

if TYPE_CHECKING:
    from sandq import sync

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
    "Retry",
    "StoredMessage",
    "Subscription",
    "connect",
    "errors",
    "offset_bytes",
    "offset_text",
    "offset_time_ms",
    "sync",
]


def __getattr__(name: str) -> Any:
    if name == "sync":
        import sandq.sync

        return sandq.sync
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
