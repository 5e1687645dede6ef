"""KV_GET requests that come in one receive for one partition: one question to it, answered one by one."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from sandq.broker.requests.kv_requests import KvRequests
from sandq.model.errors import Overloaded
from sandq.protocol.frames import Frame, encode_replies
from sandq.protocol.requests_keys import KvGet
from sandq.server.connection import Connection

TOGETHER: Final = 256
"""Requests of one question: what it holds up is not much."""


class KvGetCoalescer:
    """Those of one connection."""

    def __init__(self, connection: Connection, kv_requests: KvRequests) -> None:
        self._connection = connection
        self._kv_queries = kv_requests
        self._gathered: dict[tuple[Any, ...], list[tuple[int, KvGet]]] = {}
        """By topic, partition, stale."""

    def add(self, frame: Frame) -> None:
        """Take a request in. Raises InvalidRequest."""
        asked = KvGet.parse(frame)
        self._kv_queries.check_places(asked, asked.keys)  # here: it is refused alone, and not all that go with it
        together = self._gathered.setdefault(asked[:3], [])
        together.append((frame[1], asked))
        if len(together) == TOGETHER:
            self.flush()

    def flush(self) -> None:
        """Everything that one receive brought was taken in."""
        if not self._gathered:
            return
        gathered, self._gathered = self._gathered, {}
        for together in gathered.values():
            ids = [request_id for request_id, _ in together]
            try:
                self._connection.start_many(ids, partial(self._answer, together))
            except Overloaded as refusal:  # of these alone, not of who else asks by this connection
                for request_id in ids:
                    self._connection.refuse(request_id, refusal)

    async def _answer(self, requests: list[tuple[int, KvGet]]) -> bytes:
        """The answers of the last of them; those before are answered as they are found."""
        while True:
            asked = [request for _, request in requests]
            values, stale_ms = await self._kv_queries.get(asked, self._connection.caller)
            answered, requests = requests[: len(values)], requests[len(values) :]
            ids = [request_id for request_id, _ in answered]
            frames = encode_replies([(number, stale_ms, of) for number, of in zip(ids, values, strict=True)])
            if not requests:
                return frames
            self._connection.reply_each(ids, frames)
