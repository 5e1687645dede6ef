"""One member of a gossiping cluster, without its sockets: what arrives goes in, what is to be sent comes out.

The edge calls `receive`, `on_...` and `tick`, with the time of one clock that never goes back, and afterwards takes
`take_packets()`, `take_asks()` and `take_changed()`. Nothing here waits. What may take long is there in steps as well;
other calls may come between them.
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
from sandq.gossip.nodes import Chance, Judge, Node, Nodes, Standing
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
"""Attempts to reach one that failed, of all its cluster together, in an interval."""
ASKS_MOST: Final = 64
"""Streams to be opened that wait for the edge; further ones are left out, as each is tried again later anyway."""
OPENED_BYTES: Final = 1024
"""Of a datagram, opened with one unit of work."""
STATES_AT_ONCE: Final = 128
"""Nodes of which is said in a step what is believed of them ..."""
STATES_WORK: Final = 64
"""... and the units of work of that."""
MESSAGE_WORK: Final = 4
"""Units of work for what is said of a member ..."""
CHANGE_WORK: Final = 32
"""... and when it changes what is believed of it, and is published and logged."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A stream that the edge is to open. `ping`: None to compare all that is known, else the ping to send."""

    address: Address
    name: str
    ping: Ping | None


class Gossip:
    """`on_round_trip(seconds)` is called with each probe that was answered. `counts`: what happened how often."""

    def __init__(
        self,
        *,
        name: str,
        address: Address,
        tags: Mapping[str, str],
        timing: Timing,
        packets: Packets,
        judge: Judge,
        rng: Chance,
        now: float,
        on_round_trip: Callable[[float], None] = lambda _: None,
    ) -> None:
        """`address`: where others reach it. Raises TooLarge for tags that do not fit."""
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

    # -- what the edge asks ---------------------------------------------------------------------------------------

    @property
    def records(self) -> Mapping[str, Record]:
        """Name -> member, this one included."""
        return self._members.records

    @property
    def next_at(self) -> float:
        """When `tick` has something to do."""
        at = self._agenda.next_at
        assert at is not None  # gossip always goes on
        return at

    @property
    def refusals(self) -> Mapping[str, str]:
        """Name -> why what was last said of it is not believed."""
        return self._nodes.refusals

    @property
    def has_own_news(self) -> bool:
        """Whether something that this member says of itself is left to be handed on."""
        return self.name in self._rumours or self.name in self._intents

    def take_packets(self) -> Sequence[tuple[Address, bytes]]:
        """Datagrams to send: to whom, and what."""
        packets, self._packets = self._packets, []
        return packets

    def take_asks(self) -> Sequence[Ask]:
        """Streams to open."""
        asks, self._asks = self._asks, []
        return asks

    def take_changed(self) -> set[str]:
        """Names of the members that are not as they were, or are gone."""
        changed = set(self._changed)
        self._changed.clear()
        return changed

    # -- what the edge does ---------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Do what is due."""
        self._agenda.run(now)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Raises TooLarge, and nothing has changed."""
        self._nodes.retag(encode_tags(tags))

    def use_packets(self, packets: Packets) -> None:
        """Datagrams are sealed and opened by these from now on."""
        self._codec = packets

    def announce_join(self) -> None:
        """After a seed has answered."""
        self._members.announce_join()

    def announce_leave(self) -> None:
        """First of two steps: what this member means to do. When it is handed on: `depart`."""
        self._members.announce_leave()

    def depart(self) -> None:
        """From here on this member refutes nothing and probes nobody."""
        self._nodes.depart()

    # -- datagrams ------------------------------------------------------------------------------------------------

    def receive(self, now: float, datagram: bytes, source: Address) -> None:
        """What came. Nothing in it can raise: what is wrong is counted.

        Where much has come, give it in before `tick`: an answer that lies here must not be taken for a missing one.
        """
        at_once(self.receiving(now, datagram, source))

    def receiving(self, now: float, datagram: bytes, source: Address) -> Steps[None]:
        """Do the same in steps."""
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
        """Of one message, before which so many members had changed."""
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
            word = decode_serf(body)
        except ProtocolError:
            self.counts["malformed"] += 1
            return
        if isinstance(word, JoinIntent | LeaveIntent):
            self._members.heard(word)
        else:
            self.counts["not_spoken"] += 1

    def _send(self, to: Address, messages: list[Message], crc: bool) -> None:
        """With what there is to hand on, as far as it fits."""
        parts = [encode(message) for message in messages]
        self._pack(to, parts, crc)

    def _pack(self, to: Address, parts: list[bytes], crc: bool) -> None:
        room = PACKET_BYTES - self._codec.overhead(crc) - COMPOUND_BYTES - sum(len(part) + PART_BYTES for part in parts)
        transmits = self._timing.transmits(len(self._nodes))
        for queue in (self._rumours, self._intents):
            taken = queue.take(room, transmits)
            room -= sum(len(part) + PART_BYTES for part in taken)
            parts += taken
        if parts:
            self._packets.append((to, self._codec.seal(parts, crc=crc)))

    # -- streams --------------------------------------------------------------------------------------------------

    def push_pull(self, join: bool) -> PushPull:
        """All that this member knows."""
        return at_once(self.telling(join))

    def telling(self, join: bool) -> Steps[PushPull]:
        """Say the same in steps. What happens between them may be in it or not, as if it had been said later."""
        states = []
        for node in self._nodes.all():
            states.append(node.state())
            if not len(states) % STATES_AT_ONCE:
                yield STATES_WORK
        intents = yield from self._members.telling()
        return PushPull(join, states, (yield from encoding_serf(intents)))

    def on_push_pull(self, now: float, theirs: PushPull) -> None:
        """What another one knows. Raises ProtocolError, and nothing has changed."""
        at_once(self.merging(now, theirs))

    def merging(self, now: float, theirs: PushPull) -> Steps[None]:
        """Do the same in steps."""
        self._agenda.advance(now)
        word = (yield from decoding_serf(theirs.user)) if theirs.user else None
        for state in theirs.nodes:
            before = len(self._changed)
            self._nodes.merge(state)
            yield self._work(before)
        if isinstance(word, SerfState):
            yield from self._members.merging(word)

    def on_stream_ping(self, ping: Ping) -> Ack | None:
        """The answer to a ping that came over a stream; None when it is meant for somebody else."""
        return Ack(ping.seq, b"") if ping.node in ("", self.name) else None

    def on_stream_ack(self, now: float, seq: int) -> None:
        """A member that this one asked over a stream has answered."""
        self._agenda.advance(now)
        self.counts["acks_by_stream"] += 1
        self._prober.on_ack(seq)

    # -- rounds ---------------------------------------------------------------------------------------------------

    def _on_node(self, node: Node, before: Standing | None) -> None:
        if before is None and node is not self._nodes.own:
            self._prober.welcome(node.name)
        self._members.on_node(node, before)

    def _gossip(self) -> None:
        self._agenda.after(self._timing.gossip_interval_s, self._gossip)
        if not self._rumours and not self._intents:
            return
        for node in self._nodes.sample(self._timing.gossip_fanout, lambda node: node.standing != Standing.LEFT):
            self._pack(node.address, [], node.takes_crc)

    def _compare(self) -> None:
        self._agenda.after(self._timing.push_pull_s(len(self._nodes)), self._compare)
        for node in self._nodes.sample(1, lambda node: node.standing == Standing.ALIVE):
            self._ask(Ask(node.address, node.name, None))

    def _reconnect(self) -> None:
        """Members that failed may be back, behind a network that is whole again: nobody else would ever find out."""
        self._agenda.after(self._timing.reconnect_interval_s, self._reconnect)
        failed = [record for record in self.records.values() if record.state == State.FAILED]
        # A thousand members do not all knock at the one that is back.
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
