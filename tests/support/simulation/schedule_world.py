"""Simulate whole nodes whose topic has schedules. Each occurrence becomes one message, despite all faults."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, Final

import trio

from sandq.broker.replication.replica import Delivery
from sandq.broker.requests.schedule_requests import ScheduleRequests
from sandq.model.batch import Column, encode
from sandq.model.caller import NODE
from sandq.model.errors import SandqError
from sandq.model.headers import headers_unpack
from sandq.model.partitioning import partition_for
from sandq.protocol.requests_schedules import ScheduleChange, SchedulePut
from tests.support.simulation.membership_world import ASK_S, PARTITIONS, REST_S, TOPIC, MembershipWorld
from tests.support.simulation.oracle import cells_of

SCHEDULES: Final = 5
EVERY_MS: Final = (1_000, 1_000, 1_500, 3_000)
LIVE_MS: Final = 20_000
"""Time during which the schedules recur, in ms."""


class UnlimitedBudget:
    """A memory budget without a limit."""

    has_capacity = True

    async def wait_for_capacity(self) -> None: ...

    def charge(self, size: int) -> None: ...

    charge_on_apply = release = charge


class ScheduleWorld(MembershipWorld):
    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.offsets: defaultdict[bytes, set[bytes]] = defaultdict(set)
        """Offsets of the messages of each occurrence, by schedule and occurrence."""

    async def _create_topics(self) -> None:
        await super()._create_topics()
        start_ms = self._now_ms() + 1_000
        for at in range(SCHEDULES):
            every_ms = self.rng.choice(EVERY_MS)
            misfire = ("one", "all")[at % 2]
            settings = {"every_ms": every_ms, "start_ms": start_ms, "end_ms": start_ms + LIVE_MS, "misfire": misfire}
            # Occurrences before the creation of the schedule do not happen.
            first_ms = await self._put(f"s{at}", settings)
            for ms in range(first_ms, start_ms + LIVE_MS, every_ms):
                # The message of the occurrence must be delivered, like an acknowledged message.
                self.stored.add(b"s%d %d" % (at, ms))

    async def _put(self, name: str, settings: dict[str, Any]) -> int:
        """Create a schedule, with retries. Return the time of its next occurrence, in ms."""
        partition = partition_for(name.encode(), PARTITIONS)
        item = [name, None, settings, encode({Column.VALUE: [name.encode()]}), False]
        request = SchedulePut(TOPIC, partition, [item])
        until_s = trio.current_time() + REST_S
        while True:
            assert trio.current_time() < until_s, f"no schedule: {self._describe_pending()}"
            for broker, host in self._hosts((TOPIC, partition)):
                if host.ready:
                    with trio.move_on_after(ASK_S):
                        try:
                            (result,) = await ScheduleRequests(broker, UnlimitedBudget()).put(request, NODE)
                            assert result["outcome"] in ("created", "unchanged")
                            next_ms: int = result["next_ms"]
                            return next_ms
                        except SandqError as error:
                            self.note(f"no schedule yet: {error.message}")
            await trio.sleep(0.1)

    async def disturb(self) -> None:
        await super().disturb()
        if self.rng.random() < 0.1:
            await self._trigger()

    async def _trigger(self) -> None:
        """Trigger one extra message. Send the request twice, with the same token."""
        name = f"s{self.rng.randrange(SCHEDULES)}"
        partition = partition_for(name.encode(), PARTITIONS)
        token = bytes(self.rng.getrandbits(8) for _ in range(16))
        request = ScheduleChange(TOPIC, partition, "trigger", [name], token)
        found = set()
        for broker, host in self._hosts((TOPIC, partition)) * 2:
            if host.ready:
                with trio.move_on_after(1):
                    try:
                        (result,) = await ScheduleRequests(broker, UnlimitedBudget()).change(request, NODE)
                        found.add(result["id"])
                    except SandqError as error:
                        self.note(f"no trigger: {error.message}")
        assert len(found) <= 1, "a repeated trigger must store only one message"
        self.stored |= {b"t" + one for one in found}
        self.counts["triggers"] += len(found)

    def _messages(self, delivery: Delivery) -> list[tuple[bytes, bytes]]:
        """Return the offset and the identity of each message: its occurrence, or its id if it was triggered."""
        found: list[tuple[bytes, bytes]] = []
        for offset, value, cell in cells_of(delivery):
            headers = headers_unpack(cell)
            payload = value
            if "sandq-triggered" in headers:
                payload = b"t" + offset
                self.sent[payload] = headers["sandq-triggered"]
            elif "sandq-occurrence" in headers:
                at_ms = headers["sandq-occurrence"]
                payload = b"%s %d" % (value, at_ms)
                self.sent[payload] = at_ms
                self.offsets[payload].add(offset)
                if len(self.offsets[payload]) > 1:
                    self.violations.append(f"{payload!r} has {len(self.offsets[payload])} messages")
            found.append((offset, payload))
        return found
