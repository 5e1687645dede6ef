"""The ASGI application: routes, error responses, and the OpenAPI description."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import anyio
from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from sandq.broker.memory_budget import Account
from sandq.client import cluster_of
from sandq.server.http import (
    problems,
    routes_access,
    routes_backups,
    routes_console,
    routes_groups,
    routes_help,
    routes_keys,
    routes_limits,
    routes_messages,
    routes_node,
    routes_overview,
    routes_push,
    routes_schedules,
    routes_sql,
    routes_topics,
)
from sandq.server.http.audit_notes import AuditNotes
from sandq.server.http.caller import guard_route
from sandq.server.http.gateway import Gateway
from sandq.server.http.guards import EXPOSED_HEADERS, Guard, Observe, Rules
from sandq.server.http.hot_routes import HotRoutes
from sandq.server.http.logins import HttpLogins
from sandq.server.http.openapi import completed
from sandq.server.http.request_rates import RateGate
from sandq.server.quota_meters import QuotaMeters
from sandq.server.request_rates import RequestRates

_HOT = (routes_messages.produce, routes_groups.lease, routes_groups.ack)
_DESCRIPTION = """Topics, messages and consumer groups of a sandq cluster. Every node serves the whole API.

Bodies are JSON, whatever their content type is. Errors are `application/problem+json`: `code` identifies the error, and
`retriable` says whether the same request may succeed a little later. Every response has the `X-Request-Id` of its
request.
"""


def create_app(
    gateway: Gateway,
    rules: Rules,
    observe: Observe,
    account: Account,
    notes: AuditNotes | None = None,
    quotas: QuotaMeters | None = None,
) -> Guard:
    """Return the ASGI application.

    `account`: memory of requests. `notes`: records refused requests for the audit log. `quotas`: counts the usage of
    identities."""
    app = _application(gateway.version)
    hot = HotRoutes(app, [route for route in app.state.routes if route.endpoint in _HOT])
    of_node = {"gateway": gateway, "reading": anyio.CapacityLimiter(1)}

    async def with_node(scope: Scope, receive: Receive, send: Send) -> None:
        """Add the parts of this node to the state of a request, then serve it."""
        scope.setdefault("state", {}).update(of_node)
        await hot(scope, receive, send)

    rates = RequestRates(anyio.current_time)

    def settings(topic: str) -> Mapping[str, Any] | None:
        """Return the settings of a topic, if the client knows them."""
        record = cluster_of(gateway.client).record(topic)
        return None if record is None else record.settings

    inner: Any = RateGate(with_node, rates, settings)
    if rules.origins:  # outside of the rate gate: pages can read its refusals, and preflight requests are not counted
        inner = CORSMiddleware(
            inner,
            allow_origins=sorted(rules.origins),
            allow_methods=["*"],
            allow_headers=["*"],
            expose_headers=EXPOSED_HEADERS,
        )
    return Guard(inner, rules, observe, account, HttpLogins(gateway.client), notes, quotas)


@cache
def _application(version: str) -> FastAPI:
    """Return the routes and error handlers. Routes and handlers are made once per process, because making them takes a
    quarter of a second.

    Everything that belongs to a node is in the state of each request.
    """
    app = FastAPI(
        title="sandq",
        version=version,
        description=_DESCRIPTION,
        docs_url=None,
        redoc_url=None,
        separate_input_output_schemas=False,
    )
    app.router.redirect_slashes = False
    problems.install(app)
    modules = (
        routes_groups,
        routes_limits,
        routes_push,
        routes_keys,
        routes_schedules,
        routes_overview,
        routes_messages,
        routes_topics,
        routes_node,
        routes_console,
        routes_help,
        routes_access,
        routes_backups,
        routes_sql,
    )
    app.state.routes = [route for module in modules for route in module.router.routes]
    for route in app.state.routes:
        guard_route(route)
    app.router.routes.extend(app.state.routes)  # `include_router` would create each route a second time
    make_schema = app.openapi

    def openapi() -> dict[str, Any]:
        """Return the OpenAPI document. Make it at the first call."""
        if app.openapi_schema is None:
            app.openapi_schema = completed(make_schema())
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app
