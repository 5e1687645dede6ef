"""Error responses of type `application/problem+json` (RFC 9457).

{"type": "urn:sandq:error:UNKNOWN_TOPIC", "title": "Not Found", "status": 404, "detail": "there is no topic 'x'",
 "code": "UNKNOWN_TOPIC", "retriable": false, "request_id": "...", ...details of the error,
 "errors": [{"where": "path.topic", "problem": "there is no topic 'x'", "did_you_mean": null}]}

`errors` lists all mistakes, as far as they can be found at once. `where` is a path, or "request".
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, cast, get_args

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from sandq.model.errors import (
    CODES,
    InvalidRequest,
    InvalidSetting,
    SandqError,
    Unauthenticated,
    Unavailable,
    VersionChanged,
    clear_tracebacks,
)
from sandq.model.offsets import to_text
from sandq.server.http.further_mistakes import further_mistakes

MEDIA_TYPE = "application/problem+json"
FAULT = "this is a fault of sandq; the node's log has it under the request id"
CLIENT_GONE = 499
"""Status in the log if the client disconnected before the response. Other servers use the same number."""
ERRORS_SHOWN = 20
"""Maximum number of mistakes in a response."""
_SHOWN_CHARS = 200
_DID_YOU_MEAN = re.compile(r"did you mean '([^']+)'\?")
_NAMED = re.compile(r"(?:(messages|schedules)\.(\d+): )?([a-z_]+(?:\.[\w-]+)*): (.+)", re.DOTALL)
"""Pattern with which error messages of sandq name the part of a request that is wrong."""
_QUOTED = re.compile(r"'([^']*)'")
_PARTS = {"UNKNOWN_TOPIC": "topic", "UNKNOWN_GROUP": "group", "UNKNOWN_PARTITION": "partition"}


class Revoked(Unauthenticated):
    """The caller has no valid credentials. Other errors with this code are about this server's own authentication."""


def not_let_in(error: SandqError) -> Unavailable:
    """Return the error for callers if the cluster does not accept this server as a gateway."""
    return Unavailable(
        "the cluster requires authentication, and does not accept this server as a gateway: set the same "
        f"http.gateway_secret_file on it and on all nodes ({error.message})"
    )


class Mistake(BaseModel):
    """One mistake in a request."""

    where: str = Field(
        description="Path of the mistake: `body.messages.0.key`, `query.limit`, `path.topic`; `request` if it has none."
    )
    problem: str = Field(description="What is wrong and what is expected, for people.")
    did_you_mean: str | None = Field(description="The word that was probably meant; null if no known word is similar.")


class Problem(BaseModel):
    """Why a request failed. Some errors have further members, which the descriptions of the routes name."""

    model_config = ConfigDict(extra="allow")

    type: str = Field(description="`urn:sandq:error:` followed by the code.")
    title: str
    status: int
    detail: str = Field(description="What is wrong, where, and what to do, for people.")
    code: str = Field(description="Code of the error, for programs; the same on all interfaces of sandq.")
    retriable: bool = Field(description="Whether the same request may succeed a little later.")
    request_id: str
    errors: list[Mistake] = Field(
        description=f"All mistakes, at most {ERRORS_SHOWN}; in a list of messages, only those of the first wrong one."
    )


def mistake(where: str, message: str, known: Iterable[str] = (), given: object = None) -> dict[str, str | None]:
    """Return an entry of `errors`. `given`: the word that is not among the `known` ones."""
    close = difflib.get_close_matches(str(given)[:_SHOWN_CHARS], list(known), n=1)
    meant = close[0] if close else None
    if meant is None and (suggested := _DID_YOU_MEAN.search(message)):
        meant = suggested[1]
    return {"where": where[:_SHOWN_CHARS], "problem": message, "did_you_mean": meant}


def problem(
    request_id: str,
    status: int,
    code: str,
    detail: str,
    *,
    retriable: bool = False,
    more: Mapping[str, Any] | None = None,
) -> Response:
    """Return the response for an error."""
    details = dict(more or {})
    errors = details.pop("errors", [mistake("request", detail)])
    body = {
        **details,
        "type": f"urn:sandq:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "code": code,
        "retriable": retriable,
        "request_id": request_id,
        "errors": errors,
    }
    headers = {"retry-after": "1"} if retriable else {}
    # ASCII: the refused text may contain surrogates, which UTF-8 cannot encode.
    return Response(json.dumps(body, default=_plain).encode(), status, headers, MEDIA_TYPE)


def of_error(request: Request, error: SandqError) -> Response:
    """Return the response for an error of sandq."""
    if isinstance(error, Unauthenticated) and not isinstance(error, Revoked):
        error = not_let_in(error)
    known = (*Problem.model_fields, "mistakes")
    details = {name: value for name, value in error.details.items() if name not in known}
    details["errors"] = mistakes_of(request, error)
    # 421 (misdirected request) is for connections between nodes: an HTTP client should just retry.
    status = 503 if error.http_status == 421 else error.http_status
    response = problem(
        request.state.request_id, status, error.code, error.message, retriable=error.retriable, more=details
    )
    if isinstance(error, Revoked):
        response.headers["www-authenticate"] = "Bearer"
    if "retry_after_ms" in details:
        response.headers["retry-after"] = retry_after(error)
    version = details.get("version")
    if isinstance(error, VersionChanged) and version is not None:
        response.headers["etag"] = f'"{version}"'
    clear_tracebacks(error)
    return response


def retry_after(error: SandqError) -> str:
    """Return the value of Retry-After, in whole seconds."""
    wait_ms = error.details.get("retry_after_ms")
    return str(max(math.ceil(wait_ms / 1000), 1) if isinstance(wait_ms, int) else 1)


def mistakes_of(request: Request, error: SandqError) -> list[dict[str, str | None]]:
    """Return the entries of `errors` for an error of sandq, one for each part of the request that is wrong."""
    parameters: Mapping[str, Any] = request.scope.get("path_params") or {}
    if not isinstance(error, InvalidRequest):
        part = _PARTS.get(error.code)
        # A body may name a further topic: an ack can send messages to one.
        named = error.details.get("topic", parameters.get("topic"))
        is_of_path = part in parameters and (part != "topic" or named == parameters["topic"])
        return [mistake(f"path.{part}" if is_of_path else "request", error.message)]
    listed = error.details.get("mistakes")
    texts = [str(text) for text in listed] if isinstance(listed, list) else [error.message]
    in_settings = isinstance(error, InvalidSetting) and isinstance(listed, list)
    return [_mistake_in(request, parameters, text, in_settings) for text in texts[:ERRORS_SHOWN]]


def _mistake_in(request: Request, parameters: Mapping[str, Any], text: str, in_settings: bool) -> dict[str, str | None]:
    """Return an entry of `errors` for the text of a mistake, which begins with the name of the wrong part.

    `in_settings`: the text is about a setting of a topic. The name shows whether the part is in the path, the query or
    the body."""
    if in_settings:
        path, _, message = text.partition(": ")
        return mistake(f"body.settings.{path}" if message else "body.settings", message or text)
    found = _NAMED.fullmatch(text)
    if found is None:
        return mistake("request", text)
    many, index, name, message = found.groups()
    if many is not None:
        return mistake(f"body.{many}.{index}.{name}", message)
    route = request.scope.get("route")
    queries = {field.alias for field in route.dependant.query_params} if isinstance(route, APIRoute) else set()
    inside = "path" if name in parameters else "query" if name in queries else "body"
    return mistake(f"{inside}.{name}", message)


def install(app: FastAPI) -> None:
    """Make every error of a route a problem response."""

    async def refused(request: Request, error: Exception) -> Response:
        """Respond to an error of sandq."""
        assert isinstance(error, SandqError)
        return of_error(request, error)

    async def invalid(request: Request, error: Exception) -> Response:
        """Respond to a request that does not fit its schema."""
        assert isinstance(error, RequestValidationError)
        clear_tracebacks(error)
        clear_tracebacks_of(error.errors())
        return _invalid(request, error.errors(), error.body)

    async def http_error(request: Request, error: Exception) -> Response:
        """Respond to an error of the framework."""
        assert isinstance(error, HTTPException)
        clear_tracebacks(error)
        return _http_error(request, error)

    async def fault(request: Request, error: Exception) -> Response:
        """Respond to an unexpected error."""
        # Starlette raises the error again, and the guard logs it.
        return problem(request.state.request_id, 500, "INTERNAL", FAULT)

    async def gone(request: Request, error: Exception) -> Response:
        """Send no response: the client has disconnected."""
        return Response(status_code=CLIENT_GONE)  # for the log and the metrics only

    app.add_exception_handler(Exception, fault)
    app.add_exception_handler(ClientDisconnect, gone)
    app.add_exception_handler(SandqError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)


def clear_tracebacks_of(mistakes: Sequence[Mapping[str, Any]]) -> None:
    """Clear the tracebacks of the errors behind these mistakes. Pydantic and FastAPI attach them in different ways."""
    for one in mistakes:
        error = (one.get("ctx") or {}).get("error")
        if isinstance(error, BaseException):
            clear_tracebacks(error)


def _invalid(request: Request, found: Sequence[Mapping[str, Any]], body: Any) -> Response:
    """Return the response to a request that does not fit its schema.

    `found`: the mistakes that pydantic found. Mistakes that only sandq's own checks find are added."""
    body_type = _body_type(request.scope.get("route"))
    known = set[str]() if body_type is None else _members_of(body_type)
    errors = [
        mistake(_path_of(one["loc"]), _problem_of(one), *_known_and_given(one, known)) for one in found[:ERRORS_SHOWN]
    ]
    codes = {one["type"] if one["type"] in CODES else "INVALID" for one in found}
    if body_type is not None:
        own = _members_of(body_type, is_deep=False)
        more = [(where, error) for where, error in further_mistakes(body, own) if not _is_reported(where, errors)]
        errors += [mistake(where, error.message) for where, error in more][: ERRORS_SHOWN - len(errors)]
        codes |= {error.code for _, error in more}
        found = [*found, *({} for _ in more)]
    detail = "; ".join(f"{one['where']}: {one['problem']}" for one in errors)
    if len(found) > ERRORS_SHOWN:
        detail += f"; and {len(found) - ERRORS_SHOWN} more"
    code = codes.pop() if len(codes) == 1 else "INVALID"
    return problem(request.state.request_id, 400, code, detail, more={"errors": errors})


def _body_type(route: object) -> Any:
    """Return the type of a route's body; None if it has none."""
    field = route.body_field if isinstance(route, APIRoute) else None
    return None if field is None else field.field_info.annotation


def _is_reported(where: str, errors: Sequence[Mapping[str, str | None]]) -> bool:
    """Return whether a mistake at this place is among the errors already."""
    return any(one["where"] == where for one in errors)


def _known_and_given(one: Mapping[str, Any], members: set[str]) -> tuple[Iterable[str], object]:
    """Return the known words and the given word, as arguments of `mistake`."""
    if one["type"] == "extra_forbidden":
        return members, one["loc"][-1]
    if one["type"] == "literal_error":
        return _QUOTED.findall(str((one.get("ctx") or {}).get("expected"))), one.get("input")
    return one.get("known", ()), one["loc"][-1]


@functools.cache
def _members_of(annotation: Hashable, *, is_deep: bool = True) -> set[str]:
    """Return the names of all members that a body may have, at any depth or at the top only."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields
        inner = [_members_of(cast(Hashable, field.annotation)) for field in fields.values() if is_deep]
        return {field.alias or name for name, field in fields.items()}.union(*inner)
    return set[str]().union(*[_members_of(inner, is_deep=is_deep) for inner in get_args(annotation)])


def _path_of(loc: Sequence[str | int]) -> str:
    """Return the path of a mistake, as in `where`."""
    # Do not show which of several models was tried: the names are internal.
    parts = [str(part) for part in loc if part not in ("one", "many")]
    return ".".join(parts)[:_SHOWN_CHARS]


def _problem_of(one: Mapping[str, Any]) -> str:
    """Return the text of a mistake that pydantic found, with the reason of its check."""
    reason = str((one.get("ctx") or {}).get("error") or "")
    text = str(one["msg"]).removeprefix("Value error, ")
    return text if not reason or reason in text else f"{text}: {reason}"


def _http_error(request: Request, error: HTTPException) -> Response:
    """Return the response to an error of the framework: no such route, or a wrong method."""
    request_id = request.state.request_id
    path = request.url.path[:_SHOWN_CHARS]
    if error.status_code == 404:
        return problem(
            request_id, 404, "NO_ROUTE", f"there is no route {path}: see /docs or /openapi.json for all routes"
        )
    if error.status_code == 405:
        allowed = ", ".join(sorted(_methods(request)))
        detail = f"{request.method} is not allowed for {path}" + (f"; allowed: {allowed}" if allowed else "")
        response = problem(request_id, 405, "NO_METHOD", detail)
        if allowed:
            response.headers["allow"] = allowed
        return response
    return problem(request_id, error.status_code, "INVALID", str(error.detail))


def _methods(request: Request) -> set[str]:
    """Return the methods that are allowed for the path. Several routes may share it."""
    routes: Sequence[APIRoute] = request.app.state.routes
    fitting = [route for route in routes if route.matches(request.scope)[0] is not Match.NONE]
    return {method for route in fitting for method in route.methods or ()}


def _plain(value: object) -> object:
    """Return a detail of an error as a type that JSON has."""
    if isinstance(value, bytes):
        return to_text(value) if len(value) == 16 else value.hex()
    return str(value)
