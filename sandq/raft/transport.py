"""The transport that the library uses: converts messages to tuples, and limits what is sent to each peer (guard M1)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from pysyncobj.config import FAIL_REASON
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from sandq.model.members import incarnation_of, node_of
from sandq.raft import wire

WINDOW_BYTES = 4 << 20
"""Maximum unanswered bytes of one group to one peer. The last message may exceed this limit."""
ENTRY_BYTES = 24
"""Approximate overhead of an entry in addition to its command, in bytes."""


class Flight:
    """The unanswered messages to one peer."""

    def __init__(self) -> None:
        self.bytes = 0
        self._sent: deque[tuple[int, int]] = deque()
        self._last = (0, 0)
        """Number and commit index of the last message sent."""
        self._known_commit = 0
        """Last commit index that the peer certainly received."""

    def sent(self, seq: int, size: int, commit: int) -> None:
        """Record that message `seq` of `size` bytes was sent. `commit`: the commit index in the message."""
        self.bytes += size
        self._sent.append((seq, size))
        self._last = seq, commit

    def taken(self, seq: int) -> None:
        """Record that the peer has accepted message `seq`."""
        if seq == self._last[0]:
            self._known_commit = self._last[1]

    def has_acknowledged(self, commit: int) -> bool:
        """Return whether the peer has answered every message, and knows this commit index."""
        return not self._sent and self._known_commit == commit

    def answered(self, seq: int) -> None:
        """Record a reply to message `seq`, which also settles all earlier messages.

        There is one connection per peer, so messages either keep their order or are all lost."""
        while self._sent and self._sent[0][0] <= seq:
            self.bytes -= self._sent.popleft()[1]

    @property
    def is_full(self) -> bool:
        return self.bytes >= WINDOW_BYTES


class GroupTransport(Transport):  # type: ignore[misc]
    """The transport that the library sends to.

    If the window or the queue of a peer is full, the peer is `paused`: the library regards it as disconnected, and the
    peer receives only ALIVE messages."""

    def __init__(
        self,
        number: int,
        member: str,
        send: Callable[[str, wire.Message], None],
        term: Callable[[], int],
        may_send: Callable[[str], bool],
    ) -> None:
        super().__init__(None, None, None)
        self._number = number
        self._incarnation = incarnation_of(member)
        self._send = send
        self._term = term
        self._queue_accepts = may_send
        self.seq = 0
        """Number of the last message that requires a reply."""
        self.answering = 0
        """Number of the message to which the current reply belongs."""
        self.transfer = False
        """True if the current election was requested by the leader."""
        self.flights: dict[str, Flight] = {}
        self.paused: set[Node] = set()
        self.lagging: set[str] = set()
        """Members whose next entry is no longer in the log: they need a snapshot."""
        self.reset_at: Callable[[int], int] = lambda index: index
        """Returns the index at which a follower with a conflicting log asks the leader to continue (guard L3)."""

    def post(self, member: str, kind: int, *fields: Any) -> None:
        message = (kind, self._number, self._incarnation, incarnation_of(member), *fields)
        self._send(node_of(member), message)

    def alive(self, member: str) -> None:
        """Send an ALIVE message (guards S5, L1).

        It also replaces the library's snapshot message. Without a snapshot, the library would try to send that message
        in a loop."""
        self.seq += 1
        self.post(member, wire.ALIVE, self._term(), self.seq, member in self.lagging)

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        """Convert a message of the library, and send it. Always return True: the message was accepted."""
        kind = message["type"]
        if kind == "append_entries":
            self._append(node, message)
        elif kind == "next_node_idx":
            next_index = message["next_node_idx"]
            if message["reset"] and not message["success"]:
                next_index = self.reset_at(next_index)
            fields = (next_index, message["reset"], message["success"], self.answering)
            self.post(node.id, wire.ACK, self._term(), *fields)
        elif kind == "request_vote":
            fields = (message["term"], message["last_log_index"], message["last_log_term"], self.transfer)
            self.post(node.id, wire.VOTE_REQUEST, *fields)
        elif kind == "response_vote":
            self.post(node.id, wire.VOTE, message["term"])
        elif kind == "timeout_now":
            self.post(node.id, wire.TIMEOUT_NOW, message["term"])
        elif kind == "apply_command" and "request_id" in message:
            # Commands are never forwarded to the leader: fail the proposal immediately.
            refusal = {"type": "apply_command_response", "request_id": message["request_id"]}
            self._onMessageReceived(node, refusal | {"error": FAIL_REASON.NOT_LEADER})
        return True

    def _append(self, node: Node, message: dict[str, Any]) -> None:
        """Send entries to a peer, and pause the peer if its window or queue is then full."""
        if "serialized" in message:
            # The library wants to send a snapshot, because the log no longer has the peer's next entry.
            self.lagging.add(node.id)
            self._pause(node)
            self.alive(node.id)
            return
        self.lagging.discard(node.id)
        self.seq += 1
        entries = tuple(message["entries"])
        fields = (message["commit_index"], message["prevLogIdx"], message["prevLogTerm"], entries, self.seq)
        self.post(node.id, wire.APPEND, message["term"], *fields)
        flight = self.flights.setdefault(node.id, Flight())
        size = sum([len(entry[0]) for entry in entries]) + ENTRY_BYTES * (len(entries) + 1)
        flight.sent(self.seq, size, message["commit_index"])
        if flight.is_full or not self._queue_accepts(node_of(node.id)):
            self._pause(node)

    def _pause(self, node: Node) -> None:
        """Make the library believe that a peer is disconnected, so that it sends nothing to the peer."""
        self.paused.add(node)
        self._onNodeDisconnected(node)

    def resume(self, node: Node) -> None:
        """Allow the library to send to a peer again, if the peer's window and queue accept more."""
        flight = self.flights.get(node.id)
        if (flight is None or not flight.is_full) and self._queue_accepts(node_of(node.id)):
            self.paused.discard(node)
            self._onNodeConnected(node)

    def connected(self, node: Node) -> None:
        self.flights.pop(node.id, None)
        self.paused.discard(node)
        self._onNodeConnected(node)

    def disconnected(self, node: Node) -> None:
        """Forget the messages in flight, because they are lost, and report the disconnection to the library."""
        self.flights.pop(node.id, None)
        self.paused.discard(node)
        self._onNodeDisconnected(node)
