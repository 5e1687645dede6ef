"""One member of a gossiping cluster, without sockets: received data goes in, data to send comes out.

The caller (the edge) calls `receive`, `on_...` and `tick` with the time of one monotonic clock, and afterwards takes
`take_packets()`, `take_asks()` and `take_changed()`. Nothing here waits. Expensive operations are also available in
steps; other calls may come between the steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sandq.gossip.agenda import Agenda
from sandq.gossip.broadcasts import Broadcasts
from sandq.gossip.members import Members, Record
from sandq.gossip.messages import VSN, Ack, Alive, Dead, IndirectPing, Message, Nack, Ping, Suspect, User, encode
from sandq.gossip.nodes import Judge, Liveness, Node, Nodes, RandomSource
from sandq.gossip.packets import COMPOUND_BYTES, PACKET_BYTES, PART_BYTES, Packets
from sandq.gossip.probing import Prober
from sandq.gossip.serf_messages import (
    JoinIntent,
    LeaveIntent,
    SerfState,
    decode_serf,
    decoding_serf,
    encode_tags,
    encoding_serf,
)
from sandq.gossip.steps import Steps, at_once
from sandq.gossip.streams import PushPull
from sandq.gossip.suspicion import Awareness
from sandq.model.config_schema import Address
from sandq.model.errors import ProtocolError
from sandq.model.gossip_timing import Timing
from sandq.model.membership import State

RECONNECTS: Final = 3
"""Attempts per interval to reach a failed member, of the whole cluster together."""
ASKS_MOST: Final = 64
"""Maximum number of requested streams; further ones are dropped, because each is requested again later anyway."""
OPENED_BYTES: Final = 1024
"""Bytes of a datagram that count as one unit of work to decrypt and decode."""
STATES_AT_ONCE: Final = 128
"""Number of node states that are collected in one step."""
STATES_WORK: Final = 64
"""Units of work of such a step."""
MESSAGE_WORK: Final = 4
"""Units of work to process one message about a member."""
CHANGE_WORK: Final = 32
"""Additional units of work if the message changes the member's state, which is then published and logged."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A stream that the edge should open. `ping`: the ping to send; None to exchange the complete states."""

    address: Address
    name: str
    ping: Ping | None


class Gossip:
    """The gossip state machine of this member.

    `on_round_trip(seconds)` is called for each answered probe. `counts`: event counters for metrics.
    """

    def __init__(
        self,
        *,
        name: str,
        address: Address,
        tags: Mapping[str, str],
        timing: Timing,
        packets: Packets,
        judge: Judge,
        rng: RandomSource,
        now: float,
        on_round_trip: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`address`: the address at which other members reach this member. Raises TooLarge for tags that do not fit."""
        self.name = name
        self.counts: Counter[str] = Counter()
        self.awareness = Awareness()
        self._timing = timing
        self._rng = rng
        self.use_packets(packets)
        self._agenda = Agenda(now)
        self._rumours = Broadcasts()
        self._intents = Broadcasts()
        self._packets: list[tuple[Address, bytes]] = []
        self._asks: list[Ask] = []
        self._changed: set[str] = {name}
        self._members = Members(name, timing, self._agenda, self._intents, self._changed.add, self.counts)
        own = Node(name, address, encode_tags(tags), VSN)
        self._nodes = Nodes(
            own=own,
            timing=timing,
            agenda=self._agenda,
            broadcasts=self._rumours,
            awareness=self.awareness,
            rng=rng,
            judge=judge,
            on_change=self._on_node,
            counts=self.counts,
        )
        self._prober = Prober(
            nodes=self._nodes,
            timing=timing,
            agenda=self._agenda,
            awareness=self.awareness,
            rng=rng,
            send=self._send,
            ask_by_stream=self._ask_by_stream,
            on_round_trip=on_round_trip,
            counts=self.counts,
        )
        self._members.on_node(own, None)
        self._nodes.announce()
        self._agenda.after(rng.random() * timing.gossip_interval_s, self._gossip)
        self._agenda.after(rng.random() * timing.push_pull_interval_s, self._compare)
        self._agenda.after(rng.random() * timing.reconnect_interval_s, self._reconnect)

    # -- queries of the edge --------------------------------------------------------------------------------------

    @property
    def records(self) -> Mapping[str, Record]:
        """Members by name, including this one."""
        return self._members.records

    @property
    def next_at(self) -> float:
        """The next instant at which `tick` has something to do."""
        at = self._agenda.next_at
        assert at is not None  # the gossip round is always planned
        return at

    @property
    def refusals(self) -> Mapping[str, str]:
        """Member names, with the reason why the last message about each was refused."""
        return self._nodes.refusals

    @property
    def has_own_news(self) -> bool:
        """True if messages that this member sent about itself still have to be passed on."""
        return self.name in self._rumours or self.name in self._intents

    def take_packets(self) -> Sequence[tuple[Address, bytes]]:
        """Return the datagrams to send, with their destinations."""
        packets, self._packets = self._packets, []
        return packets

    def take_asks(self) -> Sequence[Ask]:
        """Return the streams to open."""
        asks, self._asks = self._asks, []
        return asks

    def take_changed(self) -> set[str]:
        """Return the names of members that have changed or are gone."""
        changed = set(self._changed)
        self._changed.clear()
        return changed

    # -- calls of the owner ---------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Run the due tasks."""
        self._agenda.run(now)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Change this member's tags. Raises TooLarge without changing anything."""
        self._nodes.retag(encode_tags(tags))

    def use_packets(self, packets: Packets) -> None:
        """Encode and decode datagrams with `packets` from now on."""
        self._codec = packets

    def announce_join(self) -> None:
        """Announce that this member has joined. Call it after a seed has answered."""
        self._members.announce_join()

    def announce_leave(self) -> None:
        """Announce that this member will leave: the first of two steps. Once this was passed on, call `depart`."""
        self._members.announce_leave()

    def depart(self) -> None:
        """Leave: from now on this member refutes nothing and probes no other members."""
        self._nodes.depart()

    # -- datagrams ------------------------------------------------------------------------------------------------

    def receive(self, now: float, datagram: bytes, source: Address) -> None:
        """Process a datagram. Raises nothing: invalid data is only counted.

        If several datagrams have arrived, process all of them before `tick`, so that an ack that was received does not
        count as missing.
        """
        at_once(self.receiving(now, datagram, source))

    def receiving(self, now: float, datagram: bytes, source: Address) -> Steps[None]:
        """Like `receive`, in steps."""
        self._agenda.advance(now)
        yield 1 + len(datagram) // OPENED_BYTES
        try:
            opened = yield from self._codec.opening(datagram)
        except ProtocolError:
            self.counts["malformed"] += 1
            return
        self.counts["malformed"] += opened.malformed
        for message in opened.messages:
            before = len(self._changed)
            self._take(message, source)
            yield self._work(before)

    def _work(self, changed: int) -> int:
        """Return the work of one message. `changed`: number of changed members before it."""
        return MESSAGE_WORK + CHANGE_WORK * max(0, len(self._changed) - changed)

    def _take(self, message: Message, source: Address) -> None:
        match message:
            case Ping():
                self._prober.on_ping(message, source)
            case Ack():
                self._prober.on_ack(message.seq)
            case Alive():
                self._nodes.alive(message)
            case Suspect():
                self._nodes.suspect(message)
            case Dead():
                self._nodes.dead(message)
            case IndirectPing():
                self._prober.on_indirect_ping(message, source)
            case Nack():
                self._prober.on_nack(message.seq)
            case User():
                self._take_user(message.body)
            case _:
                self.counts["malformed"] += 1

    def _take_user(self, body: bytes) -> None:
        try:
            message = decode_serf(body)
        except ProtocolError:
            self.counts["malformed"] += 1
            return
        if isinstance(message, JoinIntent | LeaveIntent):
            self._members.on_intent(message)
        else:
            self.counts["not_spoken"] += 1

    def _send(self, to: Address, messages: list[Message], crc: bool) -> None:
        """Send messages in one datagram, with as many broadcasts as fit."""
        parts = [encode(message) for message in messages]
        self._pack(to, parts, crc)

    def _pack(self, to: Address, parts: list[bytes], crc: bool) -> None:
        free_bytes = PACKET_BYTES - self._codec.overhead(crc) - COMPOUND_BYTES
        free_bytes -= sum(len(part) + PART_BYTES for part in parts)
        transmits = self._timing.transmits(len(self._nodes))
        for queue in (self._rumours, self._intents):
            taken = queue.take(free_bytes, transmits)
            free_bytes -= sum(len(part) + PART_BYTES for part in taken)
            parts += taken
        if parts:
            self._packets.append((to, self._codec.seal(parts, crc=crc)))

    # -- streams --------------------------------------------------------------------------------------------------

    def push_pull(self, join: bool) -> PushPull:
        """Return the complete state of this member."""
        return at_once(self.building_push_pull(join))

    def building_push_pull(self, join: bool) -> Steps[PushPull]:
        """Like `push_pull`, in steps. Changes between the steps may be included or not; both are correct."""
        states = []
        for node in self._nodes.all():
            states.append(node.state())
            if not len(states) % STATES_AT_ONCE:
                yield STATES_WORK
        intents = yield from self._members.building_state()
        return PushPull(join, states, (yield from encoding_serf(intents)))

    def on_push_pull(self, now: float, theirs: PushPull) -> None:
        """Merge the complete state of another member. Raises ProtocolError without changing anything."""
        at_once(self.merging(now, theirs))

    def merging(self, now: float, theirs: PushPull) -> Steps[None]:
        """Like `on_push_pull`, in steps."""
        self._agenda.advance(now)
        state_of_serf = (yield from decoding_serf(theirs.user)) if theirs.user else None
        for state in theirs.nodes:
            before = len(self._changed)
            self._nodes.merge(state)
            yield self._work(before)
        if isinstance(state_of_serf, SerfState):
            yield from self._members.merging(state_of_serf)

    def on_stream_ping(self, ping: Ping) -> Ack | None:
        """Return the answer to a ping that came over a stream; None if it is for another member."""
        return Ack(ping.seq, b"") if ping.node in ("", self.name) else None

    def on_stream_ack(self, now: float, seq: int) -> None:
        """Record the ack of a member that was pinged over a stream."""
        self._agenda.advance(now)
        self.counts["acks_by_stream"] += 1
        self._prober.on_ack(seq)

    # -- periodic tasks -------------------------------------------------------------------------------------------

    def _on_node(self, node: Node, before: Liveness | None) -> None:
        if before is None and node is not self._nodes.own:
            self._prober.welcome(node.name)
        self._members.on_node(node, before)

    def _gossip(self) -> None:
        self._agenda.after(self._timing.gossip_interval_s, self._gossip)
        if not self._rumours and not self._intents:
            return
        for node in self._nodes.sample(self._timing.gossip_fanout, lambda node: node.liveness != Liveness.LEFT):
            self._pack(node.address, [], node.takes_crc)

    def _compare(self) -> None:
        self._agenda.after(self._timing.push_pull_s(len(self._nodes)), self._compare)
        for node in self._nodes.sample(1, lambda node: node.liveness == Liveness.ALIVE):
            self._ask(Ask(node.address, node.name, None))

    def _reconnect(self) -> None:
        """Try to reach failed members: after a network partition heals, they would otherwise stay failed forever."""
        self._agenda.after(self._timing.reconnect_interval_s, self._reconnect)
        failed = [record for record in self.records.values() if record.state == State.FAILED]
        # Try at random, so that not all of a thousand members connect to the member that is back.
        share = RECONNECTS * len(failed) / self._nodes.live_count() if failed else 0.0
        if not self._nodes.leaving and self._rng.random() < share:
            record = self._rng.choice(failed)
            self._ask(Ask(record.address, record.name, None))

    def _ask_by_stream(self, node: Node, seq: int) -> None:
        own = self._nodes.own
        self._ask(Ask(node.address, node.name, Ping(seq, node.name, own.address, own.name)))

    def _ask(self, ask: Ask) -> None:
        if len(self._asks) < ASKS_MOST:
            self._asks.append(ask)
        else:
            self.counts["asks_left_out"] += 1
