"""The blocking client, for code without an event loop; any number of threads may share one.

    with sandq.sync.connect() as client:
        client.produce("orders", b"paid", delay="2h")
        with client.subscribe("orders", group="billing") as subscription:
            for message in subscription:
                message.ack()

Names and arguments are those of the async client, which runs behind it in its own thread. Awaitable calls block here;
results that may be awaited there (acks, receipts) have a method `wait()` here. See `docs/client.md`.
"""

from __future__ import annotations

from sandq.client.consumer.threaded import Message, MessageBatch
from sandq.client.portal import Confirmation
from sandq.sync.client import Client, connect
from sandq.sync.keys import Keys, Watch
from sandq.sync.producer import Producer, Receipt, Receipts
from sandq.sync.subscription import Batches, Subscription
from sandq.sync.wrappers import Admin, DeadLetters, Leases, Messages, Rows, Schedules

__all__ = [
    "Admin",
    "Batches",
    "Client",
    "Confirmation",
    "DeadLetters",
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
]
