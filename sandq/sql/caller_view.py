"""`CallerView`: the cluster with the rights of one caller. Readers of tables access the client only through it.

Each method checks the caller's right `read` before it asks the cluster. Topics that the caller may not read are left
out of listings. If a statement names a topic or group that the caller may not read, the error is the same whether this
object exists or not. If the client uses the caller's token, nodes check the same requests again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, Final

import anyio

from sandq.client import Client, cluster_of
from sandq.client.admin import partition_rows
from sandq.client.transport import call_leader
from sandq.model.access import Access, Right
from sandq.model.errors import InvalidRequest
from sandq.model.limits import FIXED
from sandq.protocol.frames import Frame, Type
from sandq.protocol.request import PartitionRequest, unknown_request

if TYPE_CHECKING:
    from sandq.client import DeadLetters, Forecast, Keys, Messages, Schedules
    from sandq.protocol.replies import TopicRecord
    from sandq.protocol.requests_log import FetchReply

AskAccess = Callable[[], Awaitable[Access | None]]
"""Returns the caller's rights; None if the caller may do everything."""
KEPT_S: Final = 0.5
"""Time for which the caller's rights are cached, as in HTTP."""


def access_from_cluster(client: Client) -> AskAccess:
    """Return a function that asks the cluster for the rights of the client's token."""
    kept: list[Any] = []

    async def ask() -> Access | None:
        """Return the caller's rights. Ask the cluster every `KEPT_S`."""
        now_s = anyio.current_time()
        if not kept or now_s >= kept[1]:
            kept[:] = await _whoami(client), now_s + KEPT_S
        access: Access | None = kept[0]
        return access

    return ask


async def _whoami(client: Client) -> Access | None:
    """Return the rights of the client's token; None if it may do everything."""
    try:
        found = await client.admin.whoami()
    except InvalidRequest as error:
        if error.message != unknown_request(Type.IDENTIFY):
            raise
        return None  # a node of a version without rights, which allows everything
    return None if found.grants is None else Access.of(found.principal, found.grants, {})


class CallerView:
    """The cluster as one caller may read it."""

    def __init__(self, client: Client, access: Access | None) -> None:
        """`access`: the caller's rights; None if the caller may do everything."""
        self._client = client
        self._access = access

    # -- rights ---------------------------------------------------------------------------------------------------

    def may_read(self, topic: str, group: str | None = None) -> bool:
        """Return whether the caller may read a group of a topic. Without a group: whether the caller may read the whole
        topic."""
        return self._access is None or self._access.allows(Right.READ, _short(topic), _short(group))

    def check(self, topic: str, group: str | None = None) -> None:
        """Raise Forbidden unless the caller may read a topic, or a group of it."""
        if not self.may_read(topic, group):
            assert self._access is not None
            raise self._access.refusal(Right.READ, topic, group)

    # -- listings -------------------------------------------------------------------------------------------------

    async def topics(self, groups: Collection[str] | None = None) -> list[TopicRecord]:
        """Return the topics that the caller may read. With `groups`: those of which it may read one of these groups."""
        records = await self._client.admin.list_topics()
        if groups is None:
            return [record for record in records if self.may_read(record.name)]
        return [record for record in records if any(self.may_read(record.name, group) for group in groups)]

    async def cluster(self) -> dict[str, Any]:
        """Return the nodes of the cluster; every authenticated caller may see them."""
        return await self._client.admin.cluster()

    # -- one topic ------------------------------------------------------------------------------------------------

    async def topic(self, topic: str) -> TopicRecord:
        """Return a topic's record."""
        self.check(topic)
        return await self._client.admin.topic(topic)

    async def stats(self, topic: str) -> list[dict[str, Any]]:
        """Return the counters of a topic's partitions."""
        self.check(topic)
        return await self._client.admin.stats(topic)

    async def partitions(self, topic: str) -> list[dict[str, Any]]:
        """Return the rows of a topic's partitions."""
        self.check(topic)
        return await partition_rows(self._client.admin, topic)

    async def groups(self, topic: str) -> list[dict[str, Any]]:
        """Return the rows of all groups of a topic."""
        self.check(topic)
        return await self._client.admin.groups(topic)

    async def forecast(self, topic: str, unit: str, count: int) -> Forecast:
        """Return the number of messages of a topic that come due in each of `count` units of time."""
        self.check(topic)
        return await self._client.admin.forecast(topic, unit, count)

    async def ask_leader(self, request: PartitionRequest) -> Frame:
        """Send a request that reads a partition to its leader."""
        self.check(request.topic)
        return await call_leader(cluster_of(self._client), request)

    async def page(self, topic: str, partition: int, start: str, end: str | None) -> FetchReply:
        """Return the first page of a range of a partition's log, including the part that is not closed yet."""
        self.check(topic)
        return await self._client.page(topic, partition, start, end, pending=True)

    def messages(self, topic: str) -> Messages:
        """Return the stored messages of a topic."""
        self.check(topic)
        return self._client.messages(topic)

    def keys(self, topic: str) -> Keys:
        """Return the keys of a compacted topic."""
        self.check(topic)
        return self._client.kv(topic)

    def schedules(self, topic: str) -> Schedules:
        """Return the schedules of a topic."""
        self.check(topic)
        return self._client.schedules(topic)

    def dead_letters(self, topic: str, group: str) -> DeadLetters:
        """Return the dead letters of a group."""
        self.check(topic, group)
        return self._client.dead(topic, group)


def _short(name: str | None) -> str | None:
    """Shorten a name that is too long to be valid, so that cached results cannot grow with the names of a caller."""
    return None if name is None else name[: FIXED.name_chars + 1]
