"""Who is alive, suspected, dead or has left, by what is heard: the state machine of SWIM with suspicion.

Each member numbers what it says of itself by its incarnation. Of two words about a member the one with the higher
incarnation counts; of equal ones "dead" before "suspect" before "alive". Only the member itself raises its incarnation,
by which it refutes what others say.
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
"""Further ones are not taken in."""

INCARNATION_JUMP: Final = 2**20
"""No member refutes so often between two words about it. Who says more is not believed: the numbers would run out."""

INCARNATION_NEW: Final = 2**31
"""Likewise of a member that is new here."""

REFUSALS_MOST: Final = 256
"""Names of which it is remembered why they are refused."""

SAMPLED: Final = 4
"""Times as many as are wanted, that are drawn first."""

Judge = Callable[[str, Mapping[str, str]], str | None]
"""Of a member's name and tags: why it may not be one, or None."""


class Standing(IntEnum):
    """As the wire numbers them."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


class Node:
    """What this member believes of another one, or says of itself. `changed_at`: of the core's clock."""

    __slots__ = ("_ending", "address", "changed_at", "incarnation", "meta", "name", "standing", "suspicion", "vsn")

    def __init__(self, name: str, address: Address, meta: bytes, vsn: tuple[int, ...]) -> None:
        self.name = name
        self.address = address
        self.meta = meta
        self.vsn = vsn
        self.incarnation = 0
        self.standing = Standing.DEAD
        self.changed_at = 0.0
        self.suspicion: Suspicion | None = None
        self._ending: Task | None = None

    @property
    def is_live(self) -> bool:
        return self.standing <= Standing.SUSPECT

    @property
    def takes_crc(self) -> bool:
        return len(self.vsn) > 1 and self.vsn[1] >= 5

    def state(self) -> NodeState:
        return NodeState(self.name, self.address, self.meta, self.incarnation, int(self.standing), self.vsn)

    def expect_end(self, task: Task | None) -> None:
        """What happens to it when nothing is heard of it; a plan before is cancelled."""
        if self._ending is not None:
            self._ending.cancel()
        self._ending = task


class Nodes:
    """`on_change(node, before)` is called after each change; `before`: its standing, None of a new one.

    `counts` gathers what is worth a metric: refutations, suspicions, and what was refused and why.
    """

    def __init__(
        self,
        *,
        own: Node,
        timing: Timing,
        agenda: Agenda,
        broadcasts: Broadcasts,
        awareness: Awareness,
        rng: Chance,
        judge: Judge,
        on_change: Callable[[Node, Standing | None], None],
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
        """All but this one; None when that has changed."""
        self.refusals: dict[str, str] = {}
        self.leaving = False
        own.incarnation = 1
        own.standing = Standing.ALIVE

    def __len__(self) -> int:
        return len(self._nodes)

    def get(self, name: str) -> Node | None:
        return self._nodes.get(name)

    def all(self) -> list[Node]:
        """This one included, and those that are dead until they are forgotten."""
        return list(self._nodes.values())

    def live_count(self) -> int:
        return sum(node.is_live for node in self._nodes.values())

    def sample(self, count: int, wanted: Callable[[Node], bool]) -> list[Node]:
        """At most so many others, drawn without preference."""
        if self._others is None:
            self._others = [node for node in self._nodes.values() if node is not self.own]
        if len(self._others) > SAMPLED * count:
            # Most are wanted, mostly: not all of a thousand are looked at, several times a second.
            drawn = [node for node in self._rng.sample(self._others, SAMPLED * count) if wanted(node)]
            if len(drawn) >= count:
                return drawn[:count]
        found = [node for node in self._others if wanted(node)]
        return found if len(found) <= count else self._rng.sample(found, count)

    # -- what is said of itself -----------------------------------------------------------------------------------

    def announce(self) -> None:
        """Say that this member is there, with what it is now."""
        own = self.own
        self._broadcasts.put(own.name, encode(_alive_of(own)))

    def retag(self, meta: bytes) -> None:
        """Nothing when this member has left: what is new of it would bring it back."""
        if self.leaving or meta == self.own.meta:
            return
        self.own.meta = meta
        self.own.incarnation += 1
        self.announce()
        self._on_change(self.own, self.own.standing)

    def depart(self) -> None:
        """Say that this member has left; from here on nothing is refuted."""
        self.leaving = True
        self.dead(Dead(self.own.incarnation, self.own.name, self.own.name))

    def _refute(self, accused: int) -> None:
        self._counts["refutations"] += 1
        self._awareness.add(1)
        self.own.incarnation = max(self.own.incarnation, accused) + 1
        self.announce()

    # -- what is heard --------------------------------------------------------------------------------------------

    def alive(self, said: Alive) -> None:
        reason = _cannot_speak(said.vsn)
        if self._jumps(said):
            self._refuse(said.node, "incarnation")
        elif reason is not None:
            self._refuse(said.node, reason)
        elif not said.node.isprintable():
            self._refuse(said.node, "name")  # people see it, in logs and where nodes are listed
        elif said.node == self.own.name:
            self._alive_myself(said)
        else:
            self._alive_other(said)

    def _alive_myself(self, said: Alive) -> None:
        own = self.own
        if self.leaving or said.incarnation < own.incarnation:
            return
        if said.address != own.address and not _same_store(said.meta, own.meta):
            # Another machine has this one's name. Neither gives way: people must decide.
            self._refuse(said.node, "name_conflict")
        elif (said.incarnation, said.address, said.meta, said.vsn) != (
            own.incarnation,
            own.address,
            own.meta,
            own.vsn,
        ):
            self._refute(said.incarnation)

    def _alive_other(self, said: Alive) -> None:
        node = self._nodes.get(said.node)
        if node is not None:
            moves = said.address != node.address
            if moves and not self._may_move(node, said):
                self._refuse(said.node, "name_conflict")
                return
            if said.incarnation <= node.incarnation:
                # Who has come back hears what is said of it, and says more then.
                return
        try:
            tags = decode_tags(said.meta)
        except ProtocolError:
            self._refuse(said.node, "malformed_tags")
            return
        reason = self._judge(said.node, tags)
        if reason is not None:
            self._refuse(said.node, reason)
            return
        before = node.standing if node is not None else None
        if node is None:
            if len(self._nodes) >= MEMBERS_MOST:
                self._refuse(said.node, "too_many_members")
                return
            node = self._nodes[said.node] = Node(said.node, said.address, said.meta, said.vsn)
            self._others = None
        node.address, node.meta, node.vsn = said.address, said.meta, said.vsn or node.vsn
        node.incarnation = said.incarnation
        node.suspicion = None
        node.expect_end(None)
        self.refusals.pop(node.name, None)
        self._stand(node, Standing.ALIVE)
        self._broadcasts.put(node.name, encode(said))
        self._on_change(node, before)

    @staticmethod
    def _may_move(node: Node, said: Alive) -> bool:
        """Whether a name may be at another address: its member has left, or is the same one."""
        return node.standing == Standing.LEFT or _same_store(said.meta, node.meta)

    def suspect(self, said: Suspect) -> None:
        node = self._nodes.get(said.node)
        if node is None or said.incarnation < node.incarnation:
            return
        if self._jumps(said):
            self._refuse(said.node, "incarnation")
        elif node is self.own:
            if not self.leaving:
                self._refute(said.incarnation)
        elif node.suspicion is not None:
            if node.suspicion.confirm(said.sender):
                self._await_end(node)
                self._broadcasts.put(node.name, encode(said))
        elif node.standing == Standing.ALIVE:
            self._begin_suspicion(node, said)

    def _begin_suspicion(self, node: Node, said: Suspect) -> None:
        self._counts["suspicions"] += 1
        self._broadcasts.put(node.name, encode(said))
        node.incarnation = said.incarnation
        self._stand(node, Standing.SUSPECT)
        # Of those that are gone nobody agrees.
        count = self.live_count()
        least_s = self._timing.suspicion_s(count)
        node.suspicion = Suspicion(
            said.sender,
            self._timing.confirmations(count),
            least_s,
            least_s * self._timing.suspicion_max_mult,
            self._agenda.now,
        )
        self._await_end(node)
        self._on_change(node, Standing.ALIVE)

    def _await_end(self, node: Node) -> None:
        assert node.suspicion is not None
        left_s = max(0.0, node.suspicion.ends_at - self._agenda.now)
        incarnation = node.incarnation
        node.expect_end(self._agenda.after(left_s, lambda: self.dead(Dead(incarnation, node.name, self.own.name))))

    def dead(self, said: Dead) -> None:
        node = self._nodes.get(said.node)
        if node is None or said.incarnation < node.incarnation or not node.is_live:
            return
        if self._jumps(said):
            self._refuse(said.node, "incarnation")
            return
        if node is self.own and not self.leaving:
            self._refute(said.incarnation)
            return
        before = node.standing
        node.incarnation = said.incarnation
        node.suspicion = None
        self._stand(node, Standing.LEFT if said.sender == said.node else Standing.DEAD)
        if node is not self.own:
            node.expect_end(self._agenda.after(self._timing.dead_gossip_s, lambda: self._forget(node)))
        self._broadcasts.put(node.name, encode(said))
        self._on_change(node, before)

    def merge(self, state: NodeState) -> None:
        """What another member believes of one. Its "dead" may be old: who is meant is suspected, and may say that it
        lives."""
        if state.state == Standing.ALIVE:
            self.alive(Alive(state.incarnation, state.name, state.address, state.meta, state.vsn))
        elif state.state == Standing.LEFT:
            self.dead(Dead(state.incarnation, state.name, state.name))
        else:
            self.suspect(Suspect(state.incarnation, state.name, self.own.name))

    # -- inner ----------------------------------------------------------------------------------------------------

    def _stand(self, node: Node, standing: Standing) -> None:
        if node.standing != standing:
            node.standing = standing
            node.changed_at = self._agenda.now

    def _jumps(self, said: Alive | Suspect | Dead) -> bool:
        node = self._nodes.get(said.node)
        known = node.incarnation if node is not None else INCARNATION_NEW
        return said.incarnation > known + INCARNATION_JUMP

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
    """Why two members cannot understand each other: the versions that each speaks and understands."""
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
    """Whether two sets of tags are of one data directory."""
    try:
        store = decode_tags(one).get("store")
        return store is not None and store == decode_tags(other).get("store")
    except ProtocolError:
        return False


T = TypeVar("T")


class Chance(Protocol):
    """What the core draws."""

    def random(self) -> float: ...

    def randrange(self, stop: int, /) -> int: ...

    def choice(self, seq: Sequence[T], /) -> T: ...

    def sample(self, population: Sequence[T], /, k: int) -> list[T]: ...

    def shuffle(self, x: MutableSequence[Any], /) -> None: ...
