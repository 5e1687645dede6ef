"""One link to one peer: what is queued goes out together, what comes is handed on, and silence ends it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import trio

from sandq.broker.peers.handshake import Peer
from sandq.broker.peers.stream import FRAME_BYTES, LENGTH, PeerStream, encode
from sandq.model.errors import ProtocolError, SandqError

PING: Final = 0
"""The kind of a frame that says only that its sender is alive. `[kind, body]` is what a frame of a link holds."""
KIND_MOST: Final = 255
PING_S: Final = 0.5
"""Whoever has sent nothing for so long sends a PING."""
SILENCE_S: Final = 3.0
"""A link on which nothing comes, or nothing is taken, for so long is closed."""
SEND_BYTES: Final = 1 << 20
"""Frames that wait are put together up to this size; a longer one goes alone, uncopied."""
QUEUE_BYTES: Final = 32 << 20
"""Of frames that wait to be sent. There is no room beyond it."""
QUEUE_MOST_BYTES: Final = QUEUE_BYTES + FRAME_BYTES
"""Signs of life and the last frame still go beyond `QUEUE_BYTES`. What goes beyond this closes the link: a frame that
is left out in silence would break the order that both sides count on."""

_PING_BODY = encode((PING, None))
_PING_FRAME = LENGTH.pack(len(_PING_BODY)) + _PING_BODY

ROOM_POLL_S: Final = 0.01
"""How often it is looked whether there is room for what has come."""

OnFrame = Callable[[int, Any, int], None]
"""`on_frame(kind, body, bytes)`."""


class PeerLink:
    """`run` it once; `send` and `close` at any time, on the loop."""

    def __init__(
        self,
        peer: Peer,
        stream: PeerStream,
        secret: bytes = b"",
        *,
        ping_s: float = PING_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`secret`: that both sides have proved."""
        self.peer = peer
        self.secret = secret
        self.waiting_bytes = 0
        """Of frames that are queued or being sent."""
        self.why = ""
        """What ended it; empty while it is open."""
        self._stream = stream
        self._stream.silence_s = silence_s
        self._silence_s = silence_s
        self._ping_s = ping_s
        self._is_writing = False
        self._wrote_s = 0.0
        """When something was sent last."""
        self._queue: deque[bytes] = deque()
        self._wake = trio.Event()
        self._scope = trio.CancelScope()

    @property
    def room(self) -> bool:
        return self.waiting_bytes < QUEUE_BYTES

    def send(self, kind: int, body: Any) -> bool:
        """Queue a frame; False when the link has ended. FrameTooLarge when it is beyond the limit of a frame."""
        if self.why:
            return False
        assert PING < kind <= KIND_MOST, f"a frame of kind {kind}"
        data = encode((kind, body))
        if self.waiting_bytes + len(data) > QUEUE_MOST_BYTES:
            self.close(f"{self.waiting_bytes} bytes wait to be sent, and nobody takes them")
            return False
        self._put(LENGTH.pack(len(data)), data)
        self._wake.set()
        return True

    def close(self, why: str) -> None:
        """End it; nothing is handed on after this."""
        self.why = self.why or why
        self._scope.cancel()

    async def run(self, on_frame: OnFrame, takes_more: Callable[[], bool] = lambda: True) -> None:
        """Until it ends. What `on_frame` raises comes out, in the exception group of a nursery.

        While `takes_more()` is false nothing is read: what comes waits in the sockets, and then at the other side,
        which closes a link on which nothing is taken."""
        self._wrote_s = trio.current_time()
        self._stream.is_watched = True
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._watch)
                await self._read(on_frame, takes_more)
                nursery.cancel_scope.cancel()

    async def _read(self, on_frame: OnFrame, takes_more: Callable[[], bool]) -> None:
        while True:
            while not takes_more():  # noqa: ASYNC110 - it is rare, and whoever makes room need not know of it
                await trio.sleep(ROOM_POLL_S)
            try:
                kind, body = _checked(await self._stream.receive())
            except SandqError as error:
                self.close(error.message)
            # What came before this side closed the link is not handed on any more either.
            if self.why:
                return
            if kind != PING:
                on_frame(kind, body, self._stream.frame_bytes)

    async def _write(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            self._is_writing = True
            while self._queue:
                data = self._take()
                try:
                    await self._stream.send_bytes(data)
                except SandqError as error:
                    self.close(error.message)
                    return
                self.waiting_bytes -= len(data)
            self._is_writing = False
            self._wrote_s = trio.current_time()

    async def _watch(self) -> None:
        """Say that this side is alive when it has said nothing for long, and end the link when the other one has."""
        while True:
            now_s, since_s = trio.current_time(), self._stream.waits_since
            if since_s is not None and now_s >= since_s + self._silence_s:
                self.close(self._stream.silent)
                return
            if now_s >= self._wrote_s + self._ping_s:
                self._wrote_s = now_s
                if not (self._queue or self._is_writing):
                    self._put(_PING_FRAME)
                    self._wake.set()
            silent_s = (now_s if since_s is None else since_s) + self._silence_s
            await trio.sleep_until(min(self._wrote_s + self._ping_s, silent_s))

    def _put(self, *parts: bytes) -> None:
        for part in parts:
            self._queue.append(part)
            self.waiting_bytes += len(part)

    def _take(self) -> bytes:
        """What goes out next."""
        parts = [self._queue.popleft()]
        size = len(parts[0])
        while self._queue and size + len(self._queue[0]) <= SEND_BYTES:
            parts.append(self._queue.popleft())
            size += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _checked(frame: Any) -> tuple[int, Any]:
    """Raises ProtocolError unless it is `(kind, body)`."""
    if type(frame) is not tuple or len(frame) != 2 or type(frame[0]) is not int or not PING <= frame[0] <= KIND_MOST:
        raise ProtocolError("a frame of a link must be an array of a kind and a body")
    return frame[0], frame[1]
