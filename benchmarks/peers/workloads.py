"""The loads, which are the same for every peer."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

VALUE_BYTES: Final = 100
PREFETCH: Final = 1000
"""Messages that a consumer may hold unacked."""
PRODUCE_S: Final = 3.0
"""A producing load ends after this time, or when all its messages are sent."""
QUICK_S: Final = 0.5
FILL_S: Final = 6.0
"""Time limit for filling a peer before everything is consumed."""
DUE_PER_S: Final = 200
LEAD_MS: Final = 1500
"""Time between the preparation and the first due message."""
HOUR_MS: Final = 3_600_000
SOON_MS: Final = 120_000
"""Minimum time until messages of the scheduled load are due, so that none is due during the measurement."""
POLL_S: Final = 0.001
"""Time between two polls of a consumer that must poll."""


class Kind(StrEnum):
    PRODUCE = "produce"
    CONSUME = "consume"
    LATENESS = "lateness"
    USUAL_PRODUCE = "usual_produce"
    USUAL_CONSUME = "usual_consume"


@dataclass(frozen=True, slots=True)
class Workload:
    """A load: at most `messages`, `size` per request, over each of `connections`, with `window` requests of each in
    flight; for a consumer, `window` unacked messages."""

    name: str
    what: str
    kind: Kind
    messages: int
    quick_messages: int
    size: int = 1
    connections: int = 1
    window: int = 1
    scheduled: bool = False
    soon_ms: int = SOON_MS
    """Earliest due time of scheduled messages, in ms from now."""
    within_ms: int = HOUR_MS - SOON_MS
    """Length of the span of due times after `soon_ms`, in ms."""

    @property
    def timed(self) -> bool:
        """Whether the load measures times (of responses, or lateness), not only a rate."""
        return self.kind is Kind.LATENESS or (self.window == 1 and self.kind in (Kind.PRODUCE, Kind.USUAL_PRODUCE))


FILL: Final = Workload("fill", "", Kind.PRODUCE, 400_000, 5_000, 100, 4, 16)
"""The load that fills a peer before it is consumed."""
FILL_DUE: Final = Workload(
    "fill", "", Kind.PRODUCE, 200_000, 5_000, 100, 4, 16, scheduled=True, soon_ms=15_000, within_ms=1_000
)
"""The load that fills a peer with scheduled messages. They become due once all are stored, and are then consumed."""
FILL_FEW: Final = Workload("fill", "", Kind.PRODUCE, 20_000, 1_000, 10, 1, 16)
"""The load that fills a peer with fewer messages, for consuming one by one or with the peer's usual client."""

WORKLOADS: Final = (
    Workload(
        "produce_batched",
        "requests of 100 messages (or 100 pipelined), 16 connections, 16 requests in flight on each",
        Kind.PRODUCE,
        *(3_000_000, 20_000, 100, 16, 16),
    ),
    Workload(
        "produce_pipelined",
        "single messages, 4 connections, 1000 in flight on each",
        Kind.PRODUCE,
        *(1_000_000, 8_000, 1, 4, 1000),
    ),
    Workload(
        "produce_lock_step",
        "single messages, 16 connections, one in flight on each",
        Kind.PRODUCE,
        *(200_000, 2_000, 1, 16, 1),
    ),
    Workload(
        "produce_one",
        "single messages, one connection, one in flight",
        Kind.PRODUCE,
        *(50_000, 500, 1, 1, 1),
    ),
    Workload(
        "usual_produce_one",
        "each peer's usual Python client: one task that awaits one message after the other",
        Kind.USUAL_PRODUCE,
        *(50_000, 300),
    ),
    Workload(
        "usual_produce",
        "each peer's usual Python client: 16 tasks, each of which awaits one message after the other",
        Kind.USUAL_PRODUCE,
        *(100_000, 800, 1, 16),
    ),
    Workload(
        "usual_consume",
        "each peer's usual Python client: everything that is there, each message acked before the next",
        Kind.USUAL_CONSUME,
        *(20_000, 1_000),
    ),
    Workload(
        "usual_workers",
        "each peer's usual Python client: everything that is there, by ten workers, each of which acks a message "
        "before its next",
        Kind.USUAL_CONSUME,
        *(20_000, 1_000, 1, 10),
    ),
    Workload(
        "produce_scheduled",
        "requests of 100 messages, each with a random due time within the next hour; 16 connections, 16 requests on "
        "the way on each",
        Kind.PRODUCE,
        *(600_000, 20_000, 100, 16, 16),
        scheduled=True,
    ),
    Workload(
        "consume_ack",
        f"everything that is there, every message named in an ack, one connection, at most {PREFETCH} unacked",
        Kind.CONSUME,
        *(FILL.messages, FILL.quick_messages),
        window=PREFETCH,
    ),
    Workload(
        "consume_one",
        "everything that is there, one message after the other: taken, acked (or deleted), then the next",
        Kind.CONSUME,
        *(FILL_FEW.messages, FILL_FEW.quick_messages),
    ),
    Workload(
        "scheduled_out",
        "messages that were each scheduled to a random time within one second, taken and acked (or deleted) once all "
        f"are due, one connection, at most {PREFETCH} unacked",
        Kind.CONSUME,
        *(FILL_DUE.messages, FILL_DUE.quick_messages),
        window=PREFETCH,
        scheduled=True,
    ),
    Workload(
        "lateness",
        f"{DUE_PER_S} messages due a second, nothing else: received after the due time, by one clock",
        Kind.LATENESS,
        *(5 * DUE_PER_S, DUE_PER_S),
        window=PREFETCH,
        scheduled=True,
    ),
)
BY_NAME: Final = {workload.name: workload for workload in WORKLOADS}
