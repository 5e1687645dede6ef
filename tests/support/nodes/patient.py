"""Provide a client that retries changes, because an election may be in progress at any time."""

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
"""Errors after which a change is retried: no node can execute it now, or the outcome of the attempt is unknown."""


async def until_done(change: Callable[[], Awaitable[T]]) -> tuple[T | SandqError, bool]:
    """Retry a change until it succeeds or is rejected.

    Return the answer, and whether the outcome of an earlier attempt is unknown."""
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
    """Retries changes with an unknown outcome. If a retry finds the change already made, the change has succeeded."""

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
