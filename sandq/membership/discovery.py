"""How a node finds the others: the backend that its configuration asks for, and what runs beside it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import structlog
import trio

from sandq.gossip.keyring import Keyring
from sandq.gossip.nodes import Judge
from sandq.gossip.serf_messages import encode_tags
from sandq.gossip.tags import CLUSTER_UUID, FOUNDER, OURS
from sandq.membership.gossip_backend import GossipMembership
from sandq.membership.key_file import follow_keys, read_auth, read_keys
from sandq.membership.serf_backend import SerfMembership
from sandq.membership.static_backend import StaticMembership
from sandq.model.config import NodeConfig
from sandq.model.config_gossip import ACCEPT, SEND
from sandq.model.config_schema import Address
from sandq.model.errors import Corruption, SandqError, StartupError, TooLarge
from sandq.model.membership import Membership, State
from sandq.storage import known_addresses
from sandq.storage.files import Files

log = structlog.get_logger("sandq.gossip")


Secrets = Callable[[], Sequence[bytes]]
"""As they are now."""


@dataclass(frozen=True, slots=True)
class Seen:
    """How many members are in which state; of the native backend what happened how often (`core.Gossip.counts`,
    `GossipMembership.traffic`), and how much this member doubts itself, 0 not at all."""

    states: Mapping[State, int]
    counts: Mapping[str, int] = field(default_factory=dict)
    doubt: int = 0


class Discovery:
    """`secrets`: the cluster's, of which keys are made where no file has one. `tags`: this node's, as they are now.
    `files`: of the data directory. Raises StartupError."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        secrets: Secrets | None,
        tags: Callable[[], dict[str, str]],
        judge: Judge,
        files: Files,
        now_ms: Callable[[], int],
        on_round_trip: Callable[[float], None],
    ) -> None:
        self._config = config
        self._secrets = secrets
        self._tags = tags
        self._files = files
        self._now_ms = now_ms
        self._on_round_trip = on_round_trip
        self._running = False
        self._check_tags()
        self._backend = self._make(judge)
        self.membership: Membership = self._backend

    def _check_tags(self) -> None:
        """With the cluster's UUID, which may come later; a founder's tag goes then."""
        later = {name: text for name, text in self._tags().items() if name != FOUNDER}
        try:
            encode_tags({**later, CLUSTER_UUID: str(UUID(int=0))})
        except TooLarge as error:
            raise StartupError(
                f"what this node says of itself does not fit: {error.message}; shorten node.id, cluster.name, "
                "node.zone or node.advertise_host"
            ) from None

    def _make(self, judge: Judge) -> GossipMembership | SerfMembership | StaticMembership:
        config = self._config
        own = Address(config.advertise_host, config.listen.gossip.port)
        if config.cluster.membership == "static":
            peers = {peer.id: peer.peer for peer in config.cluster.peers}
            return StaticMembership(config.node.id, own, peers, self._tags(), self._now_ms)
        if config.cluster.membership == "serf":
            auth_file = config.serf.auth_file
            auth = read_auth(auth_file) if auth_file is not None else None
            return SerfMembership(config.serf.rpc, auth, ours=OURS, tags=self._tags(), now_ms=self._now_ms)
        return GossipMembership(
            name=config.node.id,
            listen=config.listen.gossip,
            advertised=own,
            tags=self._tags(),
            timing=config.gossip.timing,
            keyring=self._keyring(),
            seals=config.gossip.encrypt != ACCEPT,
            takes_plain=config.gossip.encrypt in (ACCEPT, SEND),
            judge=judge,
            seeds=config.cluster.seeds,
            known=self._known(),
            remember=self._remember,
            now_ms=self._now_ms,
            on_round_trip=self._on_round_trip,
        )

    def _keyring(self) -> Keyring | None:
        gossip = self._config.gossip
        if not gossip.encrypt:
            return None
        if gossip.keys_file is not None:
            return read_keys(gossip.keys_file)
        return Keyring.from_secrets(self._secrets()) if self._secrets is not None else None

    def secrets_changed(self) -> None:
        """The cluster's secrets are others now: keys are made of these, where no file has any."""
        keyring = self._keyring() if self._config.gossip.keys_file is None else None
        if keyring is not None and isinstance(self._backend, GossipMembership):
            self._backend.use_keys(keyring)

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; ready when it can be used."""
        backend, keys_file = self._backend, self._config.gossip.keys_file
        async with trio.open_nursery() as nursery:
            if isinstance(backend, SerfMembership):
                # The site's agent may be away: a node that was in the cluster before needs nobody to find it.
                nursery.start_soon(backend.run)
            else:
                await nursery.start(backend.run)
            self._running = True
            if isinstance(backend, GossipMembership) and self._config.gossip.encrypt and keys_file is not None:
                nursery.start_soon(follow_keys, keys_file, backend.use_keys)
            task_status.started()

    async def refresh_tags(self) -> None:
        """They are not what they were."""
        if self._running:
            await self.membership.set_tags(self._tags())

    async def leave(self) -> None:
        """Tell the others that this node goes, as far as they can be told."""
        try:
            await self.membership.leave()
        except SandqError as error:
            log.warning("the other members could not be told that this node leaves", error=error.message)

    def seen(self) -> Seen:
        """For metrics, a copy."""
        found = [member.state for member in self.membership.members().values()]
        states = {state: found.count(state) for state in State}
        backend = self._backend
        if not isinstance(backend, GossipMembership):
            return Seen(states)
        return Seen(states, {**backend.counts, **backend.traffic}, backend.awareness)

    # -- what lasts -----------------------------------------------------------------------------------------------

    def _known(self) -> list[Address]:
        try:
            return known_addresses.load(self._files)
        except Corruption as error:
            log.warning("where other members could be reached is not known any more", error=error.message)
            return []

    async def _remember(self, addresses: Collection[Address]) -> None:
        try:
            await trio.to_thread.run_sync(known_addresses.save, self._files, addresses)
        except SandqError as error:
            log.warning("where other members can be reached could not be written down", error=error.message)
