"""A node in the process of its only program, without a port: `sandq.embedded` and `sandq.sync.embedded`.

    program: client --Unix socket in the data directory--> node, in a thread with its own event loop

The node is a complete one, with its write-ahead log, stores and fsync: `sandq --data DIR` opens the same directory. It
changes nothing in its process: no signal handler, no setting of the interpreter, no limit. See docs/embedded.md.
"""

from __future__ import annotations

from sandq.embed.asynchronous import embedded
from sandq.embed.blocking import embedded as embedded_blocking

__all__ = ["embedded", "embedded_blocking"]
