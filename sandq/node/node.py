"""One node: its subsystems, and the order in which they open and close (floor F6).

    start        locks the data directory, binds ports, launches HTTP (`start`, before this module is loaded)
    storage      identity, stores
    replication  links to other nodes, the write-ahead log, its threads, the health of both
    delivery     topics, partitions, and the components that serve requests about them
    membership   discovery of other nodes, forming and joining a cluster, placement of replicas
    serving      listeners, sessions, metrics, HTTP, SQL, pushes

A subsystem uses only those above it, with one exception: serving opens membership after its listener for other nodes.

A node that must wait for its cluster serves clients before it takes part in the cluster. Until then it replies only to
requests about its identity and the reason for waiting.

The subsystems close in reverse order:

- The node hands its leaderships over and leaves gossip.
- HTTP requests in progress are completed, and the listeners close.
- The threads complete their queued work, a checkpoint is written, and the log is sealed.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Unpack

import structlog
import trio

from sandq.node.context import NodeOptions, context_of
from sandq.node.delivery import open_delivery
from sandq.node.replication import replicating
from sandq.node.running import Serving
from sandq.node.serving import serving
from sandq.node.started import Started
from sandq.node.storage import open_storage
from sandq.node.web import http_of


@contextlib.asynccontextmanager
async def running(started: Started, **options: Unpack[NodeOptions]) -> AsyncIterator[Serving]:
    """Run a started node inside the block, and stop it cleanly at the end of the block.

    Errors: see `start.run_node`."""
    # Adds the node's name to all log lines of this task and its children. A process may run several nodes.
    structlog.contextvars.bind_contextvars(node=started.config.node.id)
    context = context_of(started, **options)
    http = http_of(context)
    async with trio.open_nursery() as nursery:
        if http.supervisor is not None:
            await nursery.start(http.supervisor.run)
        with open_storage(context) as storage:
            async with replicating(context, storage) as replication:
                delivery = open_delivery(context, storage, replication)
                await replication.start(context.timers)
                delivery.start(replication.nursery)
                async with serving(context, storage, replication, delivery, http) as node:
                    yield node
