"""Record the requests of one connection in the audit log."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sandq.model.caller import Caller
from sandq.model.errors import Forbidden, SandqError, Unauthenticated
from sandq.protocol.frames import Frame
from sandq.server.audit.acts import FREQUENT, about, name_of
from sandq.server.audit.audit_log import NO_ANSWER, OK, AuditLog

REFUSALS: Final = frozenset({Forbidden.code, Unauthenticated.code})
"""Errors that are recorded for all requests."""
_DETAILS: Final = ("right", "topic", "group")
"""Recorded details of errors of `REFUSALS`."""


class _Act(NamedTuple):
    kind: int
    caller: Caller
    about: dict[str, Any]


class RequestAudit:
    """Records the requests of one connection: requests that change something, with their results, and refusals."""

    def __init__(self, audit: AuditLog | None) -> None:
        self._audit = audit if audit is not None and audit.is_on else None
        self.acts: dict[int, _Act] = {}
        """Requests in progress that will be recorded, by request id. Empty for most connections, so that each reply
        costs little."""

    def begin(self, frame: Frame, caller: Caller) -> None:
        """Remember a request that is recorded once it is answered."""
        if self._audit is not None:
            self.acts[frame[1]] = _Act(frame[0], caller, about(frame))

    def answered(self, request_id: int) -> None:
        """Record that a request succeeded."""
        self._end(request_id, OK)

    def failed(self, request_id: int, request: str, caller: Caller, error: SandqError) -> None:
        """Record a request that failed with an error. Request id 0: the error ends the connection."""
        if request_id in self.acts:
            self._end(request_id, error.code)
        elif error.code in REFUSALS and self._audit is not None:
            self._audit.note(
                principal=caller.principal,
                peer=caller.address,
                gateway=caller.gateway,
                request=request,
                about={name: error.details[name] for name in _DETAILS if name in error.details},
                result=error.code,
                request_id=request_id,
                is_frequent=True,
            )

    def end(self) -> None:
        """Record the requests in progress: the connection has ended."""
        for request_id in list(self.acts):
            self._end(request_id, NO_ANSWER)

    def _end(self, request_id: int, result: str) -> None:
        """Write the line of a request that has ended, if it is audited."""
        act = self.acts.pop(request_id, None)
        if act is None or self._audit is None:
            return
        self._audit.note(
            principal=act.caller.principal,
            peer=act.caller.address,
            gateway=act.caller.gateway,
            request=name_of(act.kind),
            about=act.about,
            result=result,
            request_id=request_id,
            # Failed requests may be repeated quickly, even by clients without any rights.
            is_frequent=act.kind in FREQUENT or result not in (OK, NO_ANSWER),
        )
