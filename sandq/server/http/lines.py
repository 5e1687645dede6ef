"""Long lists as lines of JSON, sent as they are read."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, Generic, Protocol, TypeVar

from fastapi import Query, Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from sandq.model.errors import SandqError, Unavailable
from sandq.server.http.gateway import Found, while_connected

T = TypeVar("T")

MEDIA_TYPE = "application/x-ndjson"
LINES: dict[int | str, dict[str, Any]] = {
    200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "description": "A JSON object a line."}}}}
}
"""For the `responses` of a route."""
Limit = Annotated[
    int | None, Query(ge=1, le=1000, description="At most so many; a page has 100 unless told otherwise.")
]
PIECE_BYTES = 64 * 1024
PAGE_BYTES = 1024 * 1024
"""Of values and keys: a page is written as a whole, and nothing else happens meanwhile."""
DEFAULT_LIMIT = 100


class Row(Protocol):
    """What has a value and a key."""

    @property
    def value(self) -> bytes | None: ...

    @property
    def key(self) -> bytes | None: ...


R = TypeVar("R", bound=Row)


async def page_of(rows: AsyncIterator[R], limit: int) -> tuple[list[R], R | None]:
    """At most `limit` rows, and not beyond the one that reaches `PAGE_BYTES`; and the one behind them, if any."""
    page: list[R] = []
    size = 0
    async for row in rows:
        if len(page) >= limit or size >= PAGE_BYTES:
            return page, row
        page.append(row)
        size += len(row.value or b"") + len(row.key or b"")
    return page, None


def wants_lines(request: Request) -> bool:
    return MEDIA_TYPE in request.headers.get("accept", "")


async def as_lines(request: Request, rows: AsyncIterator[T], shown: Callable[[T], Found]) -> Response:
    """A line for each row. What is wrong at the start is answered as a problem; later it is the last line."""
    return _Lines(request, rows, await anext(rows, None), lambda row: _line(shown(row)))


class _Lines(Response, Generic[T]):
    """Reads no further than the client does, and not on when it has gone."""

    media_type = MEDIA_TYPE

    def __init__(self, request: Request, rows: AsyncIterator[T], first: T | None, line: Callable[[T], bytes]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"content-type": MEDIA_TYPE})
        self._request = request
        self._rows = rows
        self._row = first
        self._line = line

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await while_connected(self._request, lambda: self._send_all(send))
        except Unavailable as error:  # the node stops
            await send({"type": "http.response.body", "body": _error_line(error), "more_body": False})

    async def _send_all(self, send: Send) -> None:
        more = True
        while more:
            piece, more = await self._piece()
            await send({"type": "http.response.body", "body": piece, "more_body": more})

    async def _piece(self) -> tuple[bytes, bool]:
        """The next lines, and whether there are more."""
        piece = bytearray()
        try:
            while self._row is not None and len(piece) < PIECE_BYTES:
                piece += self._line(self._row)
                self._row = await anext(self._rows, None)
        except SandqError as error:
            piece += _error_line(error)
            self._row = None
        return bytes(piece), self._row is not None


def _error_line(error: SandqError) -> bytes:
    return _line({"error": {"code": error.code, "detail": error.message}})


def _line(found: Found) -> bytes:
    return json.dumps(found, separators=(",", ":")).encode() + b"\n"
