"""Send the heartbeats of all idle groups of a node to a peer as one message, and answer them as one.

What one group has to say is in `group_heartbeats`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from sandq.raft import hooks, wire
from sandq.raft.group import Group
from sandq.raft.group_heartbeats import Beat


class HeartbeatCoalescing:
    """The heartbeats of all groups of a node: those of idle ones share a message to each peer."""

    def __init__(
        self,
        groups: Mapping[int, Group],
        send: Callable[[str, wire.Message], None],
        take: Callable[[str, wire.Message, float], None],
        mark: Callable[[Group], None],
        look_at: Callable[[float], None],
    ) -> None:
        """`groups`: of the node, by number; as they are at any time. `send(node, message)`. `take(node, message,
        arrived_s)`: have a group take a message of its own in. `mark(group)`: it wants a tick. `look_at(deadline_s)`:
        some group wants a tick then."""
        self._groups = groups
        self._send = send
        self._take = take
        self._mark = mark
        self._look_at = look_at

    def beat(self, now_s: float) -> None:
        """Send the heartbeat of all groups that this node leads: one message to each peer for those that are idle; the
        others send theirs in a tick."""
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
        """Take in the heartbeats of the groups that a peer leads, which came at `arrived_s`, and answer them with one
        message."""
        now_s = hooks.now_s()
        answers: list[int] = []
        for beat in _beats_of(numbers):
            number, sender, to, term, seq = beat
            group = self._groups.get(number)
            if group is None:
                continue
            if group.beaten(node, beat, now_s, arrived_s):
                self._look_at(group.deadline_s)
                answers += (number, to, sender, term, seq)
            else:
                # It is asked what it knows to be committed, and then gets the rest.
                self._take(node, (wire.ALIVE, *beat, True), arrived_s)
        if answers:
            self._send(node, (wire.BEAT_ACKS, tuple(answers)))

    def take_beat_acks(self, node: str, numbers: tuple[int, ...]) -> None:
        """Take in a peer's answers to the heartbeats of groups that this node leads."""
        now_s = hooks.now_s()
        for beat in _beats_of(numbers):
            group = self._groups.get(beat[0])
            if group is not None and not group.beat_answered(node, beat, now_s):
                self._take(node, (wire.ALIVE_ACK, *beat), now_s)


def _beats_of(numbers: tuple[int, ...]) -> Iterator[Beat]:
    each = iter(numbers)
    return zip(each, each, each, each, each, strict=True)
