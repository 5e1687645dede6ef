"""Send the heartbeats of all idle groups of a node to a peer as one message, and reply to them with one message.

`group_heartbeats` decides whether a group is idle, and builds its part of the message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from sandq.raft import hooks, wire
from sandq.raft.group import Group
from sandq.raft.group_heartbeats import Beat


class HeartbeatCoalescing:
    """The heartbeats of all groups of a node. Idle groups share one message per peer."""

    def __init__(
        self,
        groups: Mapping[int, Group],
        send: Callable[[str, wire.Message], None],
        take: Callable[[str, wire.Message, float], None],
        mark: Callable[[Group], None],
        scan_at: Callable[[float], None],
    ) -> None:
        """`groups`: all groups of the node, by number; the caller changes the mapping when groups come and go.

        `send(node, message)` queues a message. `take(node, message, arrived_s)` lets a group handle a message.
        `mark(group)` requests a tick for a group. `scan_at(deadline_s)` requests a scan of the election deadlines."""
        self._groups = groups
        self._send = send
        self._take = take
        self._mark = mark
        self._scan_at = scan_at

    def beat(self, now_s: float) -> None:
        """Send the heartbeat of all groups that this node leads.

        Idle groups share one message per peer. All other groups send their own messages in a tick."""
        numbers: dict[str, list[int]] = {}
        for group in self._groups.values():
            if group.is_leader and not group.is_alone:
                beats = group.beats(now_s)
                if beats is None:
                    group.heartbeat()
                    self._mark(group)
                else:
                    for node, beat in beats:
                        numbers.setdefault(node, []).extend(beat)
        for node, beaten in numbers.items():
            self._send(node, (wire.BEATS, tuple(beaten)))

    def take_beats(self, node: str, numbers: tuple[int, ...], arrived_s: float) -> None:
        """Handle the beats of the idle groups that a peer leads, and reply to them with one message.

        `arrived_s`: arrival time of the beats. A group whose state differs from its beat gets an ALIVE instead."""
        now_s = hooks.now_s()
        answers: list[int] = []
        for beat in _beats_of(numbers):
            number, sender, to, term, seq = beat
            group = self._groups.get(number)
            if group is None:
                continue
            if group.beaten(node, beat, now_s, arrived_s):
                self._scan_at(group.deadline_s)
                answers += (number, to, sender, term, seq)  # the same beat, from the receiver to the sender
            else:
                # Handle it as an ALIVE with `lagging`: the group replies with its commit index, and gets the entries
                # that it lacks.
                self._take(node, (wire.ALIVE, *beat, True), arrived_s)
        if answers:
            self._send(node, (wire.BEAT_ACKS, tuple(answers)))

    def take_beat_acks(self, node: str, numbers: tuple[int, ...]) -> None:
        """Handle a peer's replies to the beats of groups that this node leads."""
        now_s = hooks.now_s()
        for beat in _beats_of(numbers):
            group = self._groups.get(beat[0])
            if group is not None and not group.beat_answered(node, beat, now_s):
                self._take(node, (wire.ALIVE_ACK, *beat), now_s)


def _beats_of(numbers: tuple[int, ...]) -> Iterator[Beat]:
    """Yield the beats of a message."""
    each = iter(numbers)  # one iterator, from which `zip` takes five numbers for each beat
    return zip(each, each, each, each, each, strict=True)
