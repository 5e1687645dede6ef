"""The request about the lateness objective."""

from __future__ import annotations

from typing import Any, Final

from sandq.model.errors import Conflict
from sandq.protocol.requests_slo import Slo
from sandq.server.handlers.routes import Context, sliced

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


ROUTES = (sliced(Slo, _slo),)
