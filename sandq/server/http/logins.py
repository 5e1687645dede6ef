"""Identify the callers of HTTP requests. Nodes identify them (IDENTIFY), and the answers are cached for half a second.

off      callers may do everything, with or without credentials; a wrong token is refused all the same
accept   callers with credentials are restricted to their rights
require  callers without credentials are refused
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from hashlib import sha256
from typing import Final

import anyio

from sandq.client import Client, cluster_of
from sandq.client.transport import call
from sandq.model.access import Access, Grant
from sandq.model.config_security import AUTHENTICATION
from sandq.model.errors import SandqError, Unauthenticated, Unavailable
from sandq.model.principals import TOKEN_CHARS
from sandq.model.quotas import Quota
from sandq.protocol.requests import Ping
from sandq.protocol.requests_access import Identify, IdentifyReply
from sandq.server.failed_logins import FailedLogins
from sandq.server.http.caller import HttpCaller
from sandq.server.http.problems import Revoked, not_let_in

OFF, ACCEPT, REQUIRE = range(len(AUTHENTICATION))
KEPT_S: Final = 0.5
"""Time for which an answer is cached, and interval at which waiting callers are checked again, in seconds."""
KEPT: Final = 10_000
"""Maximum number of cached answers. The oldest are dropped."""
PAUSED_MOST: Final = 32
"""Maximum number of failed requests whose response is being delayed."""
PATIENCE_S: Final = 10.0
"""Time for which a waiting request or a stream goes on while no node can identify its caller, in seconds."""
_SCHEME: Final = b"bearer "
_LIMIT: Final = "authentication"


class HttpLogins:
    """Identifies the callers of one server. `client`: reaches the cluster, and is a proven gateway if that is
    needed."""

    def __init__(self, client: Client, clock: Callable[[], float] = anyio.current_time) -> None:
        self._cluster = cluster_of(client)
        self._clock = clock
        self._mode: int | None = None
        self._mode_until_s = 0.0
        self._kept: dict[bytes, tuple[HttpCaller | None, float]] = {}
        """By SHA-256 of the credentials: the caller, and when the answer expires."""
        self._asking: dict[bytes, anyio.Event] = {}
        self._failed = FailedLogins(clock)
        self._paused = 0

    @property
    def mode(self) -> int | None:
        """The strictest mode of the connected nodes; None if none was connected yet."""
        now_s = self._clock()
        if now_s >= self._mode_until_s:
            found = [int(one.hello.limits.get(_LIMIT, OFF)) for one in self._cluster.connections()]
            if found:
                self._mode, self._mode_until_s = max(found), now_s + KEPT_S
        return self._mode

    async def caller(self, headers: Mapping[bytes, bytes], certificate: str | None, source: str) -> HttpCaller | None:
        """Return the caller; None: an anonymous one, which may do everything.

        Raise Revoked if it is refused, or Unavailable while no node can identify it."""
        shown = headers.get(b"authorization")
        mode = self.mode
        if shown is None and certificate is None and mode is not None and mode != REQUIRE:
            return None
        if mode is None:
            if self._cluster.refused is not None:
                raise not_let_in(self._cluster.refused)
            await self._until_connected()
            return await self.caller(headers, certificate, source)
        if shown is None and certificate is None:
            raise Revoked("this cluster requires authentication: send a token (Authorization: Bearer ...)")
        # The prefix distinguishes headers from certificates: a header must not get the cached answer of a certificate.
        shown_as = b"header " + shown if shown is not None else b"certificate " + str(certificate).encode()
        key = sha256(shown_as).digest()
        known = self._kept.get(key)
        if known is not None and self._clock() < known[1]:
            return known[0]
        try:
            return await self._identified(key, None if shown is None else _token_of(shown), certificate)
        except Revoked:
            await self._pause(self._failed.pause_s(source))
            raise

    async def _pause(self, seconds: float) -> None:
        """Delay the response to wrong credentials. At most `PAUSED_MOST` are delayed: each keeps the slot of a
        request."""
        if self._paused >= PAUSED_MOST:
            return
        self._paused += 1
        try:
            await anyio.sleep(seconds)
        finally:
            self._paused -= 1

    async def _until_connected(self) -> None:
        """Wait until a node is connected. Raise Unavailable."""
        try:
            await call(self._cluster, Ping())
        except Unavailable as error:
            raise error if (refused := self._cluster.refused) is None else not_let_in(refused) from None
        if self.mode is None:
            raise Unavailable("no node of the cluster is connected; ask again in a moment")

    async def _identified(self, key: bytes, token: str | None, certificate: str | None) -> HttpCaller | None:
        """Return the cached answer, or ask a node. `key`: the hash of the credentials."""
        while True:
            known = self._kept.get(key)
            if known is not None and self._clock() < known[1]:
                return known[0]
            other = self._asking.get(key)
            if other is None:
                break
            await other.wait()
        event = self._asking[key] = anyio.Event()
        try:
            caller = await self._identify(key, token, certificate)
            self._keep(key, caller)
            return caller
        except BaseException:
            self._kept.pop(key, None)
            raise
        finally:
            del self._asking[key]
            event.set()

    async def _identify(self, key: bytes, token: str | None, certificate: str | None) -> HttpCaller | None:
        """Ask a node who has these credentials. Return None for an anonymous caller.

        Raise Revoked if the node rejects them."""
        if (refused := self._cluster.refused) is not None and not self._cluster.connections():
            raise not_let_in(refused)
        try:
            reply = IdentifyReply.parse(await call(self._cluster, Identify(token, certificate)))
        except Unauthenticated as error:
            if token is None and self._mode != REQUIRE:
                return None  # a certificate may be used before its identity exists
            raise Revoked(error.message, **error.details) from None
        access = reply.access
        until_revoked = partial(self._until_revoked, key, token, certificate, access)
        return HttpCaller(reply.principal, access, Quota.of(reply.quota), until_revoked, token)

    def _keep(self, key: bytes, caller: HttpCaller | None) -> None:
        """Cache the answer for these credentials."""
        self._kept.pop(key, None)
        if len(self._kept) >= KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[key] = caller, self._clock() + KEPT_S

    async def _until_revoked(
        self, key: bytes, token: str | None, certificate: str | None, access: Access | None
    ) -> None:
        """Wait until a caller is no longer admitted, or its rights have changed. Raise Revoked or Unavailable then."""
        known_s = self._clock()
        while True:
            await anyio.sleep(KEPT_S)
            try:
                caller = await self._identified(key, token, certificate)
            except Revoked:
                raise
            except SandqError as error:
                if self._clock() - known_s > PATIENCE_S:
                    raise Unavailable(f"no node can identify the caller at present: {error.message}") from None
                continue
            known_s = self._clock()
            now = None if caller is None else caller.access
            if _grants_of(now) != _grants_of(access):
                raise Unavailable("the rights of the caller have changed: ask again")


def _grants_of(access: Access | None) -> frozenset[Grant] | None:
    """Return the grants in rights, to compare them; None: everything is allowed."""
    return None if access is None else frozenset(access.grants)


def _token_of(header: bytes) -> str:
    """Return the token in a header. Raise Revoked."""
    if header[: len(_SCHEME)].lower() != _SCHEME or not header[len(_SCHEME) :].strip():
        raise Revoked("Authorization: only the scheme Bearer, followed by a token, is supported")
    token = header[len(_SCHEME) :].strip().decode("latin-1")
    if len(token) > TOKEN_CHARS:
        raise Revoked(f"the token is longer than any ({TOKEN_CHARS} characters)")
    return token
