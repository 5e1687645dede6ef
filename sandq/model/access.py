"""Rights, grants and roles: what a principal may do. This module is pure; authentication happens elsewhere.

A *right* is a kind of action. A *grant* is text: a right with the topics and groups that it applies to, or a role,
which is a named list of grants::

    produce                      on every topic
    produce:billing.*            on topics with matching names: `*` any characters, `?` one, `[ab]` one of them
    consume:billing.*/mail-*     by matching groups of matching topics
    cluster                      on the whole cluster, as `security`
    writer:billing.*             a built-in role, for these topics only
    payments                     a custom role

A principal without grants may do nothing. PERSISTED: rights and grants are stored as this text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import translate
from functools import lru_cache
from typing import Final

from sandq.model.errors import Forbidden, InvalidRequest, SandqError
from sandq.model.limits import FIXED
from sandq.model.names import check_name
from sandq.model.topic_patterns import RULE, problem_of


class Right(StrEnum):
    """A kind of action."""

    PRODUCE = "produce"
    """Store messages, and write keys."""
    CONSUME = "consume"
    """Lease and settle messages as a group, and create that group if it does not exist."""
    READ = "read"
    """Read messages, keys, groups, dead letters, schedules and statistics, without changing anything."""
    MANAGE = "manage"
    """Manage topics, groups, schedules, and messages that are pending or dead."""
    CLUSTER = "cluster"
    """Manage nodes, leaders and clocks."""
    SECURITY = "security"
    """Manage identities, roles and quotas, and read the audit log."""


OF_TOPICS: Final = (Right.PRODUCE, Right.CONSUME, Right.READ, Right.MANAGE)
"""Rights that are granted for topics; the other rights apply to the whole cluster."""
ROLES: Final[Mapping[str, tuple[Right, ...]]] = {
    "admin": tuple(Right),
    "operator": (Right.READ, Right.MANAGE, Right.CLUSTER),
    "writer": (Right.PRODUCE, Right.CONSUME, Right.READ),
    "reader": (Right.READ,),
}
"""Built-in roles: full access, operating the cluster, an application, and read-only access."""
ANY: Final = "*"
_SHOWN_CHARS: Final = 80
_MATCHERS: Final = 4096
"""Maximum number of compiled patterns that are cached."""
_ANSWERS: Final = 1024
"""Maximum number of results that are cached for one principal."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A right for the topics and groups that match two patterns."""

    right: Right
    topics: str = ANY
    groups: str = ANY

    def __str__(self) -> str:
        if self.right not in OF_TOPICS or (self.topics, self.groups) == (ANY, ANY):
            return str(self.right)
        return f"{self.right}:{self.topics}" + ("" if self.groups == ANY else f"/{self.groups}")


@dataclass(frozen=True, slots=True)
class GrantText:
    """A grant as it is written: the name of a right or a role, and the patterns that it applies to."""

    name: str
    topics: str | None
    groups: str | None

    @property
    def is_of_known_name(self) -> bool:
        """Whether the grant names a right or a built-in role. False for a custom role."""
        return self.name in ROLES or self.name in tuple(Right)

    def expanded(self, roles: Mapping[str, Sequence[str]]) -> list[Grant]:
        """Return the grants that this text stands for. A custom role that is missing from `roles` grants nothing."""
        rights = ROLES.get(self.name) or ((Right(self.name),) if self.name in tuple(Right) else ())
        if not rights:
            # A custom role names only rights and built-in roles, so one level of expansion is enough.
            inner = [parse_grant(text) for text in roles.get(self.name, ())]
            return [grant for one in inner if one.is_of_known_name for grant in one.expanded({})]
        topics, groups = self.topics or ANY, self.groups or ANY
        return [Grant(right, topics, groups) if right in OF_TOPICS else Grant(right) for right in rights]


def parse_grant(text: object) -> GrantText:
    """Parse a grant. Raise InvalidRequest if it is malformed, or has a pattern where none is allowed."""
    if not isinstance(text, str) or not 0 < len(text) <= FIXED.grant_chars:
        raise InvalidRequest(f"a grant is text of 1 to {FIXED.grant_chars} characters, not {repr(text)[:_SHOWN_CHARS]}")
    name, has_topics, where = text.partition(":")
    topics, has_groups, groups = where.partition("/")
    try:
        check_name("role", name)
    except SandqError as error:
        raise _mistake(text, error.message) from None
    for pattern, is_there in ((topics, has_topics), (groups, has_groups)):
        problem = problem_of((pattern,)) if is_there else None
        if problem is not None:
            raise _mistake(text, f"{pattern!r} is no pattern of names; {RULE}")
    if has_topics and name not in (*ROLES, *OF_TOPICS):
        why = "is of the whole cluster" if name in tuple(Right) else "is a role with topics of its own"
        raise _mistake(text, f"{name!r} {why}, and takes none here")
    return GrantText(name, topics if has_topics else None, groups if has_groups else None)


def check_grants(texts: object, roles: Mapping[str, Sequence[str]] | None) -> list[str]:
    """Return the grants as they are stored. Raise InvalidRequest.

    `roles`: the custom roles. None: `texts` are the grants of a custom role, which may contain only rights and built-in
    roles.
    """
    if not isinstance(texts, list | tuple) or not 0 < len(texts) <= FIXED.grants:
        raise InvalidRequest(f"grants: a list of 1 to {FIXED.grants} is expected")
    for text in texts:
        grant = parse_grant(text)
        if not grant.is_of_known_name and grant.name not in (roles or ()):
            known = ", ".join([*Right, *ROLES, *sorted(roles or ())][:_SHOWN_CHARS])
            raise _mistake(text, f"{grant.name!r} is neither a right nor a role; there are {known}")
    return list(dict.fromkeys(texts))


def check_role(name: object) -> str:
    """Return the name of a role that may be created. Raise InvalidName or InvalidRequest."""
    checked = check_name("role", name)
    if checked in ROLES or checked in tuple(Right):
        raise InvalidRequest(
            f"{checked!r} is a {'built-in role' if checked in ROLES else 'right'}: choose another name"
        )
    return checked


def _mistake(text: object, why: str) -> InvalidRequest:
    """Return the error for a grant that is wrong. `why`: what is wrong with it."""
    return InvalidRequest(f"grant {repr(text)[:_SHOWN_CHARS]}: {why}")


@lru_cache(_MATCHERS)
def _matcher(pattern: str) -> re.Pattern[str]:
    """Return the compiled form of a pattern."""
    return re.compile(translate(pattern))


class Access:
    """Rights of one principal. Immutable: a new object replaces it when a grant or a role changes."""

    __slots__ = ("_by_right", "_known", "_known_of_some", "grants", "principal")

    def __init__(self, principal: str, grants: Iterable[Grant]) -> None:
        self.principal = principal
        self.grants = tuple(dict.fromkeys(grants))
        self._by_right: dict[Right, list[Grant]] = {}
        for grant in self.grants:
            self._by_right.setdefault(grant.right, []).append(grant)
        self._known: dict[tuple[Right, str | None, str | None], bool] = {}
        """Cached results of `allows`."""
        self._known_of_some: dict[tuple[Right, str], bool] = {}
        """Cached results of `allows_some`."""

    @classmethod
    def of(cls, principal: str, texts: Iterable[str], roles: Mapping[str, Sequence[str]]) -> Access:
        """Build the access of a principal from stored grants. Raise InvalidRequest."""
        return cls(principal, [grant for text in texts for grant in parse_grant(text).expanded(roles)])

    def allows(self, right: Right, topic: str | None = None, group: str | None = None) -> bool:
        """Return whether an action on a topic, or by a group of it, is allowed.

        An action that is not about a single group needs a grant for all groups. An action that is not about a single
        topic needs a grant for all topics."""
        known = self._known.get((right, topic, group))
        if known is None:
            if len(self._known) >= _ANSWERS:
                self._known.clear()
            known = self._known[right, topic, group] = self._allows(right, topic, group)
        return known

    def _allows(self, right: Right, topic: str | None, group: str | None) -> bool:
        """Return whether some grant allows a right on a topic or group. A topic or group of None: on all of them."""
        for grant in self._by_right.get(right, ()):
            if right not in OF_TOPICS:
                return True
            if grant.topics != ANY and (topic is None or _matcher(grant.topics).match(topic) is None):
                continue
            if grant.groups == ANY or (group is not None and _matcher(grant.groups).match(group) is not None):
                return True
        return False

    def allows_some(self, right: Right, topic: str) -> bool:
        """Return whether an action is allowed on a topic, or by some of its groups."""
        known = self._known_of_some.get((right, topic))
        if known is None:
            if len(self._known_of_some) >= _ANSWERS:
                self._known_of_some.clear()
            known = self._known_of_some[right, topic] = any(
                grant.topics == ANY or _matcher(grant.topics).match(topic) is not None
                for grant in self._by_right.get(right, ())
            )
        return known

    def sees(self, topic: str) -> bool:
        """Return whether the principal has any right on a topic or on its groups.

        If so, it may also know that the topic exists."""
        return any(
            grant.topics == ANY or _matcher(grant.topics).match(topic) is not None
            for grant in self.grants
            if grant.right in OF_TOPICS
        )

    def covers(self, grants: Iterable[Grant]) -> bool:
        """Return whether this principal has each of these grants, or the same right for all groups or topics."""
        mine = set(self.grants)
        return all(
            grant in mine or Grant(grant.right) in mine or Grant(grant.right, grant.topics) in mine for grant in grants
        )

    def check(self, right: Right, topic: str | None = None, group: str | None = None) -> None:
        """Raise Forbidden unless the action is allowed. The error is the same whether or not the topic exists."""
        if not self.allows(right, topic, group):
            raise self.refusal(right, topic, group)

    def refusal(self, right: Right, topic: str | None = None, group: str | None = None) -> Forbidden:
        """Return the error that refuses the action."""
        of = "" if right not in OF_TOPICS else " on all topics" if topic is None else f" on topic {topic!r:.300}"
        by = f", group {group!r:.300}" if group is not None and right in OF_TOPICS else ""
        details: dict[str, object] = {"right": str(right), "principal": self.principal}
        if topic is not None:
            details["topic"] = topic[: FIXED.name_chars]
        return Forbidden(
            f"{self.principal} has no right to {right}{of}{by}: a caller with the right 'security' can grant it",
            **details,
        )

    def __repr__(self) -> str:
        return f"Access({self.principal!r}, {[str(grant) for grant in self.grants]})"
