"""Requests about the cluster and its nodes: who leads what, the clock, audit logs, lateness, dumps."""

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
from sandq.server.handlers.routes import Context, answered, sliced, told

_CLOCK_FIELDS = ("guarded_ms", "wall_ms", "drift_ms", "alarm", "reason", "median_ms", "peers")


def _clock(at: Context, request: ClusterClock) -> dict[str, Any]:
    clock = at.broker.clock
    status = clock.accept() if request.action == ACCEPT else clock.status()
    return {field: getattr(status, field) for field in _CLOCK_FIELDS}


async def _audit_list(at: Context, request: AuditList) -> tuple[list[str], str, int]:
    audit = at.info.audit
    if audit is None:
        raise Conflict(f"node {at.info.node_id} keeps no audit log")
    lines, position = await audit.read(request.last, request.after)
    return lines, position, audit.lost


def _audit_note(at: Context, request: AuditNote) -> None:
    if not at.gateway_proof.is_given:
        raise Forbidden("AUDIT_NOTE: only a gateway that has proved itself (PROVE) tells what it refused")
    if at.info.audit is not None:
        caller = at.caller
        at.info.audit.note(
            principal=caller.principal,
            peer=caller.address,
            gateway=caller.gateway,
            request=request.call,
            about=request.about,
            result=request.result,
            request_id=request.call_id,
            is_frequent=True,
        )


def _log_level(at: Context, request: LogLevel) -> dict[str, Any]:
    return at.info.log_level.change(request.level, request.for_ms, at.caller)


def _dump(at: Context, request: DebugDump) -> dict[str, Any]:
    return at.info.dump.make()


TOPICS_MOST: Final = 100
"""Of one answer: those of which most came late."""
_TOPICS_OF_WORK: Final = 32


async def _slo(at: Context, request: Slo) -> dict[str, Any]:
    slo = at.info.slo
    if slo is None:
        raise Conflict(f"node {at.info.node_id} counts nothing for a lateness objective")
    access, turn = at.entrance.access, at.connection.turn
    rows: list[tuple[str, int, int]] = []
    for number, topic in enumerate(at.broker.topics()):
        if number % _TOPICS_OF_WORK == 0:
            await turn.spend(1)
        stats = topic.stats
        if stats.slo_deliveries and (access is None or access.sees(topic.record.name)):
            rows.append((topic.record.name, stats.slo_deliveries, stats.slo_late))
    rows.sort(key=lambda row: (-row[2], row[0]))
    return {**slo.told(), "node": at.info.node_id, "topics": rows[:TOPICS_MOST]}


ROUTES = (
    sliced(ClusterInfo, lambda at, request: at.info.describe(at.connection.turn, at.entrance.access)),
    told(ClusterClock, _clock),
    answered(ClusterInit, lambda at, request: at.info.cluster.init()),
    answered(Finalize, lambda at, request: at.info.cluster.finalize(dry_run=request.dry_run)),
    answered(NodeChange, lambda at, request: at.broker.administration.nodes.change_node(request, at.caller)),
    answered(Transfer, lambda at, request: at.broker.administration.nodes.transfer(request, at.caller)),
    answered(EntrySkip, lambda at, request: at.info.entry_skips.skip(request)),
    answered(Rebuild, lambda at, request: at.broker.administration.nodes.rebuild(request, at.caller)),
    answered(AuditList, _audit_list),
    told(AuditNote, _audit_note),
    told(LogLevel, _log_level),
    told(DebugDump, _dump),
    sliced(Slo, _slo),
)
