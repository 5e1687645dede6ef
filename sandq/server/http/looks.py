"""One look at the cluster for all who watch it: made while there are any, shared by all of them.

Each sees of it what it may read. A watcher is told everything once, and then only what has changed since it was told
last, in events of bounded size.
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

LOOK_S: Final = 2.0
"""From one look to the next, while somebody watches."""
FRESH_S: Final = 1.0
"""A look that is not older is shared by who asks once."""
STALE_S: Final = 3 * LOOK_S
"""A look that is older was made for who has gone: nobody who comes is told that."""
WATCHERS_MOST: Final = 64
WATCHERS_SHARE: Final = WATCHERS_MOST // 4
"""Of these, one principal, or one address where nobody says who asks, may be so many."""
EVENT_BYTES: Final = 64 << 10
"""Rows of one event, about."""
_CLUSTER_FIELDS: Final = (
    *("cluster", "cluster_uuid", "node", "version", "feature_level", "metadata_leader", "moving", "waiting"),
    *("nodes", "others"),
)


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment. `rows`: by topic, the number of the look in which it changed last, and its row."""

    number: int
    overview: ClusterOverview
    info: Mapping[str, Any]
    rows: Mapping[str, tuple[int, bytes]]


class Looks:
    """Looks at the cluster while somebody wants to know."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._watchers: Counter[str] = Counter()
        self._wanted = anyio.Event()
        self._looked = anyio.Event()
        self._last: Look | None = None
        self._last_at = 0.0
        self._error: SandqError | None = None
        self._lock = anyio.Lock()

    async def run(self) -> None:
        """Look again and again while somebody watches, until it is cancelled."""
        while True:
            if not self._watchers.total():
                self._wanted = anyio.Event()
                await self._wanted.wait()
            try:
                await self.look(FRESH_S)
                self._error = None
            except SandqError as error:
                self._error = error
            looked, self._looked = self._looked, anyio.Event()
            looked.set()
            await anyio.sleep(LOOK_S)

    @contextmanager
    def watching(self, owner: str) -> Iterator[None]:
        """Have it look, while inside the block. `owner`: the principal that watches, or its address. Raises
        Overloaded."""
        if self._watchers.total() >= WATCHERS_MOST:
            raise Overloaded(f"{WATCHERS_MOST} watch the cluster already; ask again in a moment, or for /overview")
        if self._watchers[owner] >= WATCHERS_SHARE:
            raise Overloaded(
                f"{WATCHERS_SHARE} streams of {owner:.300} watch the cluster already: end one, or ask for /overview"
            )
        self._watchers[owner] += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._watchers[owner] -= 1
            if not self._watchers[owner]:
                del self._watchers[owner]

    async def next(self, after: int) -> Look:
        """Wait for a look after the one of that number. Raises SandqError when the cluster cannot be looked at."""
        while self._last is None or self._last.number <= after or anyio.current_time() - self._last_at > STALE_S:
            looked = self._looked
            await looked.wait()
            if self._error is not None:
                raise self._error
        return self._last

    async def look(self, fresh_s: float = FRESH_S) -> Look:
        """Look now, unless somebody just did. Raises SandqError."""
        async with self._lock:
            if self._last is not None and anyio.current_time() - self._last_at < fresh_s:
                return self._last
            admin = self._client.admin
            info, overview = await admin.cluster(), await admin.overview()
            self._last, self._last_at = look_after(self._last, info, overview), anyio.current_time()
            return self._last


def look_after(last: Look | None, info: Mapping[str, Any], overview: ClusterOverview) -> Look:
    """The look after another one, by what is seen now."""
    number, before = (1, {}) if last is None else (last.number + 1, last.rows)
    rows = {}
    for name, topic in overview.topics.items():
        row = packed(topic_row(topic, overview.over_ms))
        known = before.get(name)
        rows[name] = known if known is not None and known[1] == row else (number, row)
    return Look(number, overview, info, rows)


class Watcher:
    """What one of them was told."""

    def __init__(self, access: Access | None) -> None:
        self._access = access
        self._names: set[str] = set()
        self._cluster = b""
        self.number = 0
        """Of the look that it was told last."""

    def events(self, look: Look) -> Iterator[bytes]:
        """Tell what is new in a look."""
        cluster = packed(cluster_of(look, self._access))
        if cluster != self._cluster:
            self._cluster = cluster
            yield _event("cluster", cluster)
        names = {name for name in look.rows if may_read(self._access, name)}
        if gone := sorted(self._names - names):
            yield from _pieces("gone", [packed(name) for name in gone])
        changed = [row for name, (at, row) in look.rows.items() if name in names and self._is_new(name, at)]
        yield from _pieces("topics", changed)
        yield _event("look", packed({"at": when(look.overview.now_ms), "over_ms": look.overview.over_ms}))
        self._names, self.number = names, look.number

    def _is_new(self, name: str, at: int) -> bool:
        return at > self.number or name not in self._names


def cluster_of(look: Look, access: Access | None) -> Found:
    """The cluster in short, and what in it needs somebody to look, as far as it may be told."""
    return {
        **{name: look.info.get(name) for name in _CLUSTER_FIELDS},
        "missing": look.overview.missing,
        "findings": findings_of(look, access),
    }


def findings_of(look: Look, access: Access | None) -> list[Found]:
    """What needs somebody to look, as far as it may be told."""
    topics = [topic for name, topic in look.overview.topics.items() if may_read(access, name)]
    told = {
        name: [row for row in look.info.get(name) or () if may_hear_of(access, row["topic"])]
        for name in ("different", "shut")
    }
    return findings({**look.info, **told}, look.overview, topics)


def may_hear_of(access: Access | None, topic: str | None) -> bool:
    """Return whether a caller may know of a topic: it has some right on it. `topic`: None is the metadata."""
    return access is None or topic is None or access.sees(topic)


def may_read(access: Access | None, topic: str) -> bool:
    """Whether a topic may be told of."""
    return access is None or access.allows(Right.READ, topic)


def _pieces(name: str, rows: list[bytes]) -> Iterator[bytes]:
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
    return b"event: %b\ndata: %b\n\n" % (name.encode(), data)


def packed(said: Any) -> bytes:
    """In one line, which escapes see to."""
    return json.dumps(said, separators=(",", ":")).encode()
