"""One node: which subsystems it has, and in which order they open and close (floor F6).

    start        locks the data directory, binds ports, launches HTTP (`start`, before this module is loaded)
    storage      identity, stores
    replication  links to other nodes, the write-ahead log, its threads, the health of both
    delivery     topics, partitions, everything that clients ask
    membership   discovery of other nodes, forming and joining a cluster, placing replicas
    serving      listeners, sessions, metrics, HTTP, SQL, pushes

Serving opens membership, once it listens for other nodes. A subsystem knows those above it. A node that must wait for
its cluster serves before it takes part: it answers who it is, and what it waits for. They close from the last to the
first: leaderships are handed over, gossip is left, requests of HTTP that are under way are answered, listeners close,
threads finish what is queued, a checkpoint is written, and the log is sealed.
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
    """Run a node that has been started inside the block, and stop it cleanly at its end. Errors: `start.run_node`."""
    # Of what runs in here; several nodes may be in one process.
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
                async with serving(context, storage, replication, delivery, http) as where:
                    yield where
