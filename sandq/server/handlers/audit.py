"""Requests about the audit log."""

from __future__ import annotations

from sandq.model.errors import Conflict, Forbidden
from sandq.protocol.requests_audit import AuditList, AuditNote
from sandq.server.handlers.routes import Context, answered, told


async def _list(at: Context, request: AuditList) -> tuple[list[str], str, int]:
    audit = at.info.audit
    if audit is None:
        raise Conflict(f"node {at.info.node_id} keeps no audit log")
    lines, position = await audit.read(request.last, request.after)
    return lines, position, audit.lost


def _note(at: Context, request: AuditNote) -> None:
    if not at.gateway_proof.is_given:
        raise Forbidden("AUDIT_NOTE: only a gateway that has proved itself (PROVE) tells what it refused")
    if at.info.audit is not None:
        caller = at.caller
        at.info.audit.note(
            principal=caller.principal,
            peer=caller.address,
            gateway=caller.gateway,
            request=request.call,
            about=request.about,
            result=request.result,
            request_id=request.call_id,
            is_frequent=True,
        )


ROUTES = (answered(AuditList, _list), told(AuditNote, _note))
