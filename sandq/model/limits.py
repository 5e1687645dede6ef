"""Named limits. Each limit bounds one number or size that could otherwise grow, and has an error that names it (design:
limits).

A node's configuration may change the limits in `Limits` (`limits:` in its YAML). Formats have further bounds that no
configuration changes: see `FixedLimits`, `batch.MAX_MESSAGES` and `offsets`.
"""

from __future__ import annotations

from dataclasses import dataclass

_KIB = 1024
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Configurable limits. A name ends with its unit; limits without a unit are counts."""

    # Limits of one request.
    message_bytes: int = 8 * _MIB
    batch_bytes: int = 16 * _MIB
    frame_bytes: int = 32 * _MIB
    key_bytes: int = 64 * _KIB
    headers_bytes: int = 64 * _KIB
    batch_messages: int = 65_536
    consumer_id_chars: int = 255
    # How far ahead a message may be. This limit reveals clients that pass milliseconds instead of seconds. Without the
    # limit, a node would accept their messages, which would be due many years later.
    delay_days: int = 3660

    # Limits of a topic.
    partitions_per_topic: int = 4096

    # Limits of the cluster, checked by the leader of its metadata.
    topics: int = 10_000
    # Topics that were created automatically on first use; they count as topics, too.
    auto_created_topics: int = 100
    partitions: int = 20_000
    partitions_per_node: int = 5_000

    # Limits of one Raft entry. Requests are merged up to `entry_bytes`; a larger batch gets an entry of its own.
    entry_messages: int = 2**20
    entry_bytes: int = 1 * _MIB

    # Credit that one subscription may have outstanding.
    credit_max: int = 1_000_000

    # Groups on one node, counted once for each partition that the node holds. Checked by the leader of a partition.
    groups: int = 50_000

    # Schedules of one partition, checked by its leader. Schedules are not held in memory.
    schedules_per_partition: int = 1_000_000

    # Limits of one node and its connections. `memory_bytes` bounds everything that may grow
    # (`broker/memory_budget.py`).
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

    # Topics and groups that have metrics of their own. All others are only included in the sums.
    metric_topics: int = 1_000
    metric_groups: int = 10_000


DEFAULT = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLimits:
    """Limits that formats and replicated state depend on. Every replica must use the same values, so no configuration
    changes them."""

    name_chars: int = 249
    error_chars: int = 1024
    groups_per_topic: int = 1000
    limited_groups: int = 100
    named_limits: int = 1_000
    limit_members: int = 4_096
    pushed_groups: int = 1000
    entry_grants: int = 65_536
    # Bytes of stored messages that one entry copies; the following entries copy the rest.
    entry_copied_bytes: int = 16 * _MIB
    grant_messages: int = 1000
    leases_per_consumer: int = 10_000
    # Maximum number of times that a restarted consumer gets the messages that it held, without counting a new attempt.
    lease_reclaims: int = 5
    # Messages that a consumer may process concurrently, as it declares when it subscribes.
    handlers: int = 10_000
    max_gaps: int = 10_000
    # Ranges of a group's waiting messages in memory. The messages that are due last are in rows only ("spilled").
    waiting_window: int = 5_000
    spilled_messages: int = 1_000_000
    key_window: int = 10_000
    unique_key_bytes: int = 1024

    # Ready queues (a tenant and a priority with ready messages) of a group, in a partition of a priority or fair topic.
    ready_queues: int = 50_000
    # Memory of these queues, as estimated by `ready_queue.queue_bytes`: names may be long.
    ready_queue_bytes: int = 160 * _MIB
    # Bounds of the priority and the tenant in a priority or fair topic. Lower priorities are delivered first.
    priority_least: int = -(2**31)
    priority_most: int = 2**31 - 1
    tenant_bytes: int = 255
    tenant_levels: int = 8
    tenant_patterns: int = 1000

    # State of idempotent producers in a partition: number of producers, how long each is kept after its last batch,
    # number of replies kept for each, and ids in a reply that cannot be derived from the batch.
    producers: int = 10_000
    producer_ttl_ms: int = 7 * 86_400_000
    producer_answers: int = 5
    answer_ids: int = 1000
    # How long a producer may resend a batch whose reply was lost.
    producer_retry_ms: int = 900_000

    # Messages that acks have sent and that wait in a partition's outbox for their target partitions: in total, in one
    # batch for one target, and sent by a single ack.
    outbox_messages: int = 100_000
    outbox_bytes: int = 64 * _MIB
    outbox_batch_messages: int = 256
    outbox_batch_bytes: int = 512 * 1024
    then_messages: int = 100
    then_bytes: int = _MIB

    # Longest window in which at most one message of a unique key is stored.
    throttle_window_ms: int = 7 * 86_400_000

    # Size of the message of a schedule; it is stored for each occurrence.
    schedule_bytes: int = 256 * 1024

    # Holds of a partition, and how long a hold lasts without being renewed.
    holds: int = 64
    hold_least_ms: int = 1000
    hold_most_ms: int = 366 * 86_400_000

    # How far ahead the end of a pause may be.
    pause_most_ms: int = 366 * 86_400_000
    # How long a pause by a consumer may be.
    consumer_pause_most_ms: int = 3_600_000
    # Paused tenants and keys of a group in a partition.
    paused_parts: int = 10_000

    identities: int = 10_000
    """Maximum number of identities of a cluster."""
    roles: int = 1000
    """Maximum number of roles of a cluster, in addition to the built-in roles."""
    grants: int = 100
    """Maximum number of grants of an identity or a role."""
    grant_chars: int = 560
    principal_chars: int = 255
    note_chars: int = 200
    """Maximum number of characters of the note about an identity."""


FIXED = FixedLimits()
