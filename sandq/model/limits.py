"""Named limits: each bounds one thing that could otherwise grow, and each has a clear error (design: limits).

A node's configuration may change any of them (`limits:` in its YAML). Formats have their own bounds beside
these, which no configuration changes: see `batch.MAX_MESSAGES` and `offsets`.
"""

from __future__ import annotations

from dataclasses import dataclass

_KIB = 1024
_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """Units stand last in the names; what has no unit is a count."""

    # What one request may carry.
    message_bytes: int = 8 * _MIB
    batch_bytes: int = 16 * _MIB
    frame_bytes: int = 32 * _MIB
    key_bytes: int = 64 * _KIB
    headers_bytes: int = 64 * _KIB
    batch_messages: int = 65_536
    name_chars: int = 249
    consumer_id_chars: int = 255
    error_chars: int = 1024

    # What a topic may have.
    partitions_per_topic: int = 4096
    groups_per_topic: int = 1000

    # One Raft entry. `entry_bytes` is the target up to which requests are merged, a larger batch is alone.
    entry_messages: int = 2**20
    entry_grants: int = 65_536
    entry_bytes: int = 1 * _MIB

    # Consumers. A grant is one lease; credit is what one subscription may have outstanding.
    grant_messages: int = 1000
    leases_per_consumer: int = 10_000
    credit_max: int = 1_000_000

    # One node and its connections.
    connections: int = 10_000
    in_flight_bytes_per_connection: int = 64 * _MIB
    apply_backlog_bytes: int = 64 * _MIB

    # A partition's state.
    max_gaps: int = 10_000
    trim_rows: int = 1000
    near_window_ms: int = 10_000
    near_window_entries: int = 100_000


DEFAULT = Limits()
