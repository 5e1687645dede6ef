"""What somebody may do: rights, grants and roles. Pure; who somebody is, is decided elsewhere.

A *right* is what kind of thing may be done. A *grant* is text: a right, and the topics and groups that it is for, or a
role, which is a named list of grants::

    produce                      on every topic
    produce:billing.*            on topics whose names are like that: `*` any characters, `?` one, `[ab]` one of them
    consume:billing.*/mail-*     by groups like that of topics like that
    cluster                      of the whole cluster, as `security` is
    writer:billing.*             a built-in role, for these topics alone
    payments                     a role that somebody made

Whoever is granted nothing may do nothing. PERSISTED: rights and grants are kept as this text.
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
    """What may be done."""

    PRODUCE = "produce"
    """Store messages, and write keys."""
    CONSUME = "consume"
    """Lease and settle messages by a group, which may come to be by that."""
    READ = "read"
    """Look: messages, keys, groups, dead letters, schedules, statistics; nothing changes by it."""
    MANAGE = "manage"
    """Topics, groups, schedules, and messages that are pending or dead."""
    CLUSTER = "cluster"
    """Nodes, leaders, clocks."""
    SECURITY = "security"
    """Identities, roles, quotas, the audit log."""


OF_TOPICS: Final = (Right.PRODUCE, Right.CONSUME, Right.READ, Right.MANAGE)
"""Rights that are granted for topics; the others are of the whole cluster."""
ROLES: Final[Mapping[str, tuple[Right, ...]]] = {
    "admin": tuple(Right),
    "operator": (Right.READ, Right.MANAGE, Right.CLUSTER),
    "writer": (Right.PRODUCE, Right.CONSUME, Right.READ),
    "reader": (Right.READ,),
}
"""Roles that are always there: who does everything, who runs the cluster, an application, and who only looks."""
ANY: Final = "*"
_SHOWN_CHARS: Final = 80
_MATCHERS: Final = 4096
"""Compiled patterns that are kept."""
_ANSWERS: Final = 1024
"""That are kept, of what one principal may do."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A right for the topics, and the groups of these, that are like two patterns."""

    right: Right
    topics: str = ANY
    groups: str = ANY

    def __str__(self) -> str:
        if self.right not in OF_TOPICS or (self.topics, self.groups) == (ANY, ANY):
            return str(self.right)
        return f"{self.right}:{self.topics}" + ("" if self.groups == ANY else f"/{self.groups}")


@dataclass(frozen=True, slots=True)
class GrantText:
    """A grant as it is written: the name of a right or a role, and what it is for."""

    name: str
    topics: str | None
    groups: str | None

    @property
    def is_of_known_name(self) -> bool:
        """Whether it needs no role that somebody made."""
        return self.name in ROLES or self.name in tuple(Right)

    def expanded(self, roles: Mapping[str, Sequence[str]]) -> list[Grant]:
        """Return what it grants. A role that is not (any more) among `roles` grants nothing."""
        rights = ROLES.get(self.name) or ((Right(self.name),) if self.name in tuple(Right) else ())
        if not rights:
            inner = [parse_grant(text) for text in roles.get(self.name, ())]
            return [grant for one in inner if one.is_of_known_name for grant in one.expanded({})]
        topics, groups = self.topics or ANY, self.groups or ANY
        return [Grant(right, topics, groups) if right in OF_TOPICS else Grant(right) for right in rights]


def parse_grant(text: object) -> GrantText:
    """Return what a grant says. InvalidRequest: it is written wrongly, or names a pattern for what has none."""
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
    """Return grants as they are to be kept. `roles`: those that somebody made; None: none may be named (a role is made
    of rights and built-in roles). Raises InvalidRequest."""
    if not isinstance(texts, list | tuple) or not 0 < len(texts) <= FIXED.grants:
        raise InvalidRequest(f"grants: a list of 1 to {FIXED.grants} is expected")
    for text in texts:
        grant = parse_grant(text)
        if not grant.is_of_known_name and grant.name not in (roles or ()):
            known = ", ".join([*Right, *ROLES, *sorted(roles or ())][:_SHOWN_CHARS])
            raise _mistake(text, f"{grant.name!r} is neither a right nor a role; there are {known}")
    return list(dict.fromkeys(texts))


def check_role(name: object) -> str:
    """Return the name of a role that may be made. Raises InvalidName, InvalidRequest."""
    checked = check_name("role", name)
    if checked in ROLES or checked in tuple(Right):
        raise InvalidRequest(
            f"{checked!r} is a {'built-in role' if checked in ROLES else 'right'}: choose another name"
        )
    return checked


def _mistake(text: object, why: str) -> InvalidRequest:
    return InvalidRequest(f"grant {repr(text)[:_SHOWN_CHARS]}: {why}")


@lru_cache(_MATCHERS)
def _matcher(pattern: str) -> re.Pattern[str]:
    return re.compile(translate(pattern))


class Access:
    """What one principal may do, ready to be asked. Unchanging; another one is made when a grant or a role changes."""

    __slots__ = ("_by_right", "_known", "_known_of_some", "grants", "principal")

    def __init__(self, principal: str, grants: Iterable[Grant]) -> None:
        self.principal = principal
        self.grants = tuple(dict.fromkeys(grants))
        self._by_right: dict[Right, list[Grant]] = {}
        for grant in self.grants:
            self._by_right.setdefault(grant.right, []).append(grant)
        self._known: dict[tuple[Right, str | None, str | None], bool] = {}
        """What was asked before ..."""
        self._known_of_some: dict[tuple[Right, str], bool] = {}
        """... of `allows_some`."""

    @classmethod
    def of(cls, principal: str, texts: Iterable[str], roles: Mapping[str, Sequence[str]]) -> Access:
        """Of grants as they are kept. Raises InvalidRequest."""
        return cls(principal, [grant for text in texts for grant in parse_grant(text).expanded(roles)])

    def allows(self, right: Right, topic: str | None = None, group: str | None = None) -> bool:
        """Whether it may be done: to a topic, or by a group of it. What is about no single group needs a grant for
        all of them, what is about no single topic one for all topics."""
        known = self._known.get((right, topic, group))
        if known is None:
            if len(self._known) >= _ANSWERS:
                self._known.clear()
            known = self._known[right, topic, group] = self._allows(right, topic, group)
        return known

    def _allows(self, right: Right, topic: str | None, group: str | None) -> bool:
        for grant in self._by_right.get(right, ()):
            if right not in OF_TOPICS:
                return True
            if grant.topics != ANY and (topic is None or _matcher(grant.topics).match(topic) is None):
                continue
            if grant.groups == ANY or (group is not None and _matcher(grant.groups).match(group) is not None):
                return True
        return False

    def allows_some(self, right: Right, topic: str) -> bool:
        """Whether it may be done to a topic, or by some groups of it."""
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
        """Whether it has some right on a topic, or on groups of it: then it may know that the topic is there."""
        return any(
            grant.topics == ANY or _matcher(grant.topics).match(topic) is not None
            for grant in self.grants
            if grant.right in OF_TOPICS
        )

    def covers(self, grants: Iterable[Grant]) -> bool:
        """Whether it has each of these grants itself, as it is or for all topics."""
        mine = set(self.grants)
        return all(
            grant in mine or Grant(grant.right) in mine or Grant(grant.right, grant.topics) in mine for grant in grants
        )

    def check(self, right: Right, topic: str | None = None, group: str | None = None) -> None:
        """Raise Forbidden unless it may be done; the same whether what it names is there or not."""
        if not self.allows(right, topic, group):
            raise self.refusal(right, topic, group)

    def refusal(self, right: Right, topic: str | None = None, group: str | None = None) -> Forbidden:
        """Return what says that it may not be done."""
        of = "" if right not in OF_TOPICS else " on all topics" if topic is None else f" on topic {topic!r:.300}"
        by = f", group {group!r:.300}" if group is not None and right in OF_TOPICS else ""
        told: dict[str, object] = {"right": str(right), "principal": self.principal}
        if topic is not None:
            told["topic"] = topic[: FIXED.name_chars]
        return Forbidden(
            f"{self.principal} has no right to {right}{of}{by}: whoever has the right 'security' can grant it",
            **told,
        )

    def __repr__(self) -> str:
        return f"Access({self.principal!r}, {[str(grant) for grant in self.grants]})"
