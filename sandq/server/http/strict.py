"""What is asked must be what is meant: bodies and query parameters, read without guessing."""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote_to_bytes

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute


class _Request(Request):
    async def json(self) -> Any:
        """Stricter than Python: no NaN, no number too large to be one, and not nested without end."""
        body = await self.body()
        try:
            return json.loads(
                body, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_whole, object_pairs_hook=_once
            )
        except RecursionError:
            raise json.JSONDecodeError("nested too deep", "", 0) from None
        except json.JSONDecodeError:
            raise
        except ValueError as error:  # not UTF-8, or one of ours
            raise json.JSONDecodeError(str(error), "", 0) from None


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is too large")
    return number


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:80]!r} is there twice")
    return found


def _whole(text: str) -> int:
    if len(text) > 40:
        raise ValueError(f"{text[:40]}... is too large")
    return int(text)


class Route(APIRoute):
    """Of every route here: bodies are read strictly, and an answer has the members that it was given."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "response_model_exclude_unset": True})

    def get_route_handler(self) -> Callable[[Request], Awaitable[Response]]:  # type: ignore[override]
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handler


def known_query(request: Request) -> None:
    """Parameters that a route does not have are refused, like unknown members of a body; so is what is no UTF-8."""
    try:
        unquote_to_bytes(request.scope["query_string"]).decode()
    except UnicodeDecodeError:
        problem = {"loc": ("query",), "msg": "percent-encoded UTF-8 is expected", "type": "utf8"}
        raise RequestValidationError([problem]) from None
    route = request.scope["route"]
    known = {field.alias for field in route.dependant.query_params}
    names = [name for name, _ in request.query_params.multi_items()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise RequestValidationError(
            [{"loc": ("query", name[:80]), "msg": "it is there twice", "type": "twice"} for name in twice]
        )
    unknown = sorted(set(names) - known)
    if unknown:
        has = f"this route has: {', '.join(sorted(known))}" if known else "this route has none"
        raise RequestValidationError(
            [{"loc": ("query", name[:80]), "msg": f"no such parameter; {has}", "type": "unknown"} for name in unknown]
        )
