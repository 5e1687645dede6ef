"""What each route needs: one table, so that nothing is let through that nobody thought of.

A route that is not in it needs the right `security`. Where a body names another topic (a topic that is made, messages
that an ack sends, where dead letters go), its route asks once more (`caller.authorize`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandq.model.access import Access, Right
from sandq.model.errors import Forbidden
from sandq.model.limits import FIXED

OPEN_PATHS: Final = frozenset({"/", "/livez", "/healthz", "/readyz", "/openapi.json", "/docs"})
"""For everybody, without a look at what they show ..."""
OPEN_BELOW: Final = ("/docs/", "/console/")
"""... as is what begins so."""


class Needs(NamedTuple):
    """What whoever asks a route needs, each of these rights, on what the path names. `rights` is empty: to be known is
    enough; what is answered shows only what may be seen, or the body says what is needed."""

    rights: tuple[Right, ...]
    is_of_topic: bool = False
    is_of_group: bool = False

    def refusal(self, access: Access, names: Mapping[str, Any]) -> Forbidden | None:
        """Return why it is not let through. `names`: of the path."""
        topic = short(names.get("topic")) if self.is_of_topic else None
        group = short(names.get("group")) if self.is_of_group else None
        for right in self.rights:
            if not access.allows(right, topic, group):
                return access.refusal(right, topic, group)
        return None


_P, _C, _R, _M = Right.PRODUCE, Right.CONSUME, Right.READ, Right.MANAGE
KNOWN: Final = Needs(())
OPEN: Final = KNOWN
"""Of paths that are open anyway."""
UNKNOWN: Final = Needs((Right.SECURITY,))
_TOPIC: Final = "/topics/{topic}"
_GROUP: Final = f"{_TOPIC}/groups/{{group}}"
_SCHEDULE: Final = f"{_TOPIC}/schedules/{{name}}"


def _topic(*rights: Right) -> Needs:
    return Needs(rights, is_of_topic=True)


def _group(*rights: Right) -> Needs:
    return Needs(rights, is_of_topic=True, is_of_group=True)


_CLUSTER: Final = Needs((Right.CLUSTER,))
_SECURITY: Final = Needs((Right.SECURITY,))
_BACKUP: Final = Needs((Right.CLUSTER, Right.READ))
_RESTORE: Final = Needs((Right.CLUSTER, _M, _P))
NEEDS: Final[Mapping[tuple[str, str], Needs]] = {
    # Topics. What is made is in the body.
    ("POST", "/topics"): KNOWN,
    ("GET", "/topics"): KNOWN,
    ("GET", _TOPIC): _topic(_R),
    ("PATCH", _TOPIC): _topic(_M),
    ("DELETE", _TOPIC): _topic(_M),
    ("POST", f"{_TOPIC}/purge"): _topic(_M),
    ("GET", f"{_TOPIC}/forecast"): _topic(_R),
    ("GET", f"{_TOPIC}/history"): _topic(_R),
    ("GET", "/overview"): KNOWN,
    ("GET", "/overview/stream"): KNOWN,
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
    **{("POST", f"{_GROUP}/{what}"): _group(_M) for what in ("pause", "resume", "seek", "dead/redrive", "dead/purge")},
    **{("POST", f"{_GROUP}/{what}"): _group(_C) for what in ("lease", "ack", "nack", "dead", "extend")},
    ("PUT", f"{_GROUP}/limits"): _group(_M),
    ("GET", f"{_GROUP}/stream"): _group(_C),
    **{("GET", f"{_GROUP}/{what}"): _group(_R) for what in ("dead", "consumers")},
    # What is pushed can be read by whoever says where to.
    ("PUT", f"{_GROUP}/push"): _group(_M, _R),
    ("DELETE", f"{_GROUP}/push"): _group(_M),
    ("GET", f"{_GROUP}/push"): _group(_R),
    ("GET", f"{_TOPIC}/pushes"): _topic(_R),
    # Schedules.
    ("GET", f"{_TOPIC}/schedules"): _topic(_R),
    ("POST", f"{_TOPIC}/schedules"): _topic(_M),
    ("GET", _SCHEDULE): _topic(_R),
    ("PATCH", _SCHEDULE): _topic(_M),
    ("DELETE", _SCHEDULE): _topic(_M),
    ("GET", f"{_SCHEDULE}/next"): _topic(_R),
    **{("POST", f"{_SCHEDULE}/{what}"): _topic(_M) for what in ("pause", "resume", "trigger")},
    ("POST", "/schedules/preview"): KNOWN,
    # The cluster.
    ("GET", "/cluster"): KNOWN,
    ("GET", "/cluster/nodes"): KNOWN,
    ("GET", "/cluster/partitions"): KNOWN,
    ("GET", "/cluster/clock"): KNOWN,
    **{
        ("POST", f"/cluster/{what}"): _CLUSTER
        for what in ("init", "transfer", "rebuild", "nodes/{node}/drain", "clock/accept", "clock/reset", "finalize")
    },
    ("GET", "/cluster/nodes/{node}/dump"): _CLUSTER,
    ("GET", "/cluster/nodes/{node}/log-level"): _CLUSTER,
    ("PUT", "/cluster/nodes/{node}/log-level"): _CLUSTER,
    ("DELETE", "/cluster/nodes/{node}"): _CLUSTER,
    ("GET", "/audit"): _SECURITY,
    # A statement asks the cluster as its caller: nodes judge what it reads (`sql_worker`).
    ("POST", "/sql"): KNOWN,
    ("GET", "/slo"): KNOWN,
    # Whoever makes one has everything read.
    ("POST", "/backups"): _BACKUP,
    ("GET", "/backups"): _BACKUP,
    ("POST", "/backups/{backup}/verify"): _BACKUP,
    ("POST", "/backups/{backup}/restore"): _RESTORE,
    # Who may do what.
    ("GET", "/whoami"): KNOWN,
    **{("GET", f"/{what}"): _SECURITY for what in ("tokens", "identities", "identities/{principal}", "roles")},
    **{("POST", f"/{what}"): _SECURITY for what in ("tokens", "tokens/{name}/rotate", "identities")},
    ("PATCH", "/identities/{principal}"): _SECURITY,
    ("PUT", "/roles/{name}"): _SECURITY,
    **{("DELETE", f"/{what}"): _SECURITY for what in ("tokens/{name}", "identities/{principal}", "roles/{name}")},
    # The node.
    ("GET", "/metrics"): KNOWN,
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
        )
    },
}


def short(name: str | None) -> str | None:
    """As much of a name as says whether it may be one: longer ones are not kept, and not said back."""
    return None if name is None else name[: FIXED.name_chars + 1]


def is_open(path: str) -> bool:
    """Whether a path is for everybody."""
    return path in OPEN_PATHS or path.startswith(OPEN_BELOW)
