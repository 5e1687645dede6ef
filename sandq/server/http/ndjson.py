"""Send long lists as newline-delimited JSON while they are read."""

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
NDJSON: dict[int | str, dict[str, Any]] = {
    200: {"content": {MEDIA_TYPE: {"schema": {"type": "string", "description": "One JSON object per line."}}}}
}
"""`responses` of a route that sends newline-delimited JSON."""
Limit = Annotated[int | None, Query(ge=1, le=1000, description="Maximum number of rows; a page has 100 by default.")]
PIECE_BYTES = 64 * 1024
PAGE_BYTES = 1024 * 1024
"""Maximum bytes of values and keys in a page. A page is encoded at once, which blocks the loop meanwhile."""
DEFAULT_LIMIT = 100


class Row(Protocol):
    """A row that has a value and a key."""

    @property
    def value(self) -> bytes | None: ...

    @property
    def key(self) -> bytes | None: ...


R = TypeVar("R", bound=Row)


async def page_of(rows: AsyncIterator[R], limit: int) -> tuple[list[R], R | None]:
    """Return at most `limit` rows, and the next row, if any. The page ends with the row at which it reaches
    `PAGE_BYTES`."""
    page: list[R] = []
    size = 0
    async for row in rows:
        if len(page) >= limit or size >= PAGE_BYTES:
            return page, row
        page.append(row)
        size += len(row.value or b"") + len(row.key or b"")
    return page, None


def wants_ndjson(request: Request) -> bool:
    """Return whether the client accepts newline-delimited JSON."""
    return MEDIA_TYPE in request.headers.get("accept", "")


async def as_ndjson(request: Request, rows: AsyncIterator[T], shown: Callable[[T], Found]) -> Response:
    """Return a response with one line per row. Raise an error before the first row; a later error becomes the last
    line."""
    return _NdjsonResponse(request, rows, await anext(rows, None), lambda row: _encode(shown(row)))


class _NdjsonResponse(Response, Generic[T]):
    """Reads rows no faster than the client does, and stops if the client disconnects."""

    media_type = MEDIA_TYPE

    def __init__(self, request: Request, rows: AsyncIterator[T], first: T | None, line: Callable[[T], bytes]) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"content-type": MEDIA_TYPE})
        self._request = request
        self._rows = rows
        self._row = first
        self._encode = line

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all rows until the client disconnects or the server stops."""
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        try:
            await while_connected(self._request, lambda: self._send_all(send))
        except Unavailable as error:  # the server stops
            await send({"type": "http.response.body", "body": _encode_error(error), "more_body": False})

    async def _send_all(self, send: Send) -> None:
        """Send the rows in pieces."""
        more = True
        while more:
            piece, more = await self._piece()
            await send({"type": "http.response.body", "body": piece, "more_body": more})

    async def _piece(self) -> tuple[bytes, bool]:
        """Return the next lines, and whether there are more."""
        piece = bytearray()
        try:
            while self._row is not None and len(piece) < PIECE_BYTES:
                piece += self._encode(self._row)
                self._row = await anext(self._rows, None)
        except SandqError as error:
            piece += _encode_error(error)
            self._row = None
        return bytes(piece), self._row is not None


def _encode_error(error: SandqError) -> bytes:
    """Return an error as the last line."""
    return _encode({"error": {"code": error.code, "detail": error.message}})


def _encode(found: Found) -> bytes:
    """Return a row as a line."""
    return json.dumps(found, separators=(",", ":")).encode() + b"\n"
