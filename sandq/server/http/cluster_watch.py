"""Watch the state of the cluster: one query serves all clients that follow the state.

The state is refreshed only while there are watchers. Each watcher gets only data that it may read: first everything,
then only changes since its last event. The size of events is bounded.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import anyio

from sandq.client import Client
from sandq.client.admin import ClusterOverview
from sandq.client.json_format import when
from sandq.model.access import Access, Right
from sandq.model.errors import Overloaded, SandqError
from sandq.server.http.overview_rows import Found, findings, topic_row

REFRESH_S: Final = 2.0
"""Interval between two refreshes while there are watchers, in seconds."""
FRESH_S: Final = 1.0
"""Age up to which a view is reused, in seconds."""
STALE_S: Final = 3 * REFRESH_S
"""Age from which a view is not shown to a new watcher, in seconds."""
WATCHERS_MOST: Final = 64
WATCHERS_SHARE: Final = WATCHERS_MOST // 4
"""Maximum number of watchers of one principal, or of one address if authentication is off."""
EVENT_BYTES: Final = 64 << 10
"""Approximate maximum size of the rows in one event, in bytes."""
_CLUSTER_FIELDS: Final = (
    *("cluster", "cluster_uuid", "node", "version", "feature_level", "metadata_leader", "moving", "waiting"),
    *("nodes", "others"),
)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The state of the cluster at one moment.

    `rows`: for each topic, the number of the view in which its row changed last, and the row."""

    number: int
    overview: ClusterOverview
    info: Mapping[str, Any]
    rows: Mapping[str, tuple[int, bytes]]


class ClusterWatch:
    """Refreshes the view of the cluster while it has watchers."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._watchers: Counter[str] = Counter()
        self._wanted = anyio.Event()
        self._refreshed = anyio.Event()
        self._last: ClusterView | None = None
        self._last_at = 0.0
        self._error: SandqError | None = None
        self._lock = anyio.Lock()

    async def run(self) -> None:
        """Refresh the view regularly while there are watchers, until cancelled."""
        while True:
            if not self._watchers.total():
                self._wanted = anyio.Event()
                await self._wanted.wait()
            try:
                await self.refresh(FRESH_S)
                self._error = None
            except SandqError as error:
                self._error = error
            refreshed, self._refreshed = self._refreshed, anyio.Event()
            refreshed.set()
            await anyio.sleep(REFRESH_S)

    @contextmanager
    def watching(self, owner: str) -> Iterator[None]:
        """Count a watcher within the block. `owner`: its principal, or its address. Raise Overloaded."""
        if self._watchers.total() >= WATCHERS_MOST:
            raise Overloaded(f"{WATCHERS_MOST} streams watch the cluster already: try again later, or use /overview")
        if self._watchers[owner] >= WATCHERS_SHARE:
            raise Overloaded(
                f"{WATCHERS_SHARE} streams of {owner:.300} watch the cluster already: end one, or use /overview"
            )
        self._watchers[owner] += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._watchers[owner] -= 1
            if not self._watchers[owner]:
                del self._watchers[owner]

    async def next(self, after: int) -> ClusterView:
        """Wait for a view after the one with this number. Raise SandqError if the cluster cannot be queried."""
        while self._last is None or self._last.number <= after or anyio.current_time() - self._last_at > STALE_S:
            refreshed = self._refreshed
            await refreshed.wait()
            if self._error is not None:
                raise self._error
        return self._last

    async def refresh(self, fresh_s: float = FRESH_S) -> ClusterView:
        """Return the current view; query the cluster unless the last one is younger than `fresh_s`. Raise
        SandqError."""
        async with self._lock:
            if self._last is not None and anyio.current_time() - self._last_at < fresh_s:
                return self._last
            admin = self._client.admin
            info, overview = await admin.cluster(), await admin.overview()
            self._last, self._last_at = next_view(self._last, info, overview), anyio.current_time()
            return self._last


def next_view(last: ClusterView | None, info: Mapping[str, Any], overview: ClusterOverview) -> ClusterView:
    """Return the view that follows `last`, with the given state."""
    number, before = (1, {}) if last is None else (last.number + 1, last.rows)
    rows = {}
    for name, topic in overview.topics.items():
        row = packed(topic_row(topic, overview.over_ms))
        known = before.get(name)
        rows[name] = known if known is not None and known[1] == row else (number, row)
    return ClusterView(number, overview, info, rows)


class Watcher:
    """Remembers the data that one watcher was sent."""

    def __init__(self, access: Access | None) -> None:
        self._access = access
        self._names: set[str] = set()
        self._cluster = b""
        self.number = 0
        """Number of the last view whose changes were sent to the watcher."""

    def events(self, view: ClusterView) -> Iterator[bytes]:
        """Yield events with all changes since the last view that the watcher was sent."""
        cluster = packed(cluster_of(view, self._access))
        if cluster != self._cluster:
            self._cluster = cluster
            yield _event("cluster", cluster)
        names = {name for name in view.rows if may_read(self._access, name)}
        if gone := sorted(self._names - names):
            yield from _events_of_rows("gone", [packed(name) for name in gone])
        changed = [row for name, (at, row) in view.rows.items() if name in names and self._is_new(name, at)]
        yield from _events_of_rows("topics", changed)
        yield _event("look", packed({"at": when(view.overview.now_ms), "over_ms": view.overview.over_ms}))
        self._names, self.number = names, view.number

    def _is_new(self, name: str, at: int) -> bool:
        """Return whether the watcher lacks the row of a topic. `at`: number of the view in which it changed last."""
        return at > self.number or name not in self._names


def cluster_of(view: ClusterView, access: Access | None) -> Found:
    """Return a summary of the cluster, with findings for the operator, as far as the caller may see them."""
    return {
        **{name: view.info.get(name) for name in _CLUSTER_FIELDS},
        "missing": view.overview.missing,
        "findings": findings_of(view, access),
    }


def findings_of(view: ClusterView, access: Access | None) -> list[Found]:
    """Return the findings that need an operator's attention, as far as the caller may see them."""
    topics = [topic for name, topic in view.overview.topics.items() if may_read(access, name)]
    visible = {
        name: [row for row in view.info.get(name) or () if may_hear_of(access, row["topic"])]
        for name in ("different", "shut")
    }
    return findings({**view.info, **visible}, view.overview, topics)


def may_hear_of(access: Access | None, topic: str | None) -> bool:
    """Return whether a caller may know of a topic: it has some right on it. `topic`: None is the metadata."""
    return access is None or topic is None or access.sees(topic)


def may_read(access: Access | None, topic: str) -> bool:
    """Return whether a caller may read a topic."""
    return access is None or access.allows(Right.READ, topic)


def _events_of_rows(name: str, rows: list[bytes]) -> Iterator[bytes]:
    """Yield events with these rows, each event with about `EVENT_BYTES`."""
    piece: list[bytes] = []
    size = 0
    for row in rows:
        piece.append(row)
        size += len(row)
        if size >= EVENT_BYTES:
            yield _event(name, b"[" + b",".join(piece) + b"]")
            piece, size = [], 0
    if piece:
        yield _event(name, b"[" + b",".join(piece) + b"]")


def _event(name: str, data: bytes) -> bytes:
    """Return a server-sent event."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def packed(value: Any) -> bytes:
    """Return a value as JSON on one line: the encoder escapes line ends."""
    return json.dumps(value, separators=(",", ":")).encode()
