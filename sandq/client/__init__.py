"""The Python client: `sandq.connect()`. See `docs/client.md`. It runs under trio and asyncio.

Other packages use only the exports of this package and of these subpackages: `producer` and `transport` (to build
producers or requests), `admin`, `consumer`, `kv` and `schedules` (helpers of the HTTP API and the commands),
`json_format` (messages and settings as JSON), `options` (servers, limits), `positions` (positions in delivery order)
and `signals` (to wait for events).

In the client, an offset or id is always text: 26 characters of Crockford's base32, which sort in the order of the
offsets. `offset_bytes` and `offset_text` convert between text and the 16 bytes of the wire; `offset_time_ms` returns
the delivery time in an offset.
"""

from __future__ import annotations

from sandq.client.admin.access import Identity, NewToken, Whoami
from sandq.client.admin.audit import AuditPage
from sandq.client.admin.dead_letters import DeadLetters
from sandq.client.admin.group_consumers import GroupConsumer, GroupConsumers
from sandq.client.admin.group_pauses import GroupPauses, PausedPart
from sandq.client.admin.slo import SloReport
from sandq.client.admin.topics import Forecast
from sandq.client.client import Client, cluster_of, connect, connect_with, producer_of
from sandq.client.consumer.chosen import Topics, pattern
from sandq.client.consumer.end_rules import Dead, Retry
from sandq.client.consumer.lease import Extension
from sandq.client.consumer.lease_api import Held, LeasedMessage, Leases
from sandq.client.consumer.message import Message, Settlement
from sandq.client.consumer.message_batch import BatchSettlement, MessageBatch
from sandq.client.consumer.outgoing import Outgoing
from sandq.client.consumer.subscription import Subscription
from sandq.client.consumer.worker import Handler
from sandq.client.kv.entries import Change, Entries, Entry
from sandq.client.kv.keys import Keys
from sandq.client.kv.watch import Watch
from sandq.client.messages.messages import Messages
from sandq.client.messages.stored_message import (
    Attempt,
    DeadLetter,
    DeadOutcome,
    FetchedMessage,
    JobResult,
    Life,
    StoredMessage,
)
from sandq.client.producer.batches import Receipt, Receipts, SendOutcome
from sandq.client.producer.producer import Producer
from sandq.client.producer.send_options import SendOptions
from sandq.client.schedules.schedule import Occurrence, Schedule
from sandq.client.schedules.schedules import Fire, Schedules, SchedulesStored
from sandq.client.transport.on_behalf import on_behalf_of
from sandq.client.webhooks import new_push_secret, sign_push, verify_push
from sandq.model.message_targets import PushTarget
from sandq.model.offsets import from_text as offset_bytes
from sandq.model.offsets import to_text as offset_text
from sandq.protocol.replies import Partition, TopicRecord

Offset = str
"""An offset as text: 26 characters."""


def offset_time_ms(offset: str) -> int:
    """Return the delivery time in an offset, in epoch milliseconds."""
    return int.from_bytes(offset_bytes(offset)[:6], "big")


__all__ = [
    "Attempt",
    "AuditPage",
    "BatchSettlement",
    "Change",
    "Client",
    "Dead",
    "DeadLetter",
    "DeadLetters",
    "DeadOutcome",
    "Entries",
    "Entry",
    "Extension",
    "FetchedMessage",
    "Fire",
    "Forecast",
    "GroupConsumer",
    "GroupConsumers",
    "GroupPauses",
    "Handler",
    "Held",
    "Identity",
    "JobResult",
    "Keys",
    "LeasedMessage",
    "Leases",
    "Life",
    "Message",
    "MessageBatch",
    "Messages",
    "NewToken",
    "Occurrence",
    "Offset",
    "Outgoing",
    "Partition",
    "PausedPart",
    "Producer",
    "PushTarget",
    "Receipt",
    "Receipts",
    "Retry",
    "Schedule",
    "Schedules",
    "SchedulesStored",
    "SendOptions",
    "SendOutcome",
    "Settlement",
    "SloReport",
    "StoredMessage",
    "Subscription",
    "TopicRecord",
    "Topics",
    "Watch",
    "Whoami",
    "cluster_of",
    "connect",
    "connect_with",
    "new_push_secret",
    "offset_bytes",
    "offset_text",
    "offset_time_ms",
    "on_behalf_of",
    "pattern",
    "producer_of",
    "sign_push",
    "verify_push",
]
