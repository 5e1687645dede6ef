"""Read bodies and query parameters strictly: ambiguous or unknown parts are refused."""

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
from sandq.server.http.problems import Problem, clear_tracebacks_of

THREAD_BYTES: Final = 64 << 10
"""Size above which a body is parsed in a thread, in bytes. One body is parsed at a time."""


class _Request(Request):
    def __init__(self, request: Request, field: ModelField | None) -> None:
        """`field`: the field in which the route declares its body."""
        super().__init__(request.scope, request.receive)
        self._field = field

    async def json(self) -> Any:
        """Return the body, parsed more strictly than by Python: no NaN, no number out of range, limited nesting and
        size.

        A large body is returned as the route's type, unless it is invalid. Raise JSONDecodeError or TooLarge."""
        body = await self.body()
        if len(body) <= THREAD_BYTES:
            return read_json(body)
        return await anyio.to_thread.run_sync(_read_large, body, self._field, limiter=self.state.reading)


def read_json(body: bytes) -> Any:
    """Return the value of a body. Raise JSONDecodeError or TooLarge."""
    excess = excess_of(body)
    if excess is not None:
        items, most = excess
        raise TooLarge(f"the body has more than {most} {items}: send less at once", maximum=most)
    try:
        text = body.decode(json.detect_encoding(body), "surrogatepass")
    except ValueError as error:
        raise json.JSONDecodeError(str(error), "", 0) from None
    return read_strictly(text)


def _read_large(body: bytes, field: ModelField | None) -> Any:
    """Return a body as the route's type. If it is invalid, return the plain value: the route reports the mistakes."""
    value = read_json(body)
    if field is None:
        return value
    parsed, mistakes = field.validate(value)
    clear_tracebacks_of(mistakes)
    return value if mistakes else parsed


class Route(APIRoute):
    """The class of all routes here: it reads bodies strictly, and leaves unset members out of responses."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "response_model_exclude_unset": True})

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        """Return a handler that reads bodies with the strict parser."""
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            """Handle a request, and raise errors of its body as errors of sandq."""
            try:
                return await handle(_Request(request, self.body_field))
            except HTTPException as error:
                if isinstance(error.__cause__, SandqError):
                    raise error.__cause__ from None  # raised by `json`, and wrapped by FastAPI as an unreadable body
                raise

        return handler


async def known_query(request: Request) -> None:
    """Refuse query parameters that the route does not have, repeated ones, and ones that are not UTF-8."""
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError:
        problem = {"loc": ("query",), "msg": "percent-encoded UTF-8 is expected", "type": "utf8"}
        raise RequestValidationError([problem]) from None
    route = request.scope["route"]
    known = {field.alias for field in route.dependant.query_params}
    names = [name for name, _ in request.query_params.multi_items()]
    found: list[dict[str, Any]] = [
        {"loc": ("query", name[:80]), "msg": "it is given twice", "type": "twice"} for name in sorted(twice(names))
    ]
    has = f"this route has: {', '.join(sorted(known))}" if known else "this route has none"
    found += [
        {"loc": ("query", name[:80]), "msg": f"no such parameter; {has}", "type": "unknown", "known": known}
        for name in sorted(set(names) - known)
    ]
    if found:
        also, body = await _other_mistakes(request)
        raise RequestValidationError([*found, *also], body=body)


async def _other_mistakes(request: Request) -> tuple[list[Any], Any]:
    """Return the other mistakes of a request whose query is wrong, and its body, so that all are reported at once."""
    route = request.scope["route"]
    _, found = request_params_to_args(route.dependant.query_params, request.query_params)
    if route.body_field is None:
        return found, None
    try:
        body = await request.json()
    except (json.JSONDecodeError, TooLarge):
        return found, None
    _, mistakes = route.body_field.validate(body, loc=("body",))
    clear_tracebacks_of(mistakes)
    return [*found, *mistakes], body


def router_of(*tags: str | Enum, route: type[APIRoute] = Route) -> APIRouter:
    """Return a router for routes with these tags, with everything that all routes here share."""
    return APIRouter(
        route_class=route,
        tags=[*tags],
        dependencies=[Depends(known_query)],
        responses={
            "4XX": {"description": "The request is invalid, or not possible in the current state.", "model": Problem},
            "5XX": {
                "description": "The request failed; `retriable`: whether it may succeed later.",
                "model": Problem,
            },
        },
    )
