"""Routes of the overview of all topics, once or as a stream, and of the history of a topic."""

from __future__ import annotations

from typing import Annotated, Final

import anyio
from fastapi import Query, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from sandq.client.json_format import when
from sandq.model.errors import Overloaded, SandqError, Unavailable
from sandq.model.sources import source_of
from sandq.server.http import problems
from sandq.server.http import responses_overview as responses
from sandq.server.http.caller import access_of, address_of, caller_of
from sandq.server.http.cluster_watch import ClusterView, ClusterWatch, Watcher, findings_of, may_read, packed
from sandq.server.http.event_streams import EVENTS, MEDIA_TYPE, error_event
from sandq.server.http.gateway import Found, gateway_of, while_connected
from sandq.server.http.guards import IS_HEAD, WAITING_SLOT, Hold
from sandq.server.http.ndjson import DEFAULT_LIMIT, Limit
from sandq.server.http.overview_rows import group_row, history_row
from sandq.server.http.routes_topics import TopicName
from sandq.server.http.strict import router_of

router = router_of("overview")
HEARTBEAT_S: Final = 10.0
_BEGINNING: Final = b"retry: 2000\n\n"
_HEARTBEAT: Final = b": -\n\n"


@router.get(
    "/overview",
    operation_id="getOverview",
    response_model=responses.Overview,
    summary="Get all topics with rates, lag, bytes and lateness",
)
async def overview(
    request: Request,
    limit: Limit = None,
    after: Annotated[str | None, Query(description="Begin after this topic: `next` of the previous page.")] = None,
    prefix: Annotated[str, Query(description="Only topics whose names begin with this.")] = "",
    groups: Annotated[bool, Query(description="Include the groups of these topics.")] = False,
) -> Response:
    """Uses numbers that nodes count anyway: no message is read, and requests within a second share one result. Includes
    only topics that the caller may `read`."""
    access, limit = access_of(request), DEFAULT_LIMIT if limit is None else limit
    view = await while_connected(request, gateway_of(request).watch.refresh)
    seen = view.overview
    matching = [name for name in seen.topics if name.startswith(prefix) and (after is None or name > after)]
    page = [name for name in matching if may_read(access, name)]
    following, page = len(page) > limit, page[:limit]
    found: Found = {
        "at": when(seen.now_ms),
        "over_ms": seen.over_ms,
        "next": page[-1] if following else None,
        "findings": findings_of(view, access),
        "missing": seen.missing,
    }
    if groups:
        found["groups"] = [group_row(name, group) for name in page for group in seen.topics[name].groups.values()]
    # The rows are sent as they were encoded: validating them against the model would take ten times as long.
    rows = b",".join([view.rows[name][1] for name in page])
    return Response(b'%b,"topics":[%b]}' % (packed(found)[:-1], rows), media_type="application/json")


@router.get(
    "/overview/stream",
    operation_id="streamOverview",
    response_class=Response,
    responses=EVENTS,
    summary="Stream the overview and its changes",
)
async def stream(request: Request) -> Response:
    """Server-sent events that never end. `topics`: rows as in `/overview`; all of them first, then those that changed.
    `gone`: names of topics that no longer exist. `cluster`: the nodes, and the findings. `look`: the end of an update.
    `trouble`: the cluster cannot be queried now; the stream continues. An `error` event is the last one."""
    watched = _Stream(request, gateway_of(request).watch)
    return Response(headers=watched.headers) if getattr(request.state, IS_HEAD) else watched


@router.get(
    "/topics/{topic}/history",
    operation_id="getHistory",
    response_model=responses.History,
    summary="Get the last hour of a topic",
)
async def history(request: Request, topic: TopicName) -> Found:
    """Returns for each slot of time the numbers of messages stored, delivered, acked and dead, and the lateness of
    first deliveries. Nodes keep the history in memory, from when they began to lead a partition."""
    found = await gateway_of(request).client.admin.history(topic)
    return {
        "slot_ms": found.slot_ms,
        "slots": [history_row(slot) for slot in found.slots],
        "missing": found.missing,
    }


class _Stream(Response):
    media_type = MEDIA_TYPE

    def __init__(self, request: Request, watch: ClusterWatch) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"content-type": MEDIA_TYPE, "cache-control": "no-store"})
        self._request = request
        self._watch = watch
        self._watcher = Watcher(access_of(request))
        caller = caller_of(request)
        self._owner = source_of(address_of(request)) if caller is None else caller.principal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with getattr(self._request.state, WAITING_SLOT)() as hold, self._watch.watching(self._owner):
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                try:
                    await while_connected(self._request, lambda: self._send_all(send, hold))
                except (problems.Revoked, Unavailable) as error:
                    await send({"type": "http.response.body", "body": error_event(error), "more_body": True})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        except Overloaded as error:
            await problems.of_error(self._request, error)(scope, receive, send)

    async def _send_all(self, send: Send, hold: Hold) -> None:
        """Send changes of the cluster's state until cancelled."""

        async def send_events(events: bytes) -> None:
            hold(len(events))
            await send({"type": "http.response.body", "body": events, "more_body": True})

        await send_events(_BEGINNING)
        while True:
            view: ClusterView | None = None
            with anyio.move_on_after(HEARTBEAT_S):
                try:
                    view = await self._watch.next(self._watcher.number)
                except SandqError as error:  # the next refresh may succeed
                    await send_events(error_event(error, "trouble"))
                    continue
            if view is None:
                await send_events(_HEARTBEAT)
                continue
            # Encode all events now: a slow client then holds only these bytes, which are counted, and not the view.
            events = list(self._watcher.events(view))
            del view
            await self._send_events(events, send, hold)

    async def _send_events(self, events: list[bytes], send: Send, hold: Hold) -> None:
        """Send events one by one. `hold` counts the bytes that are not sent yet."""
        left = sum([len(event) for event in events])
        for event in events:
            hold(left)
            await send({"type": "http.response.body", "body": event, "more_body": True})
            left -= len(event)
        hold(0)
