"""Provide the command that registers a node, with defaults for the fields that a test does not set."""

from __future__ import annotations

from sandq.metadata.commands import RegisterNode
from sandq.model.features import KNOWN


def register_node(
    node_id: str,
    store_uuid: str,
    addresses: dict[str, str],
    *,
    zone: str = "default",
    weight: int = 1,
    incarnation: int = 1,
    lowest_level: int = KNOWN.lowest,
    highest_level: int = KNOWN.highest,
) -> RegisterNode:
    """Return the command of a node of this version in the default zone, with the given changes."""
    return RegisterNode(node_id, store_uuid, addresses, zone, weight, incarnation, lowest_level, highest_level)
