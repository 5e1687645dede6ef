"""Track the messages that HTTP streams have leased for their clients, and that are not settled yet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import anyio

from sandq.client import Held, LeasedMessage


class OpenStreams:
    """The open streams of a server, by the leases that they hold."""

    def __init__(self) -> None:
        self.by_token: dict[str, InFlight] = {}

    def settled(self, topic: str, items: Iterable[tuple[str, str | None]]) -> None:
        """Release settled messages of a topic from the streams that hold them. Without an offset, release the whole
        lease.

        The topic must match: a caller with rights on one topic cannot release leases of another topic."""
        for token, offset in items:
            stream = self.by_token.get(token)
            if stream is not None and stream.topic == topic:
                stream.settle(token, offset)

    def extended(self, token: str, lease_s: float) -> None:
        """Note that a lease was extended: it ends `lease_s` seconds from now."""
        stream = self.by_token.get(token)
        if stream is not None:
            stream.extend(token, lease_s)


class InFlight:
    """The leases that one stream holds, and when they end. `most`: maximum number of messages. The caller must not add
    more messages than `free`.

    The end of a lease is computed with the clock of the event loop, from its duration. Clocks of other machines do not
    matter.
    """

    def __init__(self, streams: OpenStreams, topic: str, most: int) -> None:
        self.topic = topic
        self._by_token = streams.by_token
        self._most = most
        self._offsets: dict[str, set[str]] = {}
        self._until_s: dict[str, float] = {}
        self._changed = anyio.Event()

    def __iter__(self) -> Iterator[Held]:
        """Yield all messages that the stream holds."""
        return iter([Held(token, offset) for token, offsets in self._offsets.items() for offset in offsets])

    @property
    def free(self) -> int:
        """Number of further messages that the stream may lease now."""
        now_s = anyio.current_time()
        for token in [token for token, until_s in self._until_s.items() if until_s <= now_s]:
            self._drop(token)
        return max(self._most - sum(map(len, self._offsets.values())), 0)

    async def until_free(self) -> None:
        """Wait until the stream may lease further messages."""
        while not self.free:
            with anyio.move_on_after(min(self._until_s.values()) - anyio.current_time()):
                await self._changed.wait()

    def add(self, message: LeasedMessage, lease_s: float) -> None:
        """Add a message that was leased for `lease_s` seconds."""
        token = message.lease_token
        self._by_token[token] = self
        self._offsets.setdefault(token, set()).add(message.offset)
        self._until_s[token] = anyio.current_time() + lease_s

    def settle(self, token: str, offset: str | None) -> None:
        """Release a message of a lease. `offset` None: release the whole lease."""
        offsets = self._offsets.get(token, set())
        offsets.discard(offset or "")
        if offset is None or not offsets:
            self._drop(token)
        self._notify()

    def extend(self, token: str, lease_s: float) -> None:
        """Note that a lease was extended: it ends `lease_s` seconds from now."""
        if token in self._until_s:
            self._until_s[token] = anyio.current_time() + lease_s
            self._notify()

    def close(self) -> None:
        """Release everything: the stream has ended."""
        for token in list(self._offsets):
            self._drop(token)

    def _drop(self, token: str) -> None:
        """Forget a lease."""
        self._by_token.pop(token, None)
        self._offsets.pop(token, None)
        self._until_s.pop(token, None)

    def _notify(self) -> None:
        """Wake the tasks that wait until the stream may lease further messages."""
        changed, self._changed = self._changed, anyio.Event()
        changed.set()
