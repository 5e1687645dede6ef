"""Errors as RFC 9457 has them: `application/problem+json`.

{"type": "urn:sandq:error:UNKNOWN_TOPIC", "title": "Not Found", "status": 404, "detail": "there is no topic 'x'",
 "code": "UNKNOWN_TOPIC", "retriable": false, "request_id": "...", ...what else is known}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from sandq.model.errors import SandqError, VersionChanged, let_go
from sandq.model.offsets import to_text

MEDIA_TYPE = "application/problem+json"
FAULT = "this is a fault of sandq; the node's log has it under the request id"
CLIENT_GONE = 499
"""What servers write down when the client went away before its answer."""
ERRORS_SHOWN = 20
"""Mistakes of one request that are listed."""
_SHOWN_CHARS = 200


class Mistake(BaseModel):
    """One thing that is wrong with a request."""

    where: str = Field(description="Path to it: `body.messages.0.key`, `query.limit`.")
    problem: str


class Problem(BaseModel):
    """Why a request failed. Some have further members, named in the descriptions of the routes."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="`urn:sandq:error:` and the code.")
    title: str
    status: int
    detail: str = Field(description="For people: what, where, what to do.")
    code: str = Field(description="For programs: the code of the error, the same on every surface of sandq.")
    retriable: bool = Field(description="Whether the same request may succeed a little later.")
    request_id: str
    errors: list[Mistake] | None = None


def problem(
    request_id: str,
    status: int,
    code: str,
    detail: str,
    *,
    retriable: bool = False,
    more: Mapping[str, Any] | None = None,
) -> Response:
    """The response that tells of an error."""
    body = {
        **(more or {}),
        "type": f"urn:sandq:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "retriable": retriable,
        "request_id": request_id,
    }
    headers = {"retry-after": "1"} if retriable else {}
    # ASCII: what was refused may hold what UTF-8 cannot write.
    return Response(json.dumps(body, default=_plain).encode(), status, headers, MEDIA_TYPE)


def of_error(request_id: str, error: SandqError) -> Response:
    """The response to what sandq refused."""
    details = {name: value for name, value in error.details.items() if name not in Problem.model_fields}
    # "Misdirected" is between nodes; whoever asks over HTTP asks again.
    status = 503 if error.http_status == 421 else error.http_status
    response = problem(request_id, status, error.code, error.message, retriable=error.retriable, more=details)
    version = details.get("version")
    if isinstance(error, VersionChanged) and version is not None:
        response.headers["etag"] = f'"{version}"'
    let_go(error)
    return response


def install(app: FastAPI) -> None:
    """Every error of a route becomes a problem."""

    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, SandqError)
        return of_error(request.state.request_id, error)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        let_go(error)
        let_go_of(error.errors())
        return _invalid(request.state.request_id, error.errors())

    async def http_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        let_go(error)
        return _http_error(request, error)

    async def fault(request: Request, error: Exception) -> Response:
        # The guard logs it: it is raised again behind this.
        return problem(request.state.request_id, 500, "INTERNAL", FAULT)

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE)  # for the log and the metrics: nobody reads it

    app.add_exception_handler(Exception, fault)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(SandqError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)


def let_go_of(mistakes: Sequence[Mapping[str, Any]]) -> None:
    """Of what made each a mistake, which Pydantic and FastAPI tell in different ways."""
    for one in mistakes:
        error = (one.get("ctx") or {}).get("error")
        if isinstance(error, BaseException):
            let_go(error)


def _invalid(request_id: str, found: Sequence[Mapping[str, Any]]) -> Response:
    mistakes = [{"where": _where(one["loc"]), "problem": _problem_of(one)} for one in found[:ERRORS_SHOWN]]
    detail = "; ".join(f"{mistake['where']}: {mistake['problem']}" for mistake in mistakes)
    if len(found) > ERRORS_SHOWN:
        detail += f"; and {len(found) - ERRORS_SHOWN} more"
    return problem(request_id, 400, "INVALID", detail, more={"errors": mistakes})


def _where(loc: Sequence[str | int]) -> str:
    # Which of several models was meant says nothing to who sent it.
    parts = [str(part) for part in loc if part not in ("one", "many")]
    return ".".join(parts)[:_SHOWN_CHARS]


def _problem_of(one: Mapping[str, Any]) -> str:
    reason = str((one.get("ctx") or {}).get("error") or "")
    text = str(one["msg"]).removeprefix("Value error, ")
    return text if not reason or reason in text else f"{text}: {reason}"


def _http_error(request: Request, error: HTTPException) -> Response:
    request_id = request.state.request_id
    path = request.url.path[:_SHOWN_CHARS]
    if error.status_code == 404:
        return problem(
            request_id, 404, "NO_ROUTE", f"there is nothing at {path}; /docs and /openapi.json name all routes"
        )
    if error.status_code == 405:
        allowed = ", ".join(sorted(_methods(request)))
        detail = f"{request.method} is not for {path}" + (f"; it takes {allowed}" if allowed else "")
        response = problem(request_id, 405, "NO_METHOD", detail)
        if allowed:
            response.headers["allow"] = allowed
        return response
    return problem(request_id, error.status_code, "INVALID", str(error.detail))


def _methods(request: Request) -> set[str]:
    """What the path takes; several routes may share it."""
    routes: Sequence[APIRoute] = request.app.state.routes
    fitting = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in fitting for method in route.methods or ()}


def _plain(value: object) -> object:
    """What JSON does not know, in details."""
    if isinstance(value, bytes):
        return to_text(value) if len(value) == 16 else value.hex()
    return str(value)
