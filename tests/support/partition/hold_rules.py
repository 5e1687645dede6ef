"""Add holds to the random command sequences of a partition. Messages above a live hold are never trimmed."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from sandq.model import offsets
from sandq.partition import commands as c
from tests.support.partition.bench import T
from tests.support.partition.model_bed import numbers
from tests.support.partition.producer_rules import Producers

NAMES = ("one", "two")
TTLS_MS = (1000, 30_000, 400_000)


class Holding(Producers):
    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, tuple[bytes, int]] = {}
        """Offset and end time (ms after T) of each hold."""

    @rule(name=st.sampled_from(NAMES), number=st.one_of(st.none(), numbers), ttl=st.sampled_from(TTLS_MS))
    def hold(self, name: str, number: int | None, ttl: int) -> None:
        known = sorted(self.model.ever)
        offset = known[number % len(known)] if known and number is not None else offsets.FIRST
        assert self.apply(c.Hold(name, offset, ttl)) == self.model.trimmed
        self.held[name] = (offset, self.model.now + ttl)
        self._holds_agree()

    @precondition(lambda self: self.held)
    @rule(name=st.sampled_from(NAMES))
    def release_hold(self, name: str) -> None:
        assert self.apply(c.Hold(name, None)) == self.model.trimmed
        self.held.pop(name, None)
        self._holds_agree()

    def is_held(self, offset: bytes) -> bool:
        """Return whether a hold keeps the message at this offset."""
        return any(offset > above for above in self._live())

    def _live(self) -> list[bytes]:
        return [offset for offset, until in self.held.values() if until > self.model.now]

    def _holds_agree(self) -> None:
        """Compare the holds with the expected ones. Expired holds may exist until the next upkeep."""
        found = {hold.name: (hold.offset, hold.until_ms - T) for hold in self.bench.status().holds}
        live = {name: one for name, one in self.held.items() if one[1] > self.model.now}
        assert live.items() <= found.items() <= self.held.items()

    def _watch_trim(self) -> None:
        before = self.model.trimmed
        super()._watch_trim()
        self._holds_agree()
        trimmed = self.model.trimmed
        assert len(self.bench.status().holds) == len(self._live()), "an upkeep removes expired holds"
        for above in self._live():
            assert trimmed == before or trimmed <= above, "trimmed beyond a hold"

    @invariant()
    def held_messages_exist(self) -> None:
        for message in self.model.in_log() if self.held else ():
            if self.is_held(message.offset):
                machine = self.bench.machine
                assert machine.log.find(message.offset, self.bench.view) is not None, f"{message.name} was held"
