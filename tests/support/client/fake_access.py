"""Implement identities, roles, the audit log and the overview for the fake server."""

from __future__ import annotations

from typing import Any

from sandq.model.errors import NotFound
from sandq.model.quotas import Quota
from sandq.protocol.frames import Frame
from sandq.protocol.requests_access import IdentityPut, RolePut


class FakeAccess:
    """Stores identities and roles, and permits every request."""

    def __init__(self) -> None:
        super().__init__()
        self.identities: dict[str, dict[str, Any]] = {}
        self.roles: dict[str, list[str]] = {}

    def do_identify(self, connection: Any, frame: Frame) -> Any:
        return "anonymous", None, None, {}

    def do_identity_put(self, connection: Any, frame: Frame) -> Any:
        request = IdentityPut.parse(frame)
        plain = {"principal": request.principal, "grants": [], "created_ms": 0, "quota": {}, "note": ""}
        row = {"expires_ms": None, **self.identities.get(request.principal, plain)}
        changes = dict(request.changes)
        row["grants"] = [*changes.get("grants", row["grants"]), *changes.get("add", [])]
        row["quota"] = Quota.of(row["quota"]).changed(changes.get("quota", {})).record()
        row.update({name: value for name, value in changes.items() if name in ("expires_ms", "note")})
        self.identities[request.principal] = row
        return (row,)

    def do_identity_delete(self, connection: Any, frame: Frame) -> Any:
        if self.identities.pop(frame[2], None) is None:
            raise NotFound(f"there is no identity {frame[2]!r}")
        return ()

    def do_identity_list(self, connection: Any, frame: Frame) -> Any:
        return ([row for _, row in sorted(self.identities.items())],)

    def do_role_put(self, connection: Any, frame: Frame) -> Any:
        request = RolePut.parse(frame)
        self.roles[request.name] = list(request.grants)
        return ()

    def do_role_delete(self, connection: Any, frame: Frame) -> Any:
        del self.roles[frame[2]]
        return ()

    def do_role_list(self, connection: Any, frame: Frame) -> Any:
        return ([[name, grants] for name, grants in sorted(self.roles.items())],)

    def do_audit_list(self, connection: Any, frame: Frame) -> Any:
        return [], "1.0", 0

    def do_slo(self, connection: Any, frame: Frame) -> Any:
        clock = {"trusted": True, "reason": None, "drift_ms": 0, "median_ms": None}
        windows = [[86_400_000, [9, 1], 0, 0]]
        promise = {"lateness_ms": 100, "target_ppm": 999_000, "window_ms": 86_400_000}
        return ({**promise, "since_ms": 0, "bounds_us": [100_000], "windows": windows, "clock": clock, "topics": []},)

    def do_overview(self, connection: Any, frame: Frame) -> Any:
        row = ["orders", "timer", 4, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, [], 0, [], 1]
        return [row], None, 0, 10_000, [0.0]

    def do_topic_history(self, connection: Any, frame: Frame) -> Any:
        return [], 30_000, [0.0]
