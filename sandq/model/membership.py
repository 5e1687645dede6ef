"""What every backend says about the members: the one interface, and its words.

Membership is a hint. It finds nodes and tells people what is believed of them; Raft decides who leads, and a member
that failed is never taken out of anything because of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from sandq.model.config_schema import Address


class State(Enum):
    """What is believed of a member."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    """It did not answer; it is failed unless it says something in time. Backends without suspicion never say so."""
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Member:
    """`address`: of its gossip. `since_ms`: since when this node believes `state`, epoch milliseconds of its clock."""

    name: str
    address: Address
    tags: Mapping[str, str]
    state: State
    since_ms: int


@dataclass(frozen=True, slots=True)
class Change:
    """A member is new, or something about it is. `gone`: it is not listed any more, and `member` is the last known."""

    member: Member
    gone: bool = False


class Changes(Protocol):
    """What changed, in batches: the first is everybody that is known, each later one what changed since.

    A reader that is slow finds several changes of one member as one: nothing piles up. Iterate until leaving the
    loop; `aclose` is not needed.
    """

    def __aiter__(self) -> Changes: ...

    async def __anext__(self) -> Sequence[Change]: ...


class Membership(Protocol):
    """A backend. Everything but `run` may be called only while `run` runs."""

    @property
    def name(self) -> str:
        """This node's."""
        ...

    def members(self) -> Mapping[str, Member]:
        """Name -> member, this node included, sorted by name; those that left or failed, until they are forgotten."""
        ...

    def changes(self) -> Changes:
        """From now on."""
        ...

    async def join(self, seeds: Sequence[Address]) -> int:
        """Meet these members. Returns how many answered; Unavailable, naming each and why, when none did."""
        ...

    async def set_tags(self, tags: Mapping[str, str]) -> None:
        """Replace this node's tags. TooLarge when they do not fit (512 bytes encoded)."""
        ...

    async def leave(self) -> None:
        """Tell the others that this node goes on purpose, and wait until some of them can have heard it."""
        ...
