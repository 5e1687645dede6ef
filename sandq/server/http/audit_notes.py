"""Report the requests that a gateway has refused to nodes, which record them in their audit logs. The reports wait in a
bounded queue, and are sent one at a time."""

from __future__ import annotations

import math
from collections import deque
from typing import Any, Final, NamedTuple

import anyio

from sandq.client import Client, cluster_of, on_behalf_of
from sandq.client.transport import call
from sandq.model.errors import SandqError
from sandq.model.logger import get_logger
from sandq.protocol.requests_audit import TEXT_CHARS, AuditNote

log = get_logger("sandq.http")

QUEUED: Final = 200
"""Maximum number of queued notes. Further notes are lost, and the next note reports their number."""
TRY_S: Final = 5.0
"""Time for a node to accept a note, in seconds."""
_DETAILS: Final = ("right", "topic", "group")


class _Note(NamedTuple):
    address: str
    principal: str | None
    note: AuditNote


class AuditNotes:
    """The notes of one server."""

    def __init__(self, client: Client) -> None:
        self._cluster = cluster_of(client)
        self._queue: deque[_Note] = deque()
        self._arrived = anyio.Event()
        self._lost = 0

    def refused(self, address: str, principal: str | None, call: str, error: SandqError, request_id: str) -> None:
        """Queue a note about a refusal. Never waits."""
        about: dict[str, Any] = {
            name: _sendable(str(error.details[name])) for name in _DETAILS if error.details.get(name) is not None
        }
        if len(self._queue) >= QUEUED:
            self._lost += 1
            return
        if self._lost:
            about["lost"], self._lost = self._lost, 0
        note = AuditNote(_sendable(call), about, error.code[:40], request_id[:TEXT_CHARS])
        self._queue.append(_Note(address, principal, note))
        self._arrived.set()

    async def run(self) -> None:
        """Send notes to nodes until cancelled."""
        failed_s = -math.inf
        while True:
            if not self._queue:
                self._arrived = anyio.Event()
                await self._arrived.wait()
            address, principal, note = self._queue.popleft()
            why = "no answer"
            try:
                with anyio.move_on_after(TRY_S), on_behalf_of(address, principal):
                    await call(self._cluster, note)
                    continue
            except SandqError as error:
                why = error.message
            except Exception as error:
                # A refusal that cannot be sent must not end the server.
                why = type(error).__name__
            self._lost += 1
            if anyio.current_time() - failed_s > 60:
                failed_s = anyio.current_time()
                log.warning("no node notes what was refused here", error=why)


def _sendable(text: str) -> str:
    """Return the start of a text as valid UTF-8: JSON strings may contain unpaired surrogates."""
    return text[:TEXT_CHARS].encode("utf-8", "backslashreplace").decode()[:TEXT_CHARS]
