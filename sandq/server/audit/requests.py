"""What the audit log is told of the requests of one connection."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from sandq.model.caller import Caller
from sandq.model.errors import Forbidden, SandqError, Unauthenticated
from sandq.protocol.frames import Frame
from sandq.server.audit.acts import FREQUENT, about, name_of
from sandq.server.audit.audit_log import NO_ANSWER, OK, AuditLog

REFUSALS: Final = frozenset({Forbidden.code, Unauthenticated.code})
"""Errors that are noted of all requests."""
_TOLD: Final = ("right", "topic", "group")
"""Details of these that are noted."""


class _Act(NamedTuple):
    kind: int
    caller: Caller
    about: dict[str, Any]


class RequestAudit:
    """Acts that are under way, and what becomes of them; refusals."""

    def __init__(self, audit: AuditLog | None) -> None:
        self._audit = audit if audit is not None and audit.is_on else None
        self.acts: dict[int, _Act] = {}
        """By request id. Looked at for each answer: most connections have none."""

    def begin(self, frame: Frame, caller: Caller) -> None:
        """Somebody asks for something that is noted once it is answered."""
        if self._audit is not None:
            self.acts[frame[1]] = _Act(frame[0], caller, about(frame))

    def answered(self, request_id: int) -> None:
        """It was done."""
        self._end(request_id, OK)

    def failed(self, request_id: int, request: str, caller: Caller, error: SandqError) -> None:
        """A request was answered with an error, or (id 0) the connection ends by one."""
        if request_id in self.acts:
            self._end(request_id, error.code)
        elif error.code in REFUSALS and self._audit is not None:
            self._audit.note(
                principal=caller.principal,
                peer=caller.address,
                gateway=caller.gateway,
                request=request,
                about={name: error.details[name] for name in _TOLD if name in error.details},
                result=error.code,
                request_id=request_id,
                is_frequent=True,
            )

    def end(self) -> None:
        """The connection is gone."""
        for request_id in list(self.acts):
            self._end(request_id, NO_ANSWER)

    def _end(self, request_id: int, result: str) -> None:
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
            # What was not done may be asked for again and again, also by who may do nothing.
            is_frequent=act.kind in FREQUENT or result not in (OK, NO_ANSWER),
        )
