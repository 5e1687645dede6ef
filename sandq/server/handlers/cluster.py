"""Requests about the cluster: its nodes, who leads what, the clock."""

from __future__ import annotations

from typing import Any

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
from sandq.server.handlers.routes import Context, answered, sliced, told

_CLOCK_FIELDS = ("guarded_ms", "wall_ms", "drift_ms", "alarm", "reason", "median_ms", "peers")


def _clock(at: Context, request: ClusterClock) -> dict[str, Any]:
    clock = at.broker.clock
    status = clock.accept() if request.action == ACCEPT else clock.status()
    return {field: getattr(status, field) for field in _CLOCK_FIELDS}


ROUTES = (
    sliced(ClusterInfo, lambda at, request: at.info.cluster(at.connection.turn, at.entrance.access)),
    told(ClusterClock, _clock),
    answered(ClusterInit, lambda at, request: at.info.init()),
    answered(Finalize, lambda at, request: at.info.finalize(request.dry_run)),
    answered(NodeChange, lambda at, request: at.broker.administration.nodes.change_node(request, at.caller)),
    answered(Transfer, lambda at, request: at.broker.administration.nodes.transfer(request, at.caller)),
    answered(EntrySkip, lambda at, request: at.info.entry_skips.skip(request)),
    answered(Rebuild, lambda at, request: at.broker.administration.nodes.rebuild(request, at.caller)),
)
