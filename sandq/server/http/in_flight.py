"""What streams of messages have leased for their clients, and nobody has settled."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import anyio

from sandq.client import Held, LeasedMessage


class OpenStreams:
    """The streams of a server, by the leases that they hold."""

    def __init__(self) -> None:
        self.by_token: dict[str, InFlight] = {}

    def settled(self, items: Iterable[tuple[str, str | None]]) -> None:
        """These are not held any more, whoever held them. An item without an offset is all under its lease."""
        for token, offset in items:
            stream = self.by_token.get(token)
            if stream is not None:
                stream.settle(token, offset)

    def extended(self, token: str, until_ms: int) -> None:
        """A lease ends then."""
        stream = self.by_token.get(token)
        if stream is not None:
            stream.extend(token, until_ms)


class InFlight:
    """What one stream holds, and until when: at most `most` messages, as long as nobody adds more than there is room
    for."""

    def __init__(
        self, streams: OpenStreams, most: int, now_ms: Callable[[], float] = lambda: time.time() * 1000
    ) -> None:
        """`now_ms`: leases that have ended by then make room."""
        self._by_token = streams.by_token
        self._most = most
        self._now_ms = now_ms
        self._offsets: dict[str, set[str]] = {}
        self._until_ms: dict[str, int] = {}
        self._changed = anyio.Event()

    def __iter__(self) -> Iterator[Held]:
        return iter([Held(token, offset) for token, offsets in self._offsets.items() for offset in offsets])

    @property
    def room(self) -> int:
        """For so many more."""
        now_ms = self._now_ms()
        for token in [token for token, until_ms in self._until_ms.items() if until_ms <= now_ms]:
            self._drop(token)
        return max(self._most - sum(map(len, self._offsets.values())), 0)

    async def until_room(self) -> None:
        """Wait until there is room."""
        while not self.room:
            with anyio.move_on_after((min(self._until_ms.values()) - self._now_ms()) / 1000):
                await self._changed.wait()

    def add(self, message: LeasedMessage) -> None:
        """It was leased."""
        token = message.lease_token
        self._by_token[token] = self
        self._offsets.setdefault(token, set()).add(message.offset)
        self._until_ms[token] = message.lease_until_ms

    def settle(self, token: str, offset: str | None) -> None:
        """A message of a lease is not held any more; None: all of it."""
        offsets = self._offsets.get(token, set())
        offsets.discard(offset or "")
        if offset is None or not offsets:
            self._drop(token)
        self._notify()

    def extend(self, token: str, until_ms: int) -> None:
        """A lease ends then."""
        if token in self._until_ms:
            self._until_ms[token] = until_ms
            self._notify()

    def close(self) -> None:
        """Nobody asks any more."""
        for token in list(self._offsets):
            self._drop(token)

    def _drop(self, token: str) -> None:
        self._by_token.pop(token, None)
        self._offsets.pop(token, None)
        self._until_ms.pop(token, None)

    def _notify(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
