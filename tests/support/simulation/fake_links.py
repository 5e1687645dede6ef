"""Simulate connections between nodes that are late, cut or stalled. Some worlds also repeat frames."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Mapping
from typing import Any, Protocol

import msgpack

LATE_FRAMES = 20
"""Maximum number of frames of a connection that are kept for a second delivery."""


class Peer(Protocol):
    """The callbacks of a node for its connections."""

    def connected(self, node: str) -> None: ...

    def disconnected(self, node: str) -> None: ...

    def receive(self, node: str, frame: Any) -> None: ...


class Network:
    """One connection per pair of nodes. Frames arrive in order, or the connection breaks and loses all its frames."""

    def __init__(self, nodes: Mapping[str, Peer], rng: random.Random, *, repeats: float = 0.0) -> None:
        """`repeats`: probability that a frame is delivered a second time, after later ones.

        Real connections never repeat frames, but Raft must keep its promises even then."""
        self._nodes = nodes
        self._rng = rng
        self.repeats = repeats
        self._links: dict[tuple[str, str], deque[Any]] = {}
        self._late: dict[tuple[str, str], list[Any]] = {}
        self.stalled: set[tuple[str, str]] = set()

    def send(self, sender: str, receiver: str, frame: Any) -> None:
        queue = self._links.get((sender, receiver))
        if queue is not None:
            # Copy the frame, so that two nodes share no object.
            queue.append(msgpack.unpackb(msgpack.packb(frame), use_list=False))

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Return the connected pairs of sender and receiver."""
        return list(self._links)

    def joins(self, a: str, b: str) -> bool:
        """Return whether nodes `a` and `b` are connected."""
        return (a, b) in self._links

    def deliver(self, pace: float) -> None:
        """Deliver some of the queued frames of each connection, with the probability `pace`."""
        for pair, queue in list(self._links.items()):
            if self._rng.random() < pace and pair not in self.stalled:
                self._deliver(pair, queue)

    def _deliver(self, pair: tuple[str, str], queue: deque[Any]) -> None:
        rng, (sender, receiver) = self._rng, pair
        node, late = self._nodes[receiver], self._late[pair]
        for _ in range(rng.randint(1, len(queue)) if queue else 0):
            frame = queue.popleft()
            node.receive(sender, frame)
            if self.repeats and rng.random() < self.repeats and len(late) < LATE_FRAMES:
                late.append(frame)
        if late and rng.random() < 0.1:
            node.receive(sender, late.pop(rng.randrange(len(late))))

    def link(self, a: str, b: str) -> None:
        if (a, b) in self._links or a not in self._nodes or b not in self._nodes:
            return
        for x, y in ((a, b), (b, a)):
            self._links[x, y], self._late[x, y] = deque(), []
            self._nodes[x].connected(y)

    def cut(self, a: str, b: str) -> None:
        for x, y in ((a, b), (b, a)):
            self.stalled.discard((x, y))
            if self._links.pop((x, y), None) is not None and x in self._nodes:
                self._nodes[x].disconnected(y)

    def isolate(self, name: str) -> None:
        for other in sorted({name for pair in self._links for name in pair}):
            self.cut(name, other)

    def renew(self) -> None:
        """Give every two nodes a new connection."""
        for a in sorted(self._nodes):
            for b in sorted(self._nodes):
                if a < b:
                    self.cut(a, b)
                    self.link(a, b)

    def freeze(self) -> None:
        """Stall the connections between two parts of the cluster. Their frames arrive after the stall."""
        names = sorted(self._nodes)
        part = set(self._rng.sample(names, self._rng.randint(1, len(names) - 1)))
        self.stalled |= {pair for pair in self._links if (pair[0] in part) != (pair[1] in part)}

    def disturb(self) -> None:
        """Change a random connection with some probability."""
        if len(self._nodes) < 2:
            return
        a, b = self._rng.sample(sorted(self._nodes), 2)
        chance = self._rng.random()
        if chance < 0.01:
            self.cut(a, b)
        elif chance < 0.02:
            self.stalled.add((a, b))
        elif chance < 0.025:
            self.isolate(a)
        elif chance < 0.03:
            self.freeze()
        elif chance < 0.04:
            self.stalled.clear()
        elif chance < 0.1:
            self.stalled.discard((a, b))
            self.link(a, b)
