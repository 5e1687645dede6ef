"""The result backend: `result_backend = "sandq://127.0.0.1:7170"`. The URL is that of the broker (`urls`).

Results are keys of one compacted topic, with `result_expires` as their time to live. `result_backend_transport_options`
may have `topic` (the name, "celery.results"), `partitions` (1) and `settings` of the topic that is created.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, TypeVar

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import BackendStoreError, ImproperlyConfigured, TimeoutError

from sandq.errors import InvalidRequest, Retriable, TooLarge, TopicExists, UnknownTopic, VersionChanged
from sandq.sync import Client, Keys
from sandq_workers import clients
from sandq_workers.urls import Address, masked, parse

TOPIC: Final = "celery.results"
_SETTINGS: Final[dict[str, Any]] = {"history": "1m", "tombstone_retention": "1h"}
_FIRST_NAP_S: Final = 0.005
_NAP_GROWTH: Final = 1.5
_EXPIRY_SLACK: Final = 0.1
"""A value whose time to live is right up to this share is not written again for it."""
_CONFLICT_NAP_S: Final = 0.1
R = TypeVar("R")


def _naps(most_s: float) -> Iterator[float]:
    """Return pauses in seconds, which grow up to `most_s`."""
    nap_s = min(_FIRST_NAP_S, most_s)
    while True:
        yield nap_s
        nap_s = min(nap_s * _NAP_GROWTH, most_s)


class SandqBackend(KeyValueStoreBackend):
    """Stores the results of tasks, groups and chords."""

    implements_incr = True
    supports_autoexpire = True
    supports_native_join = True
    persistent = True

    def __init__(self, app: Any, url: str | None = None, expires: Any = None, **options: Any) -> None:
        try:
            self._address: Address = parse(url or "sandq://")
        except InvalidRequest as error:
            raise ImproperlyConfigured(str(error)) from error
        super().__init__(app, url=url, expires=expires, expires_type=int, **options)
        given = app.conf.get("result_backend_transport_options") or {}
        self._topic = self._address.prefix + given.get("topic", TOPIC)
        self._partitions = given.get("partitions", 1)
        self._settings = {**_SETTINGS, **(given.get("settings") or {})}
        self._pid = 0
        self._client: Client
        self._part = threading.local()

    def as_uri(self, include_password: bool = False) -> str:
        """Return the URL, without the token unless it is asked for."""
        url = self.url or "sandq://"
        return url if include_password else masked(url)

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """Return whether a call may be repeated after an error (`result_backend_always_retry`)."""
        return isinstance(exc, Retriable)

    def close(self) -> None:
        """Close the client of this process, unless something else uses it."""
        if self._pid == os.getpid():
            self._pid = 0
            clients.release(self._address)

    # Keys.

    def get(self, key: bytes) -> bytes | None:
        """Return a value; None if there is none."""
        entry = self._call(lambda keys: keys.get(key))
        return None if entry is None else entry.value

    def mget(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of several keys."""
        names = list(keys)
        entries = self._call(lambda kv: kv.get_many(names))
        return [None if entry is None else entry.value for entry in entries]

    def set(self, key: bytes, value: str | bytes) -> None:
        """Set a value, which expires after `result_expires`. Raises BackendStoreError if it is too large."""
        try:
            self._call(lambda keys: keys.put(key, value, ttl=self._ttl(self.expires)))
        except TooLarge as error:
            raise BackendStoreError(str(error)) from error

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self._call(lambda keys: keys.delete(key))

    def expire(self, key: bytes, value: int) -> None:
        """Let a value expire after `value` seconds; 0: never."""

        def once(keys: Keys) -> None:
            entry = keys.get(key)
            if entry is None or self._expires_in(entry.expires_ms, value):
                return
            keys.cas(key, entry.value, expected=entry.version, ttl=self._ttl(value))

        self._change(once)

    def incr(self, key: bytes) -> int:
        """Count a member of a chord, and return how many are counted.

        A member is counted once, although a worker that is killed may return it twice: the value is a bitmap of the
        indexes of members.
        """
        index = getattr(self._part, "index", None)

        def once(keys: Keys) -> int:
            entry = keys.get(key)
            before = 0 if entry is None else int.from_bytes(entry.value, "big")
            at = before.bit_length() if index is None else index
            after = before | 1 << at
            if after != before:
                data = after.to_bytes(after.bit_length() // 8 + 1, "big")
                ttl = self._ttl(self.chord_expires)
                keys.cas(key, data, expected=None if entry is None else entry.version, ttl=ttl)
            return after.bit_count()

        return self._change(once)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **options: Any) -> None:
        """Count the end of a member of a chord; the last one sends the body."""
        index = getattr(request, "group_index", None)
        self._part.index = index if isinstance(index, int) and index >= 0 else None
        super().on_chord_part_return(request, state, result, **options)

    def wait_for(
        self, task_id: str, timeout: float | None = None, interval: float = 0.5, no_ack: bool = True,
        on_interval: Callable[[], object] | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Wait for a task, and return its result with its state. Raises TimeoutError.

        It looks after some milliseconds first, then after longer pauses, up to `interval` seconds."""
        ends_at = None if timeout is None else time.monotonic() + timeout
        naps = _naps(interval)
        while (meta := self.get_task_meta(task_id))["status"] not in states.READY_STATES:
            if on_interval is not None:
                on_interval()
            nap_s = next(naps)
            left_s = nap_s if ends_at is None else ends_at - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("The operation timed out.")
            time.sleep(min(nap_s, left_s))
        found: dict[str, Any] = meta
        return found

    def get_many(
        self, task_ids: Iterable[str], timeout: float | None = None, interval: float | None = 0.5, no_ack: bool = True,
        on_message: Callable[[dict[str, Any]], object] | None = None,
        on_interval: Callable[[], object] | None = None, max_iterations: int | None = None, **more: Any,
    ) -> Iterator[tuple[str, dict[str, Any]]]:  # fmt: skip
        """Yield the results of tasks with their ids, as they arrive. Raises TimeoutError. The pauses are those of
        `wait_for`."""
        left = set(task_ids)
        ends_at = None if timeout is None else time.monotonic() + timeout
        naps = _naps(0.5 if interval is None else interval)
        for _ in range(max_iterations) if max_iterations else iter(int, 1):
            nap_s = next(naps)
            yield from super().get_many(
                left, interval=nap_s if ends_at is None else max(min(nap_s, ends_at - time.monotonic()), 0),
                on_message=on_message, on_interval=on_interval, max_iterations=1, **more,
            )  # fmt: skip
            if not left:
                return
            if ends_at is not None and time.monotonic() >= ends_at:
                raise TimeoutError(f"Operation timed out ({timeout})")

    # The topic.

    @property
    def client(self) -> Client:
        """The client of this process."""
        if self._pid != os.getpid():
            self._client = clients.acquire(self._address)
            self._pid = os.getpid()
        return self._client

    def _call(self, call: Callable[[Keys], R]) -> R:
        """Make a call on the keys; create the topic if it is missing."""
        keys = self.client.kv(self._topic)
        try:
            return call(keys)
        except UnknownTopic:
            with suppress(TopicExists):
                self.client.admin.create_topic(
                    self._topic, kind="compacted", partitions=self._partitions, **self._settings
                )
            return call(keys)

    def _change(self, once: Callable[[Keys], R]) -> R:
        """Read and write a key; repeat it if another process wrote it in between."""
        naps = _naps(_CONFLICT_NAP_S)
        while True:
            try:
                return self._call(once)
            except VersionChanged:
                time.sleep(random.uniform(0, next(naps)))

    @staticmethod
    def _ttl(seconds: int | None) -> str | None:
        return f"{seconds}s" if seconds else None

    @staticmethod
    def _expires_in(expires_ms: int | None, seconds: int) -> bool:
        """Return whether a value expires after about this time."""
        if expires_ms is None or not seconds:
            return expires_ms is None and not seconds
        return abs(expires_ms / 1000 - time.time() - seconds) <= seconds * _EXPIRY_SLACK
