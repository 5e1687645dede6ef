"""List, for each field of each command, the check before the log that guarantees what `apply` assumes: docs/checks.md.

    python -m tests.support.command_checks > docs/checks.md
    python -m tests.support.command_checks metadata > docs/checks/metadata.md

A unit test compares the page with this module, and this module with the commands and the requests: a command or a field
without a line fails it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from sandq.metadata import commands as m
from sandq.partition import commands as c
from sandq.protocol.fields import U32_MAX, U48_MAX, U64_MAX, Field
from sandq.protocol.frames import Type
from sandq.protocol.request import REQUESTS
from tests.support.protocol_document import KINDS

assert KINDS  # a request is known once its module is imported


class Checked(NamedTuple):
    """The check of one field."""

    what: str
    """Type and range beyond what the requests declare."""
    place: str
    """Module with the check, below `sandq`. Empty: only the class of the request checks the field."""
    of: tuple[tuple[Type, str], ...] = ()
    """Fields of requests from which this field is taken."""


def of(kind: Type, field: str, what: str = "", place: str = "", *more: tuple[Type, str]) -> Checked:
    """Return the check of a field that comes from fields of requests."""
    return Checked(what, place, ((kind, field), *more))


def made(what: str, place: str) -> Checked:
    """Return the check of a field that the node itself makes."""
    return Checked(what, place)


_T = Type
_GROUP: Final = "the name of a group; nothing happens if it does not exist"
_RANGES: Final = "nil, or 1..1,000 of [offset, count 1..65,536 \\| bitmap], none after the last position"
_NAME: Final = "a name (`check_name`)"
_BATCH: Final = "format, checksum and columns of the kind of topic; times, ttls, priorities, tenants and keys in range"
_RECORD: Final = "a record of checked settings (`parse_settings`, `update_settings`)"
_SCHEDULES: Final = "broker/requests/schedule_requests.py"
_FIRING: Final = "broker/leader/schedule_firing.py"
_TOPICS: Final = "broker/controller/topic_administration.py"
_NODES: Final = "broker/controller/node_administration.py"
_PLACEMENT: Final = "broker/controller/topic_placement.py"
_CONTROLLER: Final = "broker/controller/cluster_controller.py"
_LIMITS: Final = "broker/delivery/limit_home.py"
_LEASES: Final = "broker/broker.py"
_MESSAGES: Final = "broker/requests/message_requests.py"
_IDENTITIES: Final = "broker/access/identities.py"
_OUTBOX: Final = "broker/delivery/outbox_sender.py"
_PAUSES: Final = "broker/delivery/pause_spreader.py"
_LIMIT_PAUSES: Final = "broker/delivery/limit_pauses.py"
_SKIPS: Final = "broker/health/entry_skips.py"
_APPENDED: Final = ("producer_id", "epoch", "sequence", "batch_crc")
_WHOLE: Final = "; checks of all rows together are in `apply`: partition/restore/whole.py"

PARTITION: Final[Mapping[type[c.Command], Mapping[str, Checked]]] = {
    c.Append: {
        "batch": of(_T.PRODUCE, "batch", _BATCH, "partition/produce_validation.py"),
        "producer_id": of(_T.PRODUCE, "producer_id", "below 2^64 - 2^32 for clients", _LEASES),
        "epoch": of(_T.PRODUCE, "epoch"),
        "sequence": of(_T.PRODUCE, "sequence", "its parts are taken by bits (`model.sequence`)"),
        "on_conflict": of(_T.PRODUCE, "on_conflict"),
        "span_ms": of(_T.PRODUCE, "on_conflict", "1 ms..10 years, or None; 1 ms..7 days if the rule throttles"),
        "split": made("bool, from the columns of the batch", "partition/produce_validation.py"),
    },
    c.Lease: {
        "group": of(_T.LEASE, "group", _NAME, _LEASES, (_T.SUBSCRIBE, "group")),
        "horizon_ms": made("the guarded clock, and the lease-ahead", "broker/leader/partition_leader.py"),
        "grants": of(
            _T.LEASE,
            "lease_ms",
            "[consumer, limit 1..1,000, lease 1 s..12 h, epoch]",
            _LEASES,
            (_T.LEASE, "consumer_id"),
            (_T.LEASE, "max"),
            (_T.SUBSCRIBE, "lease_ms"),
            (_T.SUBSCRIBE, "consumer_id"),
            (_T.SUBSCRIBE, "epoch"),
        ),
        "recalls": made("bool, chosen by the leader", "broker/leader/group_pump.py"),
    },
    c.Ack: {"items": of(_T.ACK, "items", f"[token 0 or greater, {_RANGES}]")},
    c.Nack: {
        "items": of(
            _T.NACK,
            "items",
            f"[token, {_RANGES}, delay u48 \\| nil, error of 1,024 characters \\| nil, begun, {{priority, headers}}, "
            "end], and allowed combinations of these",
        )
    },
    c.Extend: {"items": of(_T.EXTEND, "items", "[token 0 or greater, lease 1 s..12 h]", _LEASES)},
    c.Expire: {},
    c.Release: {
        "group": of(_T.SUBSCRIBE, "group", "the group of the lease", _LEASES, (_T.LEASE, "group")),
        "consumer": of(_T.SUBSCRIBE, "consumer_id", "", "", (_T.LEASE, "consumer_id")),
        "epoch": of(_T.SUBSCRIBE, "epoch", "0: none"),
    },
    c.Reclaim: {
        "group": of(_T.SUBSCRIBE, "group", _NAME, _LEASES),
        "consumer": of(_T.SUBSCRIBE, "consumer_id"),
        "epoch": of(_T.SUBSCRIBE, "epoch"),
        "lease_ms": of(_T.SUBSCRIBE, "lease_ms", "1 s..12 h", _LEASES),
    },
    c.OpenGroup: {
        "group": of(_T.SUBSCRIBE, "group", _NAME, _LEASES, (_T.LEASE, "group")),
        "start": of(_T.SUBSCRIBE, "start", "`earliest`, `latest`, u48 or an offset", "", (_T.LEASE, "start")),
        "paused": made("bool, as in other partitions", "broker/delivery/subscribe.py"),
        "until_ms": made("nil or u48, as in other partitions", "broker/delivery/subscribe.py"),
    },
    c.Upkeep: {},
    c.Clock: {},
    c.Configure: {"settings": made(_RECORD, f"{_TOPICS}, broker/catalog.py")},
    c.Cancel: {
        "targets": of(
            _T.CANCEL,
            "targets",
            "1..1,000 of an id of 16 bytes, or a unique key of 1..1,024, with a key of up to 65,536 or without one",
        )
    },
    c.Move: {
        "items": of(
            _T.MOVE,
            "items",
            "1..1,000 of [target, u48, bool], [.., nil, false, priority], [.., changes]; a nil time is not relative; "
            "not too far ahead; cells within the limits of the topic",
            _MESSAGES,
            (_T.MOVE, "cells"),
        )
    },
    c.Seek: {
        "group": of(_T.GROUP_SEEK, "group", _GROUP),
        "to": of(_T.GROUP_SEEK, "to", "`earliest`, `latest`, u48 or an offset"),
    },
    c.DropGroup: {
        "group": of(_T.GROUP_DELETE, "group", _GROUP),
        "unless_unfinished": of(_T.GROUP_DELETE, "mode", "false for `force`"),
    },
    c.ConfigureGroup: {
        "group": of(_T.GROUP_UPDATE, "group", _GROUP),
        "settings": of(_T.GROUP_UPDATE, "settings", "`parse_group_settings`", "model/settings.py"),
    },
    c.Touch: {"groups": made("names of groups of this partition", "broker/leader/partition_leader.py")},
    c.StartJob: {
        "job_id": of(_T.JOB_START, "job_id"),
        "kind": of(_T.JOB_START, "kind"),
        "arguments": of(_T.JOB_START, "arguments", "options of the kind, each with its type and range (`JOBS`)"),
    },
    c.StopJob: {"job_id": of(_T.JOB_STOP, "job_id")},
    c.RedriveDead: {
        "group": of(_T.DEAD_REDRIVE, "group", _GROUP),
        "ids": of(_T.DEAD_REDRIVE, "ids", "1..1,000 of 16 bytes"),
    },
    c.PurgeDead: {
        "group": of(_T.DEAD_PURGE, "group", _GROUP),
        "ids": of(_T.DEAD_PURGE, "ids", "1..1,000 of 16 bytes"),
    },
    c.Hold: {
        "name": of(_T.HOLD, "name", _NAME, _MESSAGES),
        "offset": of(_T.HOLD, "offset", "nil together with `ttl_ms`"),
        "ttl_ms": of(_T.HOLD, "ttl_ms"),
    },
    c.RaiseLevel: {"level": made("the cluster's level", "broker/leader/partition_leader.py")},
    c.TakeDigest: {"number": made("63 random bits", "broker/health/replica_digests.py")},
    c.ClockReset: {"new_ms": made("the guarded clock", _MESSAGES)},
    c.PauseGroup: {
        "group": of(_T.GROUP_PAUSE, "group", _GROUP),
        "paused": of(_T.GROUP_PAUSE, "paused"),
        "until_ms": of(
            _T.GROUP_PAUSE, "until_ms", "nil, or at most 366 days ahead", _MESSAGES, (_T.GROUP_PAUSE, "for_ms")
        ),
    },
    c.PausePart: {
        "group": of(_T.GROUP_PAUSE, "group", "as PauseGroup"),
        "part": of(
            _T.GROUP_PAUSE,
            "tenant",
            "tenant of a fair topic; in a topic that limits keys, a key of at most 1,024 bytes, or the hash of a "
            "longer one",
            _MESSAGES,
            (_T.GROUP_PAUSE, "key"),
        ),
        "until_ms": of(
            _T.GROUP_PAUSE,
            "until_ms",
            "as PauseGroup, or U48_MAX",
            _MESSAGES,
            (_T.GROUP_PAUSE, "for_ms"),
        ),
    },
    c.PauseByLease: {
        "items": of(
            _T.LEASE_PAUSE,
            "items",
            "one of [token, offset, part of `PARTS`, at most 1 h ahead, name of a group]",
            _LEASES,
        )
    },
    c.PauseLonger: {
        "group": of(_T.LEASE_PAUSE, "items", f"{_NAME}, also in the request of another node", _PAUSES),
        "tenant": made("nil, or the tenant of a leased message (`check_tenant`)", _PAUSES),
        "until_ms": of(_T.LEASE_PAUSE, "items", "below U48_MAX; at most 1 h ahead for the sender", _PAUSES),
    },
    c.PauseLimit: {
        "limit": of(
            _T.GROUP_PAUSE,
            "group",
            f"{_NAME}, also in the request of another node; an unknown limit is an error in `apply`",
            _MESSAGES,
        ),
        "until_ms": of(
            _T.GROUP_PAUSE,
            "until_ms",
            "0 or as PausePart; below U48_MAX in the request of another node",
            _MESSAGES,
            (_T.GROUP_PAUSE, "for_ms"),
            (_T.LEASE_PAUSE, "items"),
        ),
        "by": made("at most `BY_CHARS` characters, also in the request of another node", _LIMIT_PAUSES),
        "is_longer": made("bool: by a lease", _LIMIT_PAUSES),
    },
    c.PutSchedules: {
        "items": of(
            _T.SCHEDULE_PUT,
            "items",
            f"name, settings (`schedules.settings.check`), a batch of one message ({_BATCH}); the next occurrence is "
            "planned by the node",
            _SCHEDULES,
        )
    },
    c.FireSchedules: {"items": made("planned from stored schedules", _FIRING)},
    c.PauseSchedules: {
        "items": of(_T.SCHEDULE_CHANGE, "names", "names; the node plans the next occurrence", _SCHEDULES)
    },
    c.DeleteSchedules: {"items": of(_T.SCHEDULE_CHANGE, "names", "names", _SCHEDULES)},
    c.TriggerSchedules: {
        "items": of(
            _T.SCHEDULE_CHANGE, "names", "names, and a token of 16 bytes", _SCHEDULES, (_T.SCHEDULE_CHANGE, "token")
        )
    },
    c.PlanSchedules: {
        "items": made("planned from stored schedules", _FIRING),
        "behind": made("a name of these, or nil", _FIRING),
    },
    c.ShareLimit: {
        "group": made("a group with limits", _LIMITS),
        "epoch": made("the epoch of the group's limits", _LIMITS),
        "reports": made("numbers that other nodes report of their partitions", _LIMITS),
        "targets": made("numbers", _LIMITS),
        "joined": made("members that other nodes report, at most `limit_members`", "broker/delivery/limit_shares.py"),
        "gone": made("numbers of members", "broker/delivery/limit_shares.py"),
    },
    c.AllowLimit: {
        "items": made(
            "numbers, a definition and a pause from the home of the limits", "broker/delivery/limit_shares.py"
        )
    },
    c.OutboxSent: {
        name: made("messages of a batch of this outbox", _OUTBOX) for name in ("topic", "partition", "epoch")
    },
    c.OutboxRefused: {
        **{name: made("messages of a batch of this outbox", _OUTBOX) for name in ("topic", "partition", "epoch")},
        "error": made("text, or nil", _OUTBOX),
    },
    c.AckThen: {
        "token": of(_T.ACK_THEN, "token"),
        "what": of(_T.ACK_THEN, "what", _RANGES),
        "messages": of(
            _T.ACK_THEN,
            "messages",
            f"1..100 of [topic, time, is a delay, message]; each as a batch of one ({_BATCH})",
            "broker/delivery/sending_acks.py",
        ),
        "end": of(_T.ACK_THEN, "end", "nil, or 0..2 with a `what` that names one message"),
        "delay_ms": of(_T.ACK_THEN, "delay_ms", "nil, or u48 with end 0 or 2"),
        "error": of(_T.ACK_THEN, "error", "nil, or 1,024 characters with an end"),
    },
    c.RestoreBegin: {
        "restore_id": of(_T.RESTORE_BEGIN, "restore_id"),
        "targets": of(
            _T.RESTORE_BEGIN,
            "targets",
            "up to 32,768 pairs of u32, of topics on which the caller has `produce`",
            "server/handlers/backups.py",
        ),
    },
    c.RestoreRows: {
        "restore_id": of(_T.RESTORE_ROWS, "restore_id"),
        "number": of(_T.RESTORE_ROWS, "number"),
        "data": of(
            _T.RESTORE_ROWS,
            "data",
            "up to 20 MiB and 8,192 rows; each row by its tag: key, fields, checksum and columns of batches",
            "model/stored_rows.py" + _WHOLE,
        ),
    },
    c.RestoreEnd: {
        "restore_id": of(_T.RESTORE_END, "restore_id"),
        "chunks": of(_T.RESTORE_END, "chunks", "the existing number; compared in `apply`"),
    },
    c.Skipped: {
        "skip_id": made("16 random bytes", _SKIPS),
        "command_digest": made("hash of the skipped command, or empty", _SKIPS),
        **{name: made("number of the skipped APPEND, or 0", _SKIPS) for name in _APPENDED},
    },
}

_SETTINGS_OF_TOPIC: Final = "`parse_settings`; in a restore `checked_record`"
_BY_CONTROLLER: Final = "of a registered node"

METADATA: Final[Mapping[type[Any], Mapping[str, Checked]]] = {
    m.RegisterNode: {
        "node_id": made("the name that the node proved in its handshake", "broker/peers/handshake.py"),
        "store_uuid": made("likewise", "broker/peers/handshake.py"),
        **{
            name: made("from the node's handshake", "broker/peers/handshake.py")
            for name in ("addresses", "zone", "weight", "incarnation", "lowest_level", "highest_level")
        },
    },
    m.CreateTopic: {
        "name": of(_T.TOPIC_CREATE, "name", _NAME, _TOPICS, (_T.TOPIC_ENSURE, "name"), (_T.RESTORE_TOPIC, "name")),
        "kind": of(_T.TOPIC_CREATE, "kind", "a known kind", _TOPICS, (_T.RESTORE_TOPIC, "kind")),
        "replicas": of(
            _T.TOPIC_CREATE, "replicas", "at most the number of nodes", _PLACEMENT, (_T.RESTORE_TOPIC, "replicas")
        ),
        "placement": made("nodes for each of 1..`partitions_per_topic` partitions", _PLACEMENT),
        "settings": of(
            _T.TOPIC_CREATE,
            "settings",
            _SETTINGS_OF_TOPIC,
            "model/settings.py, model/stored_settings.py",
            (_T.RESTORE_TOPIC, "settings"),
        ),
        "owner": of(
            _T.RESTORE_TOPIC,
            "owner",
            "the caller; in a restore another owner if the caller has `security`",
            "server/handlers/backups.py",
        ),
    },
    m.DeleteTopic: {"name": of(_T.TOPIC_DELETE, "name", "a topic; one that does not exist is refused in `apply`")},
    m.UpdateTopic: {
        "name": of(_T.TOPIC_UPDATE, "name", "an existing topic", _TOPICS),
        "settings": of(_T.TOPIC_UPDATE, "settings", "`update_settings`", "model/settings.py"),
        "replicas": of(_T.TOPIC_UPDATE, "replicas", "at most the number of nodes", _PLACEMENT),
        "partitions": made("the existing number of partitions", _TOPICS),
        "added": of(_T.TOPIC_UPDATE, "partitions", "nodes for each added partition", _PLACEMENT),
    },
    m.FormCluster: {"cluster_uuid": made("a new UUID", "broker/cluster/cluster.py")},
    m.MarkNode: {"node_id": made(_BY_CONTROLLER, _CONTROLLER), "failed_since_ms": made("the clock", _CONTROLLER)},
    m.ChangeStanding: {
        "node_id": of(_T.NODE_CHANGE, "node", _BY_CONTROLLER, _NODES),
        "standing": of(_T.NODE_CHANGE, "action"),
    },
    m.RemoveNode: {name: made(_BY_CONTROLLER, _CONTROLLER) for name in ("node_id", "store_uuid")},
    m.Assign: {
        "group": of(_T.TRANSFER, "partition", "the Raft group of a partition", _NODES, (_T.REBUILD, "partition")),
        "epoch": made("of the existing assignment", _NODES),
        "nodes": of(_T.TRANSFER, "node", "registered nodes", _NODES, (_T.REBUILD, "node")),
    },
    m.Settle: {
        name: made("reports of leaders about their groups", _CONTROLLER) for name in ("group", "epoch", "whole")
    },
    m.Balance: {"nodes": made("registered nodes", "broker/controller/rebalancer.py")},
    m.RaiseFeatureLevel: {"level": made("a level that all nodes know", "broker/controller/feature_level.py")},
    m.SetPush: {
        "topic": of(_T.GROUP_PUSH, "topic", "an existing topic", _TOPICS),
        "group": of(_T.GROUP_PUSH, "group", _NAME, _TOPICS),
        "push": of(_T.GROUP_PUSH, "push", "`changed_push`", "model/push.py"),
    },
    m.PutIdentity: {
        "principal": of(_T.IDENTITY_PUT, "principal", "the name of a token, certificate, user or JWT", _IDENTITIES),
        "is_new": of(_T.IDENTITY_PUT, "is_new"),
        **{
            name: of(_T.IDENTITY_PUT, "changes", words, _IDENTITIES)
            for name, words in (
                ("grants", "1..`grants` grants (`check_grants`)"),
                ("secret_hash", "32 bytes for a token, nil otherwise"),
                ("expires_ms", "an instant, or nil"),
                ("quota", "`Quota.changed`"),
                ("note", "text of `note_chars` characters at most"),
            )
        },
    },
    m.DeleteIdentity: {"principal": of(_T.IDENTITY_DELETE, "principal", "refused in `apply` if there is none")},
    m.PutRole: {
        "name": of(_T.ROLE_PUT, "name", "`check_role`", _IDENTITIES),
        "grants": of(_T.ROLE_PUT, "grants", "`check_grants`", _IDENTITIES),
    },
    m.DeleteRole: {"name": of(_T.ROLE_DELETE, "name", "refused in `apply` if there is none")},
    m.Skipped: {
        "skip_id": made("16 random bytes", _SKIPS),
        "command_digest": made("hash of the skipped command, or empty", _SKIPS),
    },
}

_HEAD: Final = """# Checks before the log

On every replica, `apply` computes with the values in the entries of the log. A value that `apply` cannot use would
stop all replicas. So the leader checks each field of each command before it proposes the command. This page lists
these checks. It is generated: `python -m tests.support.command_checks > docs/checks.md`. A test compares it with the
commands and with the classes of the requests.

*Request* names the request fields from which the field is taken. The class of the request declares their types and
ranges ([protocol](protocol.md)). *Further checks* lists the other checks, and *where* names their module below
`sandq/`. An empty *where* means the class of the request. A field without a request is set by the node.

This page has the commands of a partition. [Another page](checks/metadata.md) has the commands of the metadata group.
"""
_METADATA_HEAD: Final = """# Checks of the metadata group

The columns are those of [the commands of a partition](../checks.md). This page is generated: `python -m
tests.support.command_checks metadata > docs/checks/metadata.md`.
"""


def page() -> str:
    """Return docs/checks.md."""
    return "\n".join([_HEAD, *_table(PARTITION), ""])


def metadata_page() -> str:
    """Return docs/checks/metadata.md."""
    return "\n".join([_METADATA_HEAD, *_table(METADATA), ""])


def fields_of(command: type[Any]) -> list[str]:
    """Return the names of a command's fields."""
    return [field.name for field in dataclasses.fields(command)]


def _table(commands: Mapping[Any, Mapping[str, Checked]]) -> Iterator[str]:
    yield "| Command | Field | Request | Type and range | Further checks | Where |"
    yield "|---|---|---|---|---|---|"
    for command in sorted(commands, key=lambda command: int(command.type)):
        name = f"{int(command.type)} {command.__name__}"
        if not commands[command]:
            yield f"| {name} | | | | no fields | |"
        for field in fields_of(command):
            one = commands[command][field]
            requests = "<br>".join([f"{kind.name} {asked.replace('_', ' ')}" for kind, asked in one.of])
            kinds = "<br>".join([_declared(declared(kind, asked)) for kind, asked in one.of])
            yield f"| {name} | {field} | {requests} | {kinds} | {one.what} | {one.place} |"
            name = ""


def declared(kind: Type, name: str) -> Field:
    """Return a field as its request declares it."""
    (field,) = [field for field in REQUESTS[kind].shape.fields if field.name == name]
    return field


_BOUNDS: Final = {(0, U32_MAX): "u32", (0, U48_MAX): "u48", (0, U64_MAX): "u64"}


def _declared(field: Field) -> str:
    names = {int: "int", str: "str", bytes: "bin", list: "array", dict: "map", bool: "bool"}
    bounds = _BOUNDS.get((field.minimum, field.maximum), f"{field.minimum:,}..{field.maximum:,}")
    kinds = [bounds if kind is int else names[kind] for kind in field.kinds]
    return " \\| ".join([*kinds, *(["nil"] if field.optional else [])])


if __name__ == "__main__":
    print(metadata_page() if sys.argv[1:] == ["metadata"] else page(), end="")
