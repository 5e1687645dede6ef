"""Who asks over HTTP, and what it may do: what guards and routes ask."""

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
from sandq.model.quotas import Quota
from sandq.model.times import duration_ms, instant_ms
from sandq.server.delays import check_delay
from sandq.server.http import problems
from sandq.server.http.rights import NEEDS, UNKNOWN, Needs, short

CALLER: Final = "caller"
"""Of a request's state: an `HttpCaller`; None, or missing: whoever asks may do everything."""
NOTES: Final = "notes"
"""Of a request's state: takes refusals for the audit log."""


Notes = Callable[[str, SandqError], None]
"""Takes what was refused, for the audit log: method and route, and why."""


async def _nothing() -> None:
    return None


@dataclass(frozen=True, slots=True)
class HttpCaller:
    """Who asks. `access`: what it is held to; None: nothing. `until_revoked` waits until it is not who it was any more,
    and raises why."""

    principal: str
    access: Access | None
    quota: Quota
    until_revoked: Callable[[], Awaitable[None]] = field(default=_nothing, repr=False, compare=False)
    token: str | None = field(default=None, repr=False, compare=False)
    """The token by which it has said who it is; None: by a certificate."""

    @property
    def consumes(self) -> list[str] | None:
        """What it may consume, where that is not by all groups of a topic: the nodes look whose leases it settles."""
        of = () if self.access is None else [one for one in self.access.grants if one.right == Right.CONSUME]
        return [str(one) for one in of] if any(one.groups != ANY for one in of) else None


def caller_of(request: Request) -> HttpCaller | None:
    """Return who asks, if it is held to something, or shows who it is."""
    caller: HttpCaller | None = request.scope["state"].get(CALLER)
    return caller


def address_of(request: Request) -> str:
    """Return the address of the machine that asks, an IPv6 address in brackets."""
    host = str((request.scope.get("client") or ("?",))[0])
    return f"[{host}]" if ":" in host else host


def access_of(request: Request) -> Access | None:
    """Return what who asks may do; None: everything."""
    caller = caller_of(request)
    return None if caller is None else caller.access


def authorize(request: Request, right: Right, topic: str | None, group: str | None = None) -> None:
    """Raise Forbidden unless who asks has a right on what its body names. The right of the path was looked at."""
    access, topic, group = access_of(request), short(topic), short(group)
    if access is not None and not access.allows(right, topic, group):
        raise _noted(request.scope, access.refusal(right, topic, group))


def check_delays(request: Request, messages: Iterable[Mapping[str, Any]]) -> None:
    """Raise QuotaExceeded for a message that is due further ahead than who asks may send any. `messages`: as the
    arguments of `client.send`; what is wrong with them is told elsewhere."""
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
    """Return why a route is not for who asks; it is noted then."""
    caller = scope["state"].get(CALLER)
    if caller is None or caller.access is None:
        return None
    error = needs_of(route).refusal(caller.access, names)
    return None if error is None else _noted(scope, error)


def needs_of(route: Any) -> Needs:
    """Return what a route needs."""
    (method,) = route.methods - {"HEAD"}
    return NEEDS.get((method, route.path), UNKNOWN)


def guard_route(route: APIRoute) -> None:
    """Have a route ask for what it needs before it looks at anything."""
    inner: ASGIApp = route.app

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        refused = refusal(route, scope, scope["path_params"])
        if refused is not None:
            await problems.of_error(Request(scope, receive), refused)(scope, receive, send)
            return
        await inner(scope, receive, send)

    route.app = guarded


def _noted(scope: Scope, error: Forbidden) -> Forbidden:
    notes: Notes | None = scope["state"].get(NOTES)
    route = scope.get("route")
    if notes is not None:
        path = getattr(route, "path", scope["path"])
        notes(f"{scope['method']} {path}", error)
    return error
