"""Run the state machine of one member, `own`, without a network. Short functions build messages of other members."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping

from sandq.gossip.agenda import Agenda
from sandq.gossip.broadcasts import Broadcasts
from sandq.gossip.messages import VSN, Alive, Dead, Message, Suspect, decode
from sandq.gossip.nodes import Liveness, Node, Nodes
from sandq.gossip.serf_messages import encode_tags
from sandq.gossip.suspicion import Awareness
from sandq.gossip.tags import judge_of
from sandq.model.config_types import Address
from sandq.model.gossip_timing import PROFILES, Timing

CLUSTER = "sandq"
LAN = PROFILES["lan"]


def address_of(name: str) -> Address:
    """Return an address that depends only on the name."""
    return Address(f"10.0.{len(name)}.{sum(name.encode()) % 250 + 1}", 9900)


def tags_of(name: str, **more: str) -> bytes:
    return encode_tags({"cluster": CLUSTER, "id": name, "store": f"store of {name}", **more})


def alive(
    name: str,
    incarnation: int = 1,
    *,
    at: Address | None = None,
    meta: bytes | None = None,
    vsn: tuple[int, ...] = VSN,
) -> Alive:
    return Alive(incarnation, name, at or address_of(name), tags_of(name) if meta is None else meta, vsn)


def suspect(name: str, incarnation: int = 1, sender: str = "somebody") -> Suspect:
    return Suspect(incarnation, name, sender)


def dead(name: str, incarnation: int = 1, sender: str = "somebody") -> Dead:
    return Dead(incarnation, name, sender)


def left(name: str, incarnation: int = 1) -> Dead:
    return Dead(incarnation, name, name)


class SwimBench:
    """The state machine of `own`. `changes` records each change: (name, liveness before, liveness now)."""

    def __init__(self, timing: Timing = LAN, *, others: str = "", uuid: str | None = None) -> None:
        self.agenda = Agenda(0.0)
        self.rumours = Broadcasts()
        self.counts: Counter[str] = Counter()
        self.awareness = Awareness()
        self.changes: list[tuple[str, Liveness | None, Liveness]] = []
        self.own = Node("own", address_of("own"), tags_of("own"), VSN)
        self.nodes = Nodes(
            own=self.own,
            timing=timing,
            agenda=self.agenda,
            broadcasts=self.rumours,
            awareness=self.awareness,
            rng=random.Random(1),
            judge=judge_of(CLUSTER, lambda: uuid),
            on_change=self.on_node,
            counts=self.counts,
        )
        self.receive(*(alive(name) for name in others))
        self.take_broadcasts()
        self.changes.clear()

    def on_node(self, node: Node, before: Liveness | None) -> None:
        self.changes.append((node.name, before, node.liveness))

    def receive(self, *words: Alive | Suspect | Dead) -> None:
        for word in words:
            if isinstance(word, Alive):
                self.nodes.alive(word)
            elif isinstance(word, Suspect):
                self.nodes.suspect(word)
            else:
                self.nodes.dead(word)

    def take_broadcasts(self) -> list[Message]:
        """Return the queued broadcasts, newest first, and remove them from the queue."""
        return [decode(part) for part in self.rumours.take(1 << 20, 1)]

    def advance(self, seconds: float) -> None:
        """Let time pass and run all timers that become due."""
        end = self.agenda.now + seconds
        while (at := self.agenda.next_at) is not None and at <= end:
            self.agenda.run(at)
        self.agenda.advance(end)

    def node(self, name: str) -> Node:
        node = self.nodes.get(name)
        assert node is not None
        return node

    def liveness(self, name: str) -> tuple[Liveness, int]:
        node = self.node(name)
        return node.liveness, node.incarnation

    def refused(self) -> Mapping[str, int]:
        return {key: count for key, count in self.counts.items() if key.startswith("refused_")}


def known_as(liveness: Liveness) -> SwimBench:
    """Return a bench that knows a member "a" in this state, with incarnation 5, and other members."""
    bench = SwimBench(others="bcdefg")
    bench.receive(alive("a", 5))
    if liveness != Liveness.ALIVE:
        bench.receive(
            {Liveness.SUSPECT: suspect("a", 5, "b"), Liveness.DEAD: dead("a", 5), Liveness.LEFT: left("a", 5)}[liveness]
        )
    assert bench.liveness("a") == (liveness, 5)
    bench.take_broadcasts()
    bench.changes.clear()
    return bench
