"""The backend `serf`: the members that a Serf agent lists, which the site runs anyway.

The agent belongs to the site. This node adds its tags to the agent and removes them when it leaves; other tags are not
changed, and the agent is never stopped. All machines of the site are listed, including those without our tags.

Events of the agent only cause a new reading of the members, because some events are lost or late. While the agent is
unavailable, the last known members stay.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from typing import Final

import trio

from sandq.gossip.serf_messages import encode_tags
from sandq.membership.roster import Roster
from sandq.membership.serf_rpc import AgentMember, Refused, SerfRpc
from sandq.model.config_schema import Address
from sandq.model.errors import (
    ConnectionLost,
    InvalidRequest,
    ProtocolError,
    Retriable,
    SandqError,
    StartupError,
    TooLarge,
    Unavailable,
)
from sandq.model.logger import get_logger
from sandq.model.membership import Changes, Member, State

REFRESH_S: Final = 5.0
"""Maximum interval between two readings of the members, in seconds."""
COALESCE_S: Final = 0.2
"""Minimum interval between two readings, in seconds."""
PAUSE_S: Final = 0.2
"""First pause between two attempts to connect, in seconds. The pause doubles with each attempt."""
PAUSE_MOST_S: Final = 5.0
"""Longest pause between two attempts to connect, in seconds."""

_STATES: Final = {
    "alive": State.ALIVE,
    "leaving": State.LEAVING,
    "left": State.LEFT,
    "failed": State.FAILED,
}

_ENDS: Final = ConnectionLost, ProtocolError
"""Errors that end the connection. `run` also receives them, logs them and connects again."""
_NO_CONNECTION: Final = "there is no connection to the Serf agent"
_NO_TAGS: Final = "the Serf agent does not accept the tags of this node"

log = get_logger("sandq.gossip")


class SerfMembership:
    """See `membership.Membership`. `agent`: the address of the agent's RPC; `auth_key`: its rpc_auth.

    `ours`: the names of all tags that this node may ever set. `now_ms`: the node's clock, in epoch milliseconds.
    """

    def __init__(
        self,
        agent: Address,
        auth_key: str | None,
        *,
        ours: Set[str],
        tags: Mapping[str, str],
        now_ms: Callable[[], int],
        refresh_s: float = REFRESH_S,
    ) -> None:
        self._agent = agent
        self._auth_key = auth_key
        self._ours = frozenset(ours)
        self._now_ms = now_ms
        self._refresh_s = refresh_s
        self._roster = Roster()
        self._name = ""
        self._rpc: SerfRpc | None = None
        self._reading = trio.Lock()
        self._logged: set[tuple[str, str]] = set()
        self._check(tags)
        self._tags = dict(tags)

    @property
    def name(self) -> str:
        """The agent's name; empty until it was reached."""
        return self._name

    def members(self) -> Mapping[str, Member]:
        """See `membership.Membership`."""
        return self._roster.members()

    def changes(self) -> Changes:
        """See `membership.Membership`."""
        return self._roster.changes()

    async def join(self, seeds: Sequence[Address]) -> int:
        """See `membership.Membership`. The agent contacts the seeds one after the other."""
        if not seeds:
            return 0
        failed = []
        # Use a separate connection: a seed that does not answer delays all other answers by many seconds.
        async with await SerfRpc.open(self._agent, self._auth_key) as rpc:
            for seed in seeds:
                try:
                    await rpc.join(seed)
                except Refused as error:
                    failed.append(f"{seed} ({error.message})")
        if len(failed) == len(seeds):
            raise Unavailable(f"no seed answered: {'; '.join(failed)}")
        if self._rpc is not None:
            with suppress(*_ENDS):
                await self._read_members(self._rpc)
        return len(seeds) - len(failed)

    async def set_tags(self, tags: Mapping[str, str]) -> None:
        """See `membership.Membership`. While the agent is unavailable, tags are kept, and set when it is back.

        Raises InvalidRequest for a tag that is not in `ours`.
        """
        self._check(tags)
        before, wanted = self._tags, dict(tags)
        self._tags = wanted
        if self._rpc is None:
            return
        try:
            with suppress(*_ENDS):
                await self._put_tags(self._rpc)
        except SandqError:
            if self._tags is wanted:
                self._tags = before
            raise

    async def leave(self) -> None:
        """Remove this node's tags from the agent, which informs the other members and keeps running.

        Raises no SandqError: failures are logged.
        """
        self._tags = {}
        try:
            rpc = self._rpc
            if rpc is None:
                raise Unavailable(f"there is no connection to the Serf agent at {self._agent}")
            await self._put_tags(rpc)
        except SandqError as error:
            log.warning(
                "the tags of this node stay on the Serf agent",
                error=error.message,
                tags=sorted(self._ours),
                remedy="delete them with `serf tags -delete`, or start the agent again",
            )

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Stay connected to the agent until cancelled. Ready once the members are known for the first time.

        It waits for an unavailable agent, but raises StartupError if the agent rejects this node.
        """
        pause_s = PAUSE_S
        while True:
            came_at_s = None
            try:
                async with await SerfRpc.open(self._agent, self._auth_key) as rpc:
                    await self._meet(rpc)
                    came_at_s = trio.current_time()
                    log.info("connected to the Serf agent", agent=str(self._agent), name=self._name)
                    self._rpc = rpc
                    self._allow_logging(_NO_CONNECTION)
                    task_status.started()
                    task_status = trio.TASK_STATUS_IGNORED
                    await self._follow(rpc)
            except SandqError as error:
                if isinstance(error, StartupError) and not self._name:
                    raise
                self._log_once(_NO_CONNECTION, error)
            finally:
                self._rpc = None
            if came_at_s is not None and trio.current_time() - came_at_s > PAUSE_MOST_S:
                pause_s = PAUSE_S
            await trio.sleep(pause_s * random.uniform(0.5, 1))
            pause_s = min(2 * pause_s, PAUSE_MOST_S)

    # -- while there is a connection ------------------------------------------------------------------------------

    async def _meet(self, rpc: SerfRpc) -> None:
        await rpc.stream_members()
        self._name = rpc.agent_name
        await self._read_members(rpc)
        await self._restore_tags(rpc)

    async def _follow(self, rpc: SerfRpc) -> None:
        restored_at_s = trio.current_time()
        while True:
            await trio.sleep(COALESCE_S)
            with trio.move_on_after(self._refresh_s - COALESCE_S):
                await rpc.event()
            await self._read_members(rpc)
            # Do not restore more often: two nodes on one agent would replace each other's tags without a pause.
            if trio.current_time() - restored_at_s >= self._refresh_s and await self._restore_tags(rpc):
                restored_at_s = trio.current_time()

    async def _read_members(self, rpc: SerfRpc) -> None:
        """Read the members. One reading at a time, so that an older list does not replace a newer one."""
        async with self._reading:
            listed = await rpc.members()
            for found in listed:
                self._put(found)
            for name in self._roster.members().keys() - {found.name for found in listed}:
                self._roster.remove(name)

    def _put(self, found: AgentMember) -> None:
        state = _STATES.get(found.status)
        if state is None:
            if (found.name, found.status) not in self._logged:
                self._logged.add((found.name, found.status))
                log.info("a member of the Serf agent is left out", member=found.name, status=found.status)
            return
        known = self._roster.members().get(found.name)
        since_ms = known.since_ms if known is not None and known.state is state else self._now_ms()
        self._roster.put(Member(found.name, found.address, found.tags, state, since_ms))

    # -- tags -----------------------------------------------------------------------------------------------------

    def _check(self, tags: Mapping[str, str]) -> None:
        others = sorted(tags.keys() - self._ours)
        if others:
            raise InvalidRequest(f"sandq has no tags {', '.join(others)}; there are {', '.join(sorted(self._ours))}")
        encode_tags(tags)

    def _on_agent(self) -> Mapping[str, str]:
        """Return all tags that the agent has."""
        own = self._roster.members().get(self._name)
        return {} if own is None else own.tags

    async def _restore_tags(self, rpc: SerfRpc) -> bool:
        """Set this node's tags unless the agent has them; return whether they were missing.

        The agent loses them when it restarts or reloads its configuration.
        """
        if {name: value for name, value in self._on_agent().items() if name in self._ours} == self._tags:
            return False
        try:
            await self._put_tags(rpc)
        except (Refused, TooLarge) as error:
            self._log_once(_NO_TAGS, error)
        else:
            self._allow_logging(_NO_TAGS)
        return True

    async def _put_tags(self, rpc: SerfRpc) -> None:
        """Set this node's tags, and read the members. Raises TooLarge, Refused."""
        tags = dict(self._tags)
        try:
            await rpc.set_tags(tags, sorted(self._ours - tags.keys()))
        except Refused:
            # If the agent refused because the tags are too large, raise TooLarge, which names the size. The agent's
            # limit also counts the tags of its own configuration.
            encode_tags({name: value for name, value in self._on_agent().items() if name not in self._ours} | tags)
            raise
        await self._read_members(rpc)

    def _log_once(self, event: str, error: SandqError) -> None:
        """Log a failure only once until the operation succeeds again, because it is retried endlessly."""
        logged = event, "away" if isinstance(error, Retriable) else error.code
        if logged not in self._logged:
            self._logged.add(logged)
            log.warning(event, agent=str(self._agent), error=error.message)

    def _allow_logging(self, event: str) -> None:
        self._logged = {logged for logged in self._logged if logged[0] != event}
