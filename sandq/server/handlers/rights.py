"""The rights that each request type needs, in one table. Restricted callers may not send types that are not in the
table.

Rights are checked before anything else, so that a refusal does not reveal whether an object exists. Requests of
unrestricted callers do not pass through this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from sandq.model.access import Access, Right
from sandq.model.limits import FIXED
from sandq.model.names import check_name
from sandq.model.outbox import DEAD_LETTER_TOPIC
from sandq.protocol.frames import Frame, Type
from sandq.protocol.request import REQUESTS
from sandq.protocol.requests_admin import SHOW
from sandq.server.handlers.lease_rights import SETTLING, guard_groups
from sandq.server.handlers.routes import Context, Handler

PRODUCE, CONSUME, READ, MANAGE = Right.PRODUCE, Right.CONSUME, Right.READ, Right.MANAGE
CLUSTER, SECURITY = Right.CLUSTER, Right.SECURITY

Check = Callable[[Context, Access, Frame], None]
"""Raises Forbidden. Raises InvalidRequest if the frame does not name the object of the request."""


class Rule(NamedTuple):
    """The rights that requests of one type need."""

    summary: str
    """The rule as docs/security.md states it."""
    check: Check


def _text(frame: Frame, at: int) -> str:
    """Return a topic or a group that a frame names. Raise InvalidRequest or InvalidName."""
    found = frame[at] if len(frame) > at else None
    if type(found) is not str:
        REQUESTS[frame[0]].parse(frame)  # raises the error that says what is wrong
        return ""  # no topic has this name, so only callers with the right on all topics pass
    if len(found) > FIXED.name_chars:
        check_name("topic or group", found)
    return found


def _position(kind: Type, name: str) -> int:
    """Return the position of a request's field in its frame."""
    return 2 + [field.name for field in REQUESTS[kind].shape.fields].index(name)


def _of_topic(kind: Type, *rights: Right, topic: str = "topic", group: str | None = None) -> Rule:
    """Require all of these rights on the topic in field `topic`, or on its group in field `group`."""
    at, group_at = _position(kind, topic), 0 if group is None else _position(kind, group)

    def check(context: Context, access: Access, frame: Frame) -> None:
        name = _text(frame, at)
        of = _text(frame, group_at) if group_at else None
        for right in rights:
            access.check(right, name, of)

    summary = " and ".join([f"`{right}`" for right in rights])
    return Rule(f"{summary} on the {'topic' if group is None else 'group of the topic'}", check)


def _one_of(kind: Type, *rights: Right, topic: str = "topic") -> Rule:
    """Require one of these rights on the topic, or on any of its groups."""
    at = _position(kind, topic)

    def check(context: Context, access: Access, frame: Frame) -> None:
        name = _text(frame, at)
        if not any([access.allows_some(right, name) for right in rights]):
            raise access.refusal(rights[0], name)

    return Rule(f"one of {', '.join([f'`{right}`' for right in rights])} on the topic, or on groups of it", check)


def _global(right: Right) -> Rule:
    """Require a right that is not limited to topics."""

    def check(context: Context, access: Access, frame: Frame) -> None:
        access.check(right)

    return Rule(f"`{right}`", check)


def _nothing(context: Context, access: Access, frame: Frame) -> None:
    """Check nothing: every admitted client may do it."""


def _unrestricted(why: str) -> Rule:
    """Require nothing. `why`: the rule as docs/security.md states it."""
    return Rule(why, _nothing)


# -- checks of particular types ----------------------------------------------------------------------------------------


NAMES_AT_ONCE: Final = 256
"""Number of topics of a METADATA that are checked before its handler, which checks the others in time slices."""


def _topics(context: Context, access: Access, frame: Frame) -> None:
    """Require some right on each named topic."""
    names = frame[2] if len(frame) > 2 else None
    if type(names) is list:
        for name in names[:NAMES_AT_ONCE]:
            if type(name) is str and not access.sees(name[: FIXED.name_chars + 1]):
                raise access.refusal(READ, name)


def _check_lease(context: Context, access: Access, frame: Frame) -> None:
    """Check the right on the topic of a lease's partition. If there is no such topic, the request has no effect."""
    topic = _topic_of_lease(context, frame)
    if topic is not None and not access.allows_some(CONSUME, topic):
        raise access.refusal(CONSUME, topic)


def _topic_of_lease(context: Context, frame: Frame) -> str | None:
    """Return the topic of the partition that a request about leases names by its number; None if there is none.

    Raise InvalidRequest if the frame has no such number."""
    number = frame[2] if len(frame) > 2 else None
    if type(number) is not int:
        REQUESTS[frame[0]].parse(frame)
        return ""
    topics = context.lease_topics
    topic = topics.get(number)
    if topic is None:
        topic = context.broker.catalog.topic_of_group(number)
        if topic is not None:
            if len(topics) >= LEASE_TOPICS:
                topics.clear()
            topics[number] = topic  # cached for good: numbers of Raft groups are never reused
    return topic


LEASE_TOPICS: Final = 1024
"""Maximum number of partitions whose topic a connection caches."""


def _sending_ack(context: Context, access: Access, frame: Frame) -> None:
    """Check the lease, and the right to produce to the topic of each message that the ack sends."""
    _check_lease(context, access, frame)
    messages = frame[6] if len(frame) > 6 else None
    for row in messages if type(messages) is list else ():
        name = row[0] if type(row) is list and row else None
        topic = _topic_of_lease(context, frame) if name is None else name
        if type(topic) is str:
            access.check(PRODUCE, topic[: FIXED.name_chars + 1])


def _settings_at(kind: Type) -> Check:
    """Require `manage` on the topic and, if dead letters go to a second topic, `produce` there."""
    plain, at = _of_topic(kind, MANAGE, topic="name").check, _position(kind, "settings")

    def check(context: Context, access: Access, frame: Frame) -> None:
        plain(context, access, frame)
        settings = frame[at] if len(frame) > at else None
        target = settings.get(DEAD_LETTER_TOPIC) if type(settings) is dict else None
        if type(target) is str:
            access.check(PRODUCE, target[: FIXED.name_chars + 1])

    return check


def _job(context: Context, access: Access, frame: Frame) -> None:
    """Require `manage` on the topic, or on the group whose messages the job changes."""
    topic = _text(frame, 2)
    arguments = frame[6] if len(frame) > 6 else None
    group = arguments.get("group") if type(arguments) is dict else None
    access.check(MANAGE, topic, group if type(group) is str else None)


def _clock(context: Context, access: Access, frame: Frame) -> None:
    """Require `cluster`, unless the request only reads the clock."""
    if frame[2:] != [SHOW]:
        access.check(CLUSTER)


def _identify(context: Context, access: Access, frame: Frame) -> None:
    """Require `security`, unless the request asks about the caller itself."""
    if frame[2:] != [None, None]:
        access.check(SECURITY)


def _of_topic_and_cluster(kind: Type, *rights: Right, topic: str = "topic") -> Rule:
    """Require `cluster`, and these rights on the topic: the request reads or writes all of it."""
    plain = _of_topic(kind, *rights, topic=topic)

    def check(context: Context, access: Access, frame: Frame) -> None:
        access.check(CLUSTER)
        plain.check(context, access, frame)

    return Rule(f"`cluster`, and {plain.summary}", check)


_T = Type


def _restore_open() -> Rule:
    """Require the rights of the other requests of a restore, and `produce` on a dead letter topic."""
    plain, at = _of_topic_and_cluster(_T.RESTORE_OPEN, MANAGE, PRODUCE), _position(_T.RESTORE_OPEN, DEAD_LETTER_TOPIC)

    def check(context: Context, access: Access, frame: Frame) -> None:
        plain.check(context, access, frame)
        target = frame[at] if len(frame) > at else None
        if type(target) is str:
            access.check(PRODUCE, target[: FIXED.name_chars + 1])

    return Rule(f"{plain.summary}; `produce` on a named `dead_letter_topic`", check)


_SETTINGS_SUMMARY: Final = "`manage` on the topic; `produce` on a named `dead_letter_topic`"
RULES: Final[Mapping[int, Rule]] = {
    _T.HELLO: _unrestricted("none"),
    _T.PROVE: _unrestricted("none; gateways send it"),
    _T.ON_BEHALF: _unrestricted("to be a gateway"),
    _T.AUDIT_NOTE: _unrestricted("to be a gateway"),
    _T.PING: _unrestricted("none"),
    _T.METADATA: Rule("some right on each named topic; without names, it lists the topics with some right", _topics),
    _T.TOPIC_NAMES: _unrestricted("none; they show topics with some right"),
    _T.CLUSTER_INFO: _unrestricted("none; they show topics with some right"),
    _T.SLO: _unrestricted("none; they show topics with some right"),
    _T.OVERVIEW: _unrestricted("none; they show topics with `read`"),
    _T.CLUSTER_CLOCK: Rule("none to read; `cluster` to accept", _clock),
    _T.UNSUBSCRIBE: _unrestricted("none; they concern only this connection"),
    _T.CREDIT: _unrestricted("none; they concern only this connection"),
    _T.SCHEDULE_PREVIEW: _unrestricted("none"),
    _T.IDENTIFY: Rule("none for oneself; else `security`, or to be a gateway", _identify),
    _T.PRODUCE: _of_topic(_T.PRODUCE, PRODUCE),
    **{kind: _of_topic(kind, CONSUME, group="group") for kind in (_T.SUBSCRIBE, _T.LEASE)},
    **{
        kind: Rule("`consume` on the lease's topic, or on groups of it", _check_lease)
        for kind in (_T.ACK, _T.NACK, _T.EXTEND, _T.LEASE_PAUSE)
    },
    _T.ACK_THEN: Rule("as ACK, and `produce` on the topic of each message", _sending_ack),
    **{
        kind: _of_topic(kind, READ)
        for kind in (
            *(_T.FETCH, _T.MEASURE, _T.GET, _T.LIST, _T.WHY, _T.FORECAST, _T.JOB_STATUS, _T.KV_GET, _T.KV_SCAN),
            *(_T.KV_WATCH, _T.SCHEDULE_GET, _T.SCHEDULE_LIST, _T.GROUP_LIST, _T.TOPIC_STATS, _T.PUSH_LIST),
            *(_T.TOPIC_HISTORY, _T.LIMIT_LIST),
        )
    },
    **{kind: _of_topic(kind, READ, group="group") for kind in (_T.DEAD_LIST, _T.CONSUMER_LIST, _T.PAUSE_LIST)},
    **{
        kind: _of_topic(kind, MANAGE) for kind in (_T.MOVE, _T.CANCEL, _T.JOB_STOP, _T.SCHEDULE_PUT, _T.SCHEDULE_CHANGE)
    },
    _T.JOB_START: Rule("`manage` on the topic, or on the group that it names", _job),
    **{
        kind: _of_topic(kind, MANAGE, group="group")
        for kind in (
            *(_T.DEAD_REDRIVE, _T.DEAD_PURGE, _T.GROUP_SEEK, _T.GROUP_DELETE, _T.GROUP_UPDATE, _T.GROUP_PAUSE),
            _T.GROUP_LIMIT,
        )
    },
    # The owner of the target URL can read what is pushed, so the caller needs `read` as well.
    _T.GROUP_PUSH: _of_topic(_T.GROUP_PUSH, MANAGE, READ, group="group"),
    _T.TOPIC_CREATE: Rule(_SETTINGS_SUMMARY, _settings_at(_T.TOPIC_CREATE)),
    _T.TOPIC_UPDATE: Rule(_SETTINGS_SUMMARY, _settings_at(_T.TOPIC_UPDATE)),
    _T.TOPIC_DELETE: _of_topic(_T.TOPIC_DELETE, MANAGE, topic="name"),
    _T.TOPIC_ENSURE: _one_of(_T.TOPIC_ENSURE, PRODUCE, CONSUME, MANAGE, topic="name"),
    _T.HOLD: _one_of(_T.HOLD, CONSUME, MANAGE),
    **{
        kind: _global(CLUSTER)
        for kind in (
            *(_T.CLUSTER_INIT, _T.NODE_CHANGE, _T.TRANSFER, _T.REBUILD, _T.CLOCK_RESET),
            *(_T.FINALIZE, _T.LOG_LEVEL, _T.DEBUG_DUMP, _T.ENTRY_SKIP),
        )
    },
    **{
        kind: _global(SECURITY)
        for kind in (
            *(_T.IDENTITY_PUT, _T.IDENTITY_DELETE, _T.IDENTITY_LIST),
            *(_T.ROLE_PUT, _T.ROLE_DELETE, _T.ROLE_LIST, _T.AUDIT_LIST, _T.BACKUP_ACCESS),
        )
    },
    _T.BACKUP_TOPICS: Rule("`cluster`; it shows topics with some right", _global(CLUSTER).check),
    **{
        kind: _of_topic_and_cluster(kind, READ)
        for kind in (_T.BACKUP_BEGIN, _T.BACKUP_READ, _T.BACKUP_END, _T.BACKUP_LOG)
    },
    _T.RESTORE_TOPIC: _of_topic_and_cluster(_T.RESTORE_TOPIC, MANAGE, PRODUCE, topic="name"),
    **{
        kind: _of_topic_and_cluster(kind, MANAGE, PRODUCE)
        for kind in (_T.RESTORE_BEGIN, _T.RESTORE_ROWS, _T.RESTORE_END)
    },
    _T.RESTORE_OPEN: _restore_open(),
}
"""The rule of each request type."""


def guarded(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Return the handlers for connections with restricted rights. Request types without a rule are left out."""
    return {
        kind: _guard(RULES[kind].check, guard_groups(handler, _topic_of_lease) if kind in SETTLING else handler)
        for kind, handler in handlers.items()
        if kind in RULES
    }


def guarded_for_gateways(handlers: Mapping[int, Handler]) -> dict[int, Handler]:
    """Return the handlers for gateways.

    A gateway checks the rights of its callers itself, but it does not know which group a lease belongs to."""
    return {
        kind: guard_groups(handler, _topic_of_lease) if kind in SETTLING else handler
        for kind, handler in handlers.items()
    }


def _guard(check: Check, handler: Handler) -> Handler:
    """Return a handler that checks the rights of restricted connections first."""

    def handle(context: Context, frame: Frame) -> Any:
        """Check the rights of a restricted connection, then handle the request."""
        access = context.entrance.access
        if access is not None:
            check(context, access, frame)
        return handler(context, frame)

    return handle
