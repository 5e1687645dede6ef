"""Restrict callers that may consume only from some groups of a topic to the leases of these groups.

A lease is identified by its token, which can be guessed, and the frame does not name the group. So the handler asks the
partition which group has the lease. Most callers may consume from every group of the topic, and need no such query.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from sandq.model.access import Access, Right
from sandq.model.errors import LeaseLost
from sandq.protocol.frames import Frame, Type, encode_reply
from sandq.protocol.request import REQUESTS
from sandq.server.handlers.routes import Context, Handler, reply_to

SETTLING: Final = frozenset({Type.ACK, Type.NACK, Type.EXTEND, Type.ACK_THEN, Type.LEASE_PAUSE})
UNKNOWN_ITEMS: Final = 512
"""Maximum number of items of a frame, if any of them names an unknown lease."""
TopicOfLease = Callable[[Context, Frame], str | None]


def guard_groups(handler: Handler, topic_of_lease: TopicOfLease) -> Handler:
    """Return a handler that first checks the groups of the leases, for callers whose rights depend on the group.

    A gateway passes on these rights with the requests of such callers."""

    def handle(context: Context, frame: Frame) -> Awaitable[None] | None:
        """Check the groups of the leases only for callers who may not consume from all groups."""
        access = context.entrance.access or context.caller.access
        topic = topic_of_lease(context, frame) if access is not None else None
        if access is None or topic is None or access.allows(Right.CONSUME, topic):
            return handler(context, frame)
        return _of_some_groups(context, frame, handler, access, topic)

    return handle


async def _of_some_groups(context: Context, frame: Frame, handler: Handler, access: Access, topic: str) -> None:
    """Handle a request for a caller who may consume only some groups: look up the groups of its leases.

    If the caller may not consume one of these groups, raise Forbidden. Leases that are not known are lost."""
    request: Any = REQUESTS[frame[0]].parse(frame)
    tokens = [request.token] if frame[0] == Type.ACK_THEN else [item[0] for item in request.items]
    groups = await context.broker.groups_of_leases(request.group_number, request.partition, tokens)
    if any([not access.allows(Right.CONSUME, topic, group) for group in set(groups.values())]):
        raise access.refusal(Right.CONSUME, topic)
    unknown = [at for at, token in enumerate(tokens) if token not in groups]
    if not unknown:
        rest = handler(context, frame)
        if rest is not None:
            await rest
        return
    # A lease with such a token may be granted to a different group meanwhile: do not settle tokens that were unknown.
    if frame[0] == Type.ACK_THEN:
        context.connection.reply(frame[1], encode_reply(frame[1], [[]]))
        return
    if len(tokens) > UNKNOWN_ITEMS:
        raise LeaseLost(f"some of {len(tokens)} leases are lost: name at most {UNKNOWN_ITEMS} in one request")
    _settle_the_others(context, frame, request, set(unknown))


def _settle_the_others(context: Context, frame: Frame, request: Any, unknown: set[int]) -> None:
    """Settle the items whose leases are known. The reply has the result "lost" for the positions in `unknown`."""
    lost: Any = None if frame[0] in (Type.EXTEND, Type.LEASE_PAUSE) else []  # a LEASE_PAUSE has one item
    items = [item for at, item in enumerate(request.items) if at not in unknown]

    def done(results: Any) -> None:
        """Reply with the results, and with the result of lost leases for `unknown`."""
        if isinstance(results, list):
            left = iter(results)
            results = [lost if at in unknown else next(left) for at in range(len(request.items))]
        reply_to(context.connection, frame[1], results)

    if items:
        context.broker.settle(request._replace(items=items), context.caller, done)
    else:
        done([])
