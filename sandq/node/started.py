"""What a node has before it opens its data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sandq.model.config import NodeConfig
from sandq.server.http.launch import HttpPort
from sandq.server.listening import BoundPort
from sandq.storage.files import Files

LOCK_NAME = "lock"
"""Name of the lock in the data directory."""
STORES_NAME = "stores.level"
"""Name of the LevelDB stores in the data directory."""
SWITCH_INTERVAL_S = 0.0005
"""Python's default of 5 ms would let one busy thread hold up the others for as long."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """What a node has before it opens its data."""

    config: NodeConfig
    data_dir: Path
    files: Files
    client: BoundPort
    """The client port: taken, and not listening before clients are served."""
    http: HttpPort | None
    """None: the node serves no HTTP."""
