"""The blocking client, for code without an event loop. Any number of threads may share one client.

    with sandq.sync.connect() as client:
        client.produce("orders", b"paid", delay="2h")
        with client.subscribe("orders", group="billing") as subscription:
            for message in subscription:
                message.ack()

Names and arguments are those of the async client, which runs in a background thread. Calls that are awaited in the
async client block in the blocking client. Results that can be awaited in the async client (acks, receipts) have a
method `wait()`. See `docs/client.md`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sandq.client.consumer.threaded import Message, MessageBatch
from sandq.client.portal import Confirmation
from sandq.sync.client import Client, connect
from sandq.sync.keys import Keys, Watch
from sandq.sync.producer import Producer, Receipt, Receipts
from sandq.sync.subscription import Batches, Gathered, Subscription
from sandq.sync.wrappers import Admin, DeadLetters, Leases, Messages, Rows, Schedules

if TYPE_CHECKING:
    from sandq.embed import embedded_blocking as embedded

__all__ = [
    "Admin",
    "Batches",
    "Client",
    "Confirmation",
    "DeadLetters",
    "Gathered",
    "Keys",
    "Leases",
    "Message",
    "MessageBatch",
    "Messages",
    "Producer",
    "Receipt",
    "Receipts",
    "Rows",
    "Schedules",
    "Subscription",
    "Watch",
    "connect",
    "embedded",
]


def __getattr__(name: str) -> Any:
    if name == "embedded":  # it loads the node
        try:
            from sandq.embed import embedded_blocking
        except ModuleNotFoundError as error:
            if error.name != "sandq.embed":
                raise
            said = "sandq.sync.embedded needs the broker, and only sandq-client is here: pip install sandq"
            raise ImportError(said) from None
        return embedded_blocking
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
