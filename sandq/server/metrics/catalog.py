"""All metrics of a node: name, type, labels and help. `docs/metrics.md` has the same list, with conditions for alerts.

Conventions: the prefix is `sandq_`, the units are seconds and bytes, and `_total` marks counters.
"""

from __future__ import annotations

from typing import Final, NamedTuple

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
TOPIC = ("topic",)
GROUP = ("topic", "group")
TENANT = ("topic", "group", "tenant")


class Metric(NamedTuple):
    """A metric. `name`: as in Prometheus, without the suffixes of a histogram."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str


NODE: Final = (
    Metric(
        "sandq_build_info",
        GAUGE,
        ("version", "python", "zone_data", "node", "cluster"),
        "Always 1; the labels describe this node and its software.",
    ),
    Metric("sandq_storage_failed", GAUGE, (), "1: the disk has failed, and nothing is written any more."),
    Metric("sandq_node_sick", GAUGE, (), "1: the disk has failed, is full or hangs: this node cannot work."),
    Metric("sandq_damage_found", GAUGE, (), "1: the log or the tables are damaged on disk."),
    Metric("sandq_scrubbed_bytes_total", COUNTER, (), "Bytes of the log and the tables that were read to check them."),
    Metric("sandq_replicas_different", GAUGE, (), "Partitions led here whose replicas differ."),
    Metric("sandq_replicas_shut", GAUGE, (), "Replicas here that are shut because they could not apply an entry."),
    Metric(
        "sandq_replicas_compared_total",
        COUNTER,
        (),
        "Partitions led here whose replicas were compared and found equal.",
    ),
    Metric("sandq_no_room", GAUGE, (), "1: the disk is nearly full, and new messages are refused."),
    Metric("sandq_no_progress_seconds", GAUGE, ("work",), "Time since work in progress last made progress."),
    Metric("sandq_insecure", GAUGE, (), "1: the node listens beyond its machine without TLS or authentication."),
    Metric("sandq_feature_level", GAUGE, (), "Feature level of the cluster."),
    Metric("sandq_clock_drift_seconds", GAUGE, (), "Wall clock minus guarded clock."),
    Metric(
        "sandq_clock_alarm",
        GAUGE,
        (),
        "1: the guarded clock does not follow the wall clock, or the peers' clocks differ or are unknown.",
    ),
    Metric("sandq_clock_peer_offset_seconds", GAUGE, ("peer",), "Guarded clock of a peer, minus this node's."),
    Metric("sandq_clock_median_offset_seconds", GAUGE, (), "Median of the peers' guarded clocks, minus this node's."),
    Metric("sandq_lease_window_seconds", GAUGE, (), "Time in which due messages are collected for one lease."),
    Metric("sandq_slo_lateness_seconds", GAUGE, (), "Maximum lateness of a delivery that is in time (slo.lateness)."),
    Metric("sandq_slo_target_ratio", GAUGE, (), "Share of deliveries that should be in time (slo.target)."),
    Metric("sandq_event_loop_stall_seconds", HISTOGRAM, (), "Delay of the event loop in running a task that was due."),
    Metric("sandq_log_lines_dropped_total", COUNTER, (), "Lines of the log that could not be written."),
    Metric("sandq_audit_lines_total", COUNTER, (), "Lines of the audit log that were written."),
    Metric(
        "sandq_audit_lines_lost_total",
        COUNTER,
        (),
        "Lines of the audit log that could not be written, or exceeded a limit.",
    ),
    Metric("sandq_memory_limit_bytes", GAUGE, (), "Memory limit for everything that may grow (limits.memory_bytes)."),
    Metric("sandq_memory_share_bytes", GAUGE, ("account",), "Share of that limit for each account."),
    Metric("sandq_memory_bytes", GAUGE, ("account",), "Memory that each account holds."),
    Metric("sandq_look_aheads_evicted_total", COUNTER, (), "Look-aheads that were evicted to free memory for others."),
    Metric("sandq_topics", GAUGE, (), "Topics with a partition on this node."),
    Metric(
        "sandq_topics_auto_created_total",
        COUNTER,
        (),
        "Topics that this node created automatically at their first use.",
    ),
    Metric("sandq_partitions", GAUGE, (), "Partitions on this node."),
    Metric("sandq_groups", GAUGE, (), "Groups on this node; each counts once in every partition that has it."),
    Metric("sandq_partitions_led", GAUGE, (), "Partitions that this node leads and that are ready."),
    Metric("sandq_partitions_without_leader", GAUGE, (), "Partitions on this node without a known leader."),
    Metric(
        "sandq_floor_ahead_seconds",
        GAUGE,
        (),
        "Largest time by which a partition led here is ahead of this node's clock.",
    ),
)
CLIENTS: Final = (
    Metric("sandq_connections", GAUGE, (), "Open connections to the client port."),
    Metric("sandq_connections_accepted_total", COUNTER, (), "Connections that were accepted."),
    Metric(
        "sandq_connections_refused_total",
        COUNTER,
        (),
        "Connections refused because the node, or their address, had reached its limit.",
    ),
    Metric(
        "sandq_connection_errors_total",
        COUNTER,
        ("code",),
        "Connections closed because of an error of the client, or of sandq (code INTERNAL).",
    ),
    Metric("sandq_subscriptions", GAUGE, (), "Open subscriptions."),
    Metric("sandq_in_flight_bytes", GAUGE, (), "Bytes queued or being sent to clients."),
    Metric("sandq_received_bytes_total", COUNTER, (), "Bytes received on the client port."),
    Metric("sandq_sent_bytes_total", COUNTER, (), "Bytes sent on the client port."),
    Metric("sandq_requests_in_flight", GAUGE, (), "Requests that are not answered yet."),
    Metric(
        "sandq_requests_total", COUNTER, ("type", "result"), "Requests answered; the result is `ok` or the error code."
    ),
    Metric("sandq_request_duration_seconds", HISTOGRAM, ("type",), "Time from a request's arrival to its reply."),
)
HTTP: Final = (
    Metric("sandq_http_requests_total", COUNTER, ("method", "route", "status"), "HTTP requests answered."),
    Metric("sandq_http_request_duration_seconds", HISTOGRAM, ("method", "route"), "Duration of HTTP requests."),
)
HTTP_PROCESS: Final = (
    Metric("sandq_http_process_restarts_total", COUNTER, ("why",), "Restarts of the process that serves HTTP."),
)
TOPICS: Final = (
    Metric("sandq_topic_messages", GAUGE, TOPIC, "Messages in the log, including delayed ones."),
    Metric("sandq_topic_delayed", GAUGE, TOPIC, "Delayed messages."),
    Metric("sandq_topic_schedules", GAUGE, TOPIC, "Schedules, including paused and ended ones."),
    Metric("sandq_topic_outbox", GAUGE, TOPIC, "Messages that wait to be forwarded to other topics."),
    Metric("sandq_topic_keys", GAUGE, TOPIC, "Keys with a value, in a compacted topic."),
    Metric("sandq_topic_bytes", GAUGE, TOPIC, "Bytes of the log's rows."),
    Metric("sandq_messages_in_total", COUNTER, TOPIC, "Messages stored for producers."),
    Metric("sandq_message_bytes_in_total", COUNTER, TOPIC, "Bytes of the batches that producers sent."),
    Metric("sandq_messages_out_total", COUNTER, TOPIC, "Messages sent to consumers."),
    Metric("sandq_message_bytes_out_total", COUNTER, TOPIC, "Bytes of the batches sent to consumers."),
    Metric("sandq_leases_total", COUNTER, TOPIC, "Leases granted."),
    Metric("sandq_messages_acked_total", COUNTER, TOPIC, "Messages acked."),
    Metric("sandq_messages_nacked_total", COUNTER, TOPIC, "Messages nacked."),
    Metric(
        "sandq_messages_snoozed_total", COUNTER, TOPIC, "Messages snoozed: given back without counting the attempt."
    ),
    Metric(
        "sandq_messages_superseded_total",
        COUNTER,
        TOPIC,
        "Writes of a compacted topic that were not retried, because their key has a later write.",
    ),
    Metric("sandq_messages_lease_expired_total", COUNTER, TOPIC, "Messages whose lease expired."),
    Metric("sandq_messages_released_total", COUNTER, TOPIC, "Messages given back by consumers that unsubscribed."),
    Metric("sandq_messages_redelivered_total", COUNTER, TOPIC, "Messages sent that had been leased before."),
    Metric(
        "sandq_messages_dead_total",
        COUNTER,
        ("topic", "reason"),
        "Messages that became dead: out of attempts (nack or expired lease), expired ttl, or rejected.",
    ),
    Metric("sandq_messages_cancelled_total", COUNTER, TOPIC, "Pending messages that were cancelled or replaced."),
    Metric("sandq_messages_updated_total", COUNTER, TOPIC, "Messages whose value or headers were changed."),
    Metric("sandq_messages_moved_total", COUNTER, TOPIC, "Messages whose time or priority was changed."),
    Metric("sandq_outbox_sent_total", COUNTER, TOPIC, "Messages forwarded to other topics and stored there."),
    Metric("sandq_outbox_refused_total", COUNTER, TOPIC, "Messages that another topic refused permanently."),
    Metric(
        "sandq_delivery_lateness_seconds",
        HISTOGRAM,
        TOPIC,
        "Lateness of the first delivery of each message. Below 0: early.",
    ),
    Metric(
        "sandq_slo_deliveries_total",
        COUNTER,
        TOPIC,
        "First deliveries for which a consumer had credit when the message became due.",
    ),
    Metric("sandq_slo_late_deliveries_total", COUNTER, TOPIC, "First deliveries that were later than slo.lateness."),
    Metric("sandq_early_deliveries_total", COUNTER, (), "Messages sent before their time. Always 0."),
    Metric("sandq_delivery_attempts", HISTOGRAM, (), "Attempt number of each message sent."),
)
GROUPS: Final = (
    Metric("sandq_group_lag", GAUGE, GROUP, "Messages that are due and not acked: ready, leased and waiting."),
    Metric("sandq_group_ready", GAUGE, GROUP, "Messages that are ready to be leased."),
    Metric("sandq_group_delayed", GAUGE, GROUP, "Delayed messages."),
    Metric(
        "sandq_group_due_soon",
        GAUGE,
        (*GROUP, "within"),
        "Delayed messages that become due within 1m, and within 5m.",
    ),
    Metric("sandq_group_leased", GAUGE, GROUP, "Leased messages."),
    Metric("sandq_group_waiting", GAUGE, GROUP, "Messages that wait for their next attempt."),
    Metric("sandq_group_dead", GAUGE, GROUP, "Dead messages."),
    Metric(
        "sandq_group_dead_removed_total",
        COUNTER,
        GROUP,
        "Dead letters that were removed (dead_retention, max_dead_letters).",
    ),
    Metric("sandq_group_dropped_total", COUNTER, GROUP, "Messages that expired and were dropped (on_expiry: drop)."),
    Metric(
        "sandq_group_oldest_unacked_age_seconds",
        GAUGE,
        GROUP,
        "Time since the oldest unacked message became due; 0 if there is none.",
    ),
    Metric("sandq_group_consumers", GAUGE, GROUP, "Subscriptions of the group."),
    Metric("sandq_group_paused", GAUGE, GROUP, "1: the group is paused."),
    Metric("sandq_group_paused_tenants", GAUGE, GROUP, "Number of paused tenants of a fair topic."),
    Metric("sandq_group_paused_keys", GAUGE, GROUP, "Number of paused keys, in the partition with most of them."),
    Metric(
        "sandq_group_stalled",
        GAUGE,
        GROUP,
        "1: the group receives nothing new, and is not paused; `sandctl group show` names the reason.",
    ),
    Metric(
        "sandq_push_messages_total",
        COUNTER,
        (*GROUP, "outcome"),
        "Messages of a pushed group, by the outcome of their request: acked, retried, snoozed (also those that wait "
        "for their host), dead.",
    ),
    Metric("sandq_push_in_flight", GAUGE, GROUP, "Push requests in progress."),
    Metric(
        "sandq_push_waiting",
        GAUGE,
        GROUP,
        "1: pushing is suspended, because the receiver fails every request or is not allowed.",
    ),
    Metric(
        "sandq_push_request_duration_seconds",
        HISTOGRAM,
        (),
        "Duration of push requests, of all groups.",
    ),
    Metric(
        "sandq_group_limited",
        GAUGE,
        (*GROUP, "limit"),
        "1: a due message waits because of this limit of the group (max_in_flight or rate).",
    ),
)
NAMED_LIMITS: Final = (
    Metric("sandq_limit_in_flight", GAUGE, ("limit",), "Leased messages of groups that use the named limit."),
    Metric(
        "sandq_limit_units_used_total",
        COUNTER,
        ("limit",),
        "Messages that were leased under the named limit, or their total cost if its rate has a unit.",
    ),
    Metric("sandq_limit_waiting", GAUGE, ("limit",), "1: due messages wait because of the named limit."),
    Metric("sandq_limit_paused", GAUGE, ("limit",), "1: the named limit is paused."),
)
TENANTS: Final = (
    Metric("sandq_tenant_ready", GAUGE, TENANT, "Messages of a tenant of a fair topic that are ready to be leased."),
    Metric("sandq_tenant_in_flight", GAUGE, TENANT, "Leased messages of a tenant of a fair topic."),
)
STORAGE: Final = (
    Metric("sandq_wal_fsync_duration_seconds", HISTOGRAM, (), "Duration of each fdatasync of the WAL."),
    Metric("sandq_wal_pass_records", HISTOGRAM, (), "Records that one fdatasync made durable."),
    Metric("sandq_wal_written_bytes_total", COUNTER, (), "Bytes written to the WAL."),
    Metric("sandq_wal_bytes", GAUGE, (), "Size of all WAL segments on disk."),
    Metric("sandq_wal_segments", GAUGE, (), "Number of WAL segments on disk."),
    Metric("sandq_store_bytes", GAUGE, (), "Approximate size of LevelDB's tables on disk."),
    Metric("sandq_data_free_bytes", GAUGE, (), "Free space in the file system of node.data_dir."),
    Metric("sandq_data_size_bytes", GAUGE, (), "Size of the file system of node.data_dir."),
    Metric("sandq_apply_duration_seconds", HISTOGRAM, (), "Duration of applying a batch of entries."),
    Metric("sandq_apply_batch_entries", HISTOGRAM, (), "Entries applied as one batch."),
    Metric("sandq_store_write_duration_seconds", HISTOGRAM, (), "Duration of writing a batch of rows to LevelDB."),
    Metric("sandq_apply_backlog_bytes", GAUGE, (), "Bytes of requests that are not applied yet."),
    Metric("sandq_raft_log_entries", GAUGE, (), "Raft log entries in memory, of all groups."),
)
MEMBERS: Final = (
    Metric("sandq_members", GAUGE, ("state",), "Members of the cluster, by the state that this node assumes."),
    Metric(
        "sandq_gossip_doubt",
        GAUGE,
        (),
        "Health score of this node's gossip: 0 (healthy) to 7 (it hears little, and doubts itself).",
    ),
    Metric("sandq_gossip_round_trip_seconds", HISTOGRAM, (), "Time from a probe of another member to its reply."),
    Metric("sandq_gossip_probes_total", COUNTER, (), "Probes of other members."),
    Metric("sandq_gossip_probes_failed_total", COUNTER, (), "Probes without a reply in time."),
    Metric("sandq_gossip_suspicions_total", COUNTER, (), "Times that a member was suspected, by any node."),
    Metric("sandq_gossip_refutations_total", COUNTER, (), "Times that this node refuted a report that it had failed."),
    Metric(
        "sandq_gossip_refused_total",
        COUNTER,
        ("reason",),
        "Reports about members that were refused: another cluster, a duplicate name, numbers out of range.",
    ),
    Metric("sandq_gossip_datagrams_total", COUNTER, ("direction",), "Packets received (in) and sent (out)."),
    Metric("sandq_gossip_datagrams_not_sent_total", COUNTER, (), "Packets that the operating system did not accept."),
    Metric("sandq_gossip_streams_total", COUNTER, ("direction",), "Successful exchanges and probes over TCP."),
    Metric("sandq_gossip_streams_failed_total", COUNTER, ("direction",), "Failed exchanges and probes over TCP."),
    Metric("sandq_gossip_malformed_total", COUNTER, (), "Messages and packets that could not be parsed or decrypted."),
    Metric(
        "sandq_gossip_stalls_total", COUNTER, (), "Times that this node delayed its own gossip by more than 250 ms."
    ),
)
TLS: Final = (
    Metric(
        "sandq_tls_certificate_expires_seconds",
        GAUGE,
        ("file",),
        "Time until the first certificate in each file expires.",
    ),
    Metric(
        "sandq_tls_certificates_unusable",
        GAUGE,
        (),
        "1: the files have changed, but cannot be used; the previous certificates are in use.",
    ),
    Metric("sandq_tls_certificate_reloads_total", COUNTER, (), "Times that changed certificates were loaded."),
    Metric(
        "sandq_tls_handshakes_total",
        COUNTER,
        ("result",),
        "TLS handshakes of clients, HTTP and peers: done, failed, refused (too many at once).",
    ),
    Metric("sandq_tls_handshake_cpu_seconds_total", COUNTER, (), "CPU time of handshakes, which is limited."),
)
IDENTITY = ("identity",)
QUOTAS: Final = (
    Metric(
        "sandq_identity_requests_total", COUNTER, IDENTITY, "Requests of an identity that has a quota, on this node."
    ),
    Metric(
        "sandq_identity_request_bytes_total", COUNTER, IDENTITY, "Bytes of these requests, if its quota limits them."
    ),
    Metric("sandq_identity_refused_total", COUNTER, IDENTITY, "Requests and connections refused because of its quota."),
    Metric("sandq_identity_connections", GAUGE, IDENTITY, "Its connections to this node."),
    Metric(
        "sandq_identity_stored_bytes",
        GAUGE,
        IDENTITY,
        "Bytes stored in all topics that it owns, on all nodes, if its quota limits them.",
    ),
    Metric("sandq_identity_pending_messages", GAUGE, IDENTITY, "Delayed messages in these topics."),
)
EVERY: Final = (
    *(*NODE, *CLIENTS, *HTTP, *HTTP_PROCESS, *TOPICS, *GROUPS, *NAMED_LIMITS, *TENANTS, *STORAGE, *MEMBERS),
    *(*TLS, *QUOTAS),
)
