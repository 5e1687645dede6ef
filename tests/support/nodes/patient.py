"""A client as of somebody who has time: an election may be under way whenever it asks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import trio

import sandq
from sandq.client.admin.admin import Admin
from sandq.errors import (
    ConnectionLost,
    NotFound,
    NotLeader,
    SandqError,
    TimedOut,
    TopicExists,
    Unavailable,
    UnknownTopic,
)
from sandq.protocol.replies import TopicRecord
from tests.support.waiting import PATIENCE_S

T = TypeVar("T")
LATER = (NotLeader, Unavailable, TimedOut, ConnectionLost)
"""Nobody can do it now, or it is open whether it was done: what is asked again."""


async def until_done(change: Callable[[], Awaitable[T]]) -> tuple[T | SandqError, bool]:
    """Ask for a change again until it is made or refused: the answer, and whether one before left it open."""
    is_open = False
    with trio.fail_after(PATIENCE_S):
        while True:
            try:
                return await change(), is_open
            except LATER as error:
                is_open = is_open or not isinstance(error, (NotLeader, Unavailable))
            except SandqError as error:
                return error, is_open
            await trio.sleep(0.02)


class PatientAdmin(Admin):
    """Where it is open whether a change was made, it asks again, and takes for an answer that there is nothing to do
    any more."""

    async def create_topic(self, /, name: str, **options: Any) -> TopicRecord:
        create = super().create_topic
        found, was_open = await until_done(lambda: create(name, **options))
        if isinstance(found, TopicExists) and was_open:
            return await self.topic(name)
        return _result(found)

    async def delete_topic(self, name: str) -> None:
        delete = super().delete_topic
        found, was_open = await until_done(lambda: delete(name))
        if not (isinstance(found, UnknownTopic) and was_open):
            _result(found)

    async def remove_node(self, node: str) -> None:
        remove = super().remove_node
        found, was_open = await until_done(lambda: remove(node))
        if not (isinstance(found, NotFound) and was_open):
            _result(found)


def _result(found: T | SandqError) -> T:
    if isinstance(found, SandqError):
        raise found
    return found


@asynccontextmanager
async def patient_client(*servers: str, **options: Any) -> AsyncIterator[sandq.Client]:
    async with sandq.connect(*servers, **{"timeout": PATIENCE_S, **options}) as client:
        client.admin = PatientAdmin(client._cluster)
        yield client
