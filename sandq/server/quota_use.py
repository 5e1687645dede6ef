"""What identities with a quota have, for those who look at them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from sandq.broker.owner_usage import NOTHING, Held
from sandq.metadata.records import Topic
from sandq.server.quota_meters import Meter, QuotaMeters


def use_of(
    principals: Collection[str], topics: Collection[Topic], held: Mapping[str, Held], meters: QuotaMeters
) -> dict[str, dict[str, int]]:
    """Return what these have, by principal: topics and partitions that they own; what their topics hold, of those whose
    quota bounds it; connections to this node, and what they asked of it since it started."""
    owned, partitions = Counter[str](), Counter[str]()
    for topic in topics:
        if topic.owner is not None and topic.owner in principals:
            owned[topic.owner] += 1
            partitions[topic.owner] += len(topic.partitions)
    found = {}
    for name in principals:
        meter, holds = meters.meters.get(name) or Meter(), held.get(name, NOTHING)
        found[name] = {
            "topics": owned[name],
            "partitions": partitions[name],
            **holds._asdict(),
            "connections": meter.connections,
            "requests": meter.requests,
            "bytes": meter.bytes,
        }
    return found
