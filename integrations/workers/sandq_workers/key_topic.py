"""Keys of one compacted topic, for results, counters and locks. The topic is created when it is first needed."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from sandq.errors import TopicExists, UnknownTopic, VersionChanged
from sandq.sync import Client, Keys
from sandq_workers import clients
from sandq_workers.urls import Address

FIRST_NAP_S: Final = 0.005
_NAP_GROWTH: Final = 1.5
_CONFLICT_NAP_S: Final = 0.1
SETTINGS: Final[dict[str, Any]] = {"history": "1m", "tombstone_retention": "1h"}
"""Settings of topics of keys that are created."""
R = TypeVar("R")


def naps(most_s: float) -> Iterator[float]:
    """Return pauses in seconds, which grow from some milliseconds up to `most_s`."""
    nap_s = min(FIRST_NAP_S, most_s)
    while True:
        yield nap_s
        nap_s = min(nap_s * _NAP_GROWTH, most_s)


class KeyTopic:
    """The keys of a topic, with the client that this process shares. Usable after a fork, too."""

    def __init__(
        self, address: Address, topic: str, *, partitions: int = 1, settings: Mapping[str, Any] | None = None
    ) -> None:
        self.topic = address.prefix + topic
        self._address = address
        self._partitions = partitions
        self._settings = {**SETTINGS, **(settings or {})}
        self._pid = 0
        self._client: Client

    @property
    def client(self) -> Client:
        """The client of this process. Raises the errors of connecting."""
        if self._pid != os.getpid():
            self._client = clients.acquire(self._address)
            self._pid = os.getpid()
        return self._client

    def call(self, call: Callable[[Keys], R]) -> R:
        """Make a call on the keys."""
        keys = self.client.kv(self.topic)
        try:
            return call(keys)
        except UnknownTopic:
            with suppress(TopicExists):
                self.client.admin.create_topic(
                    self.topic, kind="compacted", partitions=self._partitions, **self._settings
                )
            return call(keys)

    def change(self, once: Callable[[Keys], R]) -> R:
        """Read and write a key; repeat `once` if another process wrote the key in between."""
        pauses = naps(_CONFLICT_NAP_S)
        while True:
            try:
                return self.call(once)
            except VersionChanged:
                time.sleep(random.uniform(0, next(pauses)))

    def close(self) -> None:
        """Close the client of this process, unless something else uses it."""
        if self._pid == os.getpid():
            self._pid = 0
            clients.release(self._address)
