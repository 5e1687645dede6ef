"""The state machine of SWIM with suspicion: derives from messages which nodes are alive, suspect, dead or have left.

Each member numbers its statements about itself by its incarnation. If two messages about a member differ, the
message with the higher incarnation counts. If the incarnations are equal, "dead" beats "suspect" beats "alive". Only
the member itself raises its incarnation, to refute messages of others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, MutableSequence, Sequence
from enum import IntEnum
from typing import Any, Final, Protocol, TypeVar

from sandq.gossip.agenda import Agenda, Task
from sandq.gossip.broadcasts import Broadcasts
from sandq.gossip.messages import VSN, Alive, Dead, Suspect, encode
from sandq.gossip.serf_messages import decode_tags
from sandq.gossip.streams import NodeState
from sandq.gossip.suspicion import Awareness, Suspicion
from sandq.model.config_schema import Address
from sandq.model.errors import ProtocolError
from sandq.model.gossip_timing import Timing

MEMBERS_MOST: Final = 10_000
"""Maximum number of members; further ones are refused."""

INCARNATION_JUMP: Final = 2**20
"""Maximum jump of an incarnation between two messages about a member.

No member refutes that often in between. A larger jump is refused, because the numbers would run out.
"""

INCARNATION_NEW: Final = 2**31
"""The incarnation from which the maximum jump of an unknown member is counted."""

REFUSALS_MOST: Final = 256
"""Maximum number of names whose refusals are remembered."""

SAMPLED: Final = 4
"""Factor by which a random sample is larger than the number of wanted nodes."""

Judge = Callable[[str, Mapping[str, str]], str | None]
"""Returns why a member with this name and tags is refused, or None."""


class Liveness(IntEnum):
    """The state of a node, with the numbers of the wire."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


class Node:
    """The state of another member as seen here, or of this member. `changed_at`: on the core's clock."""

    __slots__ = ("_ending", "address", "changed_at", "incarnation", "liveness", "meta", "name", "suspicion", "vsn")

    def __init__(self, name: str, address: Address, meta: bytes, vsn: tuple[int, ...]) -> None:
        self.name = name
        self.address = address
        self.meta = meta
        self.vsn = vsn
        self.incarnation = 0
        self.liveness = Liveness.DEAD
        self.changed_at = 0.0
        self.suspicion: Suspicion | None = None
        self._ending: Task | None = None

    @property
    def is_live(self) -> bool:
        return self.liveness <= Liveness.SUSPECT

    @property
    def takes_crc(self) -> bool:
        return len(self.vsn) > 1 and self.vsn[1] >= 5

    def state(self) -> NodeState:
        return NodeState(self.name, self.address, self.meta, self.incarnation, int(self.liveness), self.vsn)

    def expect_end(self, task: Task | None) -> None:
        """Set the task that ends the current state of the node if no message about it arrives. Cancel the former
        task."""
        if self._ending is not None:
            self._ending.cancel()
        self._ending = task


class Nodes:
    """All nodes that are known.

    `on_change(node, before)` is called after each change; `before` is the former state, or None for a new node.
    `counts`: counters of refutations, suspicions and refusals by reason, for metrics.
    """

    def __init__(
        self,
        *,
        own: Node,
        timing: Timing,
        agenda: Agenda,
        broadcasts: Broadcasts,
        awareness: Awareness,
        rng: RandomSource,
        judge: Judge,
        on_change: Callable[[Node, Liveness | None], None],
        counts: Counter[str],
    ) -> None:
        self._timing = timing
        self._agenda = agenda
        self._broadcasts = broadcasts
        self._awareness = awareness
        self._rng = rng
        self._judge = judge
        self._on_change = on_change
        self._counts = counts
        self.own = own
        self._nodes = {own.name: own}
        self._others: list[Node] | None = None
        """All other nodes; None if the list must be recomputed."""
        self.refusals: dict[str, str] = {}
        self.leaving = False
        own.incarnation = 1
        own.liveness = Liveness.ALIVE

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def all(self) -> list[Node]:
        """Return all nodes, including this one, and dead ones until they are forgotten."""
        return list(self._nodes.values())

    def live_count(self) -> int:
        return sum(node.is_live for node in self._nodes.values())

    def sample(self, count: int, wanted: Callable[[Node], bool]) -> list[Node]:
        """Return up to `count` other nodes at random."""
        if self._others is None:
            self._others = [node for node in self._nodes.values() if node is not self.own]
        if len(self._others) > SAMPLED * count:
            # Usually most nodes are wanted, so a sample is enough. This runs several times per second, for many nodes.
            drawn = [node for node in self._rng.sample(self._others, SAMPLED * count) if wanted(node)]
            if len(drawn) >= count:
                return drawn[:count]
        found = [node for node in self._others if wanted(node)]
        return found if len(found) <= count else self._rng.sample(found, count)

    # -- messages about this member -------------------------------------------------------------------------------

    def announce(self) -> None:
        """Announce this member with its current tags."""
        own = self.own
        self._broadcasts.put(own.name, encode(_alive_of(own)))

    def retag(self, meta: bytes) -> None:
        """Change this member's tags, unless it has left: an announcement would bring it back."""
        if self.leaving or meta == self.own.meta:
            return
        self.own.meta = meta
        self.own.incarnation += 1
        self.announce()
        self._on_change(self.own, self.own.liveness)

    def depart(self) -> None:
        """Announce that this member has left; from now on it refutes nothing."""
        self.leaving = True
        self.dead(Dead(self.own.incarnation, self.own.name, self.own.name))

    def _refute(self, accused: int) -> None:
        self._counts["refutations"] += 1
        self._awareness.add(1)
        self.own.incarnation = max(self.own.incarnation, accused) + 1
        self.announce()

    # -- received messages ----------------------------------------------------------------------------------------

    def alive(self, message: Alive) -> None:
        reason = _cannot_speak(message.vsn)
        if self._jumps(message):
            self._refuse(message.node, "incarnation")
        elif reason is not None:
            self._refuse(message.node, reason)
        elif not message.node.isprintable():
            self._refuse(message.node, "name")  # the name is shown in logs and lists
        elif message.node == self.own.name:
            self._alive_myself(message)
        else:
            self._alive_other(message)

    def _alive_myself(self, message: Alive) -> None:
        own = self.own
        if self.leaving or message.incarnation < own.incarnation:
            return
        if message.address != own.address and not _same_store(message.meta, own.meta):
            # Another machine has the same name. Neither of them yields: the operator must decide.
            self._refuse(message.node, "name_conflict")
        elif (message.incarnation, message.address, message.meta, message.vsn) != (
            own.incarnation,
            own.address,
            own.meta,
            own.vsn,
        ):
            self._refute(message.incarnation)

    def _alive_other(self, message: Alive) -> None:
        node = self._nodes.get(message.node)
        if node is not None:
            moves = message.address != node.address
            if moves and not self._may_move(node, message):
                self._refuse(message.node, "name_conflict")
                return
            if message.incarnation <= node.incarnation:
                # A node that restarted with a low incarnation receives its old state and refutes it.
                return
        try:
            tags = decode_tags(message.meta)
        except ProtocolError:
            self._refuse(message.node, "malformed_tags")
            return
        reason = self._judge(message.node, tags)
        if reason is not None:
            self._refuse(message.node, reason)
            return
        before = node.liveness if node is not None else None
        if node is None:
            if len(self._nodes) >= MEMBERS_MOST:
                self._refuse(message.node, "too_many_members")
                return
            node = self._nodes[message.node] = Node(message.node, message.address, message.meta, message.vsn)
            self._others = None
        node.address, node.meta, node.vsn = message.address, message.meta, message.vsn or node.vsn
        node.incarnation = message.incarnation
        node.suspicion = None
        node.expect_end(None)
        self.refusals.pop(node.name, None)
        self._set_liveness(node, Liveness.ALIVE)
        self._broadcasts.put(node.name, encode(message))
        self._on_change(node, before)

    @staticmethod
    def _may_move(node: Node, message: Alive) -> bool:
        """Return whether a name may have a new address: its member has left, or has the same data directory."""
        return node.liveness == Liveness.LEFT or _same_store(message.meta, node.meta)

    def suspect(self, message: Suspect) -> None:
        node = self._nodes.get(message.node)
        if node is None or message.incarnation < node.incarnation:
            return
        if self._jumps(message):
            self._refuse(message.node, "incarnation")
        elif node is self.own:
            if not self.leaving:
                self._refute(message.incarnation)
        elif node.suspicion is not None:
            if node.suspicion.confirm(message.sender):
                self._await_end(node)
                self._broadcasts.put(node.name, encode(message))
        elif node.liveness == Liveness.ALIVE:
            self._begin_suspicion(node, message)

    def _begin_suspicion(self, node: Node, message: Suspect) -> None:
        self._counts["suspicions"] += 1
        self._broadcasts.put(node.name, encode(message))
        node.incarnation = message.incarnation
        self._set_liveness(node, Liveness.SUSPECT)
        # Only live members can confirm a suspicion.
        count = self.live_count()
        least_s = self._timing.suspicion_s(count)
        node.suspicion = Suspicion(
            message.sender,
            self._timing.confirmations(count),
            least_s,
            least_s * self._timing.suspicion_max_mult,
            self._agenda.now,
        )
        self._await_end(node)
        self._on_change(node, Liveness.ALIVE)

    def _await_end(self, node: Node) -> None:
        assert node.suspicion is not None
        left_s = max(0.0, node.suspicion.ends_at - self._agenda.now)
        incarnation = node.incarnation
        node.expect_end(self._agenda.after(left_s, lambda: self.dead(Dead(incarnation, node.name, self.own.name))))

    def dead(self, message: Dead) -> None:
        node = self._nodes.get(message.node)
        if node is None or message.incarnation < node.incarnation or not node.is_live:
            return
        if self._jumps(message):
            self._refuse(message.node, "incarnation")
            return
        if node is self.own and not self.leaving:
            self._refute(message.incarnation)
            return
        before = node.liveness
        node.incarnation = message.incarnation
        node.suspicion = None
        self._set_liveness(node, Liveness.LEFT if message.sender == message.node else Liveness.DEAD)
        if node is not self.own:
            node.expect_end(self._agenda.after(self._timing.dead_gossip_s, lambda: self._forget(node)))
        self._broadcasts.put(node.name, encode(message))
        self._on_change(node, before)

    def merge(self, state: NodeState) -> None:
        """Merge another member's view of a node. Its "dead" may be old, so the node is only suspected and can refute
        it."""
        if state.state == Liveness.ALIVE:
            self.alive(Alive(state.incarnation, state.name, state.address, state.meta, state.vsn))
        elif state.state == Liveness.LEFT:
            self.dead(Dead(state.incarnation, state.name, state.name))
        else:
            self.suspect(Suspect(state.incarnation, state.name, self.own.name))

    # -- private methods ------------------------------------------------------------------------------------------

    def _set_liveness(self, node: Node, liveness: Liveness) -> None:
        if node.liveness != liveness:
            node.liveness = liveness
            node.changed_at = self._agenda.now

    def _jumps(self, message: Alive | Suspect | Dead) -> bool:
        node = self._nodes.get(message.node)
        known = node.incarnation if node is not None else INCARNATION_NEW
        return message.incarnation > known + INCARNATION_JUMP

    def _forget(self, node: Node) -> None:
        if not node.is_live and self._nodes.get(node.name) is node:
            del self._nodes[node.name]
            self._others = None

    def _refuse(self, name: str, reason: str) -> None:
        self._counts[f"refused_{reason}"] += 1
        if name in self.refusals or len(self.refusals) < REFUSALS_MOST:
            self.refusals[name] = reason


def _alive_of(node: Node) -> Alive:
    return Alive(node.incarnation, node.name, node.address, node.meta, node.vsn)


def _cannot_speak(vsn: tuple[int, ...]) -> str | None:
    """Return "version" if a member's protocol versions are not compatible with this one's; None otherwise."""
    if not any(vsn):
        return None
    least, most, speaks, inner_least, inner_most, inner_speaks = vsn
    fits = (
        least <= VSN[2] <= most
        and VSN[0] <= speaks <= VSN[1]
        and inner_least <= VSN[5] <= inner_most
        and VSN[3] <= inner_speaks <= VSN[4]
    )
    return None if fits else "version"


def _same_store(one: bytes, other: bytes) -> bool:
    """Return whether two sets of tags belong to the same data directory."""
    try:
        store = decode_tags(one).get("store")
        return store is not None and store == decode_tags(other).get("store")
    except ProtocolError:
        return False


T = TypeVar("T")


class RandomSource(Protocol):
    """The source of randomness of the core."""

    def random(self) -> float: ...

    def randrange(self, stop: int, /) -> int: ...

    def choice(self, seq: Sequence[T], /) -> T: ...

    def sample(self, population: Sequence[T], /, k: int) -> list[T]: ...

    def shuffle(self, x: MutableSequence[Any], /) -> None: ...
