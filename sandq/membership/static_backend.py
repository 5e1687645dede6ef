"""The backend `static`: the members are those that the configuration names.

Nobody is asked whether they are there: all are believed to be alive, by configuration.
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
    """See `membership.Membership`. `own`: this node's address; `peers`: the others', by name, and `peer_tags` what the
    configuration knows of them. `now_ms`: the node's clock, epoch milliseconds."""

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
            raise InvalidSetting(f"{name} is this node, and no peer of its own")
        nobodys = sorted(peer_tags.keys() - peers.keys())
        if nobodys:
            raise InvalidSetting(f"there are tags of {', '.join(nobodys)}, and no such peers")
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
        """This node's."""
        return self._name

    def members(self) -> Mapping[str, Member]:
        """See `membership.Membership`; all that were named."""
        return self._roster.members()

    def changes(self) -> Changes:
        """See `membership.Membership`; only what this node does to itself."""
        return self._roster.changes()

    async def join(self, seeds: Sequence[Address]) -> int:
        """InvalidRequest: nobody is met who was not named."""
        await trio.lowlevel.checkpoint()
        raise InvalidRequest(
            f"with static membership there is nothing to join: name {', '.join(map(str, seeds)) or 'them'} "
            "in the configuration of every node"
        )

    async def set_tags(self, tags: Mapping[str, str]) -> None:
        """See `membership.Membership`. No other node hears of it."""
        await trio.lowlevel.checkpoint()
        encode_tags(tags)
        own = self._roster.members()[self._name]
        self._roster.put(Member(self._name, self._own, dict(tags), own.state, own.since_ms))

    async def leave(self) -> None:
        """This node says so to itself; there is nobody to tell."""
        await trio.lowlevel.checkpoint()
        own = self._roster.members()[self._name]
        if own.state is not State.LEFT:
            self._roster.put(Member(self._name, self._own, own.tags, State.LEFT, self._now_ms()))

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait until cancelled."""
        task_status.started()
        await trio.sleep_forever()
