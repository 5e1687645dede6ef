"""The backend of Dramatiq's rate limiters: counters in a compacted topic, changed by compare and set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from dramatiq.rate_limits.backend import RateLimiterBackend

from sandq.errors import VersionChanged
from sandq.sync import Keys
from sandq_workers.key_topic import KeyTopic, naps
from sandq_workers.urls import parse

_LOCK_TTL: Final = "10s"
_NAP_MOST_S: Final = 0.1


class SandqRateLimits(RateLimiterBackend):
    """A backend for `ConcurrentRateLimiter`, `BucketRateLimiter`, `WindowRateLimiter` and `Barrier`."""

    def __init__(self, url: str = "sandq://127.0.0.1:7170", *, topic: str = "dramatiq.limits") -> None:
        self._keys = KeyTopic(parse(url), topic)

    def add(self, key: str, value: int, ttl: int) -> bool:
        """Set a key that has no value; return whether this was possible. `ttl`: in milliseconds."""
        try:
            self._keys.call(lambda keys: keys.cas(key, str(value), expected=None, ttl=f"{ttl}ms"))
        except VersionChanged:
            return False
        return True

    def incr(self, key: str, amount: int, maximum: int, ttl: int) -> bool:
        """Increase a key by `amount`, up to `maximum`; return whether this was possible."""
        return self._change(key, lambda value: value + amount if value + amount <= maximum else None, ttl)

    def decr(self, key: str, amount: int, minimum: int, ttl: int) -> bool:
        """Decrease a key by `amount`, down to `minimum`; return whether this was possible."""
        return self._change(key, lambda value: value - amount if value - amount >= minimum else None, ttl)

    def incr_and_sum(self, key: str, keys: Callable[[], Iterable[str]], amount: int, maximum: int, ttl: int) -> bool:
        """Increase a key by `amount` unless the sum of `keys` would exceed `maximum`; return whether this was
        possible."""
        with self._locked(key.partition("@")[0]):
            names = list(keys())
            entries = self._keys.call(lambda kv: kv.get_many(names)) if names else ()
            total = sum(int(entry.value) for entry in entries if entry is not None)
            return total + amount <= maximum and self.incr(key, amount, maximum, ttl)

    def wait(self, key: str, timeout: int | None) -> bool:
        """Wait for `wait_notify` of a key, for `timeout` milliseconds; return whether it came."""
        ends_at = None if timeout is None else time.monotonic() + timeout / 1000
        pauses = naps(_NAP_MOST_S)
        while self._keys.call(lambda keys: keys.get(f"event:{key}")) is None:
            nap_s = next(pauses)
            left_s = nap_s if ends_at is None else ends_at - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(nap_s, left_s))
        return True

    def wait_notify(self, key: str, ttl: int) -> None:
        """Let all calls of `wait` for a key return, for `ttl` milliseconds."""
        self._keys.call(lambda keys: keys.put(f"event:{key}", b"1", ttl=f"{ttl}ms"))

    def close(self) -> None:
        """Close the client of this process, unless something else uses it."""
        self._keys.close()

    def _change(self, key: str, after: Callable[[int], int | None], ttl: int) -> bool:
        def once(keys: Keys) -> bool:
            entry = keys.get(key)
            value = after(0 if entry is None else int(entry.value))
            if value is not None:
                keys.cas(key, str(value), expected=None if entry is None else entry.version, ttl=f"{ttl}ms")
            return value is not None

        return self._keys.change(once)

    @contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Hold a lock: a sum of several keys and a change of one of them are two steps."""
        key = f"lock:{name}"
        version = self._keys.change(lambda keys: keys.cas(key, b"", expected=None, ttl=_LOCK_TTL))
        try:
            yield
        finally:
            with suppress(VersionChanged):  # the lock has expired
                self._keys.call(lambda keys: keys.delete(key, expected=version))
