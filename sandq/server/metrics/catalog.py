"""Every metric of a node: name, type, labels, what it says. `docs/metrics.md` has the same, with what to alert on.

Conventions: prefix `sandq_`, seconds and bytes, `_total` for what only rises.
"""

from __future__ import annotations

from typing import Final, NamedTuple

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
TOPIC = ("topic",)
GROUP = ("topic", "group")
TENANT = ("topic", "group", "tenant")


class Metric(NamedTuple):
    """`name`: as it is found in Prometheus, but for the suffixes of a histogram."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


NODE: Final = (
    Metric(
        "sandq_build_info",
        GAUGE,
        ("version", "python", "zone_data", "node", "cluster"),
        "1; the labels say what runs here.",
    ),
    Metric("sandq_storage_failed", GAUGE, (), "1: the disk failed, and nothing is written any more."),
    Metric("sandq_node_sick", GAUGE, (), "1: the disk failed, is full or stands still: this node cannot work."),
    Metric("sandq_damage_found", GAUGE, (), "1: log or tables are not what was written."),
    Metric("sandq_scrubbed_bytes_total", COUNTER, (), "Bytes of log and tables that were read to be checked."),
    Metric("sandq_replicas_different", GAUGE, (), "Partitions led here whose replicas have not the same rows."),
    Metric("sandq_replicas_shut", GAUGE, (), "Replicas here that are shut: they could not apply an entry."),
    Metric("sandq_replicas_compared_total", COUNTER, (), "Partitions led here whose replicas were found the same."),
    Metric("sandq_no_room", GAUGE, (), "1: the disk is nearly full, and no new messages are taken."),
    Metric("sandq_no_progress_seconds", GAUGE, ("work",), "For how long work that is under way has not got on."),
    Metric("sandq_insecure", GAUGE, (), "1: it listens beyond this machine without TLS or authentication."),
    Metric("sandq_feature_level", GAUGE, (), "The feature level that the cluster has come to."),
    Metric("sandq_clock_drift_seconds", GAUGE, (), "The wall clock, less the guarded clock."),
    Metric(
        "sandq_clock_alarm",
        GAUGE,
        (),
        "1: the wall clock is not followed, or the peers' clocks are elsewhere or unknown.",
    ),
    Metric("sandq_clock_peer_offset_seconds", GAUGE, ("peer",), "A peer's guarded clock, less this node's."),
    Metric("sandq_clock_median_offset_seconds", GAUGE, (), "The median of the peers' clocks, less this node's."),
    Metric("sandq_slo_lateness_seconds", GAUGE, (), "How late a delivery may be that is in time (slo.lateness)."),
    Metric("sandq_slo_target_ratio", GAUGE, (), "The share of deliveries that is to be in time (slo.target)."),
    Metric("sandq_event_loop_stall_seconds", HISTOGRAM, (), "How late the event loop came to a task that was due."),
    Metric("sandq_log_lines_dropped_total", COUNTER, (), "Lines of the log that could not be written."),
    Metric("sandq_audit_lines_total", COUNTER, (), "Lines of the audit log that were written."),
    Metric(
        "sandq_audit_lines_lost_total",
        COUNTER,
        (),
        "Lines of the audit log that could not be written, or were too many.",
    ),
    Metric("sandq_memory_limit_bytes", GAUGE, (), "What everything that may grow may take, together."),
    Metric("sandq_memory_share_bytes", GAUGE, ("account",), "Of it, the share of each account."),
    Metric("sandq_memory_bytes", GAUGE, ("account",), "What each account holds."),
    Metric("sandq_look_aheads_evicted_total", COUNTER, (), "Look-aheads that gave way to others."),
    Metric("sandq_topics", GAUGE, (), "Topics with a partition on this node."),
    Metric("sandq_topics_auto_created_total", COUNTER, (), "Topics that this node made because they were used."),
    Metric("sandq_partitions", GAUGE, (), "Partitions on this node."),
    Metric("sandq_groups", GAUGE, (), "Groups on this node, each counted in every partition that it holds."),
    Metric("sandq_partitions_led", GAUGE, (), "Partitions that this node leads and that are ready."),
    Metric("sandq_partitions_without_leader", GAUGE, (), "Partitions on this node of which it knows no leader."),
    Metric(
        "sandq_floor_ahead_seconds",
        GAUGE,
        (),
        "Furthest that the time of a partition led here is ahead of this node's clock.",
    ),
)
CLIENTS: Final = (
    Metric("sandq_connections", GAUGE, (), "Open connections to the client port."),
    Metric("sandq_connections_accepted_total", COUNTER, (), "Connections that were accepted."),
    Metric(
        "sandq_connections_refused_total",
        COUNTER,
        (),
        "Connections refused: the node, or their address, has as many as it may.",
    ),
    Metric(
        "sandq_connection_errors_total",
        COUNTER,
        ("code",),
        "Connections closed because of what was said on them (INTERNAL: by a fault of sandq).",
    ),
    Metric("sandq_subscriptions", GAUGE, (), "Open subscriptions."),
    Metric("sandq_in_flight_bytes", GAUGE, (), "Bytes on their way to clients that have not taken them yet."),
    Metric("sandq_received_bytes_total", COUNTER, (), "Bytes received on the client port."),
    Metric("sandq_sent_bytes_total", COUNTER, (), "Bytes sent on the client port."),
    Metric("sandq_requests_in_flight", GAUGE, (), "Requests that are not answered yet."),
    Metric("sandq_requests_total", COUNTER, ("type", "result"), "Requests answered; `ok`, or the code of the error."),
    Metric("sandq_request_duration_seconds", HISTOGRAM, ("type",), "From a request's arrival to its answer."),
)
HTTP: Final = (
    Metric("sandq_http_requests_total", COUNTER, ("method", "route", "status"), "HTTP requests answered."),
    Metric("sandq_http_request_duration_seconds", HISTOGRAM, ("method", "route"), "How long HTTP requests took."),
)
HTTP_PROCESS: Final = (
    Metric("sandq_http_process_restarts_total", COUNTER, ("why",), "Restarts of the process that serves HTTP."),
)
TOPICS: Final = (
    Metric("sandq_topic_messages", GAUGE, TOPIC, "Messages in the log, delayed ones included."),
    Metric("sandq_topic_delayed", GAUGE, TOPIC, "Of these, messages whose time has not come."),
    Metric("sandq_topic_schedules", GAUGE, TOPIC, "Schedules, those that are paused or have ended included."),
    Metric("sandq_topic_outbox", GAUGE, TOPIC, "Messages that are to be sent to other topics, and are not there yet."),
    Metric("sandq_topic_keys", GAUGE, TOPIC, "Keys that have a value, of a compacted topic."),
    Metric("sandq_topic_bytes", GAUGE, TOPIC, "Bytes of the log's rows."),
    Metric("sandq_messages_in_total", COUNTER, TOPIC, "Messages stored for producers."),
    Metric("sandq_message_bytes_in_total", COUNTER, TOPIC, "Bytes of the batches that producers sent."),
    Metric("sandq_messages_out_total", COUNTER, TOPIC, "Messages sent to consumers."),
    Metric("sandq_message_bytes_out_total", COUNTER, TOPIC, "Bytes of the batches sent to consumers."),
    Metric("sandq_leases_total", COUNTER, TOPIC, "Leases granted."),
    Metric("sandq_messages_acked_total", COUNTER, TOPIC, "Messages acked."),
    Metric("sandq_messages_nacked_total", COUNTER, TOPIC, "Messages nacked."),
    Metric("sandq_messages_snoozed_total", COUNTER, TOPIC, "Messages given back without counting the attempt."),
    Metric(
        "sandq_messages_superseded_total",
        COUNTER,
        TOPIC,
        "Writes of a compacted topic that were not tried again, because a later write of their key exists.",
    ),
    Metric("sandq_messages_lease_expired_total", COUNTER, TOPIC, "Messages whose lease ran out."),
    Metric("sandq_messages_released_total", COUNTER, TOPIC, "Messages given back by consumers that left."),
    Metric("sandq_messages_redelivered_total", COUNTER, TOPIC, "Messages sent that had been leased before."),
    Metric(
        "sandq_messages_dead_total",
        COUNTER,
        ("topic", "reason"),
        "Messages that died: their last attempt was nacked or ran out, their ttl passed, or they were rejected.",
    ),
    Metric("sandq_messages_cancelled_total", COUNTER, TOPIC, "Messages cancelled or replaced while they were pending."),
    Metric("sandq_messages_updated_total", COUNTER, TOPIC, "Messages given another value, or other headers."),
    Metric("sandq_messages_moved_total", COUNTER, TOPIC, "Messages given another time, or another priority."),
    Metric("sandq_outbox_sent_total", COUNTER, TOPIC, "Messages sent to other topics, and stored there."),
    Metric("sandq_outbox_refused_total", COUNTER, TOPIC, "Messages that another topic refused for good."),
    Metric(
        "sandq_delivery_lateness_seconds",
        HISTOGRAM,
        TOPIC,
        "Of the first delivery of a message: when it was sent, less when it was due. Below 0: early.",
    ),
    Metric(
        "sandq_slo_deliveries_total",
        COUNTER,
        TOPIC,
        "First deliveries of messages for which a consumer had room when they were due.",
    ),
    Metric("sandq_slo_late_deliveries_total", COUNTER, TOPIC, "Of these, those later than slo.lateness."),
    Metric("sandq_early_deliveries_total", COUNTER, (), "Messages sent before their time. Always 0."),
    Metric("sandq_delivery_attempts", HISTOGRAM, (), "Which attempt a message was sent with."),
)
GROUPS: Final = (
    Metric("sandq_group_lag", GAUGE, GROUP, "Messages that are due and not acked: ready, leased and waiting."),
    Metric("sandq_group_ready", GAUGE, GROUP, "Messages that a consumer may have now."),
    Metric("sandq_group_delayed", GAUGE, GROUP, "Messages whose time has not come."),
    Metric(
        "sandq_group_due_soon",
        GAUGE,
        (*GROUP, "within"),
        "Of these, messages whose time comes within 1m, and within 5m.",
    ),
    Metric("sandq_group_leased", GAUGE, GROUP, "Messages with a consumer."),
    Metric("sandq_group_waiting", GAUGE, GROUP, "Messages given back that wait for their next attempt."),
    Metric("sandq_group_dead", GAUGE, GROUP, "Dead messages."),
    Metric(
        "sandq_group_oldest_unacked_age_seconds",
        GAUGE,
        GROUP,
        "How long ago the oldest message was due that is not acked; 0 without one.",
    ),
    Metric("sandq_group_consumers", GAUGE, GROUP, "Subscriptions that take part."),
    Metric("sandq_group_paused", GAUGE, GROUP, "1: it gets nothing because somebody paused it."),
    Metric("sandq_group_stalled", GAUGE, GROUP, "1: it gets nothing new, for a reason `sandctl group show` names."),
    Metric(
        "sandq_push_messages_total",
        COUNTER,
        (*GROUP, "outcome"),
        "Messages of a group that is pushed by what its answers made of them: acked, retried, snoozed, dead.",
    ),
    Metric("sandq_push_in_flight", GAUGE, GROUP, "Requests to its URL that are under way."),
    Metric(
        "sandq_push_waiting",
        GAUGE,
        GROUP,
        "1: its receiver fails at everything, or is not allowed, and is left alone.",
    ),
    Metric(
        "sandq_push_request_duration_seconds",
        HISTOGRAM,
        (),
        "How long requests to receivers took, of all groups.",
    ),
    Metric(
        "sandq_group_limited",
        GAUGE,
        (*GROUP, "limit"),
        "1: something that is due waits for this limit of the group, max_in_flight or rate.",
    ),
)
TENANTS: Final = (
    Metric("sandq_tenant_ready", GAUGE, TENANT, "Messages of a fair topic's tenant that a consumer may have now."),
    Metric("sandq_tenant_in_flight", GAUGE, TENANT, "Messages of a fair topic's tenant with a consumer."),
)
STORAGE: Final = (
    Metric("sandq_wal_fsync_duration_seconds", HISTOGRAM, (), "How long an fdatasync of the WAL took."),
    Metric("sandq_wal_pass_records", HISTOGRAM, (), "Records that one fdatasync made durable."),
    Metric("sandq_wal_written_bytes_total", COUNTER, (), "Bytes written to the WAL."),
    Metric("sandq_wal_bytes", GAUGE, (), "Size of all WAL segments on the disk."),
    Metric("sandq_wal_segments", GAUGE, (), "WAL segments on the disk."),
    Metric("sandq_store_bytes", GAUGE, (), "Size of LevelDB's tables on the disk, roughly."),
    Metric("sandq_data_free_bytes", GAUGE, (), "Free space where node.data_dir lies."),
    Metric("sandq_data_size_bytes", GAUGE, (), "Size of the file system where node.data_dir lies."),
    Metric("sandq_apply_duration_seconds", HISTOGRAM, (), "How long applying a batch of entries took."),
    Metric("sandq_apply_batch_entries", HISTOGRAM, (), "Entries applied as one batch."),
    Metric("sandq_store_write_duration_seconds", HISTOGRAM, (), "How long writing a batch of rows to LevelDB took."),
    Metric("sandq_apply_backlog_bytes", GAUGE, (), "Bytes of requests that are not applied yet."),
    Metric("sandq_raft_log_entries", GAUGE, (), "Raft log entries in memory, of all groups."),
)
MEMBERS: Final = (
    Metric("sandq_members", GAUGE, ("state",), "Members of the cluster, as this node believes of them."),
    Metric("sandq_gossip_doubt", GAUGE, (), "How much this node doubts itself, having heard little: 0 (not) to 7."),
    Metric("sandq_gossip_round_trip_seconds", HISTOGRAM, (), "From a probe of another member to its answer."),
    Metric("sandq_gossip_probes_total", COUNTER, (), "Probes of other members."),
    Metric("sandq_gossip_probes_failed_total", COUNTER, (), "Of these, those that nothing came back of in time."),
    Metric("sandq_gossip_suspicions_total", COUNTER, (), "Times that a member was suspected, by whomever first."),
    Metric("sandq_gossip_refutations_total", COUNTER, (), "Times that this node had to say that it is there."),
    Metric(
        "sandq_gossip_refused_total",
        COUNTER,
        ("reason",),
        "Words about members that were not believed: another cluster, a name taken twice, numbers out of range.",
    ),
    Metric("sandq_gossip_datagrams_total", COUNTER, ("direction",), "Packets received (in) and sent (out)."),
    Metric("sandq_gossip_datagrams_not_sent_total", COUNTER, (), "Packets that the system did not take."),
    Metric("sandq_gossip_streams_total", COUNTER, ("direction",), "Comparisons and probes over TCP that ended well."),
    Metric("sandq_gossip_streams_failed_total", COUNTER, ("direction",), "Those that did not."),
    Metric("sandq_gossip_malformed_total", COUNTER, (), "Messages, and packets, that could not be read or decrypted."),
    Metric("sandq_gossip_stalls_total", COUNTER, (), "Times that gossip was held up for over 250 ms by this node."),
)
TLS: Final = (
    Metric(
        "sandq_tls_certificate_expires_seconds",
        GAUGE,
        ("file",),
        "Until the certificate ends that does so first, of each file.",
    ),
    Metric("sandq_tls_certificates_unusable", GAUGE, (), "1: the files hold others than are used, and cannot be used."),
    Metric("sandq_tls_certificate_reloads_total", COUNTER, (), "Times that others were read while the node ran."),
    Metric(
        "sandq_tls_handshakes_total",
        COUNTER,
        ("result",),
        "TLS handshakes of clients, HTTP and peers: done, failed, refused (too many at once).",
    ),
    Metric("sandq_tls_handshake_cpu_seconds_total", COUNTER, (), "CPU time that handshakes took, which is bounded."),
)
IDENTITY = ("identity",)
QUOTAS: Final = (
    Metric(
        "sandq_identity_requests_total", COUNTER, IDENTITY, "Requests of an identity that has a quota, to this node."
    ),
    Metric("sandq_identity_request_bytes_total", COUNTER, IDENTITY, "Bytes of these, as far as its quota bounds them."),
    Metric("sandq_identity_refused_total", COUNTER, IDENTITY, "Requests and connections of it that were too many."),
    Metric("sandq_identity_connections", GAUGE, IDENTITY, "Its connections to this node."),
    Metric(
        "sandq_identity_stored_bytes",
        GAUGE,
        IDENTITY,
        "What topics that it owns hold, if its quota bounds it; of all nodes.",
    ),
    Metric("sandq_identity_pending_messages", GAUGE, IDENTITY, "Of these, messages that are not due yet."),
)
EVERY: Final = (
    *(*NODE, *CLIENTS, *HTTP, *HTTP_PROCESS, *TOPICS, *GROUPS, *TENANTS, *STORAGE, *MEMBERS),
    *(*TLS, *QUOTAS),
)
