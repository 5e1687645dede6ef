"""Tests that every request reaches the broker completely and with its caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from sandq.broker.event_loop import TimeSlice
from sandq.model.caller import Caller
from sandq.protocol import requests as r
from sandq.protocol import requests_access as access
from sandq.protocol import requests_admin as admin
from sandq.protocol.requests_audit import AuditList, AuditNote
from sandq.protocol.requests_backup import BackupAccess, BackupTopics
from sandq.protocol.requests_debug import DebugDump, LogLevel
from sandq.protocol.requests_keys import KvGet
from sandq.protocol.requests_overview import Overview, TopicHistory
from sandq.protocol.requests_slo import Slo
from sandq.server.handlers import routes
from sandq.server.handlers.session import HANDLERS, ClientSession
from sandq.server.subscriptions import PARTITIONS_OF_WORK
from tests.support.protocol_document import EXAMPLES, KINDS, decode, parsed

CALLER = Caller("ada", "192.0.2.7:4711")
NOT_ASKED = {r.Hello, r.Prove, r.OnBehalf, r.Metadata, r.Ping, r.Credit, r.Unsubscribe, admin.ClusterInfo,
             admin.ClusterClock, admin.ClusterInit, admin.Finalize, admin.EntrySkip, admin.PushList, admin.LimitList,
             LogLevel, DebugDump, r.TopicNames, access.Identify, access.IdentityList, access.RoleList,
             AuditList, AuditNote, Slo, Overview, TopicHistory,
             BackupTopics, BackupAccess}  # fmt: skip
"""Requests that the server answers from memory, or that concern only their connection."""
ASKED = [name for name in EXAMPLES if type(parsed(name)) not in NOT_ASKED]


class Stop(BaseException):
    """Raised when the broker gets a request, because its answer does not matter here."""


class FakeBroker:
    """A broker that records each request, of any method, with its caller."""

    def __init__(self, came: list[tuple[Any, Any]]) -> None:
        self._came = came
        self.partitions = 1
        self.administration = self.topics = self.nodes = self.restores = self
        self.backups = self
        self.catalog = SimpleNamespace(topics={}, topic=self._topic)
        self.clock = SimpleNamespace(now_ms=lambda: 0)
        self.limits = SimpleNamespace(consumer_id_chars=255, credit_max=1_000_000, subscriptions_per_connection=10)

    def check_partitions(self, request: Any, keys: Any) -> None:
        """Accept all keys."""

    def _topic(self, name: str) -> Any:
        return SimpleNamespace(record=SimpleNamespace(partitions=self.partitions * [None]))

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def ask(request: Any, caller: Any, *rest: Any, **more: Any) -> Any:
            self._came.append((request, caller))
            raise Stop

        return ask


class PeerSlots:
    """A connection that starts its requests at once."""

    def __init__(self) -> None:
        self.caller = CALLER
        self.login = None
        self.congested = False
        self.time_slice = TimeSlice()
        self.begun: list[Callable[[], Awaitable[bytes]]] = []
        self.output = self

    def observe(self, audit: object, add_hint: object) -> None: ...

    def waits(self, size: int) -> AbstractContextManager[None]:
        return nullcontext()

    def start(self, request_id: int, work: Callable[[], Awaitable[bytes]], wait_s: float = 0.0) -> None:
        self.begun.append(work)

    def start_many(self, request_ids: list[int], work: Callable[[], Awaitable[bytes]], wait_s: float = 0.0) -> None:
        self.begun.append(work)

    def reply(self, request_id: int, frame: bytes) -> None: ...

    def reply_each(self, request_ids: Any, frames: bytes) -> None: ...

    def refuse(self, request_id: int, error: Exception) -> None:
        raise error


def info_of(identities: FakeBroker) -> SimpleNamespace:
    """Return the parts of a server that the session of this test needs."""
    return SimpleNamespace(
        cluster=SimpleNamespace(waiting=lambda: None),
        add_hint=None,
        gateway_keys=SimpleNamespace(current=()),
        node_id="node1",
        logins=SimpleNamespace(authenticator=None),
        failed_logins=None,
        identities=identities,
        audit=None,
        quotas=None,
        usage=None,
    )


@pytest.fixture
def came(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Any, Any]]]:
    came: list[tuple[Any, Any]] = []
    for queries in ("MessageRequests", "KvRequests", "ScheduleRequests"):
        monkeypatch.setattr(routes, queries, lambda broker, room: FakeBroker(came))
    yield came


@pytest.mark.parametrize("name", ASKED)
async def test_a_request_arrives_with_its_caller(came: list[tuple[Any, Any]], name: str) -> None:
    info = info_of(FakeBroker(came))
    door = PeerSlots()
    session = ClientSession(FakeBroker(came), door, info)  # type: ignore[arg-type]
    session.greeted = True
    try:
        rest = session.handle(decode(name))
        if rest is not None:
            await rest
        session.handled()
        for work in door.begun:
            await work()
    except Stop:
        await trio.lowlevel.checkpoint()
    ((asked, caller),) = came
    request = parsed(name)
    assert asked == ([request] if isinstance(request, KvGet) else request)
    assert caller is CALLER


@pytest.mark.parametrize("name", [name for name in ASKED if isinstance(parsed(name), (r.Subscribe, r.Lease))])
def test_request_for_all_partitions_costs_work_per_partition(name: str) -> None:
    def work_of(partitions: int) -> int:
        broker, door = FakeBroker([]), PeerSlots()
        broker.partitions = partitions
        info = info_of(broker)
        session = ClientSession(broker, door, info)  # type: ignore[arg-type]
        session.greeted = True
        before = door.time_slice.left
        session.handle(decode(name))
        return before - door.time_slice.left

    assert work_of(1000 * PARTITIONS_OF_WORK) == work_of(0) + 1000


def test_every_request_has_a_handler() -> None:
    assert HANDLERS.keys() == {*KINDS}
