"""Provide a client without a server: it keeps a few messages, executes calls, and records them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from click.testing import Result

from sandq.client import AuditPage, Forecast, GroupConsumers, GroupPauses, Held, SloReport, TopicRecord
from sandq.client.admin import ClusterOverview
from sandq.client.messages.stored_message import Attempt, DeadLetter, DeadOutcome, JobResult, StoredMessage
from sandq.model import offsets
from sandq.model.batch import headers_pack
from sandq.model.errors import NotFound, TooLate, UnknownTopic
from sandq.protocol.replies import Partition

Ctl = Callable[..., Result]
"""`ctl("topic", "list")` runs sandctl in this process."""
NOW_MS = 1_900_000_000_000
NAMED_LIMIT: dict[str, Any] = {
    "limit": "llm",
    "max_in_flight": 50,
    "rate": "1500/s",
    "burst": 1500,
    "unit": "tokens",
    "given": 12,
    "given_burst": 600,
    "members": 3,
    "unheard": 0,
    "paused": True,
    "paused_until_ms": NOW_MS,
    "paused_by": "an operator",
    "unpaused": 0,
}
"""2030-03-17T17:46:40Z, in ms."""


def text(deliver_ms: int, place: int) -> str:
    """Return the offset at position `place`, as text."""
    return offsets.to_text(offsets.pack(deliver_ms, 7, place, 0))


def stored(place: int, **more: Any) -> StoredMessage:
    """Return a delayed message that is due in an hour."""
    deliver_ms = more.pop("deliver_at_ms", NOW_MS + 3_600_000)
    headers = more.pop("headers", None)
    fields: dict[str, Any] = {
        "id": text(deliver_ms, place),
        "offset": text(deliver_ms, place),
        "topic": "t",
        "partition": 0,
        "state": "delayed",
        "value": b"value %d" % place,
        "key": None,
        "created_ms": NOW_MS - 7_200_000,
        "deliver_at_ms": deliver_ms,
        "due_ms": deliver_ms,
        "ttl_ms": None,
        "unique_key": None,
        "moves": 0,
        "moved_ms": None,
        "size": 42,
        "_headers": headers_pack(headers, max_bytes=1000) if headers else None,
    }
    return StoredMessage(**(fields | more))


def letter(place: int, **more: Any) -> DeadLetter:
    """Return a message that died because it was nacked too often."""
    headers = more.pop("headers", None)
    fields: dict[str, Any] = {
        "id": text(NOW_MS, place),
        "offset": text(NOW_MS, place),
        "topic": "t",
        "group": "g",
        "partition": 0,
        "attempts": 3,
        "reason": "nacked",
        "error": "no\nstock",
        "dead_ms": NOW_MS,
        "created_ms": NOW_MS - 10_000,
        "deliver_at_ms": NOW_MS - 5000,
        "key": None,
        "value": b"dead %d" % place,
        "unique_key": None,
        "size": 6,
        "history": [Attempt(3, "worker-1", NOW_MS - 1000, NOW_MS, "nacked", "no stock")],
        "_headers": headers_pack(headers, max_bytes=1000) if headers else None,
    }
    return DeadLetter(**(fields | more))


class Call(NamedTuple):
    """A recorded call."""

    name: str
    arguments: dict[str, Any]


class FakeClient:
    """A client; its parts share its data."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.rows: list[StoredMessage] = []
        self.letters: list[DeadLetter] = []
        self.dead_outcomes: list[DeadOutcome] = []
        self.groups: list[dict[str, Any]] = []
        self.consumers = GroupConsumers([], 0)
        self.pauses = GroupPauses([], 0)
        self.pushes: list[dict[str, Any]] = []
        self.stats: list[dict[str, Any]] = []
        self.slo: SloReport | None = None
        self.audit = AuditPage([], "", {}, {})
        self.info: dict[str, Any] = {"node": "n1", "nodes": [{"node": "n1", "up": True}]}
        self.overview = ClusterOverview(NOW_MS, 10_000, {}, {})
        self.topics: list[TopicRecord] = []
        self.certificate_ends: dict[str, float] = {}
        self.biography: dict[str, Any] = {}
        self.missed: dict[str, str] = {}
        """Details of the error for a message that does not exist."""
        self.lost_tokens: set[str] = set()
        """Tokens of leases that are over."""
        self.matched = 3
        self.forecast = Forecast(NOW_MS, [], 0)
        self.admin = FakeAdmin(self)

    def messages(self, topic: str) -> FakeMessages:
        return FakeMessages(self, topic)

    def leases(self, topic: str, group: str) -> FakeLeases:
        return FakeLeases(self, topic, group)

    def dead(self, topic: str, group: str) -> FakeDead:
        return FakeDead(self, topic, group)

    def asked(self, name: str) -> list[dict[str, Any]]:
        """Return the arguments of each call with this name."""
        return [call.arguments for call in self.calls if call.name == name]

    def note(self, name: str, /, **arguments: Any) -> None:
        self.calls.append(Call(name, {key: value for key, value in arguments.items() if value is not None}))

    def job(self, name: str, arguments: dict[str, Any]) -> JobResult:
        progress: Callable[[JobResult], None] | None = arguments.pop("progress", None)
        self.note(name, **arguments)
        if arguments.get("dry_run"):
            return JobResult(self.matched, 0, 0)
        result = JobResult(self.matched, self.matched - 1, 1)
        if progress is not None:
            progress(result)
        return result


async def stream(rows: Iterable[Any], limit: int | None) -> AsyncIterator[Any]:
    for row in list(rows)[:limit]:
        yield row


class FakeMessages:
    def __init__(self, client: FakeClient, topic: str) -> None:
        self._client = client
        self._topic = self.topic = topic

    def _find(self, id: str | None, unique_key: bytes | None, key: bytes | None = None) -> StoredMessage:
        if self._topic != "t":
            raise UnknownTopic(f"there is no topic {self._topic!r}")
        for row in self._client.rows:
            if row.id == id if unique_key is None else row.unique_key == unique_key and key in (None, row.key):
                return row
        raise NotFound("not found", **self._client.missed)

    def _pending(self, id: str | None, unique_key: bytes | None, key: bytes | None = None) -> StoredMessage:
        row = self._find(id, unique_key, key)
        if row.state not in ("delayed", "ready"):
            raise TooLate("too late", state=row.state)
        return row

    def list(self, *, limit: int | None = None, **more: Any) -> AsyncIterator[StoredMessage]:
        self._client.note("list", limit=limit, **more)
        return stream(self._client.rows, limit)

    async def get(self, id: str | None = None, *, unique_key: bytes | None = None, **within: Any) -> StoredMessage:
        self._client.note("get", id=id, unique_key=unique_key, **within)
        return self._find(id, unique_key, within.get("key"))

    async def why(self, id: str | None = None, *, unique_key: bytes | None = None, **within: Any) -> dict[str, Any]:
        self._client.note("why", id=id, unique_key=unique_key, **within)
        if self._client.rows:
            self._find(id, unique_key, within.get("key"))
        return self._client.biography

    async def cancel(self, id: str | None = None, *, unique_key: bytes | None = None, **within: Any) -> str:
        self._client.note("cancel", id=id, unique_key=unique_key, **within)
        return self._pending(id, unique_key, within.get("key")).id

    async def move(self, id: str | None = None, *, unique_key: bytes | None = None, **where: Any) -> str:
        self._client.note("move", id=id, unique_key=unique_key, **where)
        self._pending(id, unique_key, where.get("key"))
        return text(where.get("deliver_at", NOW_MS), 9)

    async def update(self, id: str | None = None, *, unique_key: bytes | None = None, **changes: Any) -> str:
        self._client.note("update", id=id, unique_key=unique_key, **changes)
        return self._pending(id, unique_key, changes.get("key")).offset

    async def cancel_all(self, **arguments: Any) -> JobResult:
        return self._client.job("cancel_all", arguments)

    async def move_all(self, **arguments: Any) -> JobResult:
        return self._client.job("move_all", arguments)


class FakeLeases:
    """Records each settled message with its lease token and offset. Leases in `lost_tokens` are over."""

    def __init__(self, client: FakeClient, topic: str, group: str) -> None:
        self._client = client
        self._which = {"topic": topic, "group": group}

    def _note(self, name: str, items: Sequence[Held], **how: Any) -> list[Held]:
        for item in items:
            self._client.note(name, **self._which, item=tuple(item), **how)
        return [item for item in items if item.lease_token in self._client.lost_tokens]

    async def ack(self, items: Sequence[Held]) -> list[Held]:
        return self._note("leases.ack", items)

    async def nack(self, items: Sequence[Held], **how: Any) -> list[Held]:
        return self._note("leases.nack", items, **how)

    async def dead(self, items: Sequence[Held], error: str | None = None) -> list[Held]:
        return self._note("leases.dead", items, error=error)

    async def give_back(self, items: Sequence[Held], **how: Any) -> list[Held]:
        return self._note("leases.give_back", items, **how)

    async def extend(self, items: Sequence[Held], lease: Any) -> list[int | None]:
        lost = self._note("leases.extend", items, lease=lease)
        return [None if item in lost else NOW_MS for item in items]


class FakeDead:
    def __init__(self, client: FakeClient, topic: str, group: str) -> None:
        self._client = client
        self._group = group

    def list(self, *, limit: int | None = None, **more: Any) -> AsyncIterator[DeadLetter]:
        self._client.note("dead.list", group=self._group, limit=limit, **more)
        return stream(self._client.letters, limit)

    async def counts(self) -> dict[str, int]:
        return {"nacked": 1200, "expired": 3, "lease_expired": 0}

    async def redrive(self, **arguments: Any) -> JobResult:
        return self._client.job("redrive", {"group": self._group, **arguments})

    async def purge(self, **arguments: Any) -> JobResult:
        return self._client.job("purge", {"group": self._group, **arguments})

    async def redrive_ids(self, ids: Sequence[str]) -> list[DeadOutcome]:
        self._client.note("redrive_ids", group=self._group, ids=list(ids))
        return self._client.dead_outcomes

    async def purge_ids(self, ids: Sequence[str]) -> list[DeadOutcome]:
        self._client.note("purge_ids", group=self._group, ids=list(ids))
        return self._client.dead_outcomes


class FakeAdmin:
    def __init__(self, client: FakeClient) -> None:
        self._client = client

    async def cluster(self) -> dict[str, Any]:
        return self._client.info

    async def overview(self) -> ClusterOverview:
        return self._client.overview

    async def audit(self, last: int, *, after: str | None = None, node: str | None = None) -> AuditPage:
        self._client.note("audit", last=last, after=after, node=node)
        if after is not None:
            raise KeyboardInterrupt
        return self._client.audit

    async def slo(self, *, node: str | None = None) -> SloReport:
        self._client.note("slo", node=node)
        assert self._client.slo is not None
        return self._client.slo

    async def list_topics(self) -> list[TopicRecord]:
        return self._client.topics

    async def topic(self, name: str) -> TopicRecord:
        for record in self._client.topics:
            if record.name == name:
                return record
        raise UnknownTopic(f"there is no topic {name!r}")

    async def stats(self, topic: str) -> list[dict[str, Any]]:
        return [row for row in self._client.stats if row.get("of", topic) == topic]

    async def groups(self, topic: str) -> list[dict[str, Any]]:
        return self._client.groups

    async def consumers(self, topic: str, group: str) -> GroupConsumers:
        return self._client.consumers

    async def pauses(self, topic: str, group: str) -> GroupPauses:
        return self._client.pauses

    async def seek_group(self, topic: str, group: str, to: str | int) -> dict[int, str]:
        self._client.note("seek_group", topic=topic, group=group, to=to)
        return {0: text(NOW_MS, 1), 1: text(NOW_MS, 2)}

    async def update_group(self, topic: str, group: str, **settings: Any) -> None:
        self._client.note("update_group", topic=topic, group=group, settings=settings)

    async def pause_group(self, topic: str, group: str, **which: Any) -> None:
        self._client.note("pause_group", topic=topic, group=group, **which)

    async def resume_group(self, topic: str, group: str, **which: Any) -> None:
        self._client.note("resume_group", topic=topic, group=group, **which)

    async def limit_group(self, topic: str, group: str, **limits: Any) -> None:
        self._client.note("limit_group", topic=topic, group=group, **limits)

    async def set_limit(self, name: str, **limits: Any) -> None:
        self._client.note("set_limit", name=name, **limits)

    async def delete_limit(self, name: str) -> None:
        self._client.note("delete_limit", name=name)

    async def pause_limit(self, name: str, **end: Any) -> None:
        self._client.note("pause_limit", name=name, **end)

    async def resume_limit(self, name: str) -> None:
        self._client.note("resume_limit", name=name)

    async def limits(self) -> list[dict[str, Any]]:
        return [NAMED_LIMIT]

    async def limit(self, name: str) -> dict[str, Any]:
        member = {"topic": "chat", "partition": 0, "group": "g", "given": 12, "given_burst": 600, "unheard": False}
        return NAMED_LIMIT | {"limit": name, "members": [member]}

    async def set_push(self, topic: str, group: str, **push: Any) -> dict[str, Any]:
        self._client.note("set_push", topic=topic, group=group, **push)
        return {"url": push.get("url", "https://old.test/"), "secrets": ["whsec_…aSw="], "concurrency": 10}

    async def remove_push(self, topic: str, group: str) -> None:
        self._client.note("remove_push", topic=topic, group=group)

    async def pushes(self, topic: str) -> list[dict[str, Any]]:
        return self._client.pushes

    async def delete_group(self, topic: str, group: str, *, force: bool = False) -> None:
        self._client.note("delete_group", topic=topic, group=group, force=force)

    async def update_topic(
        self, name: str, *, partitions: int | None = None, replicas: int | None = None, **settings: Any
    ) -> TopicRecord:
        self._client.note("update_topic", name=name, partitions=partitions, replicas=replicas, settings=settings)
        record = {"lease_ms": 60_000, "ttl_ms": None, "backoff": {"first_ms": 1000, "factor_permille": 1500}}
        return TopicRecord(name, 1, "timer", [Partition(0, 7, "n1")], 1, 1, record)

    async def forecast(self, topic: str, *, unit: str, count: int) -> Forecast:
        self._client.note("forecast", topic=topic, unit=unit, count=count)
        return self._client.forecast


def connected_to(client: FakeClient) -> Callable[[], Any]:
    """Return a replacement of `sandctl.options.common.connected`."""

    @asynccontextmanager
    async def connected() -> AsyncIterator[FakeClient]:
        yield client

    return connected
