"""The one rule for names (of topics, groups, nodes, clusters), that for tenants, and the names of topic kinds."""

from __future__ import annotations

import re

from sandq.model.errors import InvalidName, InvalidRequest
from sandq.model.limits import FIXED

MAX_NAME_CHARS = FIXED.name_chars
RULE = f"1 to {MAX_NAME_CHARS} of A-Z a-z 0-9 . _ - and the first one a letter or a digit"

TIMER, COMPACTED = "timer", "compacted"
PRIORITY, FAIR = "priority", "fair"
"""Kinds of topics."""
RANKED = (PRIORITY, FAIR)
"""Those whose messages have priorities."""
TAKERS: dict[str, tuple[str, ...]] = {"priority": RANKED, "tenant": (FAIR,)}
"""The kinds of topics whose messages may have a priority, and a tenant."""

AUTO_CREATED = "auto_created"
"""In the record of settings that a topic was created with: it was made because it was used. PERSISTED."""

RESTORING = "restoring"
"""In the record of a topic's settings: by which restore it is being made, and takes nothing yet. PERSISTED."""

DEFAULT_TENANT = "default"
"""The tenant of a message of a fair topic that names none."""
NOT_OF_DEFAULT = (
    f" of the tenant {DEFAULT_TENANT!r}: in a fair topic a unique key is one tenant's; say whose it is, where that is "
    "another one (tenant)"
)
"""What an error says of a message of a fair topic that was named by its unique key without a tenant, or with that."""
NOT_WITHOUT_KEY = "; a message with a key is named by its key and its unique key (key)"
"""What an error says of a message that was named by its unique key without a key, outside fair topics."""
TENANT_RULE = (
    f"1 to {FIXED.tenant_levels} names of A-Z a-z 0-9 _ - with single dots between them, {FIXED.tenant_bytes} "
    "characters at most, "
    'like "acme" or "acme.mail"'
)

_TENANT_BEHIND = "\0"

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,248}")
TENANT_PATTERN = rf"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+){{0,{FIXED.tenant_levels - 1}}}"
"""What a tenant's name matches as a whole, in the grammar of Python and Java; beside it there is the limit of bytes."""
_TENANT = re.compile(TENANT_PATTERN)
_SHOWN_CHARS = 80


def check_name(what: str, name: object) -> str:
    """`name` itself when it keeps the rule; else InvalidName, with the rule. `what` it names: "topic"."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    if not isinstance(name, str):
        kind = type(name).__name__
        raise InvalidName(f"{what} name must be a string, not {kind}; the rule: {RULE}", what=what)
    start = name[:_SHOWN_CHARS]
    shown = repr(name) if start == name else f"{start!r}... ({len(name)} characters)"
    raise InvalidName(f"{what} name {shown} is not allowed; the rule: {RULE}", what=what, name=start)


def check_tenant(text: object) -> str:
    """Return `text` when it is the name of a tenant; raises InvalidRequest with the rule otherwise."""
    if not isinstance(text, str):
        raise InvalidRequest(f"tenant: text is expected, not {type(text).__name__}")
    if len(text) > FIXED.tenant_bytes or not _TENANT.fullmatch(text):
        shown = repr(text) if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]!r}... ({len(text)} characters)"
        raise InvalidRequest(f"tenant: {shown} is not allowed; the rule: {TENANT_RULE}")
    return text


def schedule_id(name: str, tenant: str | None) -> str:
    """Return what a schedule is called between client and broker, and in rows: its name, and behind it the tenant of
    its messages, unless that is the default one. So two tenants of one partition may have schedules of one name.
    PERSISTED"""
    return name if tenant in (None, DEFAULT_TENANT) else f"{name}{_TENANT_BEHIND}{tenant}"


def of_schedule(schedule: str) -> tuple[str, str | None]:
    """Return name and tenant of what `schedule_id` gave; None: the default one, or the topic has none."""
    name, _, tenant = schedule.partition(_TENANT_BEHIND)
    return name, tenant or None
