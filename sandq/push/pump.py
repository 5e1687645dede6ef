"""The pump of one group on one node: a consumer of the partitions that the node leads, whose handler sends requests.

A `UrlPump` sends all messages to the URL of the group. A `MessagePump` sends each message to its own URL, and shares
its slots among their hosts (`hosts`).

    looking --the target is allowed--> pushing <--success-- probing <--+
       |                                  |                    |       | the pause is over
       +--not allowed, or not found-------+--failures----------+--> waiting

In the states `looking` and `waiting`, no messages are held: messages are leased only to be sent. A `MessagePump` is
always in the state `pushing` while the node leads partitions.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypedDict, Unpack

import trio

from sandq.client import Client, Message, Outgoing, Settlement
from sandq.model.errors import InvalidRequest, LeaseLost, SandqError
from sandq.model.headers import headers_or_none
from sandq.model.limits import FIXED
from sandq.model.logger import get_logger
from sandq.model.message_targets import PUSH_HEADER, TIMEOUT_MOST_MS, MessageTarget, parse_target
from sandq.model.push import PAUSE_LIMIT, PAUSE_TENANT, Push
from sandq.model.push_targets import Target, TargetRefused, shown_url
from sandq.push.callbacks import callback_value
from sandq.push.circuit import Circuit, State
from sandq.push.hosts import Host, Hosts, HostShares
from sandq.push.http_client import HttpClient, PushFailed
from sandq.push.message_request import headers_of
from sandq.push.outcomes import End, Outcome, outcome_of

log = get_logger("sandq.push")

GRACE_S: Final = 10.0
"""Grace time of requests when their partition moves to another node or the push ends, in seconds.

If the node has less time to stop, that time is the limit.
"""
AGAIN_S: Final = 1.0
"""Pause before a failed consumer starts again, in seconds."""
PAUSE_S: Final = 10.0
"""Time in seconds within which a pause after 429 must hold in all partitions. Then the message is snoozed anyway."""
OPEN_HOSTS_SHOWN: Final = 10
"""Maximum number of failing hosts in a list."""
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


class PumpParts(TypedDict):
    """Arguments of a pump."""

    topic: str
    group: str
    push: Push
    client: Client
    http: HttpClient
    counts: PushCounts
    now_ms: Callable[[], int]
    observe: Callable[[float], None]
    """Called with the duration of each request in seconds."""
    agent: str
    """The User-Agent of requests."""
    slots: trio.CapacityLimiter
    """Limits the requests of all pumps of the node."""
    grace_s: float
    """Time in seconds for requests in progress when the pump ends."""


class Pump(ABC):
    """Pushes one group; when its push changes, the group gets a new pump."""

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
        self.topic, self.group, self.push = topic, group, push
        self._client = client
        self._http = http
        self._counts = counts
        self._now_ms = now_ms
        self._observe = observe
        self._agent = agent
        self._slots = slots
        self._grace_s = grace_s
        self._longest_s: float = push["timeout_ms"] / 1000
        """Maximum duration of a request, in seconds."""
        self._partitions: tuple[int, ...] = ()
        self._changed = trio.Event()
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
        counts = self._counts
        return {
            "state": str(self.doing),
            "retry_in_ms": self._retry_in_ms(),
            "partitions": list(self._partitions),
            "in_flight": counts.in_flight,
            "error": counts.last_error,
            "error_ms": counts.last_error_ms,
            "open_hosts": self._open_hosts(),
            **{str(end): counts.ends[end] for end in End},
        }

    def _retry_in_ms(self) -> int | None:
        """Return the time until the receiver is probed; None unless the pump waits."""
        return None

    def _open_hosts(self) -> list[str]:
        """Return hosts that fail, up to `OPEN_HOSTS_SHOWN`. Their messages wait."""
        return []

    async def run(self) -> None:
        """Run until `end` was called and the requests in progress are done, or until the task is cancelled."""
        async with trio.open_nursery() as consumers:
            while not self._ending:
                self._changed = trio.Event()
                if not self._partitions:
                    self.doing = Doing.LOOKING
                    await self._changed.wait()
                    continue
                if not await self._prepare() or self._changed.is_set():
                    continue
                scope = trio.CancelScope()
                consumers.start_soon(self._consume, scope, self._partitions, self._credit())
                await self._changed.wait()
                scope.cancel()

    @abstractmethod
    async def _prepare(self) -> bool:
        """Set the state, and return whether messages may be leased now. If not, the pump asks again."""

    @abstractmethod
    def _credit(self) -> int:
        """Return how many messages the pump may hold."""

    @abstractmethod
    async def _handle(self, message: Message) -> None:
        """Send a message, and settle it by the response."""

    # -- consuming ------------------------------------------------------------------------------------------------

    async def _consume(self, scope: trio.CancelScope, partitions: Sequence[int], credit: int) -> None:
        """Consume these partitions through the client, like any other consumer, until cancelled."""
        with scope:
            while True:
                try:
                    await self._client.run(
                        self.topic,
                        self.group,
                        self._receive,
                        concurrency=credit,
                        credit=credit,
                        partitions=partitions,
                        grace=min(self._grace_s, self._longest_s),
                    )
                except SandqError as error:  # the pump subscribes again while the metadata contains the push
                    self._note(error.message)
                    if error.message != self._refusal:
                        log.info("a push cannot consume", topic=self.topic, group=self.group, error=error.message)
                    self._refusal = error.message
                await trio.sleep(AGAIN_S)

    async def _receive(self, message: Message) -> None:
        self._refusal = None
        await self._handle(message)

    async def _send(self, message: Message, target: MessageTarget) -> Outcome:
        """Send a message, and return the outcome."""
        self._counts.in_flight += 1
        began_s = trio.current_time()
        try:
            outcome = await self._ask(message, target)
        finally:
            self._counts.in_flight -= 1
        self._observe(trio.current_time() - began_s)
        return outcome

    async def _ask(self, message: Message, target: MessageTarget) -> Outcome:
        # The receiver compares the timestamp with its own wall clock, so this uses the wall clock, too.
        now_s = time.time()
        headers = headers_of(message, self.group, self.push["secrets"], int(now_s), self._agent, added=target.headers)
        timeout_s = (target.timeout_ms or self.push["timeout_ms"]) / 1000
        try:
            answer = await self._http.send(target.target, headers, message.value, timeout_s, method=target.method)
        except TargetRefused as error:  # the name has a new address that is not allowed: not the message's fault
            return Outcome(End.SNOOZED, error.message)
        except PushFailed as error:
            return Outcome(End.RETRIED, str(error))
        return outcome_of(answer.status, answer.text, answer.retry_after, now_s)._replace(body=answer.body)

    def _end(self, message: Message, outcome: Outcome) -> None:
        """Count an outcome, and settle its message."""
        self._counts.ends[outcome.end] += 1
        self._settle(message, outcome)

    def _settle(self, message: Message, outcome: Outcome, then: Sequence[Outgoing] | None = None) -> Settlement | None:
        """Settle a message by its outcome. Return None if its lease was lost: the broker delivers it again.

        `then`: messages to send if it is acked or dead."""
        delay = None if outcome.delay_s is None else f"{round(outcome.delay_s * 1000)}ms"
        if not message.is_held:
            return None
        if outcome.end is End.ACKED:
            return message.ack(then=then)
        if outcome.end is End.DEAD:
            return message.dead(outcome.error, then=then)
        return message.nack(delay=delay, error=outcome.error, count=outcome.end is not End.SNOOZED, if_dead=then)

    def _note(self, error: str) -> None:
        self._counts.last_error, self._counts.last_error_ms = error[:SHOWN_CHARS], self._now_ms()


class UrlPump(Pump):
    """Pushes a group to the URL of its push."""

    def __init__(self, **parts: Unpack[PumpParts]) -> None:
        super().__init__(**parts)
        headers = tuple(self.push.get("headers", {}).items())
        self._target = MessageTarget(Target.parse(self.push["url"]), headers=headers)
        self._circuit = Circuit()
        self._limiter = trio.CapacityLimiter(self.push["concurrency"])

    def _retry_in_ms(self) -> int | None:
        if self.doing is not Doing.WAITING:
            return None
        left_s = self._circuit.until_s - trio.current_time() if self._circuit.state is State.OPEN else 0.0
        return max(round(left_s * 1000), 0)

    async def _prepare(self) -> bool:
        if self._circuit.state is State.OPEN:
            await self._pause()
            return False
        if not await self._is_allowed() or self._changed.is_set():
            return False
        self.doing = Doing.PROBING if self._circuit.state is State.PROBING else Doing.PUSHING
        return True

    def _credit(self) -> int:
        concurrency: int = self.push["concurrency"]
        return 1 if self._circuit.state is State.PROBING else concurrency

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
            await self._http.check(self._target.target)
        except (TargetRefused, PushFailed) as error:
            self._note(str(error))
            self._circuit.open(trio.current_time())
            self._log_open(str(error))
            return False
        return True

    async def _handle(self, message: Message) -> None:
        async with self._limiter, self._slots:
            if not message.is_held:
                return
            outcome = await self._send(message, self._target)
        if outcome.end is End.SNOOZED and outcome.delay_s:
            await self._pause_others(message, outcome.delay_s)
        is_change = self._update_circuit(outcome)
        if outcome.end is End.DEAD and self._circuit.state is not State.CLOSED:
            # The receiver fails all requests, so "410 Gone" is about the receiver, not about this message.
            outcome = outcome._replace(end=End.SNOOZED)
        self._end(message, outcome)
        if outcome.error is not None:
            self._note(outcome.error)
        if is_change:
            self._changed.set()

    async def _pause_others(self, message: Message, for_s: float) -> None:
        """Pause the tenant, the group or the named limit of a message, as `on_429` says, before the message is
        snoozed.

        If the pause does not hold in all partitions, or the group uses no named limit any more, the message is snoozed
        nevertheless, and the next 429 pauses again."""
        part = self.push.get("on_429")
        if part is None or not message.is_held:
            return
        pause = message.pause_tenant if part == PAUSE_TENANT else message.pause_group
        if part == PAUSE_LIMIT:
            pause = message.pause_limit
        with trio.move_on_after(PAUSE_S) as scope:
            try:
                await pause(for_=f"{min(round(for_s * 1000), FIXED.consumer_pause_most_ms)}ms")
            except SandqError as error:
                self._note(f"{part}: {error.message}")
        if scope.cancelled_caught:
            self._note(f"{part}: the pause did not hold in all partitions within {PAUSE_S:g} s")

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

    def _log_open(self, error: str) -> None:
        log.warning(
            "a push waits: the receiver fails every request",
            topic=self.topic,
            group=self.group,
            url=shown_url(self.push["url"]),
            for_s=round(self._circuit.until_s - trio.current_time(), 3),
            error=error[:SHOWN_CHARS],
        )


class MessagePump(Pump):
    """Pushes each message of a group to its own URL."""

    def __init__(self, hosts: Hosts, **parts: Unpack[PumpParts]) -> None:
        """`hosts`: the hosts that the node remembers."""
        super().__init__(**parts)
        self._longest_s = TIMEOUT_MOST_MS / 1000
        self._hosts = hosts
        self._shares = HostShares(int(min(self.push["concurrency"], self._slots.total_tokens)))

    def _open_hosts(self) -> list[str]:
        return self._hosts.open_hosts((self.topic, self.group), OPEN_HOSTS_SHOWN)

    async def _prepare(self) -> bool:
        self.doing = Doing.PUSHING
        await trio.lowlevel.checkpoint()
        return True

    def _credit(self) -> int:
        return 2 * self._shares.slots  # messages that have a slot, and as many that wait for one

    async def _handle(self, message: Message) -> None:
        try:
            target = _target_of(message)
        except InvalidRequest as error:
            self._end(message, Outcome(End.DEAD, error.message))
            self._note(error.message)
            return
        host = self._hosts.of((self.topic, self.group), target.target.host)
        ticket = self._shares.enter(host, trio.current_time())
        if ticket is None:
            self._snooze(message, host)
            return
        try:
            await ticket.decided.wait()
            if not ticket.has_slot or self._ending:
                self._snooze(message, host)
                return
            async with self._slots:
                ticket.since_s = trio.current_time()  # the node may have had no slot until now
                if not message.is_held:
                    return
                outcome = await self._send(message, target)
            outcome = self._record(host, outcome, trio.current_time() - ticket.since_s)
        finally:
            self._shares.leave(ticket, trio.current_time())
        await self._report(message, target, outcome)

    def _snooze(self, message: Message, host: Host) -> None:
        """Give a message back until its host can probably take it. It was not sent, so this counts as no snooze."""
        why = "is busy" if host.error is None else f"fails: {host.error}"
        delay_s = self._shares.delay_s(host, trio.current_time())
        self._counts.ends[End.SNOOZED] += 1
        if message.is_held:
            message.give_back(delay=timedelta(seconds=delay_s), error=f"waits, because {host.name} {why}")

    async def _report(self, message: Message, target: MessageTarget, outcome: Outcome) -> None:
        """Settle a message, and send its callback in the same step.

        If the callback cannot be sent, settle the message without it: its topic was deleted, say."""
        topic = target.callback if outcome.end is End.ACKED else target.failure_callback
        if topic is None or outcome.end is End.SNOOZED:
            self._end(message, outcome)
            return
        self._counts.ends[outcome.end] += 1
        value = callback_value(message, self.group, outcome, self._now_ms())
        try:
            settlement = self._settle(message, outcome, [Outgoing(json=value, topic=topic)])
            if settlement is not None:
                await settlement
        except LeaseLost as error:
            self._note(error.message)
        except SandqError as error:
            self._note(f"no callback was sent to topic {topic}: {error.message}")
            self._settle(message, outcome)

    def _record(self, host: Host, outcome: Outcome, took_s: float) -> Outcome:
        """Record the outcome of a request in the state of its host. Return how its message is settled."""
        error = outcome.error or ""
        if outcome.is_of_host:
            if host.failed(error[:SHOWN_CHARS], trio.current_time(), took_s, outcome.delay_s):
                self._log("the messages of a host wait: it fails every request", host, error=error[:SHOWN_CHARS])
        elif host.succeeded(took_s):
            self._log("the messages of a host go on: it answers again", host)
        if outcome.end is End.SNOOZED and outcome.delay_s is None:
            outcome = outcome._replace(end=End.RETRIED)  # its address is not allowed
        if outcome.error is not None:
            self._note(f"{host.name}: {outcome.error}")
        return outcome

    def _log(self, event: str, host: Host, **more: str) -> None:
        log.debug(event, topic=self.topic, group=self.group, host=host.name, **more)


def _target_of(message: Message) -> MessageTarget:
    """Return the target in the headers of a message. Raise InvalidRequest."""
    headers = headers_or_none(message.headers_bytes or None) or {}
    if PUSH_HEADER not in headers:
        raise InvalidRequest(f"the message has no URL: the header {PUSH_HEADER} is missing")
    return parse_target(headers[PUSH_HEADER])
