"""Messages between the members of a group: tuples `(kind, group, from, to, fields...)`, as msgpack in a frame.

`from` and `to` are the incarnations of the two members: a message for a different incarnation of a replica is dropped.
`seq` numbers a leader's messages to a group; the reply repeats it.

| kind | fields |
|---|---|
| 0 APPEND | term, commit index, previous index, previous term, entries `(command, index, term)`, seq |
| 1 ACK | term, next index, reset, success, seq |
| 2 ALIVE | term, seq, lagging: says only that the leader is alive; lagging: reply with the first index that you need |
| 3 ALIVE_ACK | term, seq |
| 4 VOTE_REQUEST | term, last index, last term, transfer: true if the leader requested the election |
| 5 VOTE | term |
| 6 PRE_VOTE_REQUEST | proposed term, last index, last term |
| 7 PRE_VOTE | proposed term, granted, current term |
| 8 TIMEOUT_NOW | term |

Two kinds are `(kind, numbers)`, for many groups at once. Each group has five numbers, `group, from, to, term, seq`.

| kind | means |
|---|---|
| 9 BEATS | ALIVE, for idle groups (group_heartbeats.py) |
| 10 BEAT_ACKS | ALIVE_ACK |
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandq.raft.members import Members
from sandq.raft.skip import Skip

APPEND, ACK, ALIVE, ALIVE_ACK, VOTE_REQUEST, VOTE, PRE_VOTE_REQUEST, PRE_VOTE, TIMEOUT_NOW, BEATS, BEAT_ACKS = range(11)
BEAT_NUMBERS = 5
"""Number of integers per group in BEATS and BEAT_ACKS."""
REGULAR, NO_OP, MEMBERSHIP = 0, 1, 2
"""First byte of a command in the log. PERSISTED (PySyncObj's numbers)."""
SKIP = 16
"""First byte of a SKIP command, which replaces an earlier entry (`raft.skip`). PERSISTED."""
_KINDS = (REGULAR, NO_OP, MEMBERSHIP, SKIP)
NUMBERS_MOST = (1 << 63) - 1
"""Maximum of each integer in a message."""
_FIELDS: dict[int, tuple[type, ...]] = {
    APPEND: (int, int, int, int, tuple, int),
    ACK: (int, int, bool, bool, int),
    ALIVE: (int, int, bool),
    ALIVE_ACK: (int, int),
    VOTE_REQUEST: (int, int, int, bool),
    VOTE: (int,),
    PRE_VOTE_REQUEST: (int, int, int),
    PRE_VOTE: (int, bool, int),
    TIMEOUT_NOW: (int,),
}
"""By kind: types of the fields after `(kind, group, from, to)`."""

Message = tuple[Any, ...]


def size_of(message: Message) -> int:
    """Return the approximate size of a message in bytes."""
    if message[0] in (BEATS, BEAT_ACKS):
        return 64 + 9 * len(message[1])
    entries = message[8] if message[0] == APPEND else ()
    return 64 + sum([len(entry[0]) + 24 for entry in entries])


def check(message: Any) -> Message:
    """Guard S10: return the message if its kind and the types of its fields are valid.

    Raise ValueError, or Corruption for a command that cannot be decoded."""
    if type(message) is tuple and len(message) == 2 and message[0] in (BEATS, BEAT_ACKS):
        _check_beats(message[1])
        return message
    if type(message) is not tuple or len(message) < 4:
        raise ValueError(f"{message!r:.80} is no raft message")
    fields = _FIELDS.get(message[0])
    if fields is None:
        raise ValueError(f"a raft message of kind {message[0]!r:.20}")
    types = (int, int, int, *fields)
    if len(message) != len(types) + 1:
        raise ValueError(f"a raft message of kind {message[0]} with {len(message)} fields")
    for value, wanted in zip(message[1:], types, strict=True):
        if type(value) is not wanted or (type(value) is int and not 0 <= value <= NUMBERS_MOST):
            raise ValueError(
                f"a raft message of kind {message[0]} with {value!r:.40} where a {wanted.__name__} belongs"
            )
    if message[0] == APPEND:
        _check_entries(message[6], message[8])
    return message


def _check_beats(numbers: Any) -> None:
    if type(numbers) is not tuple or len(numbers) % BEAT_NUMBERS or not set(map(type, numbers)) <= {int}:
        raise ValueError("a message with beats needs five integers for each group")
    if numbers and not 0 <= min(numbers) <= max(numbers) <= NUMBERS_MOST:
        raise ValueError("a beat with a number that is out of range")


def _check_entries(previous: int, entries: Sequence[Any]) -> None:
    for index, entry in enumerate(entries, previous + 1):
        command, at, term = entry
        if type(command) is not bytes or not command or at != index or type(term) is not int:
            raise ValueError(f"entry {index} of an append has the wrong index, or a field of the wrong type")
        if command[0] not in _KINDS:
            raise ValueError(f"entry {index} of an append has type {command[0]}")
        if command[0] == MEMBERSHIP:
            Members.decode(command[1:])
        elif command[0] == SKIP and Skip.decode(command[1:]).index >= index:
            raise ValueError(f"entry {index} of an append replaces an entry that does not come before it")
