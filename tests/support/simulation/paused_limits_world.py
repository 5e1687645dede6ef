"""Simulate whole nodes whose groups share a named limit that operators and the holders of leases pause.

After a pause was confirmed, nothing is leased under the limit until it ends or an operator changes it."""

from __future__ import annotations

import random
from collections.abc import Awaitable
from typing import Any, Final

import trio

from sandq.model.errors import SandqError
from sandq.model.names import LIMITS_TOPIC
from sandq.model.pauses import FOREVER
from sandq.partition import commands as c
from sandq.partition.base.step import Step
from sandq.partition.limits.allowance import Allowance
from tests.support.simulation.limits_oracle import LimitsOracle
from tests.support.simulation.limits_world import COSTS, LIMIT, LimitsWorld
from tests.support.simulation.membership_world import ASK_S

PAUSES_MS: Final = (300, 2000, 6000)


class PausesOracle(LimitsOracle):
    """Also knows which pause of the limit was confirmed."""

    def __init__(self, margin_ms: int) -> None:
        super().__init__(margin_ms)
        self.until_ms = 0
        """End of the confirmed pause. 0 if there is none, or if an operator may have changed it since."""
        self.changes = 0
        """Number of requests of operators."""
        self.is_certain = True
        """Whether the last request of an operator was confirmed."""
        self.violations: list[str] = []

    def changed(self) -> None:
        """Note that an operator changes the pause."""
        self.until_ms, self.is_certain = 0, False
        self.changes += 1

    def confirmed(self, changes: int, until_ms: int, *, is_lease: bool) -> bool:
        """Note that a pause was confirmed. `changes`: number of requests of operators when it was requested. Return
        whether the pause is known to hold from now on."""
        if changes != self.changes or (is_lease and not self.is_certain):
            return False  # an operator's request, which may have come later in the log, may have changed it
        self.is_certain = True
        self.until_ms = max(self.until_ms, until_ms)
        return bool(until_ms)

    def _lease(self, step: Step, allowance: Allowance, cost: int, tokens: list[int]) -> None:
        before = len(self.granted)
        super()._lease(step, allowance, cost, tokens)
        if len(self.granted) > before and step.stamp_ms < self.until_ms:
            self.violations.append(f"leased at {step.stamp_ms}, although the limit is paused until {self.until_ms}")


class PausedLimitsWorld(LimitsWorld):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.pauses_rng = random.Random(f"pauses of limits of {seed}")
        """Random numbers only for pauses."""
        self.pauses = self.oracle = PausesOracle(self.oracle.margin_ms)
        self.costs = self.pauses_rng.choice(COSTS[:2])  # so that all messages are leased in time after the last pause

    async def disturb(self) -> None:
        await super().disturb()
        rng = self.pauses_rng
        for chance, action in ((0.15, self._pause), (0.1, self._resume), (0.2, self._pause_by_lease)):
            if rng.random() < chance:
                self._nursery.start_soon(action)

    async def _pause(self) -> None:
        endless = self.pauses_rng.random() < 0.2
        await self._change(FOREVER if endless else self._now_ms() + self.pauses_rng.choice(PAUSES_MS))

    async def _resume(self) -> None:
        await self._change(0)

    async def _change(self, until_ms: int) -> bool:
        """Pause or resume the limit as an operator. Return whether this was confirmed."""
        for broker, host in self._hosts((LIMITS_TOPIC, 0)):
            if host.ready:
                (leader,) = broker.led(LIMITS_TOPIC)
                self.pauses.changed()
                changes = self.pauses.changes
                command = c.PauseLimit(LIMIT, until_ms, "an operator", is_longer=False)
                if await self._ask(broker.limit_pauses.change(leader, command)):
                    self._note_confirmed(changes, until_ms, is_lease=False)
                    return True
                return False
        return False

    async def _pause_by_lease(self) -> None:
        """Pause the limit as a node does that has verified a lease."""
        brokers = self._brokers()
        if brokers:
            until_ms, changes = self._now_ms() + self.pauses_rng.choice(PAUSES_MS), self.pauses.changes
            broker = self.pauses_rng.choice(brokers)
            end_ms = await self._answer(broker.limit_pauses.pause(LIMIT, until_ms, "a group"))
            if end_ms is not None:
                is_over = until_ms <= self._now_ms() + self.oracle.margin_ms
                assert end_ms >= until_ms or is_over, "a lease shortened a pause"
                self._note_confirmed(changes, end_ms, is_lease=True)

    async def _answer(self, asked: Awaitable[int]) -> int | None:
        """Execute a request with a timeout. Return its answer; None if it was not confirmed."""
        with trio.move_on_after(ASK_S):
            try:
                return await asked
            except SandqError as error:
                self.note(f"refused: {error.message}")
        return None

    def _note_confirmed(self, changes: int, until_ms: int, *, is_lease: bool) -> None:
        self.note(f"paused until {until_ms}" if until_ms else "resumed")
        if self.pauses.confirmed(changes, until_ms, is_lease=is_lease):
            self.counts["pauses by leases" if is_lease else "pauses"] += 1

    def _pushed(self, *args: Any) -> None:
        super()._pushed(*args)
        self.violations += self.pauses.violations
        self.pauses.violations.clear()

    async def _heal(self) -> None:
        self._nursery.start_soon(self._resume_at_last)
        await super()._heal()

    async def _resume_at_last(self) -> None:
        is_resumed = False
        while not is_resumed:
            await trio.sleep(0.5)
            is_resumed = await self._change(0)
