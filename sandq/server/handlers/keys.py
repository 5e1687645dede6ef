"""Handle requests about the keys of compacted topics."""

from __future__ import annotations

from msgpack import packb

from sandq.protocol.frames import PackedArray
from sandq.protocol.requests_keys import KvGet, KvScan, KvWatch
from sandq.server.handlers.routes import Context, Log, Packed, answered, framed


async def _scan(context: Context, request: KvScan) -> Packed:
    """Return a page of keys, the age of the data in ms, and the start of the next page."""
    page, stale_ms = await context.kv_requests.scan(request, context.caller)
    return Packed((packb(stale_ms), PackedArray(2 * page.keys, page.rows), packb(page.following)))


async def _watch(context: Context, request: KvWatch) -> Log:
    """Return the changes of keys, once there are any or the wait is over."""
    with context.connection.waits(len(request.start or b"") + len(request.stop or b"")):
        found = await context.kv_requests.changes(request, context.caller)
    return Log((found.through, found.mark), found.pieces)


ROUTES = (
    framed(KvGet, lambda context, frame: context.kv_gets.add(frame)),
    answered(KvScan, _scan),
    answered(KvWatch, _watch, lambda request: request.wait_ms / 1000),
)
