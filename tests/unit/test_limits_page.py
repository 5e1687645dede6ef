"""Tests that docs/operations/limits.md has a line for every limit, with the value of the code."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from sandq.broker import broker, memory_budget
from sandq.broker.backups import log_reads
from sandq.broker.memory_budget import Account, MemoryBudget
from sandq.broker.peers import handshake, link, links, peer_slots, stream
from sandq.broker.replication import reader_pins
from sandq.broker.requests.group_consumers import CONSUMERS_MAX
from sandq.broker.snapshots import transfer
from sandq.gossip import nodes, packets, streams
from sandq.membership import intake
from sandq.model import headers, json_values, sources
from sandq.model.limits import DEFAULT, FIXED, FixedLimits, Limits
from sandq.model.pauses import PAUSES_MAX
from sandq.partition import produce_validation
from sandq.partition.jobs import jobs
from sandq.partition.kv import key_table
from sandq.partition.records.leases import HISTORY_ERROR_CHARS
from sandq.protocol.requests_backup import LOG_BYTES
from sandq.protocol.requests_messages import PREVIEW_BYTES_MAX
from sandq.server import caller_requests, connection, failed_logins, open_requests, output, tcp
from sandq.server.http import bodies, bounds, event_streams, guards, ndjson, node_link, supervisor
from sandq.server.slots import Slots
from tests.support.documents import document

PAGE: Final = document("operations")
KIB, MIB = 1 << 10, 1 << 20
SHARES: Final = {
    "look_aheads": memory_budget.LOOK_AHEADS_SHARE,
    "logs": memory_budget.LOGS_SHARE,
    "rows": memory_budget.ROWS_SHARE,
    "snapshots": memory_budget.SNAPSHOTS_SHARE,
    "requests": memory_budget.REQUESTS_SHARE,
    "answers": memory_budget.ANSWERS_SHARE,
    "watchers": memory_budget.WATCHERS_SHARE,
    "http": memory_budget.HTTP_SHARE,
    "producers": memory_budget.PRODUCERS_SHARE,
}


def section(name: str) -> str:
    """Return the text below a heading, down to the next heading of any level."""
    found = re.search(rf"^##+ {name}\n(.*?)(?=^##+ |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, name
    return found[1]


def rows(text: str) -> dict[str, str]:
    """Return the rows of a table: the first cell, and the rest of the row."""
    return dict(re.findall(r"^\| (.+?) (\| .*)$", text, re.MULTILINE))


def size(count: float) -> str:
    return f"{count / MIB:g} MiB" if count >= MIB else f"{count / KIB:g} KiB"


def test_every_limit_that_can_be_changed_is_on_the_page() -> None:
    named = re.findall(r"`limits\.(\w+)`", " ".join(rows(section("Limits"))))
    assert sorted(named) == sorted(field.name for field in dataclasses.fields(Limits))


def test_fixed_limits_are_those_of_the_code() -> None:
    slow = f"and 1 s for each {size(guards.BODY_BYTES_PER_S)}"
    assert output.SEND_BYTES == bounds.SEND_BYTES
    assert output.SEND_STALL_S == bounds.SEND_STALL_S
    assert output.CROWDED_STALL_S == bounds.CROWDED_STALL_S
    fixed = {
        "callers of a gateway's connection with requests in progress": (f"{open_requests.CALLERS:,}",),
        "HELLO, and a gateway's proof": (f"{connection.HELLO_S:g} s", size(connection.HELLO_BYTES)),
        "logins that fail": (
            f"{failed_logins.FAILED_LOGINS_BURST:g} at once",
            f"then {'one' if failed_logins.FAILED_LOGINS_PER_S == 1 else '?'} a second",
            f"{failed_logins.PAUSE_S:g} s at most",
        ),
        "lists of groups in progress": (f"{broker.LISTS_AT_ONCE} of a node",),
        "a partially received frame": (
            f"{connection.FRAME_S:g} s and 1 s for each {size(connection.FRAME_BYTES_PER_S)}",
        ),
        "answers that a client does not take": (
            f"{size(output.SEND_BYTES)} in {output.SEND_STALL_S:g} s",
            f"in {output.CROWDED_STALL_S:g} s while others wait",
        ),
        "an HTTP head": (
            f"{bounds.HEAD_S:g} s",
            size(bounds.HEAD_BYTES),
            f"{bounds.HEADERS_MOST} headers",
        ),
        "an HTTP connection without a request": (f"{bounds.IDLE_S:g} s",),
        "an HTTP body": (f"{guards.BODY_S:g} s {slow}", size(guards.CONTROL_BYTES)),
        "JSON": (
            f"{json_values.PARTS_MOST:,} parts",
            f"{json_values.ARRAYS_MOST:,} arrays",
            f"{json_values.MEMBERS_MOST:,} members",
            f"{bodies.MEMBERS_MAX} of one that is no value",
            f"{bodies.MESSAGES_MAX:,} messages",
        ),
        "a compressed batch": (size(produce_validation.RATIO_FREE_BYTES), f"{produce_validation.RATIO_MOST} times"),
        "headers of a message": (f"{headers.MAX_NESTED} maps", f"{headers.MAX_DEPTH} levels"),
        "memory for an answer by HTTP": (f"{guards.RESERVE_S:g} s",),
        "a page by HTTP": ("1,000 rows", size(ndjson.PAGE_BYTES)),
        "the consumers of a group in one answer": (f"{CONSUMERS_MAX:,} of a node",),
        "the paused tenants and keys of a group in one answer": (f"{PAUSES_MAX:,}, tenants first",),
        "a stream by HTTP": (
            f"{event_streams.LEASE_MESSAGES} messages a lease",
            f"{event_streams.HEARTBEAT_S:g} s without one",
        ),
        "the HTTP process of a node": (
            f"{supervisor.STOP_S:g} s to end",
            f"{supervisor.BACK_OFF_FIRST_S:g} s to {supervisor.BACK_OFF_MOST_S:g} s before the next one",
            f"what the node says of itself {node_link.STALE_S:g} s",
        ),
    }
    found = rows(section("Limits"))
    assert size(PREVIEW_BYTES_MAX) in found["`value_bytes` of a list of messages"]
    assert {name for name in found if "`" not in name} - {"Limit"} == set(fixed)
    for name, values in fixed.items():
        for value in values:
            assert value in found[name], name


def test_slots_are_those_of_the_code() -> None:
    found = rows(section("Limits"))
    assert f"there are {tcp.SPARE_SLOTS} spare slots" in found["`limits.connections`"]
    assert f"{bounds.SPARE_SLOTS} spare slots for health and metrics" in found["`limits.http_connections`"]
    refused = f"{bounds.REFUSED_MOST} of these connections have {bounds.REFUSED_S:g} s to read it"
    assert refused in found["`limits.http_connections`"]
    for name in ("connections", "http_connections"):
        assert "three quarters of them from one address" in found[f"`limits.{name}`"]
        assert Slots(1000).share == 750


def test_answers_that_a_connection_has_not_taken_are_as_in_the_code() -> None:
    assert f"up to {size(output.UNSENT_BYTES)}," in rows(section("Limits"))["`limits.in_flight_bytes_per_connection`"]


def days(ms: int) -> str:
    return f"{ms // 86_400_000} days"


def test_fixed_limits_of_formats_are_those_of_the_code() -> None:
    found = rows(section("Fixed limits"))
    fixed = {
        "name_chars": f"{FIXED.name_chars} characters",
        "unique_key_bytes": size(FIXED.unique_key_bytes),
        "priority_least": f"{FIXED.priority_least:,} to",
        "priority_most": f"to {FIXED.priority_most:,}",
        "tenant_bytes": f"{FIXED.tenant_bytes} bytes",
        "tenant_levels": f"{FIXED.tenant_levels} names with dots",
        "tenant_patterns": f"{FIXED.tenant_patterns:,} patterns",
        "error_chars": f"{FIXED.error_chars:,} characters of the error",
        "groups_per_topic": f"{FIXED.groups_per_topic:,} groups",
        "limited_groups": f"{FIXED.limited_groups:,} groups",
        "named_limits": f"{FIXED.named_limits:,} named limits",
        "limit_members": f"{FIXED.limit_members:,} partitions of groups",
        "identities": f"{FIXED.identities:,} identities",
        "roles": f"{FIXED.roles:,} roles",
        "grants": f"{FIXED.grants} grants",
        "grant_chars": f"of {FIXED.grant_chars} characters",
        "principal_chars": f"{FIXED.principal_chars} characters of a principal",
        "note_chars": f"{FIXED.note_chars} characters of a note",
        "pushed_groups": f"{FIXED.pushed_groups:,} groups",
        "grant_messages": f"{FIXED.grant_messages:,} messages",
        "entry_grants": f"{FIXED.entry_grants:,} leases",
        "entry_copied_bytes": f"{size(FIXED.entry_copied_bytes)} of stored messages",
        "leases_per_consumer": f"{FIXED.leases_per_consumer:,} leases",
        "handlers": f"{FIXED.handlers:,} messages",
        "lease_reclaims": f"{FIXED.lease_reclaims} times",
        "waiting_window": f"{FIXED.waiting_window:,} ranges",
        "spilled_messages": f"{FIXED.spilled_messages:,} messages",
        "max_gaps": f"{FIXED.max_gaps:,} ranges",
        "ready_queues": f"{FIXED.ready_queues:,} tenants and priorities",
        "ready_queue_bytes": f"{size(FIXED.ready_queue_bytes)} that these take",
        "key_window": f"{FIXED.key_window:,} messages",
        "producers": f"{FIXED.producers:,} idempotent producers",
        "producer_ttl_ms": days(FIXED.producer_ttl_ms),
        "producer_answers": f"{FIXED.producer_answers} answers",
        "answer_ids": f"{FIXED.answer_ids:,} ids",
        "producer_retry_ms": f"{FIXED.producer_retry_ms // 60_000} minutes",
        "outbox_messages": f"{FIXED.outbox_messages:,} messages",
        "outbox_bytes": f"{size(FIXED.outbox_bytes)} of messages",
        "outbox_batch_messages": f"{FIXED.outbox_batch_messages} messages",
        "outbox_batch_bytes": f"{size(FIXED.outbox_batch_bytes)} of a batch",
        "then_messages": f"{FIXED.then_messages} messages",
        "then_bytes": f"{size(FIXED.then_bytes)} of messages",
        "throttle_window_ms": f"1 ms to {FIXED.throttle_window_ms // 86_400_000} days",
        "schedule_bytes": f"{size(FIXED.schedule_bytes)} of the message of a",
        "holds": f"{FIXED.holds} holds",
        "hold_least_ms": f"{FIXED.hold_least_ms // 1000} s to",
        "hold_most_ms": days(FIXED.hold_most_ms),
        "pause_most_ms": days(FIXED.pause_most_ms),
        "consumer_pause_most_ms": f"{FIXED.consumer_pause_most_ms // 3_600_000} h for a pause",
        "paused_parts": f"{FIXED.paused_parts:,} paused tenants and keys",
    }
    assert set(fixed) == {field.name for field in dataclasses.fields(FixedLimits)}
    named = {name: (first, rest) for first, rest in found.items() for name in re.findall(r"`(\w+)`", first)}
    assert set(named) == set(fixed)
    for name, value in fixed.items():
        assert value in named[name][1], name
    assert f"keeps {HISTORY_ERROR_CHARS}" in found["`error_chars`"]
    assert f"{jobs.RUNNING_JOBS} that run, {jobs.FINISHED_JOBS} that ended" in found["jobs of a partition"]
    assert "as many as the disk holds" in found["unique keys and keys"]
    (kept,) = [rest for first, rest in found.items() if first.startswith("the log that is kept for")]
    assert f"{size(reader_pins.READER_BYTES)} of a partition, for {reader_pins.IDLE_S:g} s" in kept
    assert f"of {reader_pins.READERS_MOST} readers" in kept
    assert f"{size(LOG_BYTES)} of entries, {log_reads.ENTRIES_MOST:,} of them" in found["an answer to BACKUP_LOG"]
    assert f"up to {2 * key_table.KNOWN_KEYS:,} keys" in section("The most memory that clients can use")


def test_limits_between_nodes_are_those_of_the_code() -> None:
    expected = {
        "a connection to the peer port": (
            f"{links.FIRST_FRAME_S:g} s for the first frame",
            f"{links.HANDSHAKE_S:g} s for the handshake",
            f"{size(handshake.HANDSHAKE_BYTES)} a frame",
        ),
        "connections before their handshake": (
            f"{peer_slots.SLOTS}, of one address (or IPv6 /{sources.IPV6_SOURCE_BITS}) {peer_slots.SOURCE_SLOTS}",
            f"{peer_slots.KNOWN_SLOTS} more",
        ),
        "a link of two nodes": (
            f"{link.SILENCE_S:g} s without a sign",
            f"{size(link.QUEUE_BYTES)} that wait to be sent",
            f"{size(link.QUEUE_MOST_BYTES)} with the last frame",
            f"{size(stream.FRAME_BYTES)} a frame",
        ),
        "streams that others have opened, as for snapshots": (
            f"| {links.STREAMS_MOST}, of {size(transfer.SMALL_FRAME_BYTES)} a frame",
        ),
        "gossip: streams that others have opened, for `gossip.stream_timeout`": (
            f"{peer_slots.SLOTS} of unknown addresses, {peer_slots.SOURCE_SLOTS} of one address",
            f"and {peer_slots.KNOWN_SLOTS} from addresses",
        ),
        "gossip: bytes of streams that are no complete message yet": (
            f"{size(intake.FREE_BYTES)} each and {size(intake.SHARED_BYTES)} for all",
            f"{size(streams.STREAM_BYTES)} of one",
        ),
        "gossip: work per iteration of the loop": (),
        "members by gossip": (f"| {nodes.MEMBERS_MOST:,} |",),
        "packets of gossip": (f"{packets.PACKET_BYTES:,} bytes", f"{packets.RECEIVE_BYTES:,} that are read"),
    }
    found = rows(section("Between nodes"))
    assert set(found) - {"Limit"} == set(expected)
    for name, values in expected.items():
        for value in values:
            assert value in found[name], name


def test_memory_that_clients_can_use_is_added_up() -> None:
    memory = MemoryBudget(DEFAULT.memory_bytes)
    by_clients = memory_budget.HTTP_SHARE * DEFAULT.memory_bytes
    for account in memory.accounts.values():
        by_clients += account.share_bytes if isinstance(account, Account) else 0
    share = by_clients / DEFAULT.memory_bytes
    connection_bytes = 20_000 + caller_requests.GRANTED_BYTES + output.ANSWERS_GRANTED_BYTES
    partitions, groups = DEFAULT.partitions_per_node, DEFAULT.groups
    text = section("The most memory that clients can use")
    for expected in (
        f"{share * 64:g}/64 of `limits.memory_bytes`, {size(by_clients)}",
        f"one address {size(memory_budget.SOURCE_SHARE * by_clients)}",
        f"| {sum(SHARES.values()) * 64:g}/64 of it, {size(sum(SHARES.values()) * DEFAULT.memory_bytes)} |",
        f"{size(caller_requests.GRANTED_BYTES)} of a frame and {size(output.ANSWERS_GRANTED_BYTES)} of answers",
        f"{round(DEFAULT.connections * connection_bytes, -8) // 10**6} MB with {DEFAULT.connections:,}",
        f"{size(DEFAULT.http_connections * 64 * KIB)} with {DEFAULT.http_connections:,}",
        f"{partitions * 150 // 1000} MB with {partitions:,}",
        f"{groups * 3 // 1000} MB with {groups:,}",
    ):
        assert expected in text, expected


def test_every_account_is_on_the_page_with_its_share() -> None:
    assert sum(SHARES.values()) <= 1
    assert {*MemoryBudget(1).accounts} <= set(SHARES)
    found = {name.strip("`"): rest for name, rest in rows(section("When memory is short")).items()}
    assert set(found) - {"Account"} == set(SHARES)
    for name, share in SHARES.items():
        assert f"| {share.as_integer_ratio()[0]}/{share.as_integer_ratio()[1]} |" in found[name], name
    for share in (output.CONNECTION_SHARE, caller_requests.CONNECTION_REQUESTS_SHARE, memory_budget.SOURCE_SHARE):
        assert {0.125: "an eighth of `answers`", 0.25: "a quarter of `requests`", 0.75: "three quarters at most"}[
            share
        ] in section("When memory is short").replace("\n", " ")
