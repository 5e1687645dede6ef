"""Rules for the names of topics, groups, nodes, clusters and tenants, and the names of topic kinds."""

from __future__ import annotations

import re

from sandq.model.errors import InvalidName, InvalidRequest
from sandq.model.limits import FIXED

MAX_NAME_CHARS = FIXED.name_chars
RULE = f"1 to {MAX_NAME_CHARS} of A-Z a-z 0-9 . _ - and the first one a letter or a digit"

RESERVED = "sandq."
"""Prefix of the names of topics that only sandq itself creates."""
LIMITS_TOPIC = RESERVED + "limits"
"""Topic whose record of settings has the named limits. Its partition divides them (ADR 57)."""
INTERNAL = frozenset({LIMITS_TOPIC})
"""Names of all topics that sandq creates."""

TIMER, COMPACTED = "timer", "compacted"
PRIORITY, FAIR = "priority", "fair"
"""Kinds of topics."""
RANKED = (PRIORITY, FAIR)
"""Kinds of topics whose messages have priorities."""
ACCEPTING_KINDS: dict[str, tuple[str, ...]] = {"priority": RANKED, "tenant": (FAIR,)}
"""Kinds of topics whose messages may have a priority, and those whose messages may have a tenant."""

AUTO_CREATED = "auto_created"
"""Key in the record of settings that a topic was created with: the topic was created automatically on first use.
PERSISTED."""

RESTORING = "restoring"
"""Key in the record of a topic's settings: the restore that creates the topic. The topic accepts no messages until it
is restored. PERSISTED."""

DEFAULT_TENANT = "default"
"""Tenant of a message in a fair topic, if the message names none."""
NOT_OF_DEFAULT = (
    f" of the tenant {DEFAULT_TENANT!r}: in a fair topic a unique key belongs to one tenant; if the message has "
    "another tenant, give it (tenant)"
)
"""Suffix of the error for a message that was not found in a fair topic, if the client gave its unique key, and no
tenant or the default tenant."""
NOT_WITHOUT_KEY = "; a message with a key is named by its key and its unique key (key)"
"""Suffix of the same error in other topics, if the client gave the unique key without the key."""
TENANT_RULE = (
    f"1 to {FIXED.tenant_levels} names of A-Z a-z 0-9 _ - with single dots between them, {FIXED.tenant_bytes} "
    "characters at most, "
    'like "acme" or "acme.mail"'
)

_TENANT_BEHIND = "\0"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,248}")
TENANT_PATTERN = rf"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){{0,{FIXED.tenant_levels - 1}}}"
"""Pattern of a whole tenant name, in the grammar of Python and Java. The limit of bytes applies in addition."""
_TENANT = re.compile(TENANT_PATTERN)
_SHOWN_CHARS = 80


def check_name(what: str, name: object) -> str:
    """Return `name` if it keeps the rule. Otherwise raise InvalidName with the rule. `what`: what has the name, such as
    "topic"."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    if not isinstance(name, str):
        kind = type(name).__name__
        raise InvalidName(f"{what} name must be a string, not {kind}; the rule: {RULE}", what=what)
    start = name[:_SHOWN_CHARS]
    shown = repr(name) if start == name else f"{start!r}... ({len(name)} characters)"
    raise InvalidName(f"{what} name {shown} is not allowed; the rule: {RULE}", what=what, name=start)


def check_new_topic(name: object, *, may_be_internal: bool = False) -> str:
    """Return `name` if a user may create a topic of this name. Otherwise raise InvalidName. `may_be_internal`: whether
    the names of topics that sandq creates are accepted, too."""
    checked = check_name("topic", name)
    if checked.startswith(RESERVED) and not (may_be_internal and checked in INTERNAL):
        raise InvalidName(
            f"topic name {checked[:_SHOWN_CHARS]!r} is not allowed: names that begin with {RESERVED!r} are reserved; "
            "choose another name",
            what="topic",
            name=checked[:_SHOWN_CHARS],
        )
    return checked


def check_not_internal(name: str, what: str) -> None:
    """Raise InvalidRequest if sandq itself has created the topic. `what`: the refused action."""
    if name in INTERNAL:
        raise InvalidRequest(f"topic {name!r} belongs to sandq: {what}", topic=name)


def check_tenant(text: object) -> str:
    """Return `text` if it is the name of a tenant. Otherwise raise InvalidRequest with the rule."""
    if not isinstance(text, str):
        raise InvalidRequest(f"tenant: text is expected, not {type(text).__name__}")
    if len(text) > FIXED.tenant_bytes or not _TENANT.fullmatch(text):
        shown = repr(text) if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]!r}... ({len(text)} characters)"
        raise InvalidRequest(f"tenant: {shown} is not allowed; the rule: {TENANT_RULE}")
    return text


def schedule_id(name: str, tenant: str | None) -> str:
    """Return the id of a schedule between client and broker, and in rows: its name, followed by the tenant of its
    messages unless it is the default tenant.

    So two tenants of one partition may have schedules of the same name. PERSISTED.
    """
    return name if tenant in (None, DEFAULT_TENANT) else f"{name}{_TENANT_BEHIND}{tenant}"


def of_schedule(schedule: str) -> tuple[str, str | None]:
    """Return the name and the tenant of a schedule's id. The tenant is None for the default tenant, or if there are no
    tenants."""
    name, _, tenant = schedule.partition(_TENANT_BEHIND)
    return name, tenant or None
