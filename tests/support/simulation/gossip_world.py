"""Simulate members that gossip, in virtual time, over a network that is late, lossy or cut, also in one direction.

A seed determines the faults. The whole protocol runs, including its encoding; only the sockets are simulated."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from sandq.gossip.core import Ask, Gossip
from sandq.gossip.keyring import Keyring
from sandq.gossip.members import Record
from sandq.gossip.nodes import Liveness, Node
from sandq.gossip.packets import Packets
from sandq.gossip.tags import judge_of
from sandq.model.config_types import Address
from sandq.model.gossip_timing import PROFILES, Timing
from sandq.model.membership import State


class Keyed(Enum):
    AS_THE_WORLD = 1


class Member:
    """The gossip state machine of a member, and the stalls of its process."""

    def __init__(self, world: World, core: Gossip, address: Address, keys: Keyring | None) -> None:
        self.world = world
        self.core = core
        self.address = address
        self.keys = keys
        self.stalled_until = 0.0
        self.lost_s = 0.0
        self.waiting: list[tuple[bytes, Address]] = []
        self.planned: float | None = None

    def now(self) -> float:
        """Return the time of this member's core, which excludes the time in which it did not run."""
        # Add 1 ns, because rounding errors could make a timer appear not yet due.
        return self.world.now - self.lost_s + 1e-9

    def believes(self, name: str) -> State | None:
        record = self.core.records.get(name)
        return record.believed if record is not None else None


def _known(own: Node) -> Node:
    """Return the entry that other members have about a live member."""
    node = Node(own.name, own.address, own.meta, own.vsn)
    node.incarnation, node.liveness = own.incarnation, Liveness.ALIVE
    return node


def _listed(own: Node) -> Record:
    record = Record(own.name)
    record.address, record.meta = own.address, own.meta
    return record


class World:
    """The members and the network between them.

    `loss`: share of lost datagrams. `stream_loss`: share of streams that fail, as by a timeout. `latency_s`: maximum
    delay in seconds."""

    def __init__(
        self,
        seed: int,
        *,
        timing: Timing = PROFILES["lan"],
        loss: float = 0.0,
        stream_loss: float = 0.0,
        latency_s: float = 0.002,
        keys: Keyring | None = None,
    ) -> None:
        self.rng = random.Random(seed)
        self.timing = timing
        self.loss = loss
        self.stream_loss = stream_loss
        self.latency_s = latency_s
        self.keys = keys
        self.now = 1000.0
        self.members: dict[str, Member] = {}
        self.at: dict[Address, Member] = {}
        self.cut: Callable[[Member, Member, bool], bool] = lambda sender, receiver, stream: False
        """Function (sender, receiver, whether it is a stream) -> whether the network drops the data."""
        self.knocked: Callable[[Member, Ask], None] = lambda asker, ask: None
        """Function that is called with each stream that a member opens."""
        self.packets = 0
        self.history: list[tuple[float, str, str, State | None]] = []
        """(time, member, name, what the member believes about that name from then on)."""
        self._added = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    # -- members --------------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        tags: Mapping[str, str] | None = None,
        address: Address | None = None,
        cluster: str = "sandq",
        keys: Keyring | Keyed | None = Keyed.AS_THE_WORLD,
    ) -> Member:
        """Add a member that knows no other member."""
        keys = self.keys if keys is Keyed.AS_THE_WORLD else keys
        self._added += 1
        number = self._added
        address = address or Address(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 9900)
        rng = random.Random(self.rng.random())
        core = Gossip(
            name=name,
            address=address,
            tags=tags if tags is not None else {"cluster": cluster, "id": name, "store": f"store of {name}"},
            timing=self.timing,
            packets=Packets(keys, lambda: rng.randbytes(12)),
            judge=judge_of(cluster, lambda: None),
            rng=rng,
            now=self.now,
        )
        member = Member(self, core, address, keys)
        self.members[name] = self.at[address] = member
        self.step(member)
        return member

    def crash(self, name: str) -> Member:
        """Crash a member."""
        member = self.members.pop(name)
        del self.at[member.address]
        return member

    def join(self, name: str, seed: str) -> bool:
        """Join through a seed. Return whether the seed was reachable."""
        member, other = self.members[name], self.members[seed]
        if not self._reaches(member, other, True):
            return False
        self._compare(member, other, True)
        member.core.announce_join()
        self.step(member)
        self.step(other)
        return True

    def acquaint(self, names: Sequence[str]) -> None:
        """Let all members know each other, as after a long time."""
        # Set the final state directly: reaching it by gossip would take a million messages.
        owns = [self.members[name].core._nodes.own for name in names]
        for name in names:
            core = self.members[name].core
            for own in owns:
                if own.name != name:
                    core._nodes._nodes[own.name] = _known(own)
                    core._members.records[own.name] = _listed(own)
            core._nodes._others = None
            core._rumours._parts, core._rumours._times = {0: {}}, {}
            core.take_changed()

    def stall(self, name: str, seconds: float) -> None:
        """Stop the process of a member for a time. Then the member handles all messages that arrived meanwhile."""
        member = self.members[name]
        member.stalled_until = self.now + seconds

        def wake() -> None:
            member.lost_s += seconds
            for datagram, source in member.waiting:
                member.core.receive(member.now(), datagram, source)
            member.waiting.clear()
            self.step(member)

        self.at_time(member.stalled_until, wake)

    def leave(self, name: str) -> float:
        """Let a member leave in two steps, and wait until each step is broadcast. Return the duration in seconds."""
        member, began = self.members[name], self.now
        for step in (member.core.announce_leave, member.core.depart):
            step()
            self.step(member)
            self.run(3, lambda: not member.core.has_own_news)
        return self.now - began

    # -- time -----------------------------------------------------------------------------------------------------

    def at_time(self, when: float, do: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (when, self._count, do))

    def run(self, seconds: float, until: Callable[[], bool] | None = None) -> float:
        """Let up to `seconds` pass, until the condition holds. Return the passed time in seconds."""
        began, end = self.now, self.now + seconds
        checked = began
        while self._events and self._events[0][0] <= end:
            self.now, _, do = heapq.heappop(self._events)
            do()
            if until is not None and self.now - checked >= 0.01:
                checked = self.now
                if until():
                    return self.now - began
        self.now = end
        return seconds

    def step(self, member: Member) -> None:
        """Run a member: handle due timers and messages, send, and plan the next run."""
        if member.stalled_until > self.now or self.at.get(member.address) is not member:
            return
        core = member.core
        core.tick(member.now())
        for to, datagram in core.take_packets():
            self._carry(member, to, datagram)
        for ask in core.take_asks():
            self._answer(member, ask)
        for name in core.take_changed():
            self.history.append((self.now, core.name, name, member.believes(name)))
        next_at = core.next_at + member.lost_s
        if member.planned is None or member.planned <= self.now or next_at < member.planned:
            member.planned = next_at

            def run_step() -> None:
                if member.planned == next_at:
                    self.step(member)

            self.at_time(next_at, run_step)

    # -- network --------------------------------------------------------------------------------------------------

    def _reaches(self, sender: Member, receiver: Member, stream: bool) -> bool:
        if stream and (receiver.stalled_until > self.now or self.cut(receiver, sender, True)):
            return False
        if stream and sender.keys is not receiver.keys:
            return False
        return not self.cut(sender, receiver, stream)

    def _carry(self, sender: Member, to: Address, datagram: bytes) -> None:
        assert len(datagram) <= 1400
        self.packets += 1
        receiver = self.at.get(to)
        if receiver is None or self.rng.random() < self.loss or not self._reaches(sender, receiver, False):
            return

        def arrive() -> None:
            if self.at.get(to) is not receiver:
                return
            if receiver.stalled_until > self.now:
                receiver.waiting.append((datagram, sender.address))
                return
            receiver.core.receive(receiver.now(), datagram, sender.address)
            self.step(receiver)

        self.at_time(self.now + self.rng.random() * self.latency_s, arrive)

    def _answer(self, asker: Member, ask: Ask) -> None:
        self.knocked(asker, ask)

        def arrive() -> None:
            receiver = self.at.get(ask.address)
            if self.at.get(asker.address) is not asker or receiver is None or asker.stalled_until > self.now:
                return
            if not self._reaches(asker, receiver, True) or self.rng.random() < self.stream_loss:
                return
            if ask.ping is None:
                self._compare(asker, receiver, False)
            elif receiver.core.on_stream_ping(ask.ping) is not None:
                asker.core.on_stream_ack(asker.now(), ask.ping.seq)
            self.step(receiver)
            self.step(asker)

        self.at_time(self.now + self.rng.random() * self.latency_s, arrive)

    def _compare(self, asker: Member, receiver: Member, join: bool) -> None:
        asked, answer = asker.core.push_pull(join), receiver.core.push_pull(False)
        receiver.core.on_push_pull(receiver.now(), asked)
        asker.core.on_push_pull(asker.now(), answer)
        self.step(receiver)
        self.step(asker)

    # -- queries --------------------------------------------------------------------------------------------------

    def all_believe(self, about: str, state: State | None) -> bool:
        """Return whether all other running members have this belief about a member."""
        return all(m.believes(about) == state for name, m in self.members.items() if name != about)

    def agree(self) -> bool:
        """Return whether each running member regards exactly the running members as alive."""
        running = set(self.members)
        return all(
            {name for name, record in m.core.records.items() if record.believed == State.ALIVE} == running
            for m in self.members.values()
        )

    def believed_somewhere(self, *states: State) -> bool:
        """Return whether any member ever had one of these beliefs about any member."""
        return any(state in states for *_, state in self.history)

    def ever_believed(self, about: str, state: State) -> list[tuple[float, str]]:
        return [(when, who) for when, who, name, believed in self.history if name == about and believed == state]


def acquainted(count: int, seed: int, **options: Any) -> World:
    """Return a world of n0, n1 and so on, which know each other. `options`: arguments of the world."""
    world = World(seed, **options)
    names = [f"n{number}" for number in range(count)]
    for name in names:
        world.add(name)
    world.acquaint(names)
    return world
