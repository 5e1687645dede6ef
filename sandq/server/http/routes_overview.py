"""All topics at a glance, once or for as long as somebody watches; the last hour of one."""

from __future__ import annotations

from typing import Annotated, Final

import anyio
from fastapi import Query, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from sandq.client.json_format import when
from sandq.model.errors import Overloaded, SandqError, Unavailable
from sandq.model.sources import source_of
from sandq.server.http import answers_overview as answers
from sandq.server.http import problems
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
    response_model=answers.Overview,
    summary="All topics at a glance: rates, lag, bytes, lateness",
)
async def overview(
    request: Request,
    limit: Limit = None,
    after: Annotated[
        str | None, Query(description="The topic behind which to begin: `next` of the page before.")
    ] = None,
    prefix: Annotated[str, Query(description="Topics whose names begin so.")] = "",
    groups: Annotated[bool, Query(description="With the groups of these topics.")] = False,
) -> Response:
    """Of what nodes measure anyway: no message is looked at, and who asks within a second shares a look. Topics that
    whoever asks may `read`."""
    access, limit = access_of(request), DEFAULT_LIMIT if limit is None else limit
    look = await while_connected(request, gateway_of(request).watch.refresh)
    seen = look.overview
    asked = [name for name in seen.topics if name.startswith(prefix) and (after is None or name > after)]
    page = [name for name in asked if may_read(access, name)]
    following, page = len(page) > limit, page[:limit]
    found: Found = {
        "at": when(seen.now_ms),
        "over_ms": seen.over_ms,
        "next": page[-1] if following else None,
        "findings": findings_of(look, access),
        "missing": seen.missing,
    }
    if groups:
        found["groups"] = [group_row(name, group) for name in page for group in seen.topics[name].groups.values()]
    # The rows are there as they are sent; to check them all against the description would take ten times as long.
    rows = b",".join([look.rows[name][1] for name in page])
    return Response(b'%b,"topics":[%b]}' % (packed(found)[:-1], rows), media_type="application/json")


@router.get(
    "/overview/stream",
    operation_id="streamOverview",
    response_class=Response,
    responses=EVENTS,
    summary="All topics at a glance, and what changes",
)
async def stream(request: Request) -> Response:
    """Server-sent events, without an end: `topics` has rows as `/overview` has them, all of them at first, then those
    that have changed; `gone` names of topics that are there no more; `cluster` the nodes and what needs somebody to
    look; `look` ends what one look found. An `error` event is the last one."""
    watched = _Stream(request, gateway_of(request).watch)
    return Response(headers=watched.headers) if getattr(request.state, IS_HEAD) else watched


@router.get(
    "/topics/{topic}/history",
    operation_id="getHistory",
    response_model=answers.History,
    summary="What became of a topic's messages in the last hour",
)
async def history(request: Request, topic: TopicName) -> Found:
    """Slot by slot: what was stored, delivered, acked, died, and how late first deliveries were. Nodes keep it in
    memory, from when they came to lead a partition on."""
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
        async def say(events: bytes) -> None:
            hold(len(events))
            await send({"type": "http.response.body", "body": events, "more_body": True})

        await say(_BEGINNING)
        while True:
            look: ClusterView | None = None
            with anyio.move_on_after(HEARTBEAT_S):
                try:
                    look = await self._watch.next(self._watcher.number)
                except SandqError as error:  # it is looked again
                    await say(error_event(error, "trouble"))
                    continue
            if look is None:
                await say(_HEARTBEAT)
                continue
            # All of it at once: who reads slowly keeps what it is to be told, which is counted, and no look.
            events = list(self._watcher.events(look))
            del look
            await self._say_all(events, send, hold)

    async def _say_all(self, events: list[bytes], send: Send, hold: Hold) -> None:
        left = sum([len(event) for event in events])
        for event in events:
            hold(left)
            await send({"type": "http.response.body", "body": event, "more_body": True})
            left -= len(event)
        hold(0)
