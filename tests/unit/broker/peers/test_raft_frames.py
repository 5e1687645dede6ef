"""Raft's messages in frames."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.broker.peers import raft_frames
from sandq.broker.peers.raft_frames import send_messages
from sandq.protocol.peer import PeerFrame


@pytest.mark.parametrize(
    ("sizes", "frames"),
    [([], []), ([1], [[1]]), ([9, 1], [[9, 1]]), ([9, 2, 1], [[9, 2], [1]]), ([10, 30, 4, 5], [[10], [30], [4, 5]])],
)
def test_a_frame_is_sent_once_it_is_large_enough(
    monkeypatch: pytest.MonkeyPatch, sizes: list[int], frames: list[list[int]]
) -> None:
    monkeypatch.setattr(raft_frames, "size_of", lambda message: message)
    monkeypatch.setattr(raft_frames, "FRAME_BYTES", 10)
    sent: list[Any] = []
    send_messages(lambda *frame: sent.append(frame), "b", sizes)
    assert sent == [("b", PeerFrame.RAFT, frame) for frame in frames]
