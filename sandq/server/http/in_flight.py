"""What streams of messages have leased for their clients, and nobody has settled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import anyio

from sandq.client import Held, LeasedMessage


class OpenStreams:
    """The streams of a server, by the leases that they hold."""

    def __init__(self) -> None:
        self.by_token: dict[str, InFlight] = {}

    def settled(self, topic: str, items: Iterable[tuple[str, str | None]]) -> None:
        """These of a topic are not held any more, whoever held them. An item without an offset is all under its lease.
        Who may consume of this topic may name leases of another, which are lost to it, and to nobody else."""
        for token, offset in items:
            stream = self.by_token.get(token)
            if stream is not None and stream.topic == topic:
                stream.settle(token, offset)

    def extended(self, token: str, lease_s: float) -> None:
        """A lease ends so long from now."""
        stream = self.by_token.get(token)
        if stream is not None:
            stream.extend(token, lease_s)


class InFlight:
    """What one stream holds, and until when: at most `most` messages, as long as nobody adds more than there is room
    for.

    Leases end by the clock of the event loop, so long after they came: what clocks of other machines say is not asked.
    """

    def __init__(self, streams: OpenStreams, topic: str, most: int) -> None:
        self.topic = topic
        self._by_token = streams.by_token
        self._most = most
        self._offsets: dict[str, set[str]] = {}
        self._until_s: dict[str, float] = {}
        self._changed = anyio.Event()

    def __iter__(self) -> Iterator[Held]:
        return iter([Held(token, offset) for token, offsets in self._offsets.items() for offset in offsets])

    @property
    def room(self) -> int:
        """For so many more."""
        now_s = anyio.current_time()
        for token in [token for token, until_s in self._until_s.items() if until_s <= now_s]:
            self._drop(token)
        return max(self._most - sum(map(len, self._offsets.values())), 0)

    async def until_room(self) -> None:
        """Wait until there is room."""
        while not self.room:
            with anyio.move_on_after(min(self._until_s.values()) - anyio.current_time()):
                await self._changed.wait()

    def add(self, message: LeasedMessage, lease_s: float) -> None:
        """It was leased for so long."""
        token = message.lease_token
        self._by_token[token] = self
        self._offsets.setdefault(token, set()).add(message.offset)
        self._until_s[token] = anyio.current_time() + lease_s

    def settle(self, token: str, offset: str | None) -> None:
        """A message of a lease is not held any more; None: all of it."""
        offsets = self._offsets.get(token, set())
        offsets.discard(offset or "")
        if offset is None or not offsets:
            self._drop(token)
        self._notify()

    def extend(self, token: str, lease_s: float) -> None:
        """A lease ends so long from now."""
        if token in self._until_s:
            self._until_s[token] = anyio.current_time() + lease_s
            self._notify()

    def close(self) -> None:
        """Nobody asks any more."""
        for token in list(self._offsets):
            self._drop(token)

    def _drop(self, token: str) -> None:
        self._by_token.pop(token, None)
        self._offsets.pop(token, None)
        self._until_s.pop(token, None)

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
