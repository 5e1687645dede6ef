"""The native backend: a member that speaks the protocols of memberlist and Serf over UDP and TCP."""

from __future__ import annotations

import contextlib
import math
import random
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

import trio

from sandq.broker.event_loop import SHARED_WORK
from sandq.broker.peers.peer_slots import Slot
from sandq.gossip.core import Ask, Gossip
from sandq.gossip.keyring import NONCE_BYTES, Keyring
from sandq.gossip.messages import Ping
from sandq.gossip.nodes import Judge
from sandq.gossip.packets import Packets
from sandq.gossip.streams import PushPull, Streams
from sandq.membership.awake_clock import AwakeClock
from sandq.membership.datagrams import Datagrams, open_both
from sandq.membership.exchange import ask as ask_over_stream
from sandq.membership.exchange import receive
from sandq.membership.intake import Intake
from sandq.membership.roster import Roster, RosterChanges
from sandq.model.config_schema import Address
from sandq.model.errors import SandqError, Unavailable
from sandq.model.gossip_timing import Timing
from sandq.model.logger import get_logger
from sandq.model.membership import Member, State
from sandq.model.sources import source_of

RECEIVE_MOST = 1000
"""Maximum number of datagrams that are processed before the due tasks run."""
RECEIVE_WORK = 64 * SHARED_WORK
"""Maximum work of these datagrams; after each `SHARED_WORK` of it the loop runs other tasks."""
LEAVE_S = 3.0
"""Each of the two steps of a leave waits at most this time until its message was passed on, in seconds."""
LEAVE_CHECK_S = 0.02
SEEDS_MOST = 32
"""Maximum number of seeds that are asked at once; further ones are ignored."""
SEED_PAUSE_S = 1.0
"""First pause between two attempts to reach the seeds, in seconds. The pause doubles with each attempt."""
SEED_PAUSE_MOST_S = 15.0
"""Longest pause between two attempts to reach the seeds, in seconds. There is no limit on attempts."""
SEED_AGAIN_S = 120.0
"""Time in seconds after which a seed that has answered, but is not listed as a member, is asked again.

Its address may stand for several members, or lead through a router. If there are no other members, it is asked sooner.
"""
REMEMBER_PAUSE_S = 1.0
"""Minimum time between two writes of the members' addresses for the next start, in seconds."""

log = get_logger("sandq.gossip")


class GossipMembership:
    """See `membership.Membership`. `advertised`: the address for other members; port 0: the port that it listens on.

    `seeds` are asked until they are live members here. While there are no live members at all, `known` (members of
    earlier runs) are asked, too.
    """

    def __init__(
        self,
        *,
        name: str,
        listen: Address,
        advertised: Address,
        tags: Mapping[str, str],
        timing: Timing,
        keyring: Keyring | None,
        seals: bool = True,
        takes_plain: bool = False,
        judge: Judge,
        seeds: Sequence[Address] = (),
        known: Collection[Address] = (),
        remember: Callable[[Collection[Address]], Awaitable[None]] | None = None,
        now_ms: Callable[[], int],
        on_round_trip: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.name = name
        self._listen = listen
        self._advertised = advertised
        self._tags = dict(tags)
        self._timing = timing
        self._judge = judge
        self._seeds = list(seeds)
        self._known = list(known)
        self._remember = remember
        self._now_ms = now_ms
        self._on_round_trip = on_round_trip
        self._roster = Roster()
        self._clock = AwakeClock(trio.current_time)
        self._core: Gossip | None = None
        self._datagrams: Datagrams | None = None
        self._nursery: trio.Nursery | None = None
        self._leaving = False
        self._sources: dict[str, str] = {}
        """Names of members, with the source of their address."""
        self._intake = Intake(self._sources.values, self._flush)
        self._logged: set[tuple[str, str]] = set()
        self._met: dict[Address, float] = {}
        """Seeds, with the time of their last answer."""
        self.traffic: Counter[str] = Counter()
        """Counters of datagrams and streams in both directions, and of their failures."""
        self._modes = {"seals": seals, "takes_plain": takes_plain}
        self._packets = Packets(keyring, _nonce, **self._modes)
        self._streams = Streams(keyring, _nonce, **self._modes)

    # -- Membership -----------------------------------------------------------------------------------------------

    def members(self) -> Mapping[str, Member]:
        return self._roster.members()

    def changes(self) -> RosterChanges:
        return self._roster.changes()

    async def join(self, seeds: Sequence[Address]) -> int:
        core = self._running
        failures = []

        async def join_one(seed: Address) -> None:
            try:
                await self._join(seed)
            except SandqError as error:
                failures.append(f"{seed}: {error.message}")

        async with trio.open_nursery() as nursery:
            for seed in seeds[:SEEDS_MOST]:
                nursery.start_soon(join_one, seed)
        answered = min(len(seeds), SEEDS_MOST) - len(failures)
        if not answered:
            raise Unavailable("no seed answered: " + "; ".join(sorted(failures)))
        core.announce_join()
        self._flush()
        return answered

    async def set_tags(self, tags: Mapping[str, str]) -> None:
        self._running.set_tags(tags)
        self._tags = dict(tags)
        self._flush()

    def use_keys(self, keyring: Keyring) -> None:
        """Use these keys from now on."""
        self._packets = Packets(keyring, _nonce, **self._modes)
        self._streams = Streams(keyring, _nonce, **self._modes)
        if self._core is not None:
            self._core.use_packets(self._packets)

    async def leave(self) -> None:
        core = self._running
        self._leaving = True
        for step in (core.announce_leave, core.depart):
            step()
            self._flush()
            with trio.move_on_after(LEAVE_S):
                while core.has_own_news and self._others:  # noqa: ASYNC110 - no signal says when
                    await trio.sleep(LEAVE_CHECK_S)

    # -- running --------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: trio.TaskStatus[Address] = trio.TASK_STATUS_IGNORED) -> None:
        """Be a member until cancelled; ready once it listens, with its address for others. Raises StartupError."""
        datagrams, listeners = await open_both(self._listen)
        try:
            host = self._advertised.host
            own = Address(await _ip_of(host), self._advertised.port or datagrams.address.port)
            self._datagrams = datagrams
            self._core = Gossip(
                name=self.name,
                address=own,
                tags=self._tags,
                timing=self._timing,
                packets=self._packets,
                judge=self._judge,
                rng=random.Random(secrets.randbits(64)),
                now=self._clock.now(),
                on_round_trip=self._on_round_trip,
            )
            async with trio.open_nursery() as nursery:
                self._nursery = nursery
                self._flush()
                nursery.start_soon(self._process)
                nursery.start_soon(trio.serve_listeners, self._serve, listeners)
                nursery.start_soon(self._seek)
                nursery.start_soon(self._note_others)
                task_status.started(own)
        finally:
            self._nursery = None
            datagrams.close()
            for listener in listeners:
                await trio.aclose_forcefully(listener)

    @property
    def _running(self) -> Gossip:
        if self._core is None or self._nursery is None:
            raise Unavailable("gossip does not run")
        return self._core

    @property
    def _others(self) -> bool:
        return any(m.state in (State.ALIVE, State.SUSPECT) for m in self.members().values() if m.name != self.name)

    @property
    def counts(self) -> Mapping[str, int]:
        """Event counters: see `core.Gossip.counts`."""
        return self._core.counts if self._core is not None else {}

    @property
    def awareness(self) -> int:
        """The score of this member's awareness; 0 is healthy."""
        return self._core.awareness.score if self._core is not None else 0

    async def _process(self) -> None:
        """Process received datagrams, run due tasks and send, in a loop."""
        core, datagrams = self._running, self._datagrams
        assert datagrams is not None
        while True:
            with trio.move_on_at(self._clock.plan(core.next_at)):
                await datagrams.readable()
            now = await self._take_in(core, datagrams)
            core.tick(now)
            self._flush()

    async def _take_in(self, core: Gossip, datagrams: Datagrams) -> float:
        """Process the received datagrams. Return the time on the core's clock up to which they are processed.

        Each iteration of the loop does a bounded part of the work. But this task does not queue for a time slice as
        others do, because probes must be answered in time.
        """
        now = self._clock.now()
        self.traffic["stalls"] = self._clock.stalls
        done = 0
        pause_at = SHARED_WORK
        for _ in range(RECEIVE_MOST):
            arrived = datagrams.receive() if done < RECEIVE_WORK else None
            if arrived is None:
                break
            self.traffic["datagrams_in"] += 1
            for work in core.receiving(now, *arrived):
                done += work
                if done >= pause_at:
                    self._flush()
                    await trio.lowlevel.checkpoint()
                    now = self._clock.now()
                    pause_at = done + SHARED_WORK
        return now

    def _flush(self) -> None:
        """Send the core's datagrams and open its streams; publish changed members."""
        core, datagrams = self._core, self._datagrams
        if core is None or datagrams is None or self._nursery is None:
            return
        for to, datagram in core.take_packets():
            sent = datagrams.send(datagram, to)
            self.traffic["datagrams_out" if sent else "datagrams_not_sent"] += 1
        for ask in core.take_asks():
            self._nursery.start_soon(self._ask, ask)
        before = self.members()
        for name in core.take_changed():
            self._publish(name, before.get(name))
        for name, reason in core.refusals.items():
            if (name, reason) not in self._logged:
                self._logged.add((name, reason))
                log.warning("received data about a member was rejected", member=name, reason=reason)

    def _publish(self, name: str, before: Member | None) -> None:
        record = self._running.records.get(name)
        if record is None:
            self._roster.remove(name)
            self._sources.pop(name, None)
            return
        if before is None or before.address != record.address:
            self._sources[name] = source_of(record.address.host)
        state = record.believed
        since_ms = before.since_ms if before is not None and before.state == state else self._now_ms()
        self._roster.put(Member(name, record.address, record.tags, state, since_ms))
        if before is None or before.state != state:
            log.info("a member is " + state.value, member=name, address=str(record.address))

    # -- streams --------------------------------------------------------------------------------------------------

    async def _ask(self, ask: Ask) -> None:
        """Open a stream that the core requested. Without an answer the core continues as if nothing was requested."""
        limit_s = self._timing.stream_timeout_s
        if ask.ping is not None:
            limit_s = self._timing.probe_interval_s - self._timing.probe_timeout_s
        core, intake = self._running, self._intake
        try:
            with intake.outgoing() as slot:
                request: Ping | PushPull | None = ask.ping
                if request is None:
                    request = await intake.do(slot, core.building_push_pull(False))
                answer = await ask_over_stream(self._streams, ask.address, request, limit_s, intake, slot)
                if isinstance(answer, PushPull):
                    await intake.do(slot, core.merging(self._clock.now(), answer))
                else:
                    core.on_stream_ack(self._clock.now(), answer.seq)
            self.traffic["streams_out"] += 1
        except SandqError as error:
            self.traffic["streams_out_failed"] += 1
            log.debug("a gossip request to a member failed", member=ask.name, error=error.message)
        self._flush()

    async def _serve(self, stream: trio.SocketStream) -> None:
        try:
            with self._intake.incoming(_host(stream)) as slot:
                with trio.move_on_after(self._timing.stream_timeout_s):
                    await self._answer(stream, slot)
            self.traffic["streams_refused" if slot.is_lost else "streams_in"] += 1
        except (SandqError, trio.BrokenResourceError) as error:
            self.traffic["streams_in_failed"] += 1
            log.debug("a gossip stream ended early", error=str(error))
        finally:
            await trio.aclose_forcefully(stream)

    async def _answer(self, stream: trio.SocketStream, slot: Slot) -> None:
        intake = self._intake
        request = await receive(self._streams, stream, intake, slot)
        core = self._running
        if isinstance(request, PushPull):
            # Build the reply before merging. Otherwise it would repeat the state that the other member has just sent.
            known = await intake.do(slot, core.building_push_pull(False))
            await intake.do(slot, core.merging(self._clock.now(), request))
            self._flush()
            answer = await intake.do(slot, self._streams.sealing(known))
            intake.hold(slot, len(answer))
            await stream.send_all(answer)
        elif isinstance(request, Ping) and (ack := core.on_stream_ping(request)) is not None:
            await stream.send_all(self._streams.seal(ack))
        with contextlib.suppress(trio.BrokenResourceError):  # the other side may have closed after it got the answer
            await stream.send_eof()

    # -- seeds ----------------------------------------------------------------------------------------------------

    async def _join(self, seed: Address) -> None:
        """Exchange states with a seed. Raises ConnectionLost, ProtocolError; Unavailable if either side refuses the
        other."""
        core = self._running
        with self._intake.outgoing() as slot:
            request = await self._intake.do(slot, core.building_push_pull(True))
            limit_s = self._timing.stream_timeout_s
            answer = await ask_over_stream(self._streams, seed, request, limit_s, self._intake, slot)
            assert isinstance(answer, PushPull)
            await self._intake.do(slot, core.merging(self._clock.now(), answer))
        self._met[seed] = self._clock.now()
        self._flush()
        refused = {state.name: core.refusals[state.name] for state in answer.nodes if state.name in core.refusals}
        if refused and not any(state.name in core.records for state in answer.nodes if state.name != self.name):
            reasons = ", ".join(f"{name} ({reason})" for name, reason in sorted(refused.items()))
            raise Unavailable(f"its members are not of this cluster: {reasons:.500}")

    async def _seek(self) -> None:
        """Ask missing seeds, without end: a seed that is unavailable now may come back and know other members."""
        pause_s = SEED_PAUSE_S
        while True:
            wanted = await self._missing_seeds()
            if wanted and not self._leaving:
                try:
                    await self.join(wanted)
                    self._logged = {logged for logged in self._logged if logged[0] != "seeds"}
                except SandqError as error:
                    if ("seeds", error.code) not in self._logged:
                        self._logged.add(("seeds", error.code))
                        log.warning("no seed can be reached; the node keeps trying", error=error.message)
            await trio.sleep(pause_s)
            pause_s = min(SEED_PAUSE_MOST_S, pause_s * 2)

    async def _missing_seeds(self) -> list[Address]:
        """Return the seeds that are not live members here; without any live members, also the addresses of earlier
        runs."""
        live = {m.address for m in self.members().values() if m.state in (State.ALIVE, State.SUSPECT)}
        wanted = []
        for seed in self._seeds if self._others else [*self._seeds, *self._known]:
            try:
                address = Address(await _ip_of(seed.host), seed.port)
            except SandqError:
                address = seed  # keep the name: the exchange with this seed will log the error
            if address not in live and address not in wanted and not self._was_met(address):
                wanted.append(address)
        return wanted

    def _was_met(self, seed: Address) -> bool:
        return self._others and self._clock.now() - self._met.get(seed, -math.inf) < SEED_AGAIN_S

    async def _note_others(self) -> None:
        """Save the addresses of live members for the next start whenever they change, but never an empty list."""
        if self._remember is None:
            return
        noted: set[Address] = set(self._known)
        async for _ in self.changes():
            live = {m.address for m in self.members().values() if m.state == State.ALIVE and m.name != self.name}
            if live and live != noted:
                noted = live
                self._known = sorted(live)
                await self._remember(live)
                await trio.sleep(REMEMBER_PAUSE_S)


def _nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def _host(stream: trio.SocketStream) -> str:
    """Return the host of the other side; "" if it has closed the stream."""
    try:
        return str(stream.socket.getpeername()[0])
    except OSError:
        return ""


async def _ip_of(host: str) -> str:
    """Return the first address of a name. Raises Unavailable."""
    try:
        found = await trio.socket.getaddrinfo(host, None, type=trio.socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid name
        raise Unavailable(f"{host} cannot be resolved: {getattr(error, 'strerror', None) or error}") from None
    return str(found[0][4][0])
