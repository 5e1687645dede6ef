"""Tests of Raft messages in frames."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.broker.peers import raft_frames, stream
from sandq.broker.peers.raft_frames import send_messages
from sandq.broker.peers.stream import encode
from sandq.model.config_schema import LIMIT_BOUNDS
from sandq.protocol.peer import PeerFrame
from sandq.raft import wire
from sandq.raft.core import MAX_APPEND_BYTES


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


def test_a_link_takes_the_largest_frame_that_the_configuration_allows() -> None:
    """Small messages just below a frame, entries just below it, and the largest entry.

    An entry is smaller than the frame that requested it, or than merged requests, plus 1 MiB.
    """
    most = max(LIMIT_BOUNDS["frame_bytes"], LIMIT_BOUNDS["entry_bytes"])
    entry = (bytes(most + (1 << 20)), 1, 1)
    before = (bytes(MAX_APPEND_BYTES - 1), 1, 1)
    head = (wire.APPEND, 1, 1, 1, 1, 0, 0, 0)
    first = (*head, ((bytes(raft_frames.FRAME_BYTES - 100), 1, 1),), 1)
    assert wire.size_of(first) < raft_frames.FRAME_BYTES
    sent: list[Any] = []
    send_messages(lambda *frame: sent.append(frame), "b", [first, (*head, (before, entry), 2)])
    ((_, kind, body),) = sent
    assert len(encode((kind, body))) <= stream.FRAME_BYTES
