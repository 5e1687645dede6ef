"""The limits and times of a client, and its back-off."""

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

__all__ = ["DEFAULTS", "Options", "Token", "parse_server"]


Token = str | Callable[[], str | Awaitable[str]]
"""A token, or a function that returns one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Limits and other options of a client. Times are in seconds, on anyio's clock."""

    # Timeout of connecting to one address, and of a request other than a produce or an ack.
    connect_timeout_s: float = 10.0
    timeout_s: float = 10.0
    # Start even if no server replies yet, and keep trying. Requests wait until a server replies.
    starts_alone: bool = False
    # The secret with which a gateway proves to nodes that it may name the callers of its requests.
    gateway_secret: Callable[[], bytes] | None = None
    # None: no TLS.
    tls: ClientTls | None = None
    # None: no spans.
    tracing: Tracing | None = None
    # The client's token, or a function (it may be async) that returns it for each connection.
    token: Token | None = field(default=None, repr=False)
    # Whether the token may be sent unencrypted to other machines.
    insecure: bool = False
    # Pause of a rejected client before it connects again, because the node may know its token by then.
    refused_pause_s: float = 5.0
    # How long a produce or a queued ack is retried; then it fails with the last error.
    delivery_timeout_s: float = 120.0
    # How long an ack or nack that sends messages is retried while the broker refuses it and has done nothing; then its
    # message is held again. None: as `delivery_timeout_s`.
    then_timeout_s: float | None = None

    # If a node with outstanding requests is silent for `standstill_s`, ask other nodes for the new leader, and send the
    # requests to it. Repeat this check every `leader_check_s`.
    standstill_s: float = 2.0
    leader_check_s: float = 0.5

    # Back-off of reconnecting and retrying: the first pause, doubled up to the maximum. Each pause is multiplied by a
    # random factor of 50 to 100 %.
    back_off_first_s: float = 0.05
    back_off_max_s: float = 0.5
    # A refusal may say when to retry. Retry after at most this time, because the limit may have been raised meanwhile.
    retry_after_max_s: float = 5.0
    # Whether to retry requests that exceed a quota. A gateway does not retry; it reports the pause to its callers.
    waits_for_quota: bool = True

    # Interval of PINGs, and their timeout. The connection counts as lost if no data is received within the timeout.
    keepalive_s: float = 10.0
    keepalive_timeout_s: float = 10.0
    # Interval of refreshing the metadata without a cause, to find new partitions and leaders.
    metadata_interval_s: float = 30.0
    # Interval at which the subscription to a pattern looks for new topics.
    topics_interval_s: float = 5.0

    # Limits of a producer. Batches are per partition; `buffer_bytes` covers all messages without an outcome.
    linger_s: float = 0.002
    batch_messages: int = 1000
    batch_bytes: int = 256 * 1024
    buffer_bytes: int = 32 * 1024 * 1024
    in_flight_batches: int = FIXED.producer_answers  # the broker remembers this many replies per producer and partition

    # Time for leaving a subscription or a client: for queued acks to be confirmed, or to be sent when cancelled.
    close_timeout_s: float = 5.0
    cancel_timeout_s: float = 1.0

    # Number of ended leases to remember, so that messages that a broker pushes twice are recognized.
    finished_leases: int = 1000

    def back_off_s(self, attempt: int) -> float:
        """Return the pause after failure number `attempt` (from 0), with jitter."""
        longest = min(self.back_off_max_s, self.back_off_first_s * 2.0 ** min(attempt, 30))
        return longest * random.uniform(0.5, 1.0)

    def pause_s(self, attempt: int, error: SandqError) -> float:
        """Return a pause like `back_off_s`, but at least the error's `retry_after_ms` (limited to
        `retry_after_max_s`)."""
        wait_ms = error.details.get("retry_after_ms")
        retry_after_s = min(wait_ms / 1000, self.retry_after_max_s) if type(wait_ms) is int else 0.0
        return max(self.back_off_s(attempt), retry_after_s)


DEFAULTS: Final = Options()
