"""Answer for a node that belongs to no cluster yet: say who it is and what it waits for, and let it found one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, TypeVar

from sandq.broker.cluster.cluster import Cluster
from sandq.model.errors import Unavailable
from sandq.protocol.frames import Type

H = TypeVar("H")

ANSWERED: Final = frozenset(
    # Credit gets no answer anyway, and there are no subscriptions that it could be for.
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
    """Which requests of a connection are answered. It costs nothing once all are: then `handlers` are all."""

    def __init__(self, handlers: Mapping[int, H], cluster: Cluster) -> None:
        self._all = handlers
        self._cluster = cluster
        self.handlers: Mapping[int, H] = handlers
        if cluster.waiting() is not None:
            self.handlers = {kind: handler for kind, handler in handlers.items() if kind in ANSWERED}

    def look_again(self, kind: int) -> H | None:
        """The handler of a request that is not among `handlers`; None when there are no such requests. Raises
        Unavailable."""
        if kind not in self._all:
            return None
        reason = self._cluster.waiting()
        if reason is not None:
            raise Unavailable(f"this node belongs to no cluster yet, and nothing was done: {reason}")
        self.handlers = self._all
        return self._all[kind]
