"""The result backend: `result_backend = "sandq://127.0.0.1:7170"`. The URL is that of the broker (`urls`).

Results are keys of one compacted topic, with `result_expires` as their time to live. `result_backend_transport_options`
may have `topic` (the name, "celery.results"), `partitions` (1) and `settings` of the topic that is created.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any, Final

from celery import states
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import BackendStoreError, ImproperlyConfigured, TimeoutError

from sandq.errors import InvalidRequest, Retriable, TooLarge
from sandq.sync import Keys
from sandq_workers.key_topic import KeyTopic, naps
from sandq_workers.urls import masked, parse

TOPIC: Final = "celery.results"
_EXPIRY_SLACK: Final = 0.1
"""A value whose time to live is right up to this share is not written again for it."""


class SandqBackend(KeyValueStoreBackend):
    """Stores the results of tasks, groups and chords."""

    implements_incr = True
    supports_autoexpire = True
    supports_native_join = True
    persistent = True

    def __init__(self, app: Any, url: str | None = None, expires: Any = None, **options: Any) -> None:
        try:
            address = parse(url or "sandq://")
        except InvalidRequest as error:
            raise ImproperlyConfigured(str(error)) from error
        super().__init__(app, url=url, expires=expires, expires_type=int, **options)
        given = app.conf.get("result_backend_transport_options") or {}
        self.keys = KeyTopic(
            address, given.get("topic", TOPIC), partitions=given.get("partitions", 1), settings=given.get("settings")
        )
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
        self.keys.close()

    # Keys.

    def get(self, key: bytes) -> bytes | None:
        """Return a value; None if there is none."""
        entry = self.keys.call(lambda keys: keys.get(key))
        return None if entry is None else entry.value

    def mget(self, keys: Iterable[bytes]) -> list[bytes | None]:
        """Return the values of several keys."""
        names = list(keys)
        entries = self.keys.call(lambda kv: kv.get_many(names))
        return [None if entry is None else entry.value for entry in entries]

    def set(self, key: bytes, value: str | bytes) -> None:
        """Set a value, which expires after `result_expires`. Raises BackendStoreError if it is too large."""
        try:
            self.keys.call(lambda keys: keys.put(key, value, ttl=self._ttl(self.expires)))
        except TooLarge as error:
            raise BackendStoreError(str(error)) from error

    def delete(self, key: bytes) -> None:
        """Delete a key."""
        self.keys.call(lambda keys: keys.delete(key))

    def expire(self, key: bytes, value: int) -> None:
        """Let a value expire after `value` seconds; 0: never."""

        def once(keys: Keys) -> None:
            entry = keys.get(key)
            if entry is None or self._expires_in(entry.expires_ms, value):
                return
            keys.cas(key, entry.value, expected=entry.version, ttl=self._ttl(value))

        self.keys.change(once)

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

        return self.keys.change(once)

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
        pauses = naps(interval)
        while (meta := self.get_task_meta(task_id))["status"] not in states.READY_STATES:
            if on_interval is not None:
                on_interval()
            nap_s = next(pauses)
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
        pauses = naps(0.5 if interval is None else interval)
        for _ in range(max_iterations) if max_iterations else count():
            nap_s = next(pauses)
            yield from super().get_many(
                left, interval=nap_s if ends_at is None else max(min(nap_s, ends_at - time.monotonic()), 0),
                on_message=on_message, on_interval=on_interval, max_iterations=1, **more,
            )  # fmt: skip
            if not left:
                return
            if ends_at is not None and time.monotonic() >= ends_at:
                raise TimeoutError(f"Operation timed out ({timeout})")

    @staticmethod
    def _ttl(seconds: int | None) -> str | None:
        return f"{seconds}s" if seconds else None

    @staticmethod
    def _expires_in(expires_ms: int | None, seconds: int) -> bool:
        """Return whether a value expires after about this time."""
        if expires_ms is None or not seconds:
            return expires_ms is None and not seconds
        return abs(expires_ms / 1000 - time.time() - seconds) <= seconds * _EXPIRY_SLACK
