"""One link to one peer.

The link sends queued frames together, and passes received frames to a callback. If the peer is silent for too long, the
link ends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

import trio

from sandq.broker.peers.handshake import Peer
from sandq.broker.peers.stream import FRAME_BYTES, LENGTH, PeerStream, encode
from sandq.model.errors import ProtocolError, SandqError

PING: Final = 0
"""Kind of a frame that only shows that its sender is alive. Each frame of a link contains `[kind, body]`."""
KIND_MOST: Final = 255
PING_S: Final = 0.5
"""Seconds without sending after which a PING is sent."""
SILENCE_S: Final = 3.0
"""Seconds without receiving, or without the peer accepting data, after which the link is closed."""
SEND_BYTES: Final = 1 << 20
"""Maximum size in bytes of queued frames that are sent together. A larger frame is sent alone, without being copied."""
QUEUE_BYTES: Final = 32 << 20
"""Total size in bytes of the queued frames from which on `accepts` is False."""
QUEUE_MOST_BYTES: Final = QUEUE_BYTES + FRAME_BYTES
"""Maximum total size in bytes of the queued frames.

If a sender checks `accepts` before each frame, only its last frame and PINGs exceed `QUEUE_BYTES`. A frame that would
exceed `QUEUE_MOST_BYTES` closes the link. If that frame were dropped instead, the peer would get later frames without
it."""

_PING_BODY = encode((PING, None))
_PING_FRAME = LENGTH.pack(len(_PING_BODY)) + _PING_BODY

POLL_S: Final = 0.01
"""Seconds between two calls of `takes_more` while it returns False (see `PeerLink.run`)."""

OnFrame = Callable[[int, Any, int], None]
"""Called as `on_frame(kind, body, size)`. `size`: size of the frame in bytes, without its length field."""


class PeerLink:
    """A link. Call `run` once. Call `send` and `close` at any time, on the event loop."""

    def __init__(
        self,
        peer: Peer,
        stream: PeerStream,
        secret: bytes = b"",
        *,
        ping_s: float = PING_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        """`secret`: the secret that both sides have proved in the handshake."""
        self.peer = peer
        self.secret = secret
        self.waiting_bytes = 0
        """Total size in bytes of the frames that are queued or being sent."""
        self.why = ""
        """Reason why the link ended; empty while it is open."""
        self._stream = stream
        self._stream.silence_s = silence_s
        self._silence_s = silence_s
        self._ping_s = ping_s
        self._is_writing = False
        self._wrote_s = 0.0
        """Time on trio's clock at which the last frame was sent, in s."""
        self._queue: deque[bytes] = deque()
        self._wake = trio.Event()
        self._scope = trio.CancelScope()

    @property
    def accepts(self) -> bool:
        """True if the sender may queue more frames."""
        return self.waiting_bytes < QUEUE_BYTES

    def send(self, kind: int, body: Any) -> bool:
        """Queue a frame. Return False if the link has ended. Raise FrameTooLarge if the frame exceeds `FRAME_BYTES`."""
        if self.why:
            return False
        assert PING < kind <= KIND_MOST, f"a frame of kind {kind}"
        data = encode((kind, body))
        if self.waiting_bytes + len(data) > QUEUE_MOST_BYTES:
            self.close(f"{self.waiting_bytes} bytes wait to be sent, and the peer does not accept them")
            return False
        self._put(LENGTH.pack(len(data)), data)
        self._wake.set()
        return True

    def close(self, why: str) -> None:
        """End the link. After this call, no frame is passed to the callback."""
        self.why = self.why or why
        self._scope.cancel()

    async def run(self, on_frame: OnFrame, takes_more: Callable[[], bool] = lambda: True) -> None:
        """Send and receive until the link ends. An exception of `on_frame` is raised here, in an exception group.

        While `takes_more()` returns False, nothing is read. Then data piles up in the sockets and at the peer. If this
        lasts too long, the peer closes the link."""
        self._wrote_s = trio.current_time()
        self._stream.is_watched = True
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                nursery.start_soon(self._watch)
                await self._read(on_frame, takes_more)
                nursery.cancel_scope.cancel()

    async def _read(self, on_frame: OnFrame, takes_more: Callable[[], bool]) -> None:
        """Hand received frames to the callback until the link ends."""
        while True:
            while not takes_more():  # noqa: ASYNC110 - it is rare, and the code that frees memory knows no links
                await trio.sleep(POLL_S)
            try:
                kind, body = _checked(await self._stream.receive())
            except SandqError as error:
                self.close(error.message)
            # After this side has closed the link, drop received frames, too.
            if self.why:
                return
            if kind != PING:
                on_frame(kind, body, self._stream.frame_bytes)

    async def _write(self) -> None:
        """Send the queued frames until the link ends."""
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
        """Send a PING if no frame was sent for `ping_s`. End the link if no byte was received for `silence_s`."""
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
        """Queue bytes to send. Joined, the parts must be complete frames."""
        for part in parts:
            self._queue.append(part)
            self.waiting_bytes += len(part)

    def _take(self) -> bytes:
        """Remove and return the next bytes to send: as many queued parts as fit into `SEND_BYTES`, at least one."""
        parts = [self._queue.popleft()]
        size = len(parts[0])
        while self._queue and size + len(self._queue[0]) <= SEND_BYTES:
            parts.append(self._queue.popleft())
            size += len(parts[-1])
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _checked(frame: Any) -> tuple[int, Any]:
    """Return the kind and body of a frame. Raise ProtocolError if it is malformed."""
    if type(frame) is not tuple or len(frame) != 2 or type(frame[0]) is not int or not PING <= frame[0] <= KIND_MOST:
        raise ProtocolError("a frame of a link must be an array of a kind and a body")
    return frame[0], frame[1]
