"""Simulate debounced and throttled messages on three nodes.

Each unique key has a caller, which sends its next message once it knows the outcome of the last one. So a caller knows
the order of its messages, and checks each outcome and each delivery time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.errors import SandqError
from sandq.model.sequence import RESENT
from sandq.partition import commands as c
from sandq.partition.leasing.lease_grants import MAX_LEASE_AHEAD_MS
from sandq.partition.log.appends import TOLD_IGNORED, TOLD_REPLACED, TOLD_STORED, Stored
from tests.support.simulation.cluster_clients import LOST, Clients
from tests.support.simulation.cluster_world import DRIFT_MS, ClusterWorld
from tests.support.simulation.oracle import UNKNOWN, Sent
from tests.support.simulation.owner import Owner

WINDOW_MS = 600
DELAY_MS, MAX_WAIT_MS = 400, 700
FIRST_ID = 100
"""Producer id of the first caller."""
CALL_CHANCE = 0.3
"""Probability per step that a caller sends its next message."""
REPEAT_CHANCE = 0.2
"""Probability per step that a caller sends its message again."""
RULES: Final = ((b"debounced", c.DEBOUNCE), (b"leading", c.THROTTLE), (b"both", c.THROTTLE_BOTH))
"""The unique keys, and the rule of each."""


@dataclass
class Call:
    """A message, its command, and the true time at which it was sent first, in ms."""

    number: int
    sent: Sent
    batch: bytes
    at_ms: int
    was_sent: bool = False
    answer: Any = None
    """The first answer of a leader."""
    placed_ms: int = 0
    """Delivery time that the partition reported, in ms."""


class Caller:
    """An idempotent producer of messages with one unique key."""

    def __init__(self, clients: SpacingClients, producer_id: int, key: bytes, rule: int) -> None:
        self._clients = clients
        self._id, self._key, self.rule = producer_id, key, rule
        self._span_ms = MAX_WAIT_MS if rule == c.DEBOUNCE else WINDOW_MS
        self._number = 0
        self.open: Call | None = None
        """The message whose outcome is not known yet."""
        self._last: Call | None = None
        """The message that was stored last."""
        self._series: Call | None = None
        """The first message of the debounced series, which may have begun later."""
        self._first_ms = 0
        """Latest time at which the series can have begun, in ms."""
        self.outcomes: Counter[str] = Counter()

    def act(self) -> None:
        if self.open is not None:
            self.repeat()
        elif self._clients.rng.random() < CALL_CHANCE:
            self._number += 1
            sent, at_ms = self._clients.make(b"%s %d" % (self._key, self._number))
            columns: dict[int, Any] = {Column.VALUE: [sent.payload], Column.UNIQUE_KEY: [self._key]}
            if self.rule == c.DEBOUNCE:
                columns[Column.DELIVER_MS] = [DELAY_MS]
            self.open = Call(self._number, sent, encode(columns, relative=self.rule == c.DEBOUNCE), at_ms)
            self._send(self.open)

    def repeat(self) -> None:
        """Send the message again whose outcome is not known yet."""
        if self.open is not None and self._clients.rng.random() < REPEAT_CHANCE:
            self._send(self.open)

    def _send(self, call: Call) -> None:
        def done(result: Any) -> None:
            if isinstance(result, UNKNOWN) or (call is not self.open and isinstance(result, SandqError)):
                return
            assert isinstance(result, Stored), result
            assert call.answer in (None, result), "a resent batch has another answer"
            call.answer = result
            if self._clients.rng.random() >= LOST and call is self.open:
                self.open = None
                self._note(call, result)

        if (node := self._clients.leader()) is not None:
            sequence = call.number | (RESENT if call.was_sent else 0)
            call.was_sent = True
            command = c.Append(call.batch, self._id, 1, sequence, self.rule, True, self._span_ms)
            node.call(command, done, messages=1)

    # -- checks ---------------------------------------------------------------------------------------------------

    def _note(self, call: Call, result: Stored) -> None:
        """Check an outcome."""
        outcome, detail = result.outcomes[0][1:] if result.outcomes else (TOLD_STORED, None)
        self.outcomes[outcome] += 1
        last = self._last
        assert not result.refused, f"{call.sent.payload!r} was refused"
        if outcome == TOLD_IGNORED:
            self._check_ignored(call, result.offsets)
            call.sent.cancelled = True  # it must never be delivered
            return
        call.sent.offset = call.sent.id = result.offsets
        call.placed_ms = offsets.deliver_ms(result.offsets)
        if outcome == TOLD_REPLACED:
            assert last is not None and detail == last.sent.id, f"{call.sent.payload!r} replaced another message"
            last.sent.cancelled = True
        if self.rule == c.DEBOUNCE:
            self._check_debounced(call, outcome)
        elif last is not None and self._is_comparable(call):
            self._check_throttled(call, last, outcome)
        self._last = call

    def _is_comparable(self, call: Call) -> bool:
        """Return whether no clock reset was between this message and the last one."""
        return self._last is not None and not self._last.sent.placed_anew and not call.sent.placed_anew

    def _check_ignored(self, call: Call, message_id: bytes) -> None:
        last = self._last
        assert self.rule == c.THROTTLE, f"{call.sent.payload!r} was ignored, although it is the newest"
        assert last is not None and message_id == last.sent.id, f"{call.sent.payload!r} was ignored without a message"
        assert not self._clients.was_seen(call.sent), f"{call.sent.payload!r} was ignored, but is delivered"
        if self._is_comparable(call):
            late_ms = call.at_ms - DRIFT_MS - last.placed_ms - WINDOW_MS
            assert late_ms < 0, f"{call.sent.payload!r} was ignored {late_ms} ms after the window"

    def _check_throttled(self, call: Call, last: Call, outcome: str) -> None:
        if outcome == TOLD_REPLACED:
            assert call.placed_ms == last.placed_ms, f"{call.sent.payload!r} is not in the place of the earlier message"
            return
        distance_ms = call.placed_ms - last.placed_ms
        least_ms = WINDOW_MS - MAX_LEASE_AHEAD_MS
        assert distance_ms >= least_ms, f"{call.sent.payload!r} is {distance_ms} ms after the earlier message"
        self._check_not_after(call, last.placed_ms + WINDOW_MS if self.rule == c.THROTTLE_BOTH else 0)

    def _check_debounced(self, call: Call, outcome: str) -> None:
        last, first = self._last, self._series
        if outcome != TOLD_REPLACED:
            self._series = first = call
        elif not self._is_comparable(call):
            self._series = first = None  # it began before a clock reset
        if first is None:
            return
        least_ms = min(call.at_ms + DELAY_MS, first.at_ms + MAX_WAIT_MS) - DRIFT_MS
        assert call.placed_ms >= least_ms, f"{call.sent.payload!r} is placed {least_ms - call.placed_ms} ms early"
        # If the last message was due, a group may have leased it, and then this message begins a series.
        now_ms = self._clients.latest_ms
        is_new = first is call or last is None or last.placed_ms <= now_ms
        first_ms = now_ms if is_new else self._first_ms
        self._check_not_after(call, min(now_ms + DELAY_MS, first_ms + MAX_WAIT_MS))
        self._first_ms = first_ms

    def _check_not_after(self, call: Call, at_ms: int) -> None:
        """Check that a message is placed at `at_ms`, or now, whichever is later, or before."""
        late_ms = call.placed_ms - max(at_ms, self._clients.latest_ms) - MAX_LEASE_AHEAD_MS
        assert late_ms <= 0 or not self._clients.is_exact, f"{call.sent.payload!r} is placed {late_ms} ms late"


class OtherMessages(Owner):
    """An owner that leaves the messages of callers alone."""

    def _some(self) -> Sent | None:
        found = super()._some()
        return None if found is None or found.unique_key in dict(RULES) else found


class SpacingClients(Clients):
    """Clients with a caller for each rule."""

    def __init__(self, *args: Any, is_exact: bool, **options: Any) -> None:
        """`is_exact`: whether the clocks of the nodes never go wrong."""
        super().__init__(*args, **options)
        self.is_exact = is_exact
        self.owner = OtherMessages(self)
        self.callers = [Caller(self, FIRST_ID + at, key, rule) for at, (key, rule) in enumerate(RULES)]

    @property
    def latest_ms(self) -> int:
        """Latest time that the clock of a node may show, in ms."""
        return self.clock.ms + DRIFT_MS

    def make(self, payload: bytes) -> tuple[Sent, int]:
        """Return a new message of a caller, and the true time in ms."""
        sent = Sent(payload, self.clock.ms - self.margin_ms, unique_key=payload.split()[0])
        self.oracle.sent[payload] = sent
        return sent, self.clock.ms

    def was_seen(self, sent: Sent) -> bool:
        return any(payload == sent.payload for _, payload in self.oracle.seen)

    def act(self) -> None:
        super().act()
        for caller in self.callers:
            caller.act()

    def finish(self) -> None:
        super().finish()
        for caller in self.callers:
            caller.repeat()

    @property
    def is_done(self) -> bool:
        return super().is_done and not any(caller.open for caller in self.callers)

    def describe_pending(self) -> Any:
        return [caller.open for caller in self.callers], super().describe_pending()


class SpacingWorld(ClusterWorld):
    """A cluster whose clients debounce and throttle messages of some keys."""

    clients: SpacingClients

    def make_clients(self) -> SpacingClients:
        ordered = self.topic.settings["ordering"] == "key"
        return SpacingClients(
            *(self.rng, self.clock, self.nodes, self._moments),
            ordered=ordered,
            margin_ms=DRIFT_MS,
            is_exact=not self.clocks_go_wrong,
        )
