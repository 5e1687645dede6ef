"""Handle requests of consumers: subscriptions, LEASE, LEASE_PAUSE, and settling leases (ACK, NACK, EXTEND)."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar

from sandq.broker.replication.requests import Done
from sandq.model.errors import InvalidRequest, SandqError
from sandq.protocol.frames import Frame
from sandq.protocol.requests import (
    Ack,
    AckThen,
    Credit,
    Extend,
    Lease,
    LeasePause,
    Nack,
    NackItem,
    Subscribe,
    Unsubscribe,
)
from sandq.server.handlers.routes import Context, Route, answered, handled, reply_to, submitted

PART_WORK: Final = 512
"""Number of items, including their ranges, that are parsed and submitted in one part."""
S = TypeVar("S", Ack, Nack, Extend)


def _settled(kind: type[S]) -> Route:
    """Settle leases. A request of many items is split into parts that run one after the other; there is one reply."""
    whole = submitted(kind, lambda context, request, done: _settle(context, request, done)).handle

    def handle(context: Context, frame: Frame) -> Awaitable[None] | None:
        """Settle a request of few items at once, and all others in parts."""
        items = frame[4] if len(frame) == 5 else None
        if type(items) is not list or (work := _work_of(items)) <= PART_WORK:
            return whole(context, frame)
        return _in_parts(context, frame, work)

    async def _in_parts(context: Context, frame: Frame, work: int) -> None:
        """Settle a request of many items in parts. Parse all parts first, so that an invalid request changes nothing.

        `_Answers` sends the reply when the last part is done."""
        time_slice, parts = context.connection.time_slice, []
        for first, part in _parts(frame[4], work):
            try:
                parts.append(kind.parse([*frame[:4], part]))
            except InvalidRequest as error:
                raise InvalidRequest(f"{error.message} (items are counted from {first})", **error.details) from None
            await time_slice.spend(PART_WORK)
        answers = _Answers(context, frame[1], len(parts))
        for number, request in enumerate(parts):
            done = partial(answers.add, number)
            try:
                _settle(context, request, done)
            except SandqError as error:
                done(error)
            await time_slice.spend(PART_WORK // 4)

    return Route(kind, handle)


def _settle(context: Context, request: Ack | Nack | Extend, done: Done) -> None:
    """Settle leases. Raise QuotaExceeded if a nack stores headers beyond the storage limits of the topic's owner."""
    if isinstance(request, Nack) and context.info.usage is not None:
        changes = [NackItem(*item).changes or {} for item in request.items]
        size = sum([len(each.get("headers", b"")) for each in changes])
        if size:
            context.checks.check_stored(context.topic_of(request.group_number), size, _none)
    context.broker.settle(request, context.caller, done)


def _ack_then(context: Context, request: AckThen, done: Done) -> None:
    """Ack messages and send others. Raise QuotaExceeded if the owner of a target topic would exceed its limits."""
    if context.info.usage is None:
        context.broker.ack_then(request, context.caller, done)
        return
    now_ms = context.broker.clock.now_ms()
    sizes, pending = dict[str, int](), dict[str, int]()
    for name, at_ms, is_delay, fields in request.messages:
        topic = context.topic_of(request.group_number) if name is None else name
        size = sum([len(cell) for cell in fields.values() if isinstance(cell, (bytes, str))])
        sizes[topic] = sizes.get(topic, 0) + size
        if at_ms is not None and at_ms > (0 if is_delay else now_ms):
            pending[topic] = pending.get(topic, 0) + 1
    for topic, size in sizes.items():
        context.checks.check_stored(topic, size, partial(pending.get, topic))
    context.broker.ack_then(request, context.caller, done)


def _none() -> None:
    """Return None: the request adds no delayed messages."""


class _Answers:
    """Collects the results of the parts of a request, and replies once all are there."""

    def __init__(self, context: Context, request_id: int, parts: int) -> None:
        self._context = context
        self._request_id = request_id
        self._results: list[Any] = parts * [None]
        self._left = parts

    def add(self, number: int, result: Any) -> None:
        """Take the result of one part. After the last part, reply with all results, or with the first error."""
        self._results[number] = result
        self._left -= 1
        if not self._left:
            failed = [each for each in self._results if isinstance(each, SandqError)]
            reply_to(self._context.connection, self._request_id, failed[0] if failed else [*chain(*self._results)])


def _work_of(items: list[Any]) -> int:
    """Return the number of items, including their ranges. The items are not validated yet."""
    fields = [field for item in items if type(item) is list for field in item[1:3]]
    return len(items) + sum([len(field) for field in fields if type(field) is list])


def _parts(items: list[Any], work: int) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number of the first item, and the items, of each part. `work`: the sum for all items."""
    if work == len(items):  # no item has ranges
        for at in range(0, len(items), PART_WORK):
            yield at + 1, items[at : at + PART_WORK]
        return
    part: list[Any] = []
    first, work = 1, 0
    for number, item in enumerate(items, 1):
        more = _work_of([item])
        if part and work + more > PART_WORK:
            yield first, part
            first, part, work = number, [], 0
        part.append(item)
        work += more
    yield first, part


ROUTES = (
    handled(Subscribe, lambda context, request_id, request: context.subscriptions.subscribe(request_id, request)),
    handled(Unsubscribe, lambda context, request_id, request: context.subscriptions.unsubscribe(request_id, request)),
    handled(Credit, lambda context, request_id, request: context.subscriptions.add_credit(request)),
    handled(Lease, lambda context, request_id, request: context.subscriptions.lease(request_id, request)),
    _settled(Ack),
    submitted(AckThen, _ack_then),
    _settled(Nack),
    _settled(Extend),
    answered(LeasePause, lambda context, request: context.broker.pause_by_lease(request, context.caller)),
)
