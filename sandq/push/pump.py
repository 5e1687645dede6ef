"""The pump of one group on one node: a consumer of the partitions that the node leads, whose handler sends requests.

    looking --the target is allowed--> pushing <--success-- probing <--+
       |                                  |                    |       | the pause is over
       +--not allowed, or not found-------+--failures----------+--> waiting

In the states `looking` and `waiting`, no messages are held: messages are leased only to be sent.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, Final

import structlog
import trio

from sandq.client import Client, Message
from sandq.model.errors import SandqError
from sandq.model.limits import FIXED
from sandq.model.push import PAUSE_TENANT, Push
from sandq.model.push_targets import Target, TargetRefused, shown_url
from sandq.push.circuit import Circuit, State
from sandq.push.http_client import HttpClient, PushFailed
from sandq.push.message_request import headers_of
from sandq.push.outcomes import End, Outcome, outcome_of

log = structlog.get_logger("sandq.push")

GRACE_S: Final = 10.0
"""Grace time of requests when their partition moves to another node or the push ends, in seconds.

If the node has less time to stop, that time is the limit.
"""
AGAIN_S: Final = 1.0
"""Pause before a failed consumer starts again, in seconds."""
PAUSE_S: Final = 10.0
"""Time in seconds within which a pause after 429 must hold in all partitions. Then the message is snoozed anyway."""
SHOWN_CHARS: Final = 300
"""Maximum number of characters of an error in logs and lists."""


class Doing(StrEnum):
    """The state of a pump; see the module's docstring."""

    LOOKING = "looking"
    PUSHING = "pushing"
    WAITING = "waiting"
    PROBING = "probing"


class PushCounts:
    """Counters of one group on this node since it started; they outlive the group's pumps."""

    def __init__(self) -> None:
        self.ends: Counter[End] = Counter()
        self.in_flight = 0
        self.last_error: str | None = None
        self.last_error_ms: int | None = None


class Pump:
    """Pushes one group to one URL; when the URL changes, the group gets a new pump."""

    def __init__(
        self,
        *,
        topic: str,
        group: str,
        push: Push,
        client: Client,
        http: HttpClient,
        counts: PushCounts,
        now_ms: Callable[[], int],
        observe: Callable[[float], None],
        agent: str,
        slots: trio.CapacityLimiter,
        grace_s: float,
    ) -> None:
        """`observe`: called with the duration of each request in seconds. `agent`: the User-Agent of requests.

        `slots`: limits the requests of all pumps of the node. `grace_s`: time in seconds for requests in
        progress when the pump ends.
        """
        self.topic, self.group, self.push = topic, group, push
        self._client = client
        self._http = http
        self._counts = counts
        self._now_ms = now_ms
        self._observe = observe
        self._agent = agent
        self._slots = slots
        self._grace_s = grace_s
        self._target = Target.parse(push["url"])
        self._circuit = Circuit()
        self._partitions: tuple[int, ...] = ()
        self._changed = trio.Event()
        self._limiter = trio.CapacityLimiter(push["concurrency"])
        self._ending = False
        self._refusal: str | None = None
        """Last error of the consumer, so that a repeated error is logged once. None once a message arrives."""
        self.doing = Doing.LOOKING

    def lead(self, partitions: Sequence[int]) -> None:
        """Push the messages of these partitions from now on."""
        found = tuple(sorted(partitions))
        if found != self._partitions:
            self._partitions = found
            self._changed.set()

    def end(self) -> None:
        """Start no more requests. `run` returns once the requests in progress are done, or their grace time is over."""
        self._ending = True
        self._changed.set()

    def row(self) -> dict[str, Any]:
        """Return the pump's state and counters, for PUSH_LIST."""
        left_s = self._circuit.until_s - trio.current_time() if self._circuit.state is State.OPEN else 0.0
        counts = self._counts
        return {
            "state": str(self.doing),
            "retry_in_ms": max(round(left_s * 1000), 0) if self.doing is Doing.WAITING else None,
            "partitions": list(self._partitions),
            "in_flight": counts.in_flight,
            "error": counts.last_error,
            "error_ms": counts.last_error_ms,
            **{str(end): counts.ends[end] for end in End},
        }

    async def run(self) -> None:
        """Run until `end` was called and the requests in progress are done, or until the task is cancelled."""
        async with trio.open_nursery() as consumers:
            while not self._ending:
                self._changed = trio.Event()
                if not self._partitions:
                    self.doing = Doing.LOOKING
                    await self._changed.wait()
                    continue
                if self._circuit.state is State.OPEN:
                    await self._pause()
                    continue
                if not await self._is_allowed() or self._changed.is_set():
                    continue
                is_probe = self._circuit.state is State.PROBING
                self.doing = Doing.PROBING if is_probe else Doing.PUSHING
                scope, concurrency = trio.CancelScope(), 1 if is_probe else self.push["concurrency"]
                consumers.start_soon(self._consume, scope, self._partitions, concurrency)
                await self._changed.wait()
                scope.cancel()

    async def _pause(self) -> None:
        """Wait until the open circuit may be probed. Return earlier if it was closed, or if the pump ends."""
        self.doing = Doing.WAITING
        with trio.move_on_at(self._circuit.until_s):
            while self._circuit.state is State.OPEN and not self._ending:
                self._changed = trio.Event()  # a change of partitions also sets the event: wait again
                await self._changed.wait()
        if self._circuit.state is State.OPEN:
            self._circuit.probe()

    async def _is_allowed(self) -> bool:
        """Return whether the pump may connect to the target. Call it before messages are leased for the target."""
        if self._circuit.state is State.CLOSED:
            self.doing = Doing.LOOKING
        try:
            await self._http.check(self._target)
        except (TargetRefused, PushFailed) as error:
            self._note(str(error))
            self._open(str(error))
            return False
        return True

    # -- consuming ------------------------------------------------------------------------------------------------

    async def _consume(self, scope: trio.CancelScope, partitions: Sequence[int], concurrency: int) -> None:
        """Consume these partitions through the client, like any other consumer, until cancelled."""
        with scope:
            while True:
                try:
                    await self._client.run(
                        self.topic,
                        self.group,
                        self._send,
                        concurrency=concurrency,
                        credit=concurrency,
                        partitions=partitions,
                        grace=min(self._grace_s, self.push["timeout_ms"] / 1000),
                    )
                except SandqError as error:  # the pump subscribes again while the metadata contains the push
                    self._note(error.message)
                    if error.message != self._refusal:
                        log.info("a push cannot consume", topic=self.topic, group=self.group, error=error.message)
                    self._refusal = error.message
                await trio.sleep(AGAIN_S)

    async def _send(self, message: Message) -> None:
        """Send a message, and settle it by the response."""
        self._refusal = None
        async with self._limiter, self._slots:
            if not message.is_held:
                return
            self._counts.in_flight += 1
            began_s = trio.current_time()
            try:
                outcome = await self._ask(message)
            finally:
                self._counts.in_flight -= 1
        self._observe(trio.current_time() - began_s)
        if outcome.end is End.SNOOZED and outcome.delay_s:
            await self._pause_others(message, outcome.delay_s)
        self._settle(message, outcome)

    async def _pause_others(self, message: Message, for_s: int) -> None:
        """Pause the tenant or the group of a message, as `on_429` says, before the message is snoozed.

        If the pause does not hold in all partitions, the message is snoozed nevertheless, and the next 429 pauses
        again."""
        part = self.push.get("on_429")
        if part is None or not message.is_held:
            return
        pause = message.pause_tenant if part == PAUSE_TENANT else message.pause_group
        with trio.move_on_after(PAUSE_S) as scope:
            try:
                await pause(for_=f"{min(for_s * 1000, FIXED.consumer_pause_most_ms)}ms")
            except SandqError as error:
                self._note(f"{part}: {error.message}")
        if scope.cancelled_caught:
            self._note(f"{part}: the pause did not hold in all partitions within {PAUSE_S:g} s")

    async def _ask(self, message: Message) -> Outcome:
        # The receiver compares the timestamp with its own wall clock, so this uses the wall clock, too.
        now_s = time.time()
        headers = headers_of(message, self.group, self.push["secrets"], int(now_s), self._agent)
        try:
            answer = await self._http.post(self._target, headers, message.value, self.push["timeout_ms"] / 1000)
        except TargetRefused as error:  # the name has a new address that is not allowed: not the message's fault
            return Outcome(End.SNOOZED, error.message)
        except PushFailed as error:
            return Outcome(End.RETRIED, str(error))
        return outcome_of(answer.status, answer.text, answer.retry_after, now_s)

    def _settle(self, message: Message, outcome: Outcome) -> None:
        is_change = self._update_circuit(outcome)
        if outcome.end is End.DEAD and self._circuit.state is not State.CLOSED:
            # The receiver fails all requests, so "410 Gone" is about the receiver, not about this message.
            outcome = Outcome(End.SNOOZED, outcome.error)
        self._counts.ends[outcome.end] += 1
        delay = None if outcome.delay_s is None else f"{outcome.delay_s}s"
        if not message.is_held:
            pass  # its lease was lost meanwhile: the broker delivers it again
        elif outcome.end is End.ACKED:
            message.ack()
        elif outcome.end is End.DEAD:
            message.dead(outcome.error)
        else:
            message.nack(delay=delay, error=outcome.error, count=outcome.end is not End.SNOOZED)
        if outcome.error is not None:
            self._note(outcome.error)
        if is_change:
            self._changed.set()

    def _update_circuit(self, outcome: Outcome) -> bool:
        """Record an outcome in the circuit; return whether its state changed."""
        if outcome.is_failure:
            is_change = self._circuit.failed(trio.current_time(), outcome.delay_s)
            if is_change:
                self._log_open(outcome.error or "")
        else:
            is_change = self._circuit.succeeded()
            if is_change:
                log.info("a push goes on: the receiver answers again", topic=self.topic, group=self.group)
        return is_change

    def _open(self, error: str) -> None:
        self._circuit.open(trio.current_time())
        self._log_open(error)

    def _log_open(self, error: str) -> None:
        log.warning(
            "a push waits: the receiver fails every request",
            topic=self.topic,
            group=self.group,
            url=shown_url(self.push["url"]),
            for_s=round(self._circuit.until_s - trio.current_time(), 3),
            error=error[:SHOWN_CHARS],
        )

    def _note(self, error: str) -> None:
        self._counts.last_error, self._counts.last_error_ms = error[:SHOWN_CHARS], self._now_ms()
