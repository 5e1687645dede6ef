"""The library's transport: its messages become tuples in the outbox of the node, bounded for each peer (guard M1)."""

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
"""What one group has on its way to one peer, unanswered, at most: and one message more."""
ENTRY_BYTES = 24
"""What an entry takes beside its command, about."""


class Flight:
    """What is on its way to one peer."""

    def __init__(self) -> None:
        self.bytes = 0
        self._sent: deque[tuple[int, int]] = deque()
        self._last = (0, 0)
        self._told = 0

    def sent(self, seq: int, size: int, commit: int) -> None:
        """`commit`: what the message says is committed."""
        self.bytes += size
        self._sent.append((seq, size))
        self._last = seq, commit

    def taken(self, seq: int) -> None:
        """The peer has done what this message says."""
        if seq == self._last[0]:
            self._told = self._last[1]

    def has_told(self, commit: int) -> bool:
        """The peer has answered everything, and knows that this is committed."""
        return not self._sent and self._told == commit

    def answered(self, seq: int) -> None:
        """This and everything sent before it (there is one connection: order is kept, or all is lost)."""
        while self._sent and self._sent[0][0] <= seq:
            self.bytes -= self._sent.popleft()[1]

    @property
    def is_full(self) -> bool:
        return self.bytes >= WINDOW_BYTES


class GroupTransport(Transport):  # type: ignore[misc]
    """Where the library sends to. A peer that takes no more for now is `paused`: the library believes it
    disconnected, and it gets but signs of life."""

    def __init__(
        self,
        number: int,
        member: str,
        send: Callable[[str, wire.Message], None],
        term: Callable[[], int],
        room: Callable[[str], bool],
    ) -> None:
        super().__init__(None, None, None)
        self._number = number
        self._incarnation = incarnation_of(member)
        self._send = send
        self._term = term
        self._room = room
        self.seq = 0
        """Of the last message that wants an answer."""
        self.answering = 0
        """The number of the message that is being answered."""
        self.transfer = False
        """Votes are asked for because the leader wants it."""
        self.flights: dict[str, Flight] = {}
        self.paused: set[Node] = set()
        self.lagging: set[str] = set()
        """Members whose next entry is not in the log any more: they need a snapshot."""
        self.reset_at: Callable[[int], int] = lambda index: index
        """Where a follower whose log conflicts asks to go on from (guard L3)."""

    def post(self, member: str, kind: int, *fields: Any) -> None:
        message = (kind, self._number, self._incarnation, incarnation_of(member), *fields)
        self._send(node_of(member), message)

    def alive(self, member: str) -> None:
        """Guards S5, L1: where the library would send a snapshot, or spin for having none, a sign of life goes."""
        self.seq += 1
        self.post(member, wire.ALIVE, self._term(), self.seq, member in self.lagging)

    def send(self, node: Node, message: dict[str, Any]) -> bool:
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
            # A command is never forwarded: who asked for it is told at once that it was not taken.
            refusal = {"type": "apply_command_response", "request_id": message["request_id"]}
            self._onMessageReceived(node, refusal | {"error": FAIL_REASON.NOT_LEADER})
        return True

    def _append(self, node: Node, message: dict[str, Any]) -> None:
        if "serialized" in message:
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
        if flight.is_full or not self._room(node_of(node.id)):
            self._pause(node)

    def _pause(self, node: Node) -> None:
        self.paused.add(node)
        self._onNodeDisconnected(node)

    def resume(self, node: Node) -> None:
        """Let the library send to a peer again, if there is room."""
        flight = self.flights.get(node.id)
        if (flight is None or not flight.is_full) and self._room(node_of(node.id)):
            self.paused.discard(node)
            self._onNodeConnected(node)

    def connected(self, node: Node) -> None:
        self.flights.pop(node.id, None)
        self.paused.discard(node)
        self._onNodeConnected(node)

    def disconnected(self, node: Node) -> None:
        """What was on its way is lost."""
        self.flights.pop(node.id, None)
        self.paused.discard(node)
        self._onNodeDisconnected(node)
