"""The protocol between a node and its HTTP process, on the standard input and output of the process.

A message is a JSON object on one line. `body` is the number of bytes that follow the line.

    node     -> {"begin": {...}}                        first, and once: see `Begin`
             -> {"health": [failure, stalled, ready]}   texts or null, every `PUSH_S`
             -> {"metrics": number, "content_type": text, "body": size}
                                                        the reply to the request with this number
             -> {"gateway_secret": digits}              it has changed: see `Begin`
             -> {"stop": true}                          finish the requests in progress, and end
    process  -> {"serves": true}                        once
             -> {"report": {"requests": {...}, "identities": [...], "held_bytes": size}}
                                                        after each health message, and before each request
             -> {"metrics": number, "accept": text}     a request for the text for Prometheus

The end of the process's input means that the node has ended. Both sides always have the same version, so the protocol
may change with each version.
"""

from __future__ import annotations

import dataclasses
import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, BinaryIO, Final, Self

from sandq.model.limits import Limits
from sandq.server.http.bounds import GATEWAY_S, Deadlines

PUSH_S: Final = 0.5
"""Interval between two health messages of the node, in seconds."""
CATCH_UP_S: Final = 0.8
"""Time in seconds for which a health check waits for an overdue report: more than `PUSH_S`."""
STALE_S: Final = 2.0
"""Age at which the last health message is too old to count, in seconds."""
STARTING: Final = "the node is starting"
"""Reason why HTTP is not ready before the node's first health message."""
LINE_BYTES: Final = 4 << 20
"""Maximum size of a line that the node reads, in bytes."""
EXIT_NODE_GONE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The orders for the process. For `names` and `origins`, see `HttpSettings`."""

    version: str
    node: str
    servers: tuple[str, ...]
    """Client ports of the cluster."""
    names: tuple[str, ...]
    origins: tuple[str, ...]
    limits: Limits
    listeners: tuple[int, ...]
    """Descriptors of the listening sockets."""
    log_format: str
    log_level: str
    gateway_secret: str = field(repr=False)
    """The secret with which the process proves to nodes that it is a gateway, in hexadecimal digits."""
    tls: Mapping[str, str | None] | None = None
    """The section `tls` of the configuration, if HTTP or the nodes' client ports use TLS."""
    own_hosts: tuple[str, ...] = ()
    own_names: tuple[str, ...] = ()
    """Hosts and certificate names of the node's own client port; see `nodes_tls`."""
    backup: Mapping[str, Any] | None = field(default=None, repr=False)
    """The section `backup` of the configuration, if it names a destination."""
    sql: Mapping[str, Any] | None = None
    """The section `sql` of the configuration, if SQL is served over HTTP."""
    stale_s: float = STALE_S
    timeout_s: float = GATEWAY_S
    deadlines: Deadlines = field(default_factory=Deadlines)

    def as_json(self) -> dict[str, Any]:
        """Return the orders as a JSON object."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return the orders from a JSON object."""
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in values.items()
        }
        return cls(**{**fields, "limits": Limits(**values["limits"]), "deadlines": Deadlines(**values["deadlines"])})


def encode(message: Mapping[str, Any], body: bytes = b"") -> bytes:
    """Return the bytes of a message and its body."""
    if body:
        message = {**message, "body": len(body)}
    return json.dumps(message, separators=(",", ":")).encode() + b"\n" + body


OnMessage = Callable[[Mapping[str, Any], bytes], None]
GONE: Final = "gone"
"""Key of a message that `NodeInput` delivers to a thread when its node has ended."""


class NodeInput:
    """Reads the messages of the node in a thread, so that it notices the end of the node even if the loop is busy."""

    def __init__(self, file: BinaryIO, *, ends_process: bool) -> None:
        """`ends_process`: end this process at once when the input ends; otherwise deliver `GONE`."""
        self._file = file
        self._ends_process = ends_process
        self._queue: SimpleQueue[tuple[Mapping[str, Any], bytes]] = SimpleQueue()
        """Messages that came before `deliver_to` was called. The node sends only a few by then."""
        self._lock = threading.Lock()
        self._hand_on: OnMessage = lambda *message: self._queue.put(message)
        threading.Thread(target=self._read, name="node", daemon=True).start()

    def first(self) -> Mapping[str, Any]:
        """Wait for the first message, and return it."""
        return self._queue.get()[0]

    def deliver_to(self, to: OnMessage) -> None:
        """Call `to` in the reading thread for each message after the first."""
        with self._lock:
            while not self._queue.empty():
                to(*self._queue.get())
            self._hand_on = to

    def end(self) -> None:
        """Act as if the input had ended."""
        if self._ends_process:
            os._exit(EXIT_NODE_GONE)
        with self._lock:
            self._hand_on({GONE: True}, b"")

    def _read(self) -> None:
        """Read messages until the input ends. Runs in the thread."""
        with self._file:
            for line in self._file:
                message = json.loads(line)
                body = self._file.read(message.get("body", 0))
                with self._lock:
                    self._hand_on(message, body)
        self.end()
