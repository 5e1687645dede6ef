"""What a node and its HTTP process say to each other, by the process' standard input and output.

A message is an object of JSON in a line of its own. `body` is the number of bytes that follow the line.

    node     -> {"begin": {...}}                        first, and once: see `Begin`
             -> {"health": [failure, stalled, ready]}   texts or null, every `PUSH_S`
             -> {"metrics": number, "content_type": text, "body": size}
                                                        the answer to the question with this number
             -> {"gateway_secret": digits}              it has changed: see `Begin`
             -> {"stop": true}                          end once the requests under way are answered
    process  -> {"serves": true}                        once
             -> {"report": {"requests": {...}, "identities": [...], "held_bytes": size}}
                                                        after each health, and before each question
             -> {"metrics": number, "accept": text}     a question: the text for Prometheus

The end of the process' input is the end of its node. Both are always of one version: nothing here is kept.
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
"""How often the node says how it is."""
STALE_S: Final = 2.0
"""What it said so long ago is not believed any more."""
STARTING: Final = "the node is starting"
"""Why HTTP is not ready before the node reports how it is."""
LINE_BYTES: Final = 4 << 20
"""Of a line that the node reads."""
EXIT_NODE_GONE: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """What the process is to do. `names`, `origins`: who may ask it, see `HttpSettings`."""

    version: str
    node: str
    servers: tuple[str, ...]
    """Client ports, through which everything is asked."""
    names: tuple[str, ...]
    origins: tuple[str, ...]
    limits: Limits
    listeners: tuple[int, ...]
    """Descriptors of sockets that listen already."""
    log_format: str
    log_level: str
    gateway_secret: str = field(repr=False)
    """Proves to nodes that it may say for whom it asks; in hexadecimal digits."""
    tls: Mapping[str, str | None] | None = None
    """The section of the configuration, where HTTP or nodes' client ports speak it."""
    own_hosts: tuple[str, ...] = ()
    own_names: tuple[str, ...] = ()
    """Where the node's client port is, and what its certificate may be issued for; see `nodes_tls`."""
    backup: Mapping[str, Any] | None = field(default=None, repr=False)
    """The section of the configuration, where it names a place."""
    sql: Mapping[str, Any] | None = None
    """The section of the configuration, where SQL is answered by HTTP."""
    stale_s: float = STALE_S
    timeout_s: float = GATEWAY_S
    deadlines: Deadlines = field(default_factory=Deadlines)

    def said(self) -> dict[str, Any]:
        """As an object of JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Self:
        """What such an object says."""
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in said.items()
        }
        return cls(**{**values, "limits": Limits(**said["limits"]), "deadlines": Deadlines(**said["deadlines"])})


def encode(message: Mapping[str, Any], body: bytes = b"") -> bytes:
    """The bytes of a message, and of what follows it."""
    if body:
        message = {**message, "body": len(body)}
    return json.dumps(message, separators=(",", ":")).encode() + b"\n" + body


OnMessage = Callable[[Mapping[str, Any], bytes], None]
GONE: Final = "gone"
"""Key of the message that `NodeInput` delivers itself, to a thread whose node has ended."""


class NodeInput:
    """Reads the messages of the node in a thread, so that the end of the node is noticed however busy the caller is."""

    def __init__(self, file: BinaryIO, *, ends_process: bool) -> None:
        """`ends_process`: end this process at once when the input ends; else deliver `GONE`."""
        self._file = file
        self._ends_process = ends_process
        self._queue: SimpleQueue[tuple[Mapping[str, Any], bytes]] = SimpleQueue()
        """Messages that came before `hand_on`: few, as the node sends little unasked."""
        self._lock = threading.Lock()
        self._hand_on: OnMessage = lambda *message: self._queue.put(message)
        threading.Thread(target=self._read, name="node", daemon=True).start()

    def first(self) -> Mapping[str, Any]:
        """Wait for the first message and return it."""
        return self._queue.get()[0]

    def hand_on(self, to: OnMessage) -> None:
        """Call `to`, in the reading thread, with all messages since the first, and with those to come."""
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
        with self._file:
            for line in self._file:
                message = json.loads(line)
                body = self._file.read(message.get("body", 0))
                with self._lock:
                    self._hand_on(message, body)
        self.end()
