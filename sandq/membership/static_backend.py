"""The backend `static`: the members are those in the configuration.

They are not probed: all of them count as alive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import trio

from sandq.gossip.serf_messages import encode_tags
from sandq.membership.roster import Roster
from sandq.model.config_schema import Address
from sandq.model.errors import InvalidRequest, InvalidSetting
from sandq.model.membership import Changes, Member, State


class StaticMembership:
    """See `membership.Membership`. `own`: this node's address; `peers`: the addresses of the others, by name.

    `peer_tags`: tags of the peers that the configuration knows. `now_ms`: the node's clock, in epoch milliseconds.
    """

    def __init__(
        self,
        name: str,
        own: Address,
        peers: Mapping[str, Address],
        tags: Mapping[str, str],
        now_ms: Callable[[], int],
        *,
        peer_tags: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    ) -> None:
        if name in peers:
            raise InvalidSetting(f"{name} is this node itself, and cannot be a peer")
        unknown = sorted(peer_tags.keys() - peers.keys())
        if unknown:
            raise InvalidSetting(f"there are tags for {', '.join(unknown)}, but no such peers")
        self._name = name
        self._own = own
        self._now_ms = now_ms
        self._roster = Roster()
        since_ms = now_ms()
        for peer, address in peers.items():
            known = dict(peer_tags.get(peer, {}))
            self._roster.put(Member(peer, address, known, State.ALIVE, since_ms))
        encode_tags(tags)
        self._roster.put(Member(name, own, dict(tags), State.ALIVE, since_ms))

    @property
    def name(self) -> str:
        """The name of this node."""
        return self._name

    def members(self) -> Mapping[str, Member]:
        """See `membership.Membership`; all configured members."""
        return self._roster.members()

    def changes(self) -> Changes:
        """See `membership.Membership`; only changes that this node makes to itself."""
        return self._roster.changes()

    async def join(self, seeds: Sequence[Address]) -> int:
        """Raise InvalidRequest: only configured members can be used."""
        await trio.lowlevel.checkpoint()
        raise InvalidRequest(
            f"with static membership there is nothing to join: name {', '.join(map(str, seeds)) or 'them'} "
            "in the configuration of every node"
        )

    async def set_tags(self, tags: Mapping[str, str]) -> None:
        """See `membership.Membership`. Other nodes do not receive the tags."""
        await trio.lowlevel.checkpoint()
        encode_tags(tags)
        own = self._roster.members()[self._name]
        self._roster.put(Member(self._name, self._own, dict(tags), own.state, own.since_ms))

    async def leave(self) -> None:
        """Mark this node as left; other nodes are not informed."""
        await trio.lowlevel.checkpoint()
        own = self._roster.members()[self._name]
        if own.state is not State.LEFT:
            self._roster.put(Member(self._name, self._own, own.tags, State.LEFT, self._now_ms()))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait until cancelled."""
        task_status.started()
        await trio.sleep_forever()
