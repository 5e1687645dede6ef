"""Authenticate a connection by the credentials in HELLO or by a gateway's proof, and restrict it to its rights.

The modes of authentication are:

off      clients may do everything; a principal is recorded if the client shows credentials
accept   clients with credentials are restricted to their rights; others are anonymous and may do everything
require  clients without credentials are rejected; a gateway must prove itself before it sends other requests

`Logins` checks all admitted connections again when identities, roles or the gateway secret change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import trio

from sandq.broker.access.authenticator import OFF, REQUIRE, Authenticator, Login
from sandq.broker.clock.timers import Timer
from sandq.broker.cluster.cluster import Cluster
from sandq.broker.event_loop import Signal, TimeSlice
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import MetadataView
from sandq.model.access import Access, Grant, Right
from sandq.model.caller import ANONYMOUS, NODE, Caller, host_of
from sandq.model.config_types import is_loopback
from sandq.model.errors import Forbidden, InvalidRequest, SandqError, Unauthenticated, Unavailable
from sandq.model.ports import LOCAL_CALLER
from sandq.model.principals import TOKEN_CHARS
from sandq.model.quotas import NO_QUOTA
from sandq.model.sources import source_of_caller
from sandq.protocol.requests import Hello, Prove
from sandq.server.connection import Connection
from sandq.server.failed_logins import FailedLogins
from sandq.server.gateway_proof import OPTION, GatewayKeys, GatewayProof
from sandq.server.quota_meters import QuotaMeters

TOKEN_OPTION: Final = "token"
"""Key of HELLO's options: the token."""
_FOUNDERS: Final = Access(ANONYMOUS, [Grant(Right.CLUSTER)])
"""Rights of clients on the node's machine while the node belongs to no cluster, and knows no identities."""
_NOBODY: Final = Access(ANONYMOUS, [])
FOUNDED_MS: Final = 200
"""Time in ms for an anonymous client that has founded a cluster to receive its replies; after that, it must log in. If
a check finds unanswered requests of the connection, the time starts again."""


class Entrance:
    """The authentication state of one connection."""

    def __init__(
        self,
        connection: Connection,
        proof: GatewayProof,
        logins: Logins,
        failed: FailedLogins,
        now_ms: Callable[[], int],
        cluster: Cluster,
        quotas: QuotaMeters,
        gateway_keys: GatewayKeys,
    ) -> None:
        self._connection = connection
        self._authenticator = logins.authenticator
        self._logins = logins
        self._now_ms = now_ms
        self._timer: Timer | None = None
        self._proof = proof
        self._failed = failed
        self._cluster = cluster
        self._quotas = quotas
        self._gateway_keys = gateway_keys
        self._is_founder = False
        """Whether the client was admitted because there was no cluster yet."""
        self._counts_for: str | None = None
        """The principal whose quota of connections includes this connection. None if the connection counts in no
        quota."""
        self.must_prove = False
        """Whether the client may send only one request: a proof that it is a gateway."""
        self.is_in = False
        self.access: Access | None = None
        """The rights that restrict the connection; None: it may do everything."""

    # -- admission ------------------------------------------------------------------------------------------------

    async def hello(self, request: Hello) -> None:
        """Authenticate the client of a HELLO. Raise Unauthenticated or Unavailable if the connection must end."""
        token = request.options.get(TOKEN_OPTION)
        if token is not None and (type(token) is not str or not 0 < len(token) <= TOKEN_CHARS):
            raise InvalidRequest(f"HELLO field 3 (options): {TOKEN_OPTION} must be text of 1..{TOKEN_CHARS} characters")
        is_required = self._authenticator.mode == REQUIRE
        if is_required and token is None and request.options.get(OPTION) is not None:
            self.must_prove = True
            return
        certificate, mode = self._connection.certificate_name, self._authenticator.mode
        shows = token is not None or certificate is not None
        if self._cluster.waiting() is not None and mode != OFF and (is_required or shows):
            self._admit_founder()
            return
        login = await self._authenticator.identify(token, certificate)
        if login is None and is_required:
            raise Unauthenticated(
                "this cluster requires authentication: give a token (connect(token=...), "
                "SANDQ_TOKEN, sandctl --token-file), or a client certificate that it knows"
            )
        if login is not None:
            self._admit(login)
        self.is_in = True

    def _admit_founder(self) -> None:
        """Admit an anonymous client on this machine before there is a cluster. Raise Unavailable for other clients."""
        caller = self._connection.caller
        if caller.address != LOCAL_CALLER and not is_loopback(host_of(caller)):
            reason = self._cluster.waiting()
            raise Unavailable(f"this node belongs to no cluster yet, and cannot authenticate clients: {reason}")
        self._is_founder = self.is_in = True
        self.access = _FOUNDERS
        self._logins.add(self)
        self._connection.log_in(replace(caller, access=_FOUNDERS), None)

    def _admit(self, login: Login) -> None:
        """Admit the client with the rights of its login, and count the connection against the quota of its identity."""
        caller, access = self._connection.caller, self._authenticator.access_of(login)
        if login.quota is not NO_QUOTA:
            self._quotas.connect(login.principal, login.quota)
            self._counts_for = login.principal
        self.access = access
        self._logins.add(self)
        self._wake_at(login.expires_ms)
        self._connection.log_in(replace(caller, principal=login.principal, access=access), login)

    def prove(self, request: Prove) -> None:
        """Check a gateway's proof, and give the gateway the rights of the node itself.

        Raise Forbidden or ProtocolError; Unauthenticated if the connection has no other credentials."""
        try:
            self._proof.check(request.proof)
        except Forbidden as error:
            if not self.must_prove:
                raise
            raise Unauthenticated(f"this cluster requires authentication: {error.message}") from None
        self.must_prove, self.is_in, self._is_founder, self.access = False, True, False, None
        self._logins.add(self)
        connection = self._connection
        connection.log_in(Caller(NODE.principal, connection.address), None)

    async def refused(self, error: SandqError) -> None:
        """End the connection of a client that was not admitted; after a pause if its source fails often."""
        if isinstance(error, Unauthenticated):
            await trio.sleep(self._failed.pause_s(source_of_caller(self._connection.caller)))
        self._connection.end(error)
        # Let the reader task be cancelled, so that it handles no frame that was sent after HELLO.
        await trio.lowlevel.checkpoint()

    # -- after admission ------------------------------------------------------------------------------------------

    def check(self) -> None:
        """End the connection if its credentials or rights have changed, or are no longer valid."""
        connection, login = self._connection, self._connection.login
        if self._is_founder and self._cluster.waiting() is None:
            self.access = _NOBODY  # refuse all further requests
            if connection.requests:  # one of them may be the request that founded the cluster
                self._wake_at(self._now_ms() + FOUNDED_MS)
            else:
                self._end(Unavailable("this node belongs to a cluster now: connect again"))
        if self._proof.is_given and not self._proof.is_by(self._gateway_keys.current):
            self._end(Unavailable("the secret with which this gateway proved itself is no longer valid: connect again"))
        if login is None:
            return
        try:
            now = self._authenticator.again(login)
        except SandqError as error:
            self._end(error)
            return
        if self.access is not None and now.access.grants != login.access.grants:
            self._end(Unavailable(f"the rights of {login.principal} have changed: connect again"))
        elif now != login:
            connection.login = now
            if self._counts_for is None and now.quota is not NO_QUOTA:
                # count without a check (`NO_QUOTA`), because the client is already connected
                self._quotas.connect(now.principal, NO_QUOTA)
                self._counts_for = now.principal
            self._wake_at(now.expires_ms)

    def _end(self, error: SandqError) -> None:
        """End the connection with an error."""
        self.gone()
        self._connection.end(error)

    def _wake_at(self, at_ms: int | None) -> None:
        """Check the connection again at this time, instead of the time set before; None: never."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if at_ms is None else self._logins.at(at_ms, self.check)

    def gone(self) -> None:
        """Release what the connection holds: it has ended, or is about to."""
        counted, self._counts_for = self._counts_for, None
        if counted is not None:
            self._quotas.disconnect(counted)
        self._logins.discard(self)
        self._wake_at(None)


class Logins:
    """All admitted connections of one node."""

    def __init__(self, authenticator: Authenticator, at: Callable[[int, Callable[[], None]], Timer]) -> None:
        """`at(at_ms, call)`: call the function at this time."""
        self.authenticator = authenticator
        self.at = at
        self._connected: dict[Entrance, None] = {}
        self._changed = Signal()
        self._have_secrets_changed = False

    def add(self, one: Entrance) -> None:
        """Add a connection that was admitted."""
        self._connected[one] = None

    def discard(self, one: Entrance) -> None:
        """Remove a connection that has ended."""
        self._connected.pop(one, None)

    def secrets_changed(self) -> None:
        """Check all gateways again: their secrets have changed."""
        self._have_secrets_changed = True
        self._changed.set()

    async def run(self, metadata: RaftGroup) -> None:
        """Check the connections whenever identities, roles or secrets change. The node must belong to a cluster."""
        metadata.listen(on_status=self._changed.set)
        seen = None
        while True:
            view = self.authenticator.refresh()
            is_due, self._have_secrets_changed = self._have_secrets_changed, False
            if is_due or _differ(view, seen):
                time_slice = TimeSlice()
                for one in list(self._connected):
                    if one in self._connected:
                        one.check()
                    await time_slice.spend(1)
                seen = view
            else:
                await self._changed.wait()


def _differ(view: MetadataView | None, seen: MetadataView | None) -> bool:
    """Return whether identities or roles have changed between two views of the metadata."""
    if view is None:
        return False
    return seen is None or view.identities != seen.identities or view.roles != seen.roles
