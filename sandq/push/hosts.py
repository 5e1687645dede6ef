"""Share the requests of a group among the hosts of its messages, so that hosts that fail do not delay the others.

Each message has its own URL. A host is *proven* if its last request was answered, and neither with 429 nor with 5xx. A
host is *suspect* if it is not proven, or if one of its requests takes longer than `SLOW_S`.

- A proven host gets at most a quarter of the slots. A host that is not proven gets one request at a time.
- All suspect hosts together get at most half of the slots. So the other half is always free for hosts that answer.
- The same shares hold for messages that wait for a slot. Messages beyond them are snoozed.
- Each host has a circuit breaker. While it is open, messages of the host are snoozed.

A snoozed message returns when its host can probably take it: the times of return of a host's messages are as far apart
as its requests take. So a message is not leased and snoozed again and again while the host is busy or down.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Hashable
from typing import Final

import trio

from sandq.push.circuit import MOST_ASKED_S, Circuit, State

HOSTS_MOST: Final = 10_000
"""Maximum number of hosts whose state a node remembers, over all groups. The least recently used host is forgotten."""
SLOW_S: Final = 2.0
"""A request that takes longer makes its host suspect, in seconds."""
SOON_S: Final = 0.5
"""Minimum time until a snoozed message returns, in seconds."""
ROUNDING_S: Final = 0.125
"""Delays of snoozed messages are rounded up to multiples of this, in seconds."""
FIRST_DURATION_S: Final = 0.01
"""Assumed duration of the requests of a host before the first one has ended, in seconds: if it is wrong, messages
return too early and are snoozed once more, which is better than too late."""
DURATION_WEIGHT: Final = 0.3
"""Weight of the last request in the average duration of a host's requests."""
DURATION_LEAST_S: Final = 0.001


class Host:
    """The state of a host for one group on one node. Times are in seconds, on the clock of the caller."""

    __slots__ = ("circuit", "duration_s", "error", "is_proven", "name", "returns_s")

    def __init__(self, name: str) -> None:
        self.name = name
        self.circuit = Circuit()
        self.is_proven = False
        self.duration_s: float | None = None
        """Average duration of its requests; None before the first one has ended."""
        self.returns_s = 0.0
        """Time at which the last of its snoozed messages returns."""
        self.error: str | None = None
        """Why its last request failed; None if it did not."""

    def is_open(self, now_s: float) -> bool:
        """Return whether its messages must wait. After the pause, the next request probes the host."""
        if self.circuit.state is State.OPEN and now_s >= self.circuit.until_s:
            self.circuit.probe()
        return self.circuit.state is State.OPEN

    def succeeded(self, took_s: float) -> bool:
        """Record a request that was answered; return whether this closed the circuit."""
        self.is_proven, self.error = True, None
        self._took(took_s)
        is_change = self.circuit.succeeded()
        if is_change:
            self.returns_s = 0.0
        return is_change

    def failed(self, error: str, now_s: float, took_s: float, asked_s: float | None = None) -> bool:
        """Record a request that failed; return whether this opened the circuit. `asked_s`: the pause that the host
        requested."""
        self.is_proven, self.error = False, error
        self._took(took_s)
        return self.circuit.failed(now_s, asked_s)

    def delay_s(self, now_s: float, at_once: int, oldest_s: float = 0.0) -> float:
        """Return how long to snooze a message of this host. `at_once`: number of requests that a proven host may
        have. `oldest_s`: age of its oldest request in progress."""
        earliest_s = max(self.circuit.until_s if self.is_open(now_s) else 0.0, now_s + SOON_S)
        duration_s = FIRST_DURATION_S if self.duration_s is None else max(self.duration_s, DURATION_LEAST_S)
        step_s = max(duration_s, oldest_s) / (at_once if self.error is None else 1)
        if self.returns_s < earliest_s:
            self.returns_s = earliest_s
        else:
            self.returns_s = min(self.returns_s + step_s, earliest_s + MOST_ASKED_S)
        # Messages of a lease with equal delays are given back as one item.
        return math.ceil(round((self.returns_s - now_s) / ROUNDING_S, 6)) * ROUNDING_S

    def _took(self, took_s: float) -> None:
        average_s = took_s if self.duration_s is None else self.duration_s
        self.duration_s = average_s + DURATION_WEIGHT * (took_s - average_s)


class Hosts:
    """The hosts that a node remembers: the most recently used ones."""

    def __init__(self, most: int = HOSTS_MOST) -> None:
        self._most = most
        self._hosts: OrderedDict[tuple[Hashable, str], Host] = OrderedDict()

    def __len__(self) -> int:
        return len(self._hosts)

    def of(self, owner: Hashable, name: str) -> Host:
        """Return a host of a group. `owner`: identifies the group, because the messages of another group may have
        wrong URLs."""
        host = self._hosts.get((owner, name))
        if host is None:
            host = self._hosts[owner, name] = Host(name)
            if len(self._hosts) > self._most:
                self._hosts.popitem(last=False)
        else:
            self._hosts.move_to_end((owner, name))
        return host

    def open_hosts(self, owner: Hashable, most: int) -> list[str]:
        """Return the names of hosts of a group whose circuit is not closed, at most `most`."""
        found = [host.name for (of, _), host in self._hosts.items() if of == owner and not _is_closed(host)]
        return sorted(found)[:most]


class Ticket:
    """A message that has a slot or waits for one."""

    __slots__ = ("decided", "has_slot", "host", "since_s")

    def __init__(self, host: Host) -> None:
        self.host = host
        self.decided = trio.Event()
        """Set once the message has a slot, or must be snoozed because its host failed meanwhile."""
        self.has_slot = False
        self.since_s = 0.0
        """Start of the request, in seconds."""


class HostShares:
    """The slots of one group on one node, and the messages that wait for them."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.per_host = max(slots // 4, 1)
        """Maximum number of concurrent requests of a host, and of its waiting messages."""
        self.of_suspects = max(slots // 2, 1)
        """Maximum number of concurrent requests of all suspect hosts, and of their waiting messages."""
        self._running: dict[str, list[Ticket]] = {}
        """Requests in progress, by host."""
        self._waiting: OrderedDict[str, deque[Ticket]] = OrderedDict()
        """Waiting messages by host. The first host is the next one to get a slot."""
        self._taken = 0
        self._queued = 0

    def enter(self, host: Host, now_s: float) -> Ticket | None:
        """Give a message a slot, or let it wait. Return None if the message must be snoozed."""
        if host.is_open(now_s):
            return None
        ticket, queue = Ticket(host), self._waiting.get(host.name, ())
        if not queue and self._has_slot(host, now_s, self._running_suspects(now_s)):
            self._start(ticket, now_s)
            return ticket
        if self._queued >= self.slots or len(queue) >= self.per_host:
            return None
        if not host.is_proven and self._queued_suspects() >= self.of_suspects:
            return None
        self._waiting.setdefault(host.name, deque()).append(ticket)
        self._queued += 1
        return ticket

    def leave(self, ticket: Ticket, now_s: float) -> None:
        """Free the slot of a message, or let it wait no longer. Give free slots to messages that wait."""
        name = ticket.host.name
        if ticket.has_slot:
            running = self._running[name]
            running.remove(ticket)
            if not running:
                del self._running[name]
            self._taken -= 1
        elif ticket in self._waiting.get(name, ()):
            self._dequeue(name, ticket)
        if ticket.host.circuit.state is State.OPEN:
            self._dismiss(name)
        self._start_waiting(now_s)

    def delay_s(self, host: Host, now_s: float) -> float:
        """Return how long to snooze a message of a host."""
        return host.delay_s(now_s, self.per_host, self._oldest_s(host, now_s))

    def _has_slot(self, host: Host, now_s: float, suspects: int) -> bool:
        """Return whether a message of a host may have a slot now. `suspects`: number of requests of suspect hosts."""
        if self._taken >= self.slots:
            return False
        if len(self._running.get(host.name, ())) >= (self.per_host if host.is_proven else 1):
            return False
        return suspects < self.of_suspects or not self._is_suspect(host, now_s)

    def _is_suspect(self, host: Host, now_s: float) -> bool:
        return not host.is_proven or self._oldest_s(host, now_s) > SLOW_S

    def _oldest_s(self, host: Host, now_s: float) -> float:
        """Return the age of the oldest request of a host in seconds; 0 if there is none."""
        return now_s - min([ticket.since_s for ticket in self._running.get(host.name, ())], default=now_s)

    def _running_suspects(self, now_s: float) -> int:
        return sum([len(running) for running in self._running.values() if self._is_suspect(running[0].host, now_s)])

    def _queued_suspects(self) -> int:
        return sum([len(queue) for queue in self._waiting.values() if not queue[0].host.is_proven])

    def _start(self, ticket: Ticket, now_s: float) -> None:
        ticket.has_slot, ticket.since_s = True, now_s
        self._running.setdefault(ticket.host.name, []).append(ticket)
        self._taken += 1
        ticket.decided.set()

    def _start_waiting(self, now_s: float) -> None:
        """Give the free slots to hosts with waiting messages, in turn."""
        suspects, is_found = self._running_suspects(now_s), True
        while is_found and self._taken < self.slots:
            is_found = False
            for name in list(self._waiting):
                ticket = self._waiting[name][0]
                if self._has_slot(ticket.host, now_s, suspects):
                    is_found = True
                    suspects += self._is_suspect(ticket.host, now_s)
                    self._dequeue(name, ticket)
                    self._start(ticket, now_s)
                    if name in self._waiting:
                        self._waiting.move_to_end(name)

    def _dequeue(self, name: str, ticket: Ticket) -> None:
        queue = self._waiting[name]
        queue.remove(ticket)
        self._queued -= 1
        if not queue:
            del self._waiting[name]

    def _dismiss(self, name: str) -> None:
        """Let no message of a host wait any longer: its circuit was opened."""
        queue = self._waiting.pop(name, ())
        self._queued -= len(queue)
        for ticket in queue:
            ticket.decided.set()


def _is_closed(host: Host) -> bool:
    return host.circuit.state is State.CLOSED
