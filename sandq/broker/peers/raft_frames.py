"""Send the Raft messages of a commit batch in frames."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from sandq.protocol.peer import PeerFrame
from sandq.raft.wire import size_of

FRAME_BYTES: Final = 4 << 20
"""Size in bytes at which a frame is sent and a new frame begins."""


def send_messages(send: Callable[[str, int, Any], object], node: str, messages: Sequence[Any]) -> None:
    """Send messages to a node, in frames of about `FRAME_BYTES`.

    `send(node, kind, body)`: see `PeerLinks.send`."""
    frame: list[Any] = []
    size = 0
    for message in messages:
        frame.append(message)
        size += size_of(message)
        if size >= FRAME_BYTES:
            send(node, PeerFrame.RAFT, frame)
            frame, size = [], 0
    if frame:
        send(node, PeerFrame.RAFT, frame)
