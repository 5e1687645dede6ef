"""Enforce the request rates of topics for HTTP clients. Nodes cannot do it: they see only the HTTP server."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from sandq.model.caller import ANONYMOUS, Caller
from sandq.model.errors import Throttled
from sandq.server.http.caller import CALLER, HttpCaller
from sandq.server.http.problems import problem, retry_after
from sandq.server.request_rates import RequestRates

Settings = Callable[[str], Mapping[str, Any] | None]
"""Returns the settings of a topic, as far as the client knows them; None if it does not."""
_RATED: Final = re.compile(
    r"/topics/([^/]+)(?:/(?:[0-9]+|messages|keys|changes|schedules)(?:/[\s\S]*)?|/groups/[^/]+/lease)"
)
"""Paths that produce, read or lease messages. POST to the topic itself is checked separately."""
_TOPIC: Final = re.compile(r"/topics/([^/]+)")


class RateGate:
    """Answers 429 to a client that exceeds the `max_request_rate` of a topic, before any route is chosen."""

    def __init__(self, app: ASGIApp, rates: RequestRates, settings: Settings) -> None:
        self._app = app
        self._rates = rates
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, unless it exceeds the rate of its topic."""
        topic = _topic_of(scope)
        caller: HttpCaller | None = scope.get("state", {}).get(CALLER)
        if topic is not None and caller is not None and caller.access is not None and not caller.access.sees(topic):
            topic = None  # the request is refused later: it must neither use up the rate nor reveal the topic
        settings = self._settings(topic) if topic is not None else None
        if topic is not None and settings is not None:
            address = str((scope.get("client") or ("?",))[0])
            try:
                self._rates.take(topic, settings, Caller(ANONYMOUS, address))
            except Throttled as error:
                response = problem(
                    scope["state"]["request_id"],
                    error.http_status,
                    error.code,
                    error.message,
                    retriable=True,
                    more=error.details,
                )
                response.headers["retry-after"] = retry_after(error)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _topic_of(scope: Scope) -> str | None:
    """Return the topic whose request rate applies to a request; None if no rate applies."""
    if scope["type"] != "http":
        return None
    found = _RATED.fullmatch(scope["path"])
    if found is None and scope["method"] == "POST":
        found = _TOPIC.fullmatch(scope["path"])
    return unquote(found[1]) if found is not None else None
