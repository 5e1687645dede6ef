"""The result backend of Taskiq: keys of a compacted topic."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from taskiq import AsyncResultBackend, TaskiqResult
from taskiq.abc.serializer import TaskiqSerializer
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError, ResultSetError
from taskiq.serializers import JSONSerializer

import sandq
from sandq.errors import TooLarge, TopicExists, UnknownTopic
from sandq_workers.key_topic import SETTINGS
from sandq_workers.names import key_of
from sandq_workers.taskiq.loop_clients import LoopClients
from sandq_workers.urls import parse

TOPIC: Final = "taskiq.results"
R = TypeVar("R")
ReturnType = TypeVar("ReturnType")


class ResultIsMissingError(ResultGetError):
    """The result of a task was read before it was stored, or has expired."""

    __template__ = "The task has no result"


class SandqResultBackend(AsyncResultBackend[ReturnType]):
    """Stores results and progress.

    `url`: that of the broker. `keep_results`: keep a result after it was read. `result_ex_time`, `result_px_time`:
    after how many seconds or milliseconds results expire; one of them at most, None: never. `topic`: where the keys
    are; `partitions` and `settings`: of this topic if it is created. `serializer`: JSON by default. Raises ValueError
    if a time is wrong.
    """

    def __init__(
        self,
        url: str = "sandq://127.0.0.1:7170",
        *,
        keep_results: bool = True,
        result_ex_time: int | None = None,
        result_px_time: int | None = None,
        topic: str = TOPIC,
        partitions: int = 1,
        settings: Mapping[str, Any] | None = None,
        serializer: TaskiqSerializer | None = None,
    ) -> None:
        if result_ex_time is not None and result_px_time is not None:
            raise ValueError("result_ex_time and result_px_time: only one of them is expected")
        ttl_ms = result_px_time if result_ex_time is None else result_ex_time * 1000
        if ttl_ms is not None and ttl_ms <= 0:
            raise ValueError("result_ex_time, result_px_time: a time above 0 is expected")
        self.keep_results = keep_results
        self.serializer = serializer or JSONSerializer()
        self._clients = LoopClients(parse(url))
        self._topic = self._clients.address.prefix + topic
        self._options = {"kind": "compacted", "partitions": partitions, **SETTINGS, **(settings or {})}
        self._ttl = None if ttl_ms is None else f"{ttl_ms}ms"
        self._mode = "json" if isinstance(self.serializer, JSONSerializer) else "python"

    async def shutdown(self) -> None:
        """Close the client unless something else uses it."""
        await self._clients.release()

    async def set_result(self, task_id: str, result: TaskiqResult[ReturnType]) -> None:
        """Store a result. Raises ResultSetError if it cannot be serialized, or is too large."""
        await self._put(_result_key(task_id), result)

    async def is_result_ready(self, task_id: str) -> bool:
        """Return whether a task has a result."""
        return await self._call(lambda keys: keys.get(_result_key(task_id))) is not None

    async def get_result(self, task_id: str, with_logs: bool = False) -> TaskiqResult[ReturnType]:
        """Return a result. Raises ResultIsMissingError."""
        key = _result_key(task_id)
        entry = await self._call(lambda keys: keys.get(key))
        if entry is None:
            raise ResultIsMissingError
        if not self.keep_results:
            await self._call(lambda keys: keys.delete(key))
        result: TaskiqResult[ReturnType] = TaskiqResult.model_validate(self.serializer.loadb(entry.value))
        if not with_logs:
            result.log = None
        return result

    async def set_progress(self, task_id: str, progress: TaskProgress[Any]) -> None:
        """Store the progress of a task. Raises ResultSetError if it cannot be serialized, or is too large."""
        await self._put(_progress_key(task_id), progress)

    async def get_progress(self, task_id: str) -> TaskProgress[Any] | None:
        """Return the progress of a task; None if it has none."""
        entry = await self._call(lambda keys: keys.get(_progress_key(task_id)))
        return None if entry is None else TaskProgress.model_validate(self.serializer.loadb(entry.value))

    async def _put(self, key: str, value: TaskiqResult[ReturnType] | TaskProgress[Any]) -> None:
        try:
            data = self.serializer.dumpb(value.model_dump(mode=self._mode))
        except Exception as error:  # each serializer has errors of its own
            raise ResultSetError from error
        try:
            await self._call(lambda keys: keys.put(key, data, ttl=self._ttl))
        except TooLarge as error:
            raise ResultSetError from error

    async def _call(self, call: Callable[[sandq.Keys], Awaitable[R]]) -> R:
        """Make a call on the keys; create the topic if it does not exist."""
        client = await self._clients.get()
        keys = client.kv(self._topic)
        try:
            return await call(keys)
        except UnknownTopic:
            with suppress(TopicExists):
                await client.admin.create_topic(self._topic, **self._options)
            return await call(keys)


def _result_key(task_id: str) -> str:
    return f"result/{key_of(task_id)}"


def _progress_key(task_id: str) -> str:
    return f"progress/{key_of(task_id)}"
