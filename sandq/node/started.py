"""State of a node before it opens its data."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from sandq.model.config import NodeConfig
from sandq.server.http.launch import HttpPort
from sandq.server.listening import BoundPort, LocalPort
from sandq.storage.files import Files, Lock

LOCK_NAME = "lock"
"""Name of the lock in the data directory."""
STORES_NAME = "stores.level"
"""Name of the LevelDB stores in the data directory."""
SWITCH_INTERVAL_S = 0.0005
"""Interval at which Python switches threads, in seconds.

With the default of 5 ms, a busy thread delays each other thread by 5 ms."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """State of a node before it opens its data."""

    config: NodeConfig
    data_dir: Path
    files: Files
    lock: Lock
    """The lock of the data directory."""
    client: BoundPort
    """The client port: bound, but not listening until the node serves clients."""
    local: LocalPort | None
    """The Unix socket in the data directory, if there is a TCP port in addition; otherwise it is `client`, or None."""
    http: HttpPort | None
    """None: the node does not serve HTTP."""
