"""Limit the requests that a node answers while it belongs to no cluster to requests that describe the node, or found a
cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from sandq.broker.cluster.cluster import Cluster
from sandq.model.errors import Unavailable
from sandq.protocol.frames import Type

H = TypeVar("H")

ANSWERED: Final = frozenset(
    # CREDIT gets no reply, and no subscription can exist yet.
    {
        Type.HELLO,
        Type.PROVE,
        Type.ON_BEHALF,
        Type.PING,
        Type.CREDIT,
        Type.CLUSTER_INFO,
        Type.CLUSTER_CLOCK,
        Type.CLUSTER_INIT,
        Type.LOG_LEVEL,
        Type.DEBUG_DUMP,
    }
)


class StartupGate(Generic[H]):
    """Selects the handlers of a connection. Once the node belongs to a cluster, `handlers` is complete, so that
    requests cost no further check."""

    def __init__(self, handlers: Mapping[int, H], cluster: Cluster) -> None:
        self._all = handlers
        self._cluster = cluster
        self.handlers: Mapping[int, H] = handlers
        if cluster.waiting() is not None:
            self.handlers = {kind: handler for kind, handler in handlers.items() if kind in ANSWERED}

    def find_handler(self, kind: int) -> H | None:
        """Return the handler of a request type that is not in `handlers`; None if the type is unknown.

        Raise Unavailable while the node belongs to no cluster. If the node belongs to a cluster, admit all requests
        from now on."""
        if kind not in self._all:
            return None
        reason = self._cluster.waiting()
        if reason is not None:
            raise Unavailable(f"this node belongs to no cluster yet, and nothing was done: {reason}")
        self.handlers = self._all
        return self._all[kind]
