"""Start and stop of one node: its subsystems, and the order in which they open and close (layer F6 of
docs/architecture.md)."""

from sandq.node.start import run_node
from sandq.node.started import LOCK_NAME, STORES_NAME, SWITCH_INTERVAL_S

__all__ = ["LOCK_NAME", "STORES_NAME", "SWITCH_INTERVAL_S", "run_node"]
