"""The caller of an HTTP request and its rights, for guards and routes."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from sandq.model.access import ANY, Access, Right
from sandq.model.errors import Forbidden, InvalidRequest, SandqError
from sandq.model.message_targets import PUSH_HEADER, callbacks_of, parse_target
from sandq.model.quotas import Quota
from sandq.model.times import duration_ms, instant_ms
from sandq.server.delays import check_delay
from sandq.server.http import problems
from sandq.server.http.rights import NEEDS, UNKNOWN, Needs, truncated

CALLER: Final = "caller"
"""Key in the state of a request: an `HttpCaller`; None or missing if the caller may do everything."""
NOTES: Final = "notes"
"""Key in the state of a request: the function that records refusals for the audit log."""


Notes = Callable[[str, SandqError], None]
"""Records a refusal for the audit log: method and route, and the error."""


async def _never_revoked() -> None:
    """Return at once: the default of `until_revoked`, with which no stream is ended by a revocation."""


@dataclass(frozen=True, slots=True)
class HttpCaller:
    """The caller of a request.

    `access`: its rights; None: it may do everything. `until_revoked`: waits until the rights are no longer valid, then
    raises the reason."""

    principal: str
    access: Access | None
    quota: Quota
    until_revoked: Callable[[], Awaitable[None]] = field(default=_never_revoked, repr=False, compare=False)
    token: str | None = field(default=None, repr=False, compare=False)
    """The token with which the caller has authenticated; None if it used a certificate."""

    @property
    def consumes(self) -> list[str] | None:
        """The caller's grants to consume, if any of them is limited to some groups. Nodes then check the groups of the
        leases that the caller settles."""
        of = () if self.access is None else [one for one in self.access.grants if one.right == Right.CONSUME]
        return [str(one) for one in of] if any(one.groups != ANY for one in of) else None


def caller_of(request: Request) -> HttpCaller | None:
    """Return the caller; None if it is anonymous and may do everything."""
    caller: HttpCaller | None = request.scope["state"].get(CALLER)
    return caller


def address_of(request: Request) -> str:
    """Return the address of the client; an IPv6 address is in brackets."""
    host = str((request.scope.get("client") or ("?",))[0])
    return f"[{host}]" if ":" in host else host


def access_of(request: Request) -> Access | None:
    """Return the rights of the caller; None: it may do everything."""
    caller = caller_of(request)
    return None if caller is None else caller.access


def authorize(request: Request, right: Right, topic: str | None, group: str | None = None) -> None:
    """Raise Forbidden unless the caller has a right on the topic in the body. The path was checked before."""
    access, topic, group = access_of(request), truncated(topic), truncated(group)
    if access is not None and not access.allows(right, topic, group):
        raise _record_refusal(request.scope, access.refusal(right, topic, group))


def authorize_callbacks(request: Request, messages: Iterable[Mapping[str, Any]]) -> None:
    """Raise Forbidden unless the caller may produce to the topics of the callbacks of these messages.

    `messages`: as arguments of the client, with `headers` or `push`. Wrong targets are ignored here: the broker rejects
    them."""
    if access_of(request) is None:
        return
    for message in messages:
        with suppress(InvalidRequest):
            push, headers = message.get("push"), message.get("headers") or {}
            text = headers.get(PUSH_HEADER) if push is None else push.text()
            for topic in () if text is None else callbacks_of(parse_target(text)):
                authorize(request, Right.PRODUCE, topic)


def check_delays(request: Request, messages: Iterable[Mapping[str, Any]]) -> None:
    """Raise QuotaExceeded for a message that is scheduled further ahead than the caller's quota allows.

    `messages`: as the arguments of `client.send`. Malformed fields are ignored here: the client rejects them."""
    caller = caller_of(request)
    if caller is None or caller.quota.max_delay_ms is None:
        return
    now_ms = time.time_ns() // 1_000_000
    for message in messages:
        delay_ms = 0
        with suppress(InvalidRequest):
            if message.get("deliver_at") is not None:
                delay_ms = instant_ms(message["deliver_at"]) - now_ms
            elif message.get("delay") is not None:
                delay_ms = duration_ms(message["delay"])
            elif type(message.get("delay_ms")) is int:
                delay_ms = message["delay_ms"]
        check_delay(caller.principal, caller.quota, delay_ms)


def refusal(route: Any, scope: Scope, names: dict[str, Any]) -> Forbidden | None:
    """Return why the caller may not use a route, and record it for the audit log; None if it may."""
    caller = scope["state"].get(CALLER)
    if caller is None or caller.access is None:
        return None
    error = needs_of(route).refusal(caller.access, names)
    return None if error is None else _record_refusal(scope, error)


def needs_of(route: Any) -> Needs:
    """Return the rights that a route needs."""
    (method,) = route.methods - {"HEAD"}
    return NEEDS.get((method, route.path), UNKNOWN)


def guard_route(route: APIRoute) -> None:
    """Make a route check the caller's rights before anything else."""
    inner: ASGIApp = route.app

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request if the caller may use the route; otherwise respond with the refusal."""
        refused = refusal(route, scope, scope["path_params"])
        if refused is not None:
            await problems.of_error(Request(scope, receive), refused)(scope, receive, send)
            return
        await inner(scope, receive, send)

    route.app = guarded


def _record_refusal(scope: Scope, error: Forbidden) -> Forbidden:
    """Record a refusal for the audit log, and return it."""
    notes: Notes | None = scope["state"].get(NOTES)
    route = scope.get("route")
    if notes is not None:
        path = getattr(route, "path", scope["path"])
        notes(f"{scope['method']} {path}", error)
    return error
