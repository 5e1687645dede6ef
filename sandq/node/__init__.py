"""One node: what it is made of, and in which order it starts and stops (floor F6)."""

from sandq.node.start import run_node
from sandq.node.started import LOCK_NAME, STORES_NAME, SWITCH_INTERVAL_S

__all__ = ["LOCK_NAME", "STORES_NAME", "SWITCH_INTERVAL_S", "run_node"]
