"""Handle requests about the cluster and its nodes: state, clock, audit log, lateness objective, log level, dumps."""

from __future__ import annotations

from typing import Any, Final

from sandq.model.errors import Conflict, Forbidden
from sandq.protocol.requests_admin import (
    ACCEPT,
    ClusterClock,
    ClusterInfo,
    ClusterInit,
    EntrySkip,
    Finalize,
    NodeChange,
    Rebuild,
    Transfer,
)
from sandq.protocol.requests_audit import AuditList, AuditNote
from sandq.protocol.requests_debug import DebugDump, LogLevel
from sandq.protocol.requests_slo import Slo
from sandq.server.handlers.routes import Context, answered, immediate, sliced

_CLOCK_FIELDS = ("guarded_ms", "wall_ms", "drift_ms", "alarm", "reason", "median_ms", "peers")


def _clock(context: Context, request: ClusterClock) -> dict[str, Any]:
    """Accept the wall clock of the node if asked to, and return the state of its clock."""
    clock = context.broker.clock
    status = clock.accept() if request.action == ACCEPT else clock.status()
    return {field: getattr(status, field) for field in _CLOCK_FIELDS}


async def _audit_list(context: Context, request: AuditList) -> tuple[list[str], str, int]:
    """Return lines of the node's audit log, the position after them, and the number of lost lines."""
    audit = context.info.audit
    if audit is None:
        raise Conflict(f"node {context.info.node_id} keeps no audit log")
    lines, position = await audit.read(request.last, request.after)
    return lines, position, audit.lost


def _audit_note(context: Context, request: AuditNote) -> None:
    """Write a line to the audit log for a request that a gateway has refused itself."""
    if not context.gateway_proof.is_given:
        raise Forbidden("AUDIT_NOTE: only a gateway that has proved itself (PROVE) reports what it refused")
    if context.info.audit is not None:
        caller = context.caller
        context.info.audit.note(
            principal=caller.principal,
            peer=caller.address,
            gateway=caller.gateway,
            request=request.call,
            about=request.about,
            result=request.result,
            request_id=request.call_id,
            is_frequent=True,
        )


def _log_level(context: Context, request: LogLevel) -> dict[str, Any]:
    """Change the node's log level, and return it."""
    return context.info.log_level.change(request.level, request.for_ms, context.caller)


def _dump(context: Context, request: DebugDump) -> dict[str, Any]:
    """Return a dump of the node's state."""
    return context.info.dump.make()


TOPICS_MOST: Final = 100
"""Maximum number of topics in a reply to SLO: those with the most late deliveries."""
_TOPICS_OF_WORK: Final = 32


async def _slo(context: Context, request: Slo) -> dict[str, Any]:
    """Return the lateness objective of the node, and the topics with the most late deliveries."""
    slo = context.info.slo
    if slo is None:
        raise Conflict(f"node {context.info.node_id} has no lateness objective (slo)")
    access, time_slice = context.entrance.access, context.connection.time_slice
    rows: list[tuple[str, int, int]] = []
    for number, topic in enumerate(context.broker.topics()):
        if number % _TOPICS_OF_WORK == 0:
            await time_slice.spend(1)
        stats = topic.stats
        if stats.slo_deliveries and (access is None or access.sees(topic.record.name)):
            rows.append((topic.record.name, stats.slo_deliveries, stats.slo_late))
    rows.sort(key=lambda row: (-row[2], row[0]))
    return {**slo.reply(), "node": context.info.node_id, "topics": rows[:TOPICS_MOST]}


ROUTES = (
    sliced(
        ClusterInfo,
        lambda context, request: context.info.describe(context.connection.time_slice, context.entrance.access),
    ),
    immediate(ClusterClock, _clock),
    answered(ClusterInit, lambda context, request: context.info.cluster.init()),
    answered(Finalize, lambda context, request: context.info.cluster.finalize(dry_run=request.dry_run)),
    answered(
        NodeChange, lambda context, request: context.broker.administration.nodes.change_node(request, context.caller)
    ),
    answered(Transfer, lambda context, request: context.broker.administration.nodes.transfer(request, context.caller)),
    answered(EntrySkip, lambda context, request: context.info.entry_skips.skip(request)),
    answered(Rebuild, lambda context, request: context.broker.administration.nodes.rebuild(request, context.caller)),
    answered(AuditList, _audit_list),
    immediate(AuditNote, _audit_note),
    immediate(LogLevel, _log_level),
    immediate(DebugDump, _dump),
    sliced(Slo, _slo),
)
