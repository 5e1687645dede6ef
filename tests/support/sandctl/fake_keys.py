"""Provide keys without a server: a few keys, recorded calls, and changes to watch."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any

from sandq.client import Change, Entries, Entry
from sandq.client.messages.log_page import LogPiece
from sandq.model import offsets
from sandq.model.batch import Column, encode, headers_pack
from sandq.model.errors import UnknownTopic, VersionChanged
from sandq.protocol.requests_keys import KeyValue
from tests.support.sandctl.fake_client import NOW_MS, Call


def version(place: int) -> bytes:
    return offsets.pack(NOW_MS, 7, place, 0)


def version_text(place: int) -> str:
    return offsets.to_text(version(place))


def entry(key: bytes, value: bytes, place: int = 1, *, expires_ms: int = 0, headers: Any = None) -> Entry:
    return Entry(key, KeyValue(version(place), value, headers_pack(headers), expires_ms), 0, 12)


def change(key: bytes, value: bytes | None, place: int = 1) -> Change:
    piece = LogPiece(version(place), None, NOW_MS, encode({Column.VALUE: [value], Column.KEY: [key]}))
    return Change(piece, 0, key, value, 0)


class FakeWatch:
    def __init__(self, changes: Iterable[Change]) -> None:
        self._changes = iter(changes)

    async def __aenter__(self) -> FakeWatch:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    def __aiter__(self) -> FakeWatch:
        return self

    async def __anext__(self) -> Change:
        for found in self._changes:
            return found
        raise StopAsyncIteration


class FakeKeys:
    """Replaces the result of `client.kv("t")`."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.rows: dict[bytes, Entry] = {}
        self.changes: list[Change] = []
        self._written = 100

    def kv(self, topic: str) -> FakeKeys:
        if topic != "t":
            raise UnknownTopic(f"there is no topic {topic!r}")
        return self

    def asked(self, name: str) -> list[dict[str, Any]]:
        return [call.arguments for call in self.calls if call.name == name]

    def note(self, name: str, /, **arguments: Any) -> None:
        self.calls.append(Call(name, {key: value for key, value in arguments.items() if value is not None}))

    def _version(self) -> str:
        self._written += 1
        return version_text(self._written)

    async def put(self, key: bytes, value: bytes, **more: Any) -> str:
        self.note("put", key=key, value=value, **more)
        return self._version()

    async def put_many(self, items: Iterable[tuple[bytes, bytes | None]]) -> list[str]:
        self.note("put_many", items=list(items))
        return [self._version() for _ in self.asked("put_many")[-1]["items"]]

    async def cas(self, key: bytes, value: bytes, *, expected: str | None, **more: Any) -> str:
        self.note("cas", key=key, value=value, expected=expected, **more)
        self._check(key, expected)
        return self._version()

    async def delete(self, key: bytes, *, expected: str | None = None) -> str:
        self.note("delete", key=key, expected=expected)
        self._check(key, expected)
        return self._version()

    def _check(self, key: bytes, expected: str | None) -> None:
        present = self.rows[key].version if key in self.rows else None
        if present != expected:
            raise VersionChanged(f"the key has {present or 'no value'}", version=present)

    async def get_many(self, keys: Iterable[bytes], **more: Any) -> Entries:
        self.note("get_many", keys=list(keys), **more)
        return Entries([self.rows.get(key) for key in keys], 12)

    async def scan(self, *, limit: int | None = None, **more: Any) -> AsyncIterator[Entry]:
        self.note("scan", limit=limit, **more)
        for key in sorted(self.rows)[:limit]:
            yield self.rows[key]

    def watch(self, key: bytes | None = None, **more: Any) -> FakeWatch:
        self.note("watch", key=key, **more)
        return FakeWatch(self.changes)
