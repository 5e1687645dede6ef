"""What sandq's nodes say of themselves in their tags, and whom they take for one of theirs.

Tags are text and must fit into 512 bytes, so their names are short. A member without the tag `cluster` is no node of
sandq but a machine of the same Serf cluster: it is listed, and nothing is asked of it.
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
"""Of a node that is to found the cluster and has not yet: nothing but its being there counts."""
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
    """The tags of a node. `zone_data`: which version of it schedules go by here. `addresses`: what is served ->
    "host:port". `founder`: it is to found the cluster, and has
    not; so it has no `cluster_uuid` then, and of the two tags only one takes up room."""
    tags = {NODE: node, CLUSTER: cluster, STORE_UUID: store_uuid, ZONE: zone, VERSION: version, ZONE_DATA: zone_data}
    if cluster_uuid is not None:
        tags[CLUSTER_UUID] = cluster_uuid
    elif founder:
        tags[FOUNDER] = "1"
    tags.update((name, addresses[name]) for name in SERVED if name in addresses)
    return tags


def judge_of(cluster: str, cluster_uuid: Callable[[], str | None]) -> Callable[[str, Mapping[str, str]], str | None]:
    """Says why a member may not be one, as a metric's label says it; None when it may."""

    def judge(name: str, tags: Mapping[str, str]) -> str | None:
        theirs = tags.get(CLUSTER)
        if theirs is None:
            return None
        if theirs != cluster:
            return "cluster"
        own_uuid, their_uuid = cluster_uuid(), tags.get(CLUSTER_UUID)
        if own_uuid is not None and their_uuid is not None and own_uuid != their_uuid:
            # Of one name, and formed apart: they never become one.
            return "cluster_uuid"
        return None if tags.get(NODE, name) == name else "node_id"

    return judge
