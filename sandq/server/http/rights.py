"""The rights that each route needs, in one table.

A route that is not in the table needs the right `security`, so that a forgotten route is not open. If a body names a
further topic (a new topic, messages that an ack sends, a dead letter topic), its route checks that, too
(`caller.authorize`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandq.model.access import Access, Right
from sandq.model.errors import Forbidden
from sandq.model.limits import FIXED
from sandq.model.names import LIMITS_TOPIC

OPEN_PATHS: Final = frozenset({"/", "/livez", "/healthz", "/readyz", "/openapi.json", "/docs", "/help"})
"""Paths that need no authentication."""
OPEN_BELOW: Final = ("/docs/", "/console/", "/help/")
"""Prefixes of further paths that need no authentication."""


class Needs(NamedTuple):
    """The rights that a route needs on the topic or group in its path. The caller must have all of them.

    If `rights` is empty, authentication is enough: the response shows only what the caller may see, or the route checks
    the rights for its body."""

    rights: tuple[Right, ...]
    is_of_topic: bool = False
    is_of_group: bool = False
    topic: str | None = None
    """The topic on which the rights are needed, if the path has none."""

    def refusal(self, access: Access, names: Mapping[str, Any]) -> Forbidden | None:
        """Return why the caller may not use the route; None if it may. `names`: the parameters of the path."""
        topic = truncated(names.get("topic")) if self.is_of_topic else self.topic
        group = truncated(names.get("group")) if self.is_of_group else None
        for right in self.rights:
            if not access.allows(right, topic, group):
                return access.refusal(right, topic, group)
        return None


_P, _C, _R, _M = Right.PRODUCE, Right.CONSUME, Right.READ, Right.MANAGE
AUTHENTICATED: Final = Needs(())
OPEN: Final = AUTHENTICATED
"""Rule for paths that need no authentication."""
UNKNOWN: Final = Needs((Right.SECURITY,))
"""Rule for routes that are not in the table."""
_TOPIC: Final = "/topics/{topic}"
_GROUP: Final = f"{_TOPIC}/groups/{{group}}"
_SCHEDULE: Final = f"{_TOPIC}/schedules/{{name}}"


def _topic(*rights: Right) -> Needs:
    """Require these rights on the topic in the path."""
    return Needs(rights, is_of_topic=True)


def _group(*rights: Right) -> Needs:
    """Require these rights on the group in the path."""
    return Needs(rights, is_of_topic=True, is_of_group=True)


_LIMITS: Final = "/limits/{limit}"
_CLUSTER: Final = Needs((Right.CLUSTER,))
_SECURITY: Final = Needs((Right.SECURITY,))
_BACKUP: Final = Needs((Right.CLUSTER, Right.READ))
_RESTORE: Final = Needs((Right.CLUSTER, _M, _P))
_OF_LEASES: Final = ("lease", "ack", "nack", "dead", "extend", "pause-by-lease")
NEEDS: Final[Mapping[tuple[str, str], Needs]] = {
    # Topics. The body of a POST names the new one.
    ("POST", "/topics"): AUTHENTICATED,
    ("GET", "/topics"): AUTHENTICATED,
    ("GET", _TOPIC): _topic(_R),
    ("PATCH", _TOPIC): _topic(_M),
    ("DELETE", _TOPIC): _topic(_M),
    ("POST", f"{_TOPIC}/purge"): _topic(_M),
    ("GET", f"{_TOPIC}/forecast"): _topic(_R),
    ("GET", f"{_TOPIC}/history"): _topic(_R),
    ("GET", "/overview"): AUTHENTICATED,
    ("GET", "/overview/stream"): AUTHENTICATED,
    # Messages.
    ("POST", _TOPIC): _topic(_P),
    ("POST", f"{_TOPIC}/{{partition:int}}"): _topic(_P),
    ("GET", f"{_TOPIC}/{{partition:int}}"): _topic(_R),
    ("GET", f"{_TOPIC}/messages"): _topic(_R),
    ("DELETE", f"{_TOPIC}/messages"): _topic(_M),
    ("PATCH", f"{_TOPIC}/messages"): _topic(_M),
    ("GET", f"{_TOPIC}/messages/{{message}}"): _topic(_R),
    ("GET", f"{_TOPIC}/messages/{{message}}/why"): _topic(_R),
    ("PATCH", f"{_TOPIC}/messages/{{message}}"): _topic(_M),
    ("DELETE", f"{_TOPIC}/messages/{{message}}"): _topic(_M),
    # Keys.
    ("GET", f"{_TOPIC}/keys"): _topic(_R),
    ("GET", f"{_TOPIC}/keys/{{key:key}}"): _topic(_R),
    ("PUT", f"{_TOPIC}/keys/{{key:key}}"): _topic(_P),
    ("DELETE", f"{_TOPIC}/keys/{{key:key}}"): _topic(_P),
    ("GET", f"{_TOPIC}/changes"): _topic(_R),
    # Groups.
    ("GET", f"{_TOPIC}/groups"): _topic(_R),
    ("GET", _GROUP): _group(_R),
    ("PATCH", _GROUP): _group(_M),
    ("DELETE", _GROUP): _group(_M),
    **{
        ("POST", f"{_GROUP}/{action}"): _group(_M)
        for action in ("pause", "resume", "seek", "dead/redrive", "dead/purge")
    },
    **{("POST", f"{_GROUP}/{action}"): _group(_C) for action in _OF_LEASES},
    ("PUT", f"{_GROUP}/limits"): _group(_M),
    ("GET", f"{_GROUP}/stream"): _group(_C),
    **{("GET", f"{_GROUP}/{action}"): _group(_R) for action in ("dead", "consumers", "pauses")},
    # The owner of the target URL can read what is pushed, so the caller needs `read` as well.
    ("PUT", f"{_GROUP}/push"): _group(_M, _R),
    ("DELETE", f"{_GROUP}/push"): _group(_M),
    ("GET", f"{_GROUP}/push"): _group(_R),
    ("GET", f"{_TOPIC}/pushes"): _topic(_R),
    # Named limits.
    **{("GET", path): Needs((_R,), topic=LIMITS_TOPIC) for path in ("/limits", _LIMITS)},
    **{(method, _LIMITS): Needs((_M,), topic=LIMITS_TOPIC) for method in ("PUT", "DELETE")},
    **{("POST", f"{_LIMITS}/{action}"): Needs((_M,), topic=LIMITS_TOPIC) for action in ("pause", "resume")},
    # Schedules.
    ("GET", f"{_TOPIC}/schedules"): _topic(_R),
    ("POST", f"{_TOPIC}/schedules"): _topic(_M),
    ("GET", _SCHEDULE): _topic(_R),
    ("PATCH", _SCHEDULE): _topic(_M),
    ("DELETE", _SCHEDULE): _topic(_M),
    ("GET", f"{_SCHEDULE}/next"): _topic(_R),
    **{("POST", f"{_SCHEDULE}/{action}"): _topic(_M) for action in ("pause", "resume", "trigger")},
    ("POST", "/schedules/preview"): AUTHENTICATED,
    # The cluster.
    ("GET", "/cluster"): AUTHENTICATED,
    ("GET", "/cluster/nodes"): AUTHENTICATED,
    ("GET", "/cluster/partitions"): AUTHENTICATED,
    ("GET", "/cluster/clock"): AUTHENTICATED,
    **{
        ("POST", f"/cluster/{action}"): _CLUSTER
        for action in ("init", "transfer", "rebuild", "nodes/{node}/drain", "clock/accept", "clock/reset", "finalize")
    },
    ("GET", "/cluster/nodes/{node}/dump"): _CLUSTER,
    ("GET", "/cluster/nodes/{node}/log-level"): _CLUSTER,
    ("PUT", "/cluster/nodes/{node}/log-level"): _CLUSTER,
    ("DELETE", "/cluster/nodes/{node}"): _CLUSTER,
    ("GET", "/audit"): _SECURITY,
    # A statement uses the caller's rights: nodes check what it reads (`sql_worker`).
    ("POST", "/sql"): AUTHENTICATED,
    ("GET", "/slo"): AUTHENTICATED,
    # A backup reads everything.
    ("POST", "/backups"): _BACKUP,
    ("GET", "/backups"): _BACKUP,
    ("POST", "/backups/{backup}/verify"): _BACKUP,
    ("POST", "/backups/{backup}/restore"): _RESTORE,
    # Identities and rights.
    ("GET", "/whoami"): AUTHENTICATED,
    **{("GET", f"/{action}"): _SECURITY for action in ("tokens", "identities", "identities/{principal}", "roles")},
    **{("POST", f"/{action}"): _SECURITY for action in ("tokens", "tokens/{name}/rotate", "identities")},
    ("PATCH", "/identities/{principal}"): _SECURITY,
    ("PUT", "/roles/{name}"): _SECURITY,
    **{("DELETE", f"/{action}"): _SECURITY for action in ("tokens/{name}", "identities/{principal}", "roles/{name}")},
    # The node.
    ("GET", "/metrics"): AUTHENTICATED,
    **{
        ("GET", path): OPEN
        for path in (
            "/livez",
            "/healthz",
            "/readyz",
            "/",
            "/docs",
            "/docs/start.js",
            "/docs/{asset}",
            "/console/{asset}",
            "/help",
            "/help/{path:path}",
        )
    },
}


def truncated(name: str | None) -> str | None:
    """Return a name cut to one character more than is allowed: longer names are neither kept nor echoed."""
    return None if name is None else name[: FIXED.name_chars + 1]


def is_open(path: str) -> bool:
    """Return whether a path needs no authentication."""
    return path in OPEN_PATHS or path.startswith(OPEN_BELOW)
