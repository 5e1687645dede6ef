"""sandq: a partitioned topic broker that delivers every message at the moment its producer chose.

    import sandq

    async with sandq.connect() as client:
        await client.produce("reminders", b"call the bank", delay="2h")

`sandq.embedded` runs a broker in the program itself. The client is loaded when something of it is first used, and so
are the broker and `sandq.sync`, its blocking face: a command that only prints its help does not pay for them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandq import errors, sync
    from sandq.client import (
        Change,
        Client,
        Dead,
        DeadLetter,
        DeadLetters,
        DeadOutcome,
        Entries,
        Entry,
        FetchedMessage,
        Forecast,
        Held,
        JobResult,
        Keys,
        LeasedMessage,
        Leases,
        Message,
        MessageBatch,
        Messages,
        Outgoing,
        Producer,
        PushTarget,
        Receipt,
        Retry,
        Schedule,
        Schedules,
        SendOptions,
        SendOutcome,
        StoredMessage,
        Subscription,
        Watch,
        connect,
        new_push_secret,
        offset_bytes,
        offset_text,
        offset_time_ms,
        pattern,
        sign_push,
        verify_push,
    )
    from sandq.embed import embedded

__version__ = "0.3.0.dev0"

__all__ = [
    "Change",
    "Client",
    "Dead",
    "DeadLetter",
    "DeadLetters",
    "DeadOutcome",
    "Entries",
    "Entry",
    "FetchedMessage",
    "Forecast",
    "Held",
    "JobResult",
    "Keys",
    "LeasedMessage",
    "Leases",
    "Message",
    "MessageBatch",
    "Messages",
    "Outgoing",
    "Producer",
    "PushTarget",
    "Receipt",
    "Retry",
    "Schedule",
    "Schedules",
    "SendOptions",
    "SendOutcome",
    "StoredMessage",
    "Subscription",
    "Watch",
    "connect",
    "embedded",
    "errors",
    "new_push_secret",
    "offset_bytes",
    "offset_text",
    "offset_time_ms",
    "pattern",
    "sign_push",
    "sync",
    "verify_push",
]


def __getattr__(name: str) -> Any:
    if name in ("errors", "sync"):
        return import_module(f"sandq.{name}")
    if name == "embedded":
        try:
            return import_module("sandq.embed").embedded
        except ModuleNotFoundError as error:
            if error.name != "sandq.embed":
                raise
            raise ImportError(
                "sandq.embedded needs the broker, and only sandq-client is here: pip install sandq"
            ) from None
    if name in __all__:
        return getattr(import_module("sandq.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
