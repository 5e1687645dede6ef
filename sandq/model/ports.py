"""Where a node listens, and where clients look for one, unless they are told otherwise."""

from __future__ import annotations

from typing import Final

LOCAL_HOST: Final = "127.0.0.1"
CLIENT_PORT: Final = 7170
HTTP_PORT: Final = 2108
PEER_PORT: Final = 9190
GOSSIP_PORT: Final = 9900
SQL_PORT: Final = 3306
"""MySQL's own: its clients look there."""

DEFAULT_SERVER: Final = f"{LOCAL_HOST}:{CLIENT_PORT}"
