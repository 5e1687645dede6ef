"""Make blocking methods from async methods, with the same arguments, types and docstrings."""

from __future__ import annotations

import functools
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Concatenate, Final, Generic, ParamSpec, Protocol, Self, TypeVar

from sandq.client.admin.admin import Admin as AsyncAdmin
from sandq.client.admin.dead_letters import DeadLetters as AsyncDeadLetters
from sandq.client.consumer.lease_api import Leases as AsyncLeases
from sandq.client.messages.messages import Messages as AsyncMessages
from sandq.client.portal import Portal
from sandq.client.schedules.schedules import Schedules as AsyncSchedules
from sandq.model.errors import ClosedError, SandqError

log = logging.getLogger("sandq.client")

P = ParamSpec("P")
S = TypeVar("S", covariant=True)
T = TypeVar("T")

_ROWS: Final = 500
"""Number of rows to fetch together, with one wait for the event loop."""


class Wrapper(Generic[S]):
    """A part of the async client, and the portal to its event loop."""

    def __init__(self, inner: S, portal: Portal) -> None:
        self._inner = inner
        self._portal = portal


class Block(Protocol):
    """An async context manager of the client: a producer, a subscription or a watch."""

    async def __aenter__(self) -> Any: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...


class Blocks:
    """The open blocks of a client. Closing the client leaves them. Use this class only in the event loop's thread."""

    def __init__(self) -> None:
        self.open: dict[Block, None] = {}
        self.failures: dict[Block, SandqError] = {}  # errors of leaving, raised again in `__exit__`

    async def leave(self) -> None:
        """Leave all open blocks: confirm queued acks, send queued messages."""
        while self.open:
            block = next(iter(self.open))
            try:
                await block.__aexit__(None, None, None)
            except SandqError as error:
                log.warning("closing the client: %s", error)
                self.failures[block] = error
            self.open.pop(block, None)


B = TypeVar("B", bound=Block)


class BlockWrapper(Wrapper[B]):
    """A blocking context manager around a context manager of the async client."""

    def __init__(self, inner: B, portal: Portal, blocks: Blocks) -> None:
        super().__init__(inner, portal)
        self._blocks = blocks

    def __enter__(self) -> Self:
        self._portal.call(self._enter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._portal.is_foreign:
            return  # the block belongs to the parent process
        try:
            self._portal.call(lambda: self._leave(kind, error, traceback))
        except ClosedError as closed:
            # Closing the client left this block, and stored the failure of the block. If the close timed out before,
            # the block is still open: raise the ClosedError itself.
            failure = self._blocks.failures.get(self._inner) or (closed if self._inner in self._blocks.open else None)
            if error is None and failure is not None:
                raise failure from None

    async def _enter(self) -> None:
        await self._inner.__aenter__()
        self._blocks.open[self._inner] = None

    async def _leave(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._blocks.open.pop(self._inner, None)
        await self._inner.__aexit__(kind, error, traceback)


def blocking(method: Callable[Concatenate[S, P], Awaitable[T]]) -> Callable[Concatenate[Wrapper[S], P], T]:
    """Make a blocking method from an async method."""

    @functools.wraps(method)
    def wait(wrapper: Wrapper[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        inner = wrapper._inner
        return wrapper._portal.call(lambda: method(inner, *args, **kwargs))

    return wait


def iterating(method: Callable[Concatenate[S, P], AsyncIterator[T]]) -> Callable[Concatenate[Wrapper[S], P], Rows[T]]:
    """Make a method that returns blocking rows from a method that returns an async iterator."""

    @functools.wraps(method)
    def rows(wrapper: Wrapper[S], /, *args: P.args, **kwargs: P.kwargs) -> Rows[T]:
        wrapper._portal.check()
        return Rows(wrapper._portal, method(wrapper._inner, *args, **kwargs))

    return rows


class Rows(Generic[T]):
    """An iterator over rows of the broker. Only one thread may iterate; it may stop at any row."""

    def __init__(self, portal: Portal, inner: AsyncIterator[T]) -> None:
        self._portal = portal
        self._inner = inner
        self._rows: deque[T] = deque()
        self._error: Exception | None = None

    def __iter__(self) -> Rows[T]:
        return self

    def __next__(self) -> T:
        self._portal.check()
        if not self._rows:
            if self._error is None:
                self._portal.call(self._fetch)
            if not self._rows:
                error, self._error = self._error, StopAsyncIteration()
                if error is None or isinstance(error, StopAsyncIteration):
                    raise StopIteration
                raise error
        return self._rows.popleft()

    async def _fetch(self) -> None:
        try:
            for _ in range(_ROWS):
                self._rows.append(await self._inner.__anext__())
        except (StopAsyncIteration, Exception) as error:  # raised after the rows before it
            self._error = error


class Admin(Wrapper[AsyncAdmin]):
    """`client.admin`: like `sandq.Client.admin`, blocking."""

    create_topic = blocking(AsyncAdmin.create_topic)
    list_topics = blocking(AsyncAdmin.list_topics)
    audit = blocking(AsyncAdmin.audit)
    slo = blocking(AsyncAdmin.slo)
    overview = blocking(AsyncAdmin.overview)
    history = blocking(AsyncAdmin.history)
    topic = blocking(AsyncAdmin.topic)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    update_topic = blocking(AsyncAdmin.update_topic)
    purge_topic = blocking(AsyncAdmin.purge_topic)
    groups = blocking(AsyncAdmin.groups)
    consumers = blocking(AsyncAdmin.consumers)
    pauses = blocking(AsyncAdmin.pauses)
    stats = blocking(AsyncAdmin.stats)
    seek_group = blocking(AsyncAdmin.seek_group)
    delete_group = blocking(AsyncAdmin.delete_group)
    update_group = blocking(AsyncAdmin.update_group)
    pause_group = blocking(AsyncAdmin.pause_group)
    limit_group = blocking(AsyncAdmin.limit_group)
    set_limit = blocking(AsyncAdmin.set_limit)
    limits = blocking(AsyncAdmin.limits)
    limit = blocking(AsyncAdmin.limit)
    delete_limit = blocking(AsyncAdmin.delete_limit)
    pause_limit = blocking(AsyncAdmin.pause_limit)
    resume_limit = blocking(AsyncAdmin.resume_limit)
    resume_group = blocking(AsyncAdmin.resume_group)
    set_push = blocking(AsyncAdmin.set_push)
    remove_push = blocking(AsyncAdmin.remove_push)
    pushes = blocking(AsyncAdmin.pushes)
    hold = blocking(AsyncAdmin.hold)
    release = blocking(AsyncAdmin.release)
    forecast = blocking(AsyncAdmin.forecast)
    cluster = blocking(AsyncAdmin.cluster)
    init_cluster = blocking(AsyncAdmin.init_cluster)
    clock = blocking(AsyncAdmin.clock)
    reset_clock = blocking(AsyncAdmin.reset_clock)
    drain_node = blocking(AsyncAdmin.drain_node)
    remove_node = blocking(AsyncAdmin.remove_node)
    transfer = blocking(AsyncAdmin.transfer)
    rebuild = blocking(AsyncAdmin.rebuild)
    finalize = blocking(AsyncAdmin.finalize)
    skip_entry = blocking(AsyncAdmin.skip_entry)
    log_level = blocking(AsyncAdmin.log_level)
    dump = blocking(AsyncAdmin.dump)
    whoami = blocking(AsyncAdmin.whoami)
    create_token = blocking(AsyncAdmin.create_token)
    rotate_token = blocking(AsyncAdmin.rotate_token)
    revoke_token = blocking(AsyncAdmin.revoke_token)
    identities = blocking(AsyncAdmin.identities)
    create_identity = blocking(AsyncAdmin.create_identity)
    update_identity = blocking(AsyncAdmin.update_identity)
    delete_identity = blocking(AsyncAdmin.delete_identity)
    roles = blocking(AsyncAdmin.roles)
    put_role = blocking(AsyncAdmin.put_role)
    delete_role = blocking(AsyncAdmin.delete_role)


class Messages(Wrapper[AsyncMessages]):
    """The stored messages of one topic: like `sandq.Messages`, blocking.

    A `progress` function is called in the client's own thread: it may print, but must not use the client.
    """

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._inner.topic

    get = blocking(AsyncMessages.get)
    list = iterating(AsyncMessages.list)
    cancel = blocking(AsyncMessages.cancel)
    move = blocking(AsyncMessages.move)
    update = blocking(AsyncMessages.update)
    set_priority = blocking(AsyncMessages.set_priority)
    cancel_all = blocking(AsyncMessages.cancel_all)
    move_all = blocking(AsyncMessages.move_all)
    why = blocking(AsyncMessages.why)


class Schedules(Wrapper[AsyncSchedules]):
    """The schedules of one topic: like `sandq.Schedules`, blocking."""

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._inner.topic

    create = blocking(AsyncSchedules.create)
    create_many = blocking(AsyncSchedules.create_many)
    update = blocking(AsyncSchedules.update)
    get = blocking(AsyncSchedules.get)
    list = iterating(AsyncSchedules.list)
    pause = blocking(AsyncSchedules.pause)
    resume = blocking(AsyncSchedules.resume)
    delete = blocking(AsyncSchedules.delete)
    trigger = blocking(AsyncSchedules.trigger)
    next = blocking(AsyncSchedules.next)
    preview = blocking(AsyncSchedules.preview)


class DeadLetters(Wrapper[AsyncDeadLetters]):
    """The dead letters of one group: like `sandq.DeadLetters`, blocking. `progress`: see `Messages`."""

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._inner.topic

    @property
    def group(self) -> str:
        """The group's name."""
        return self._inner.group

    list = iterating(AsyncDeadLetters.list)
    counts = blocking(AsyncDeadLetters.counts)
    redrive = blocking(AsyncDeadLetters.redrive)
    purge = blocking(AsyncDeadLetters.purge)
    redrive_ids = blocking(AsyncDeadLetters.redrive_ids)
    purge_ids = blocking(AsyncDeadLetters.purge_ids)


class Leases(Wrapper[AsyncLeases]):
    """Leases messages of a topic for a consumer group by single calls: like `client.leases` of `sandq.Client`,
    blocking."""

    @property
    def topic(self) -> str:
        """The topic's name."""
        return self._inner.topic

    @property
    def group(self) -> str:
        """The group's name."""
        return self._inner.group

    take = blocking(AsyncLeases.take)
    ack = blocking(AsyncLeases.ack)
    nack = blocking(AsyncLeases.nack)
    dead = blocking(AsyncLeases.dead)
    give_back = blocking(AsyncLeases.give_back)
    extend = blocking(AsyncLeases.extend)
    pause_tenant = blocking(AsyncLeases.pause_tenant)
    pause_key = blocking(AsyncLeases.pause_key)
    pause_group = blocking(AsyncLeases.pause_group)
    pause_limit = blocking(AsyncLeases.pause_limit)
