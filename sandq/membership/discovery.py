"""How a node finds the others: the configured backend, and the tasks that accompany it.

A backend is loaded only if it is used: a node that is alone needs neither gossip nor its cipher."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

import trio

from sandq.gossip.serf_messages import encode_tags
from sandq.gossip.tags import CLUSTER_UUID, FOUNDER, OURS
from sandq.membership.static_backend import StaticMembership
from sandq.model.config import NodeConfig
from sandq.model.config_gossip import ACCEPT, SEND
from sandq.model.config_schema import Address
from sandq.model.errors import Corruption, SandqError, StartupError, TooLarge
from sandq.model.logger import get_logger
from sandq.model.membership import Membership, State
from sandq.storage import known_addresses
from sandq.storage.files import Files

if TYPE_CHECKING:
    from sandq.gossip.keyring import Keyring
    from sandq.gossip.nodes import Judge
    from sandq.membership.gossip_backend import GossipMembership
    from sandq.membership.serf_backend import SerfMembership

log = get_logger("sandq.gossip")


Secrets = Callable[[], Sequence[bytes]]
"""Returns the current secrets of the cluster."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A snapshot for metrics: number of members by state.

    For the native backend also event counters (`core.Gossip.counts`, `GossipMembership.traffic`) and `doubt`, the score
    of this member's awareness (0 is healthy).
    """

    states: Mapping[State, int]
    counts: Mapping[str, int] = field(default_factory=dict)
    doubt: int = 0


class Discovery:
    """The membership of a node.

    `secrets`: returns the cluster's secrets, from which keys are derived if no key file is configured. `tags`: returns
    the current tags of this node. `files`: of the data directory. Raises StartupError.
    """

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
        self._gossip = self._make_gossip(judge) if config.cluster.membership == "gossip" else None
        self._backend = self._gossip or (
            self._make_serf() if config.cluster.membership == "serf" else self._make_static()
        )
        self.membership: Membership = self._backend

    def _check_tags(self) -> None:
        """Check that the tags fit, including the cluster's UUID, which may be added later and replaces the founder's
        tag."""
        later = {name: text for name, text in self._tags().items() if name != FOUNDER}
        try:
            encode_tags({**later, CLUSTER_UUID: str(UUID(int=0))})
        except TooLarge as error:
            raise StartupError(
                f"the tags of this node do not fit: {error.message}; shorten node.id, cluster.name, "
                "node.zone or node.advertise_host"
            ) from None

    @property
    def _own_address(self) -> Address:
        return Address(self._config.advertise_host, self._config.listen.gossip.port)

    def _make_static(self) -> StaticMembership:
        peers = {peer.id: peer.peer for peer in self._config.cluster.peers}
        return StaticMembership(self._config.node.id, self._own_address, peers, self._tags(), self._now_ms)

    def _make_serf(self) -> SerfMembership:
        from sandq.membership.key_file import read_auth
        from sandq.membership.serf_backend import SerfMembership

        serf = self._config.serf
        auth = read_auth(serf.auth_file) if serf.auth_file is not None else None
        return SerfMembership(serf.rpc, auth, ours=OURS, tags=self._tags(), now_ms=self._now_ms)

    def _make_gossip(self, judge: Judge) -> GossipMembership:
        from sandq.membership.gossip_backend import GossipMembership

        config = self._config
        return GossipMembership(
            name=config.node.id,
            listen=config.listen.gossip,
            advertised=self._own_address,
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
        from sandq.gossip.keyring import Keyring
        from sandq.membership.key_file import read_keys

        gossip = self._config.gossip
        if not gossip.encrypt:
            return None
        if gossip.keys_file is not None:
            return read_keys(gossip.keys_file)
        return Keyring.from_secrets(self._secrets()) if self._secrets is not None else None

    def secrets_changed(self) -> None:
        """Use keys derived from the new secrets of the cluster, unless there is a key file."""
        if self._gossip is None or self._config.gossip.keys_file is not None:
            return
        if (keyring := self._keyring()) is not None:
            self._gossip.use_keys(keyring)

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        """Run until cancelled; ready once the membership can be used."""
        backend, keys_file = self._backend, self._config.gossip.keys_file
        async with trio.open_nursery() as nursery:
            if self._config.cluster.membership == "serf":
                # The site's agent may be unavailable: a node that has been in the cluster does not need it to start.
                nursery.start_soon(backend.run)
            else:
                await nursery.start(backend.run)
            self._running = True
            if self._gossip is not None and self._config.gossip.encrypt and keys_file is not None:
                from sandq.membership.key_file import follow_keys

                nursery.start_soon(follow_keys, keys_file, self._gossip.use_keys)
            task_status.started()

    async def refresh_tags(self) -> None:
        """Send the changed tags of this node to the other members."""
        if self._running:
            await self.membership.set_tags(self._tags())

    async def leave(self) -> None:
        """Announce that this node leaves, as far as possible."""
        try:
            await self.membership.leave()
        except SandqError as error:
            log.warning("the other members were not informed that this node leaves", error=error.message)

    def seen(self) -> Seen:
        """Return a snapshot for metrics."""
        found = [member.state for member in self.membership.members().values()]
        states = {state: found.count(state) for state in State}
        backend = self._gossip
        if backend is None:
            return Seen(states)
        return Seen(states, {**backend.counts, **backend.traffic}, backend.awareness)

    # -- persistence ----------------------------------------------------------------------------------------------

    def _known(self) -> list[Address]:
        try:
            return known_addresses.load(self._files)
        except Corruption as error:
            log.warning("the saved addresses of other members cannot be read", error=error.message)
            return []

    async def _remember(self, addresses: Collection[Address]) -> None:
        try:
            await trio.to_thread.run_sync(known_addresses.save, self._files, addresses)
        except SandqError as error:
            log.warning("the addresses of other members could not be saved", error=error.message)
