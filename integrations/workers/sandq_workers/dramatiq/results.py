"""The result backend of Dramatiq: keys of a compacted topic."""

from __future__ import annotations

import time
from typing import Any, Final

from dramatiq.results.backend import DEFAULT_TIMEOUT, Missing, ResultBackend
from dramatiq.results.errors import ResultMissing, ResultTimeout

from sandq_workers.key_topic import KeyTopic, naps
from sandq_workers.urls import parse

_NAP_MOST_S: Final = 0.5


class SandqResults(ResultBackend):
    """Stores results for the middleware `Results`. The URL is that of the broker."""

    def __init__(
        self, url: str = "sandq://127.0.0.1:7170", *, topic: str = "dramatiq.results", partitions: int = 1, **more: Any
    ) -> None:
        super().__init__(**more)
        self._keys = KeyTopic(parse(url), topic, partitions=partitions)

    def get_result(self, message: Any, *, block: bool = False, timeout: int | None = None) -> Any:
        """Return the result of a message. With `block`, wait for it for `timeout` milliseconds, in pauses that grow
        from 5 ms to half a second. Raises ResultMissing, ResultTimeout; ResultFailure if the actor failed."""
        key = self.build_message_key(message)
        ends_at = time.monotonic() + (DEFAULT_TIMEOUT if timeout is None else timeout) / 1000
        pauses = naps(_NAP_MOST_S)
        while (found := self._get(key)) is Missing:
            left_s = ends_at - time.monotonic()
            if not block:
                raise ResultMissing(message)
            if left_s <= 0:
                raise ResultTimeout(message)
            time.sleep(min(next(pauses), left_s))
        return self.unwrap_result(found)

    def _get(self, message_key: str) -> Any:
        entry = self._keys.call(lambda keys: keys.get(message_key))
        return Missing if entry is None else self.encoder.decode(entry.value)

    def _store(self, message_key: str, result: Any, ttl: int) -> None:
        data = self.encoder.encode(result)
        self._keys.call(lambda keys: keys.put(message_key, data, ttl=f"{ttl}ms"))

    def close(self) -> None:
        """Close the client of this process, unless something else uses it."""
        self._keys.close()
