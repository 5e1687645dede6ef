"""Named limits: each bounds one thing that could otherwise grow, and each has a clear error (design: limits).

A node's configuration may change any of them (`limits:` in its YAML). Formats have their own bounds beside
these, which no configuration changes: see `batch.MAX_MESSAGES` and `offsets`.
"""

from __future__ import annotations

from dataclasses import dataclass

_KIB = 1024
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Units stand last in the names; what has no unit is a count."""

    # What one request may carry.
    message_bytes: int = 8 * _MIB
    batch_bytes: int = 16 * _MIB
    frame_bytes: int = 32 * _MIB
    key_bytes: int = 64 * _KIB
    headers_bytes: int = 64 * _KIB
    batch_messages: int = 65_536
    consumer_id_chars: int = 255
    # How far ahead a message may be: who gives milliseconds for seconds hears of it, instead of nobody in 2090.
    delay_days: int = 3660

    # What a topic may have.
    partitions_per_topic: int = 4096

    # What a cluster may have, by the node that leads its metadata.
    topics: int = 10_000
    # Of these, those that were made because somebody used them.
    auto_created_topics: int = 100
    partitions: int = 20_000
    partitions_per_node: int = 5_000

    # One Raft entry. `entry_bytes` is the target up to which requests are merged, a larger batch is alone.
    entry_messages: int = 2**20
    entry_bytes: int = 1 * _MIB

    # What one subscription may have outstanding.
    credit_max: int = 1_000_000

    # Groups on one node, each counted in every partition that the node holds, by the node that leads a partition.
    groups: int = 50_000

    # Schedules of one partition, by the node that leads it. Nothing of them is held in memory.
    schedules_per_partition: int = 1_000_000

    # One node and its connections. `memory_bytes` is of all that may grow (`broker/memory_budget.py`).
    memory_bytes: int = 1024 * _MIB
    connections: int = 10_000
    requests_per_connection: int = 1024
    subscriptions_per_connection: int = 1000
    http_connections: int = 2_000
    http_requests: int = 1000
    http_waiting: int = 1000
    http_body_bytes: int = 32 * _MIB
    http_stream_messages: int = 1000
    in_flight_bytes_per_connection: int = 64 * _MIB
    apply_backlog_bytes: int = 64 * _MIB

    # Topics and groups that have metrics of their own; of the others there are the sums.
    metric_topics: int = 1_000
    metric_groups: int = 10_000


DEFAULT = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLimits:
    """Limits that formats and replicated state depend on: every replica must know the same, so no configuration
    changes them."""

    name_chars: int = 249
    error_chars: int = 1024
    groups_per_topic: int = 1000
    limited_groups: int = 100
    pushed_groups: int = 1000
    entry_grants: int = 65_536
    # Of stored messages, that one entry writes again: what comes behind is done by the next ones.
    entry_copied_bytes: int = 16 * _MIB
    grant_messages: int = 1000
    leases_per_consumer: int = 10_000
    # How often a consumer that was started again gets what it held as the same attempt.
    lease_reclaims: int = 5
    # Messages that a consumer may work on at the same time, as it says when it subscribes.
    handlers: int = 10_000
    max_gaps: int = 10_000
    key_window: int = 10_000
    unique_key_bytes: int = 1024

    # Of a group in a partition of a priority or fair topic: tenants and priorities that have something ready.
    ready_queues: int = 50_000
    # And what these take in memory, as `ready_queue.queue_bytes` estimates it: names may be long.
    ready_queue_bytes: int = 160 * _MIB
    # What ranks a message in a priority or fair topic. A lower priority goes first.
    priority_least: int = -(2**31)
    priority_most: int = 2**31 - 1
    tenant_bytes: int = 255
    tenant_levels: int = 8
    tenant_patterns: int = 1000

    # What a partition remembers of idempotent producers: how many, for how long after their last batch, how many
    # answers of each, and of an answer how many ids that do not follow from the batch alone.
    producers: int = 10_000
    producer_ttl_ms: int = 7 * 86_400_000
    producer_answers: int = 5
    answer_ids: int = 1000
    # A producer sends a batch whose answer was lost again for so long, at most.
    producer_retry_ms: int = 900_000

    # What acks have sent and waits in the outbox of a partition for others to take it; what one batch for one of them
    # has; and what a single ack may send.
    outbox_messages: int = 100_000
    outbox_bytes: int = 64 * _MIB
    outbox_batch_messages: int = 256
    outbox_batch_bytes: int = 512 * 1024
    then_messages: int = 100
    then_bytes: int = _MIB

    # The message of a schedule, which is stored for each occurrence.
    schedule_bytes: int = 256 * 1024

    # Holds of a partition, and how long one may be without being renewed.
    holds: int = 64
    hold_least_ms: int = 1000
    hold_most_ms: int = 366 * 86_400_000
    identities: int = 10_000
    """Of a cluster."""
    roles: int = 1000
    """Of a cluster, beside those that are built in."""
    grants: int = 100
    """Of an identity or a role."""
    grant_chars: int = 560
    principal_chars: int = 255
    note_chars: int = 200
    """Of what somebody notes about an identity."""


FIXED = FixedLimits()
