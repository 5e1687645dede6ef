"""What is asked must be what is meant: bodies and query parameters, read without guessing."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final
from urllib.parse import unquote_to_bytes

import anyio
import anyio.to_thread
from fastapi import APIRouter, Depends, Request
from fastapi._compat import ModelField
from fastapi.dependencies.utils import request_params_to_args
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from sandq.model.errors import SandqError, TooLarge
from sandq.model.json_values import excess_of, read_strictly, twice
from sandq.server.http.problems import Problem, let_go_of

THREAD_BYTES: Final = 64 << 10
"""A larger body is read in a thread, one at a time."""


class _Request(Request):
    def __init__(self, request: Request, field: ModelField | None) -> None:
        """`field`: what the route says of its body."""
        super().__init__(request.scope, request.receive)
        self._field = field

    async def json(self) -> Any:
        """Stricter than Python: no NaN, no number too large to be one, not nested without end, and of so many parts at
        most. What is large is what the route wants by then, unless it is wrong. Raises JSONDecodeError, TooLarge."""
        body = await self.body()
        if len(body) <= THREAD_BYTES:
            return read_json(body)
        return await anyio.to_thread.run_sync(_read_large, body, self._field, limiter=self.state.reading)


def read_json(body: bytes) -> Any:
    """What a body says. Raises JSONDecodeError, TooLarge."""
    excess = excess_of(body)
    if excess is not None:
        what, most = excess
        raise TooLarge(f"the body has more than {most} {what}; send less at once", maximum=most)
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from None
    return read_strictly(text)


def _read_large(body: bytes, field: ModelField | None) -> Any:
    """What a body says, as a route gets it. What is wrong is left to the route, which tells the mistakes."""
    said = read_json(body)
    if field is None:
        return said
    meant, mistakes = field.validate(said)
    let_go_of(mistakes)
    return said if mistakes else meant


class Route(APIRoute):
    """Of every route here: bodies are read strictly, and an answer has the members that it was given."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "response_model_exclude_unset": True})

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await handle(_Request(request, self.body_field))
            except HTTPException as error:
                if isinstance(error.__cause__, SandqError):
                    raise error.__cause__ from None  # of `json`: FastAPI made of it that the body cannot be read
                raise

        return handler


async def known_query(request: Request) -> None:
    """Parameters that a route does not have are refused, like unknown members of a body; so is what is no UTF-8."""
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError:
        problem = {"loc": ("query",), "msg": "percent-encoded UTF-8 is expected", "type": "utf8"}
        raise RequestValidationError([problem]) from None
    route = request.scope["route"]
    known = {field.alias for field in route.dependant.query_params}
    names = [name for name, _ in request.query_params.multi_items()]
    found: list[dict[str, Any]] = [
        {"loc": ("query", name[:80]), "msg": "it is there twice", "type": "twice"} for name in sorted(twice(names))
    ]
    has = f"this route has: {', '.join(sorted(known))}" if known else "this route has none"
    found += [
        {"loc": ("query", name[:80]), "msg": f"no such parameter; {has}", "type": "unknown", "known": known}
        for name in sorted(set(names) - known)
    ]
    if found:
        also, body = await _also(request)
        raise RequestValidationError([*found, *also], body=body)


async def _also(request: Request) -> tuple[list[Any], Any]:
    """What else is wrong with a request whose query is, and its body: nobody likes to be told of one mistake at a
    time."""
    route = request.scope["route"]
    _, found = request_params_to_args(route.dependant.query_params, request.query_params)
    if route.body_field is None:
        return found, None
    try:
        body = await request.json()
    except (json.JSONDecodeError, TooLarge):
        return found, None
    _, mistakes = route.body_field.validate(body, loc=("body",))
    let_go_of(mistakes)
    return [*found, *mistakes], body


def router_of(*tags: str | Enum, route: type[APIRoute] = Route) -> APIRouter:
    """For routes of those tags: what holds for every route here."""
    return APIRouter(
        route_class=route,
        tags=[*tags],
        dependencies=[Depends(known_query)],
        responses={
            "4XX": {"description": "The request is wrong, or does not fit the present state.", "model": Problem},
            "5XX": {"description": "It cannot be done now; `retriable` says whether later.", "model": Problem},
        },
    )
