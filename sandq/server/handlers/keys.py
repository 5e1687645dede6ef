"""Requests about the keys of compacted topics."""

from __future__ import annotations

from msgpack import packb

from sandq.protocol.frames import PackedArray
from sandq.protocol.requests_keys import KvGet, KvScan, KvWatch
from sandq.server.handlers.routes import Context, Log, Packed, answered, framed


async def _scan(at: Context, request: KvScan) -> Packed:
    page, stale_ms = await at.kv_requests.scan(request, at.caller)
    return Packed((packb(stale_ms), PackedArray(2 * page.keys, page.rows), packb(page.following)))


async def _watch(at: Context, request: KvWatch) -> Log:
    with at.connection.waits(len(request.start or b"") + len(request.stop or b"")):
        found = await at.kv_requests.changes(request, at.caller)
    return Log((found.through, found.mark), found.pieces)


ROUTES = (
    framed(KvGet, lambda at, frame: at.kv_gets.add(frame)),
    answered(KvScan, _scan),
    answered(KvWatch, _watch, lambda request: request.wait_ms / 1000),
)
