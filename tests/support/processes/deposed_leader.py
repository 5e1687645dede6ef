"""Send requests to a former leader that does not know yet that another node leads."""

from __future__ import annotations

from typing import Any

import trio

from sandq.errors import NotLeader, TimedOut, Unavailable
from sandq.protocol.frames import Type
from sandq.protocol.requests_messages import BY_UNIQUE_KEY
from tests.support.nodes.raw_client import RawClient
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S

_FAR = 2**48 - 1
REFUSALS = (NotLeader.code, TimedOut.code, Unavailable.code)
"""Errors with which the former leader may reject a request. `Unavailable` occurs during a leadership transfer."""


class Questions:
    """Requests about topic "t", after another leader has cancelled the pending message `old` and stored `new`."""

    def __init__(self, raw: RawClient, old: str, new: str) -> None:
        self._raw = raw
        # Send all requests before reading a reply: the first request makes the leader propose the time, and the failed
        # proposal would show the leader that it is deposed.
        self._asked: list[tuple[Any, ...]] = [
            (Type.GET, "t", 0, [BY_UNIQUE_KEY, old.encode()]),
            (Type.GET, "t", 0, [BY_UNIQUE_KEY, new.encode()]),
            (Type.WHY, "t", 0, [BY_UNIQUE_KEY, old.encode()]),
            (Type.LIST, "t", 0, "delayed", 0, _FAR, None, 1000, None, True),
            (Type.FORECAST, "t", "hour", 24),
            (Type.GROUP_LIST, "t"),
        ]

    @classmethod
    async def to(cls, node: NodeProcess, old: str, new: str) -> Questions:
        raw = RawClient(await trio.open_tcp_stream(node.host, node.port))
        assert (await raw.call(Type.HELLO, 2, "questions", {}))[0] == Type.REPLY
        return cls(raw, old, new)

    async def ask(self) -> None:
        for request_id, (kind, *fields) in enumerate(self._asked):
            await self._raw.send(kind, request_id, *fields)

    async def check(self) -> None:
        """Check that the node answered no request from its outdated state."""
        with trio.fail_after(PATIENCE_S):
            for _ in self._asked:
                answer = await self._raw.receive()
                kind = self._asked[answer[1]][0]
                refused = answer[0] == Type.ERROR and answer[2] in REFUSALS
                # These two requests concern the partitions that the node leads, so it may answer that it leads none.
                empty = {Type.FORECAST: [[], 0], Type.GROUP_LIST: [[]]}.get(kind)
                assert refused or answer[-len(empty or "?") :] == empty, (kind, answer)
        await trio.aclose_forcefully(self._raw.stream)
