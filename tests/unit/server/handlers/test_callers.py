"""Every request that the broker is asked arrives whole, and with its caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from sandq.model.batch import Column, encode
from sandq.model.caller import Caller
from sandq.model.offsets import pack
from sandq.protocol import requests as r
from sandq.protocol import requests_admin as admin
from sandq.protocol import requests_keys as keys
from sandq.protocol import requests_log as log
from sandq.protocol import requests_messages as messages
from sandq.protocol.frames import FrameReader, Type
from sandq.protocol.request import Request
from sandq.server.handlers import routes
from sandq.server.handlers.session import HANDLERS, ClientSession

CALLER = Caller("ada", "192.0.2.7:4711")
OFFSET = pack(1_700_000_000_000, 7, 3, 0)
JOB = bytes(16)
RANGE = {"from_ms": 0, "until_ms": 5, "dry_run": False}

ASKED: list[Request] = [
    r.Produce("t", 0, 0, 0, 0, 0, encode({Column.VALUE: [b"x"]})),
    r.Subscribe(4, "t", "g", "me", 10, None, "earliest", []),
    r.Lease("t", "g", "me", 1, 0, None, "earliest", False),
    r.Ack(7, 3, [[1, None]]),
    r.Nack(7, 3, [[1, None, None, None]]),
    r.Extend(7, 3, [[1, 60_000]]),
    messages.Cancel("t", 0, [[0, OFFSET]]),
    messages.Move("t", 0, [[[0, OFFSET], 5, True]]),
    messages.Get("t", 0, [0, OFFSET]),
    messages.Why("t", 0, [0, OFFSET]),
    messages.List("t", 0, None, 0, 5, None, 10, None, False),
    messages.Forecast("t", "hour", 5),
    messages.JobStart("t", 0, JOB, "purge_dead", {**RANGE, "group": "g", "reason": None}),
    messages.JobStatus("t", 0, JOB),
    messages.JobStop("t", 0, JOB),
    log.Fetch("t", 0, OFFSET, None, 1, 1),
    log.Measure("t", 0, OFFSET),
    keys.KvGet("t", 0, False, [b"a"]),
    keys.KvScan("t", 0, False, b"", None, 1, 1),
    keys.KvWatch("t", 0, None, None, False, b"", None, 1, 1, 0),
    admin.DeadList("t", 0, "g", None, 10, None, False),
    admin.GroupList("t"),
    admin.GroupSeek("t", "g", "latest"),
    admin.GroupDelete("t", "g"),
    admin.GroupUpdate("t", "g", {}),
    admin.Hold("t", 0, "h", None, None),
    admin.TopicCreate("t", "timer", 1, 1, {}),
    admin.TopicUpdate("t", {}),
    admin.TopicDelete("t"),
    admin.TopicStats("t"),
    admin.NodeChange("node2", "drain"),
    admin.Transfer("t", 0, "node2"),
]
NOT_ASKED = {r.Hello, r.Metadata, r.Ping, r.Credit, r.Unsubscribe, admin.ClusterInfo, admin.ClusterClock,
             admin.ClusterInit}  # fmt: skip
"""Requests that the server answers of what it knows, or that are about what this connection has."""


class Stop(BaseException):
    """The broker was asked: what it answers does not matter here."""


class Twin:
    """Takes every request that a broker takes, whatever the method, and keeps it with its caller."""

    def __init__(self, came: list[tuple[Any, Any]]) -> None:
        self._came = came
        self.administration = self
        self.limits = SimpleNamespace(consumer_id_chars=255, credit_max=1_000_000)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(request: Any, caller: Any, *rest: Any, **more: Any) -> Any:
            self._came.append((request, caller))
            raise Stop

        return ask


class Door:
    """A connection whose requests are begun at once."""

    def __init__(self) -> None:
        self.caller = CALLER
        self.congested = False
        self.room = 100
        self.begun: list[Callable[[], Awaitable[bytes]]] = []

    def start(self, request_id: int, work: Callable[[], Awaitable[bytes]]) -> None:
        self.begun.append(work)

    def start_many(self, request_ids: list[int], work: Callable[[], Awaitable[bytes]]) -> None:
        self.begun.append(work)

    def reply(self, request_id: int, frame: bytes) -> None: ...

    def reply_each(self, request_ids: Any, frames: bytes) -> None: ...

    def refuse(self, request_id: int, error: Exception) -> None:
        raise error


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, Any]]]:
    came: list[tuple[Any, Any]] = []
    for queries in ("MessageQueries", "KvQueries"):
        monkeypatch.setattr(routes, queries, lambda broker: Twin(came))
    yield came


@pytest.mark.parametrize("request_", ASKED, ids=lambda request: type(request).__name__)
async def test_a_request_arrives_with_its_caller(came: list[tuple[Any, Any]], request_: Request) -> None:
    info = SimpleNamespace(waiting=lambda: None, add_hint=None)
    door = Door()
    session = ClientSession(Twin(came), door, info)  # type: ignore[arg-type]
    session.greeted = True
    (frame,) = FrameReader().feed(request_.frame(5))
    try:
        session.handle(frame)
        session.handled()
        for work in door.begun:
            await work()
    except Stop:
        await trio.lowlevel.checkpoint()
    ((asked, caller),) = came
    assert asked == ([request_] if isinstance(request_, keys.KvGet) else request_)
    assert caller is CALLER


def test_no_request_is_left_out() -> None:
    every = {kind for kind in Type if kind not in (Type.REPLY, Type.ERROR, Type.DELIVER)}
    assert HANDLERS.keys() == every == {kind.type for kind in {*map(type, ASKED), *NOT_ASKED}}
