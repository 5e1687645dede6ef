"""The named limits and times of a client, and its back-off."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from sandq.client.tls import ClientTls
from sandq.client.tracing import Tracing
from sandq.model.errors import SandqError
from sandq.model.limits import FIXED
from sandq.model.ports import parse_server

__all__ = ["DEFAULTS", "Options", "Token", "again", "parse_server"]


Token = str | Callable[[], str | Awaitable[str]]
"""A token, or what gives one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What bounds a client. Times are seconds, for anyio's clock."""

    # Connecting to one address, and the answer to a request that is not a produce or an ack.
    connect_timeout_s: float = 10.0
    timeout_s: float = 10.0
    # To begin although no server answers yet, and to go on looking for one; requests wait for it.
    starts_alone: bool = False
    # Of a gateway, which tells nodes for whom it asks: proves to them that it may.
    gateway_secret: Callable[[], bytes] | None = None
    # None: it speaks no TLS.
    tls: ClientTls | None = None
    # None: it makes no spans.
    tracing: Tracing | None = None
    # Says who this is: its text, or what gives it for each connection (it may be async).
    token: Token | None = field(default=None, repr=False)
    # Whether the token may be sent in the clear to other machines.
    insecure: bool = False
    # Who was not let in comes again after so long: what it shows may be known by then.
    refused_pause_s: float = 5.0
    # A produce or a queued ack is tried again for this long; then it fails with the last error.
    delivery_timeout_s: float = 120.0

    # Who has something on its way to a node that says nothing for so long asks other nodes who leads by now, and sends
    # it there; and looks again that often.
    standstill_s: float = 2.0
    leader_check_s: float = 0.5

    # Reconnecting, and asking again: first, then doubled, each time a random part from the half to the whole.
    back_off_first_s: float = 0.05
    back_off_max_s: float = 0.5
    # Who refused a request may say when to ask again; it is asked so soon all the same, for it may think otherwise by
    # then: a rate was raised.
    retry_after_max_s: float = 5.0
    # Whether it is asked again where a quota has no more. A gateway does not: it tells its callers when to.
    waits_for_quota: bool = True

    # A PING every so often; when nothing at all came for the second time, the connection is given up.
    keepalive_s: float = 10.0
    keepalive_timeout_s: float = 10.0
    # Metadata is asked for again without any reason, so that new partitions and leaders are found.
    metadata_interval_s: float = 30.0
    # Topics that have come are looked for so often, by who is subscribed to those of a pattern.
    topics_interval_s: float = 5.0

    # A producer's batches, per partition; what is buffered or unanswered, over all of them.
    linger_s: float = 0.002
    batch_messages: int = 1000
    batch_bytes: int = 256 * 1024
    buffer_bytes: int = 32 * 1024 * 1024
    in_flight_batches: int = FIXED.producer_answers  # so many the broker remembers of a producer and partition

    # Leaving a subscription or a client: for queued acks to be confirmed, or to be sent when it is being
    # cancelled.
    close_timeout_s: float = 5.0
    cancel_timeout_s: float = 1.0

    # Leases that ended, remembered so that what a broker pushes twice is seen once.
    finished_leases: int = 1000

    def back_off_s(self, attempt: int) -> float:
        """The pause after failure number `attempt` (from 0), with jitter."""
        longest = min(self.back_off_max_s, self.back_off_first_s * 2.0 ** min(attempt, 30))
        return longest * random.uniform(0.5, 1.0)

    def pause_s(self, attempt: int, error: SandqError) -> float:
        """The same after a certain error, and as long as who refused the request says, if it does, up to
        `retry_after_max_s`."""
        wait_ms = error.details.get("retry_after_ms")
        told_s = min(wait_ms / 1000, self.retry_after_max_s) if type(wait_ms) is int else 0.0
        return max(self.back_off_s(attempt), told_s)


DEFAULTS: Final = Options()


def again(error: SandqError, message: str | None = None) -> SandqError:
    """The same error once more, to be raised by itself (an exception raised twice would gather both tracebacks)."""
    copy = type(error)(error.message if message is None else message, **error.details)
    copy.code, copy.retriable, copy.http_status = error.code, error.retriable, error.http_status
    return copy
