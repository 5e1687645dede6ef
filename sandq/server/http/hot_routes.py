"""Serve the most frequent requests without FastAPI's layers, which cost more than the requests themselves.

FastAPI tries one route after the other, resolves dependencies, and runs the endpoint behind middlewares. Here, the path
alone determines the endpoint. Unusual requests are left to FastAPI: with a query, an encoded path, or a body that is
large, empty or invalid. So routes, models and `/openapi.json` are written once, and only FastAPI reports mistakes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from json import JSONDecodeError
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.types import Message, Receive, Scope, Send

from sandq.model.errors import SandqError, TooLarge
from sandq.server.http import problems
from sandq.server.http.caller import refusal
from sandq.server.http.strict import THREAD_BYTES, read_json

_NAME = re.compile(r"{(\w+)}")


class HotRoutes:
    """`routes`: routes of the application with method POST, names in their paths, and bodies and responses in JSON."""

    def __init__(self, app: FastAPI, routes: Iterable[APIRoute]) -> None:
        self._app = app
        self._routes = [(re.compile(_NAME.sub(r"(?P<\1>[^/]+)", route.path)), route) for route in routes]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request: directly if it is frequent and usual, otherwise with FastAPI."""
        found = self._find(scope)
        if found is None:
            await self._app(scope, receive, send)
            return
        route, names = found
        # If the first message has the whole body, and it is valid, handle it here. Otherwise the application handles
        # the request, and receives this message again.
        message: Message | None = await receive()
        body = _parsed(route, message or {})
        if body is not None:
            scope.update({"app": self._app, "route": route, "path_params": names})
            refused = refusal(route, scope, names)
            if refused is not None:
                await problems.of_error(Request(scope, receive), refused)(scope, receive, send)
                return
            response = await _respond(route, Request(scope, receive), {**names, "body": body})
            await response(scope, receive, send)
            return

        async def receive_again() -> Message:
            """Return the first message again, then the following messages."""
            nonlocal message
            first, message = message, None
            return await receive() if first is None else first

        await self._app(scope, receive_again, send)

    def _find(self, scope: Scope) -> tuple[APIRoute, dict[str, str]] | None:
        """Return the route for a request, and the parameters in its path; None if FastAPI must handle the request."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["query_string"]:
            return None
        if b"%" in scope["raw_path"]:
            return None
        for pattern, route in self._routes:
            match = pattern.fullmatch(scope["path"])
            if match is not None:
                return route, match.groupdict()
        return None


def _parsed(route: APIRoute, message: Message) -> Any:
    """Return a body as the route's type; None if the request is unusual."""
    body = message.get("body", b"")
    if not body or len(body) > THREAD_BYTES or message.get("more_body", False) or route.body_field is None:
        return None
    try:
        values = read_json(body)
    except (JSONDecodeError, TooLarge):
        return None
    parsed, mistakes = route.body_field.validate(values)
    problems.clear_tracebacks_of(mistakes)
    return None if mistakes else parsed


async def _respond(route: APIRoute, request: Request, arguments: dict[str, Any]) -> Response:
    """Call the endpoint of a route, and return its response: its result as JSON, or a problem."""
    try:
        found = await route.endpoint(request, **arguments)
    except SandqError as error:
        return problems.of_error(request, error)
    if isinstance(found, Response):
        return found
    field = route.response_field
    assert field is not None
    shown, mistakes = field.validate(found)
    assert not mistakes, mistakes
    content = field.serialize_json(shown, exclude_unset=True)
    return Response(content, route.status_code or 200, media_type="application/json")
