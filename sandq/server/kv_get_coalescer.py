"""Merge KV_GET requests that one receive brings for one partition into one query, and answer each request."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from sandq.broker.requests.kv_requests import KvRequests
from sandq.model.errors import Overloaded
from sandq.protocol.frames import Frame, encode_replies
from sandq.protocol.requests_keys import KvGet
from sandq.server.connection import Connection

TOGETHER: Final = 256
"""Maximum number of requests per query, so that one query does not delay other queries for long."""


class KvGetCoalescer:
    """Merges the KV_GET requests of one connection into queries."""

    def __init__(self, connection: Connection, kv_requests: KvRequests) -> None:
        self._connection = connection
        self._kv_requests = kv_requests
        self._gathered: dict[tuple[Any, ...], list[tuple[int, KvGet]]] = {}
        """Request id and request, by topic, partition and `stale`."""

    def add(self, frame: Frame) -> None:
        """Gather a request. Raise InvalidRequest."""
        request = KvGet.parse(frame)
        self._kv_requests.check_partitions(request, request.keys)  # an error now refuses only this request
        together = self._gathered.setdefault(request[:3], [])
        together.append((frame[1], request))
        if len(together) == TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Start the queries: everything that one receive brought was gathered."""
        if not self._gathered:
            return
        gathered, self._gathered = self._gathered, {}
        for together in gathered.values():
            ids = [request_id for request_id, _ in together]
            try:
                self._connection.start_many(ids, partial(self._answer, together))
            except Overloaded as refusal:  # only the requests of this caller are refused
                for request_id in ids:
                    self._connection.refuse(request_id, refusal)

    async def _answer(self, requests: list[tuple[int, KvGet]]) -> bytes:
        """Return the replies of the last requests. Earlier replies are sent as soon as their values are read."""
        while True:
            queries = [request for _, request in requests]
            values, stale_ms = await self._kv_requests.get(queries, self._connection.caller)
            answered, requests = requests[: len(values)], requests[len(values) :]
            ids = [request_id for request_id, _ in answered]
            frames = encode_replies([(number, stale_ms, of) for number, of in zip(ids, values, strict=True)])
            if not requests:
                return frames
            self._connection.reply_each(ids, frames)
