"""The tags of sandq nodes, and the check whether a member belongs to the cluster.

Tags are text and must fit into 512 bytes, so their names are short. A member without the tag `cluster` is not a sandq
node but another machine in the same Serf cluster: it is listed and not used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

CLUSTER: Final = "cluster"
CLUSTER_UUID: Final = "uuid"
STORE_UUID: Final = "store"
NODE: Final = "id"
ZONE: Final = "zone"
VERSION: Final = "version"
ZONE_DATA: Final = "tz"
FOUNDER: Final = "founder"
"""Tag of a node that will found the cluster and has not done so yet; only its presence counts."""
SERVED: Final = ("client", "http", "peer")
"""Tags that are addresses, "host:port"."""

OURS: Final = frozenset({CLUSTER, CLUSTER_UUID, STORE_UUID, NODE, ZONE, VERSION, ZONE_DATA, FOUNDER, *SERVED})


def node_tags(
    *,
    node: str,
    cluster: str,
    cluster_uuid: str | None,
    store_uuid: str,
    zone: str,
    version: str,
    zone_data: str,
    addresses: Mapping[str, str],
    founder: bool = False,
) -> dict[str, str]:
    """Return the tags of a node.

    `zone_data`: version of the time zone data that schedules use here. `addresses`: service -> "host:port". `founder`:
    the node will found the cluster and has not done so yet. A founder has no `cluster_uuid`, so only one of the two
    tags is set.
    """
    tags = {NODE: node, CLUSTER: cluster, STORE_UUID: store_uuid, ZONE: zone, VERSION: version, ZONE_DATA: zone_data}
    if cluster_uuid is not None:
        tags[CLUSTER_UUID] = cluster_uuid
    elif founder:
        tags[FOUNDER] = "1"
    tags.update((name, addresses[name]) for name in SERVED if name in addresses)
    return tags


def judge_of(cluster: str, cluster_uuid: Callable[[], str | None]) -> Callable[[str, Mapping[str, str]], str | None]:
    """Return a function that returns why a member is refused (as a metric label), or None."""

    def judge(name: str, tags: Mapping[str, str]) -> str | None:
        theirs = tags.get(CLUSTER)
        if theirs is None:
            return None
        if theirs != cluster:
            return "cluster"
        own_uuid, their_uuid = cluster_uuid(), tags.get(CLUSTER_UUID)
        if own_uuid is not None and their_uuid is not None and own_uuid != their_uuid:
            # Two clusters with the same name that were founded separately: they never merge.
            return "cluster_uuid"
        return None if tags.get(NODE, name) == name else "node_id"

    return judge
