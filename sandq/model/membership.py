"""The interface of membership backends, and its types.

Membership is only a hint: it finds nodes, and shows operators the believed state of each node. Raft decides which node
leads. No member is removed only because it counts as failed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from sandq.model.config_schema import Address


class State(Enum):
    """The believed state of a member."""

    ALIVE = "alive"
    SUSPECT = "suspect"
    """The member did not answer. It becomes FAILED unless it answers in time. Some backends do not use this state."""
    LEAVING = "leaving"
    LEFT = "left"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Member:
    """A member. `address`: for gossip. `since_ms`: time at which this node began to believe `state`, in epoch ms of its
    own clock."""

    name: str
    address: Address
    tags: Mapping[str, str]
    state: State
    since_ms: int


@dataclass(frozen=True, slots=True)
class Change:
    """A member is new, or changed. `gone`: it is no longer listed, and `member` is its last known state."""

    member: Member
    gone: bool = False


class Changes(Protocol):
    """Batches of changes. The first batch has every known member, each later batch has the changes since the previous
    batch.

    A slow reader gets several changes of one member as a single change, so that changes do not pile up. Iterate and
    leave the loop at any time; `aclose` is not needed.
    """

    def __aiter__(self) -> Changes: ...

    async def __anext__(self) -> Sequence[Change]: ...


class Membership(Protocol):
    """A membership backend. Call everything except `run` only while `run` runs."""

    @property
    def name(self) -> str:
        """Name of this node."""
        ...

    def members(self) -> Mapping[str, Member]:
        """Return the members by name, sorted, including this node, and members that left or failed until they are
        forgotten."""
        ...

    def changes(self) -> Changes:
        """Return an iterator over the changes, which begins with all current members."""
        ...

    async def join(self, seeds: Sequence[Address]) -> int:
        """Contact these members. Return how many answered. Raise Unavailable, which names the error of each, if none
        did."""
        ...

    async def set_tags(self, tags: Mapping[str, str]) -> None:
        """Replace this node's tags. Raise TooLarge if they do not fit (512 bytes encoded)."""
        ...

    async def leave(self) -> None:
        """Tell the other members that this node leaves on purpose, and wait until some of them can have received it."""
        ...
