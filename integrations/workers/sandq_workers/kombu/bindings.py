"""Exchanges and their bindings, common to all processes: the compacted topic `kombu.bindings`, which each process reads
at its start and then watches.

    exchange/NAME             {"type": "direct", "durable": true, ..., "broadcasts": false}
    binding/EXCHANGE/QUEUE/K  "": the queue is bound with the routing key K
    queue/NAME                "": the queue is temporary (exclusive, or deleted with its last consumer)

Names are encoded as names of topics are, so that none has a slash. Only queues that are topics have bindings here. A
temporary queue is a group of the topic of each exchange that it is bound to. Such an exchange `broadcasts`: its
messages are also sent to its topic, and each consumer drops those that its queue is not bound for.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final, NamedTuple

from sandq.errors import ClosedError, SandqError, TopicExists, VersionChanged
from sandq.sync import Client
from sandq_workers.names import decoded, encoded

log = logging.getLogger("sandq.workers")

TOPIC: Final = "kombu.bindings"
_SETTINGS: Final[dict[str, Any]] = {"history": "10m", "tombstone_retention": "1d"}
_TEMPORARY_TTL: Final = "7d"
"""How long the record of a temporary queue stays if its process ends without removing it."""
_UNROUTED_S: Final = 1.0
"""A message that no queue is bound for makes this process read the bindings again, at most this often for a key."""
_UNROUTED_KEYS: Final = 1000
"""Maximum number of routing keys without queues that are remembered."""
_RETRY_S: Final = 1.0


class Route(NamedTuple):
    """Where a message goes: to queues, and to the topic of its exchange."""

    queues: tuple[str, ...]
    broadcasts: bool


class Bindings:
    """The exchanges and bindings of one cluster and prefix. May be used by any number of threads."""

    def __init__(self, client: Client, prefix: str) -> None:
        self._keys = client.kv(prefix + TOPIC)
        self._client = client
        self.exchanges: dict[str, dict[str, Any]] = {}
        self.bound: dict[str, set[tuple[str, str]]] = {}
        """By exchange: pairs of queue and routing key."""
        self.temporary: set[str] = set()
        self._unrouted: dict[tuple[str, str], float] = {}

    def start(self) -> None:
        """Create the topic unless it exists, read it, and watch it until the client is closed."""
        with suppress(TopicExists):
            self._client.admin.create_topic(self._keys.topic, kind="compacted", **_SETTINGS)
        self._read()
        threading.Thread(target=self._watch, name="sandq-bindings", daemon=True).start()

    def declare_exchange(self, name: str, record: dict[str, Any]) -> None:
        """Store an exchange. It keeps broadcasting if it has begun to."""
        if not record.items() <= self.exchanges.get(name, {}).items():
            self._update(name, record)

    def broadcast(self, name: str) -> None:
        """Store that an exchange broadcasts."""
        if not self.exchanges.get(name, {}).get("broadcasts"):
            self._update(name, {"broadcasts": True})

    def _update(self, name: str, fields: dict[str, Any]) -> None:
        """Set fields of an exchange. Other processes may set other fields at the same time."""
        key = f"exchange/{_part(name)}"
        while True:
            entry = self._keys.get(key)
            self._apply(key, entry.value if entry is not None else None)
            value = json.dumps({"type": "direct", **self.exchanges.get(name, {}), **fields}, sort_keys=True)
            with suppress(VersionChanged):
                self._keys.cas(key, value, expected=entry.version if entry is not None else None)
                self._apply(key, value.encode())
                return

    def delete_exchange(self, name: str) -> None:
        """Delete an exchange and its bindings."""
        for queue, key in list(self.bound.get(name, ())):
            self.unbind(queue, name, key)
        self._delete(f"exchange/{_part(name)}")

    def bind(self, queue: str, exchange: str, key: str) -> None:
        """Bind a queue that is a topic to an exchange."""
        if (queue, key) not in self.bound.get(exchange, ()):
            self._put(_binding(queue, exchange, key), "")

    def unbind(self, queue: str, exchange: str, key: str) -> None:
        """Remove a binding."""
        self._delete(_binding(queue, exchange, key))

    def add_temporary(self, queue: str) -> None:
        """Store that a queue is temporary, before anything can be sent to it."""
        self._put(f"queue/{_part(queue)}", "", ttl=_TEMPORARY_TTL)

    def remove_temporary(self, queue: str) -> None:
        """Remove the record of a temporary queue."""
        self._delete(f"queue/{_part(queue)}")

    def remove_queue(self, queue: str) -> None:
        """Remove all bindings of a queue."""
        for exchange, pairs in list(self.bound.items()):
            for bound, key in list(pairs):
                if bound == queue:
                    self.unbind(queue, exchange, key)

    def is_temporary(self, queue: str) -> bool:
        """Return whether a queue is temporary, as of now: a process may have declared it a moment ago."""
        return queue in self.temporary or self._keys.get(f"queue/{_part(queue)}") is not None

    def route(self, exchange: str, key: str) -> Route:
        """Return where a message of a named exchange goes. If nothing is bound for it, the bindings are read again: a
        process may have stored them a moment ago."""
        found = self._route(exchange, key)
        if not found.queues and not found.broadcasts and self._should_read(exchange, key):
            self._read()
            found = self._route(exchange, key)
        return found

    def _route(self, exchange: str, key: str) -> Route:
        record = self.exchanges.get(exchange, {})
        kind = str(record.get("type", "direct"))
        pairs = list(self.bound.get(exchange, ()))
        queues = dict.fromkeys(sorted(queue for queue, bound in pairs if matches(kind, bound, key)))
        return Route(tuple(queues), bool(record.get("broadcasts")))

    def _should_read(self, exchange: str, key: str) -> bool:
        now = time.monotonic()
        if now - self._unrouted.get((exchange, key), float("-inf")) < _UNROUTED_S:
            return False
        if len(self._unrouted) >= _UNROUTED_KEYS:
            self._unrouted.clear()
        self._unrouted[exchange, key] = now
        return True

    def _put(self, key: str, value: str, *, ttl: str | None = None) -> None:
        self._keys.put(key, value, ttl=ttl)
        self._apply(key, value.encode())

    def _delete(self, key: str) -> None:
        self._keys.delete(key)
        self._apply(key, None)

    def _read(self) -> None:
        for entry in self._keys.scan():
            self._apply(entry.key.decode(), entry.value)

    def _watch(self) -> None:
        while True:
            try:
                with self._keys.watch(latest=True) as watch:
                    self._read()
                    for change in watch:
                        self._apply(change.key.decode(), change.value)
            except ClosedError:
                return
            except SandqError as error:
                log.warning("exchanges and bindings: %s; reading them again", error)
                time.sleep(_RETRY_S)

    def _apply(self, key: str, value: bytes | None) -> None:
        """Apply one record. A record that is not understood is ignored: another program has written it."""
        kind, _, rest = key.partition("/")
        names = [_name(part) for part in rest.split("/")]
        if kind == "exchange" and len(names) == 1:
            if value is None:
                self.exchanges.pop(names[0], None)
            else:
                with suppress(ValueError):
                    record = json.loads(value)
                    if isinstance(record, dict):
                        self.exchanges[names[0]] = record
        elif kind == "queue" and len(names) == 1:
            (self.temporary.discard if value is None else self.temporary.add)(names[0])
        elif kind == "binding" and len(names) == 3:
            exchange, queue, routing_key = names
            pairs = self.bound.get(exchange, set())
            pair = (queue, routing_key)
            # A new set: other threads may iterate over the old one.
            self.bound[exchange] = pairs - {pair} if value is None else pairs | {pair}


def matches(kind: str, bound: str, key: str) -> bool:
    """Return whether an exchange of this kind sends a message with the routing key to a queue bound with `bound`."""
    if kind == "fanout":
        return True
    if kind == "topic":
        return _pattern(bound).fullmatch(key) is not None
    return bound == key


@lru_cache(1000)
def _pattern(bound: str) -> re.Pattern[str]:
    """Compile the pattern of a topic exchange: `*` is one word, `#` is any number of words, none included."""
    text = ""
    for index, word in enumerate(bound.split(".")):
        dot = r"\." if index else ""
        if word == "#":
            text += rf"(?:{dot}[^.]*)*" if index else r"(?:[^.]*(?:\.[^.]*)*)?"
        else:
            text += dot + ("[^.]+" if word == "*" else re.escape(word))
    if bound.startswith("#."):
        # "#.a" also matches "a".
        rest = text.removeprefix(r"(?:[^.]*(?:\.[^.]*)*)?").removeprefix(r"\.")
        text = rf"(?:(?:[^.]*\.)*){rest}"
    return re.compile(text)


def _binding(queue: str, exchange: str, key: str) -> str:
    return f"binding/{_part(exchange)}/{_part(queue)}/{_part(key)}"


def _part(name: str) -> str:
    return encoded(name) if name else ""


def _name(part: str) -> str:
    try:
        return decoded(part)
    except ValueError:
        return part
