"""What a node and its HTTP process say to each other, by the process' standard input and output.

A message is an object of JSON in a line of its own; `body` is how many bytes follow the line.

    node     -> {"begin": {...}}                                          first, and once: see `Begin`
             -> {"health": [failure, stalled, ready]}                     texts or null, every `PUSH_S`
             -> {"metrics": number, "content_type": text, "body": size}   the answer to this question
             -> {"gateway_secret": digits}                               it is another one: see `Begin`
             -> {"stop": true}                                            end once what is under way is answered
    process  -> {"serves": true}                                          once
             -> {"report": {"requests": [...], "held_bytes": size}}       behind each health and before each question
             -> {"metrics": number, "accept": text}                       a question: what Prometheus reads

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


class NodeInput:
    """What the node says, read in a thread: its end is heard at once, however busy or young this process is, and ends
    it there and then."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._queue: SimpleQueue[tuple[Mapping[str, Any], bytes]] = SimpleQueue()
        """Until somebody else takes it: little, as the node says little by itself."""
        self._lock = threading.Lock()
        self._hand_on: OnMessage = lambda *message: self._queue.put(message)
        threading.Thread(target=self._read, name="node", daemon=True).start()

    def first(self) -> Mapping[str, Any]:
        """Wait for what comes first."""
        return self._queue.get()[0]

    def hand_on(self, to: OnMessage) -> None:
        """Call this, in the thread, with all that came since the first, and with what comes."""
        with self._lock:
            while not self._queue.empty():
                to(*self._queue.get())
            self._hand_on = to

    def _read(self) -> None:
        for line in self._file:
            message = json.loads(line)
            body = self._file.read(message.get("body", 0))
            with self._lock:
                self._hand_on(message, body)
        os._exit(EXIT_NODE_GONE)
