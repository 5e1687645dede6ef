"""Start members of the native backend and Serf agents of one cluster."""

from __future__ import annotations

import base64
import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from sandq.gossip.keyring import Keyring
from sandq.gossip.tags import judge_of
from sandq.membership.gossip_backend import GossipMembership
from sandq.model.config_types import Address
from sandq.model.gossip_timing import PROFILES
from sandq.model.membership import Member, State
from tests.support.gossip.serf_agent import SerfAgent
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S

CLUSTER = "sandq"
QUICK = dataclasses.replace(
    PROFILES["local"],
    probe_interval_s=0.2,
    probe_timeout_s=0.1,
    gossip_interval_s=0.02,
    reconnect_interval_s=0.2,
    # All peers answer in the end: a peer that does not answer yet is only paused, like this process at times.
    stream_timeout_s=PATIENCE_S,
    # A member that misses a message gets it at the next push-pull.
    retransmit_mult=4,
)


def key_bytes(key: str) -> bytes:
    """Decode a key in base64."""
    return base64.b64decode(key)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class GossipBed:
    """Starts and stops the members. `key`: the key of all its members, in base64; None for plain text."""

    def __init__(self, nursery: trio.Nursery, make_agent: Callable[..., SerfAgent], key: str | None) -> None:
        self._nursery = nursery
        self._make_agent = make_agent
        self.key = key
        self.keyring = None if key is None else Keyring([key_bytes(key)])
        self._addresses: dict[str, Address] = {}
        self._members: dict[str, GossipMembership] = {}
        self._running: dict[str, tuple[trio.CancelScope, trio.Event]] = {}

    async def agent(
        self, name: str, *, joins: Address | None = None, keyring: Sequence[str] | None = None, **tags: str
    ) -> SerfAgent:
        """Start an agent and let it join. `keyring`: keys to use instead of the one key."""
        keys = {"encrypt_key": self.key} if keyring is None else {"keyring": keyring}
        agent = self._make_agent(name, tags=tags, **keys)
        await agent.start()
        if joins is not None:
            await agent.join(joins)
        return agent

    async def start(
        self, name: str, tags: Mapping[str, str], *, called: str | None = None, **options: Any
    ) -> GossipMembership:
        """Start a member. If it is started again, it keeps its address.

        `called`: its name in the cluster, if it differs from the name here. `options`: arguments of `GossipMembership`.
        """
        listen = self._addresses.setdefault(name, Address("127.0.0.1", free_port()))
        usual: dict[str, Any] = {
            "name": called or name,
            "listen": listen,
            "advertised": listen,
            "timing": QUICK,
            "keyring": self.keyring,
            "judge": judge_of(CLUSTER, lambda: None),
        }
        member = GossipMembership(tags=tags, now_ms=now_ms, **{**usual, **options})
        scope, ended = trio.CancelScope(), trio.Event()

        async def run(task_status: trio.TaskStatus[Address]) -> None:
            with scope:
                await member.run(task_status=task_status)
            ended.set()

        self._addresses[name] = await self._nursery.start(run)
        self._members[name] = member
        self._running[name] = scope, ended
        return member

    def address(self, name: str) -> Address:
        return self._addresses[name]

    async def stop(self, name: str) -> None:
        await self._members[name].leave()
        await self.kill(name)

    async def kill(self, name: str) -> None:
        scope, ended = self._running.pop(name)
        scope.cancel()
        await ended.wait()

    def has_left(self, member: Member) -> bool:
        return member.state is State.LEFT
