"""Probe one member after the other, and probe on behalf of others.

A probe begins with a ping. If no ack comes within the probe timeout, a few other members are asked to ping the target,
too, and it is pinged over a stream, in case only datagrams are lost. Without an ack at the end of the interval, the
target is suspected. Helpers that cannot reach it either send a nack. A member that gets neither acks nor nacks begins
to doubt its own health.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final

from sandq.gossip.agenda import Agenda, Task
from sandq.gossip.messages import Ack, IndirectPing, Message, Nack, Ping, Suspect
from sandq.gossip.nodes import Liveness, Node, Nodes, RandomSource
from sandq.gossip.suspicion import Awareness
from sandq.model.config_schema import Address
from sandq.model.gossip_timing import Timing

RELAYS_MOST: Final = 1024
"""Maximum number of concurrent pings on behalf of others; further requests get a nack at once."""
RELAY_SHARE: Final = 0.8
"""A helper waits for this share of the rest of the requester's interval: a nack after the interval is useless."""
_SEQ_MOST: Final = 2**32

Send = Callable[[Address, list[Message], bool], None]
"""Sends messages: (to, messages, with a checksum)."""


class _Probe:
    __slots__ = ("acked", "began", "expected_nacks", "incarnation", "nacks", "node")

    def __init__(self, node: Node, began: float) -> None:
        self.node = node
        self.incarnation = node.incarnation
        self.began = began
        self.acked = False
        self.nacks = 0
        self.expected_nacks = 0


class _Relay:
    __slots__ = ("ending", "requester", "seq")

    def __init__(self, requester: Address, seq: int, ending: Task) -> None:
        self.requester = requester
        self.seq = seq
        self.ending = ending


class Prober:
    """Probes members.

    `ask_by_stream(node, seq)` must ping a node over a stream, and call `on_ack(seq)` if it answers.
    `on_round_trip(seconds)` is called for each answered probe.
    """

    def __init__(
        self,
        *,
        nodes: Nodes,
        timing: Timing,
        agenda: Agenda,
        awareness: Awareness,
        rng: RandomSource,
        send: Send,
        ask_by_stream: Callable[[Node, int], None],
        on_round_trip: Callable[[float], None],
        counts: Counter[str],
    ) -> None:
        self._nodes = nodes
        self._timing = timing
        self._agenda = agenda
        self._awareness = awareness
        self._rng = rng
        self._send = send
        self._ask_by_stream = ask_by_stream
        self._on_round_trip = on_round_trip
        self._counts = counts
        self._order: list[str] = []
        self._seq = rng.randrange(_SEQ_MOST)
        self._probe: _Probe | None = None
        self._probe_seq = 0
        self._relays: dict[int, _Relay] = {}
        # Random, so that members that start together do not probe at the same times.
        agenda.after(rng.random() * timing.probe_interval_s, self._round)

    def welcome(self, name: str) -> None:
        """Add a new member at a random position of the current order, so that it is not probed last."""
        if len(self._order) > 2 * len(self._nodes):
            # The order contains many names of members that are gone.
            self._order = [name for name in self._order if self._nodes.get(name) is not None]
        self._order.insert(self._rng.randrange(len(self._order) + 1), name)

    # -- probing --------------------------------------------------------------------------------------------------

    def _round(self) -> None:
        # A member that doubts its own health waits longer for acks; its rounds are skipped meanwhile.
        node = self._next() if self._probe is None else None
        if node is not None and not self._nodes.leaving:
            self._begin(node)
        # Plan the next round after the end of this probe, which is due at the same instant. So the probe ends first,
        # and a failed probe costs one round, not two.
        self._agenda.after(self._timing.probe_interval_s, self._round)

    def _next(self) -> Node | None:
        for _ in range(2):
            while self._order:
                node = self._nodes.get(self._order.pop())
                if node is not None and node.is_live and node is not self._nodes.own:
                    return node
            self._order = [node.name for node in self._nodes.all()]
            self._rng.shuffle(self._order)
        return None

    def _begin(self, node: Node) -> None:
        self._probe = probe = _Probe(node, self._agenda.now)
        self._probe_seq = seq = self._next_seq()
        own = self._nodes.own
        messages: list[Message] = [Ping(seq, node.name, own.address, own.name)]
        if node.liveness == Liveness.SUSPECT:
            # The target learns from the first packet that it is suspected, and can refute it.
            messages.append(Suspect(node.incarnation, node.name, own.name))
        self._count("probes")
        self._send(node.address, messages, node.takes_crc)
        self._agenda.after(self._timing.probe_timeout_s, lambda: self._ask_others(probe, seq))
        self._agenda.after(self._awareness.scaled(self._timing.probe_interval_s), lambda: self._end(probe))

    def _ask_others(self, probe: _Probe, seq: int) -> None:
        if probe.acked or self._probe is not probe:
            return
        own, node = self._nodes.own, probe.node
        helpers = self._nodes.sample(
            self._timing.indirect_checks, lambda n: n.liveness == Liveness.ALIVE and n is not node
        )
        probe.expected_nacks = len(helpers)
        for helper in helpers:
            asked = IndirectPing(seq, node.address, node.name, True, own.address, own.name)
            self._send(helper.address, [asked], helper.takes_crc)
        self._ask_by_stream(node, seq)

    def _end(self, probe: _Probe) -> None:
        if self._probe is probe:
            self._probe = None
            if not probe.acked:
                self._failed(probe)

    def _failed(self, probe: _Probe) -> None:
        self._count("probes_failed")
        if probe.expected_nacks:
            self._awareness.add(max(0, probe.expected_nacks - probe.nacks))
        else:
            self._awareness.add(1)
        # Use the incarnation at the beginning of the probe: if the node has raised it meanwhile, it is alive.
        self._nodes.suspect(Suspect(probe.incarnation, probe.node.name, self._nodes.own.name))

    def on_ack(self, seq: int) -> None:
        relay = self._relays.pop(seq, None)
        if relay is not None:
            relay.ending.cancel()
            self._send(relay.requester, [Ack(relay.seq, b"")], False)
        elif self._probe is not None and seq == self._probe_seq and not self._probe.acked:
            self._probe.acked = True
            self._awareness.add(-1)
            self._on_round_trip(self._agenda.now - self._probe.began)
            self._probe = None
        else:
            self._count("late_acks")

    def on_nack(self, seq: int) -> None:
        if self._probe is not None and seq == self._probe_seq:
            self._probe.nacks += 1

    # -- for others -----------------------------------------------------------------------------------------------

    def on_ping(self, ping: Ping, packet_from: Address) -> None:
        if ping.node not in ("", self._nodes.own.name):
            # Meant for a member that had this address before.
            self._count("pings_for_others")
            return
        self._send(self._answer_to(ping, packet_from), [Ack(ping.seq, b"")], False)

    def on_indirect_ping(self, asked: IndirectPing, packet_from: Address) -> None:
        requester = self._answer_to(asked, packet_from)
        target = self._nodes.get(asked.node)
        if len(self._relays) >= RELAYS_MOST or target is None or target.address != asked.target:
            # Forged packets must not make this member send packets to arbitrary addresses.
            self._count("relays_refused")
            if asked.nack:
                self._send(requester, [Nack(asked.seq)], False)
            return
        seq = self._next_seq()
        left_s = RELAY_SHARE * (self._timing.probe_interval_s - self._timing.probe_timeout_s)
        ending = self._agenda.after(min(self._timing.probe_timeout_s, left_s), lambda: self._end_relay(seq, asked.nack))
        self._relays[seq] = _Relay(requester, asked.seq, ending)
        own = self._nodes.own
        self._send(target.address, [Ping(seq, asked.node, own.address, own.name)], target.takes_crc)

    def _end_relay(self, seq: int, nack: bool) -> None:
        relay = self._relays.pop(seq, None)
        if relay is not None and nack:
            self._send(relay.requester, [Nack(relay.seq)], False)

    def _answer_to(self, asked: Ping | IndirectPing, packet_from: Address) -> Address:
        """Return the ping's `source` if that member is known at this address; otherwise `packet_from`."""
        named = asked.source
        if named is None or named == packet_from:
            return packet_from
        asker = self._nodes.get(asked.source_node)
        return named if asker is not None and asker.address == named else packet_from

    # -- private methods ------------------------------------------------------------------------------------------

    def _next_seq(self) -> int:
        self._seq = (self._seq + 1) % _SEQ_MOST
        return self._seq

    def _count(self, event: str) -> None:
        self._counts[event] += 1
