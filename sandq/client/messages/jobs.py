"""Bulk jobs in the broker: start them in every partition, and poll them until they are done."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import anyio

from sandq.client.messages.stored_message import JobResult
from sandq.client.producer.validation import Value, as_bytes
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.requests import call_leader, each, fresh_topic
from sandq.model.errors import Conflict, InvalidRequest, SandqError, UnknownGroup
from sandq.protocol.replies_messages import RUNNING, STOPPED, JobRecord
from sandq.protocol.requests_messages import EMPTY_PREFIX, JOB_ID_BYTES, JobStart, JobStatus, JobStop

Progress = Callable[[JobResult], None]

_POLL_FIRST_S: Final = 0.02
_POLL_MAX_S: Final = 0.5
_POLL_FACTOR: Final = 1.5


def bulk_prefix(name: str, prefix: Value) -> bytes:
    """Return the bytes of a prefix that selects messages of a bulk job. Raises InvalidRequest if it is empty."""
    data = as_bytes(name, prefix)
    if not data:
        raise InvalidRequest(EMPTY_PREFIX.format(name=name))
    return data


async def run_job(
    cluster: Cluster,
    topic: str,
    kind: str,
    arguments: Mapping[str, Any],
    progress: Progress | None = None,
) -> JobResult:
    """Run a job in all partitions of a topic; `progress` is called after the start and after each poll.

    If this call is cancelled, or a partition fails, the running parts are stopped. Raises Conflict if another client
    stopped the job.
    """
    partitions = range(len((await fresh_topic(cluster, topic)).partitions))
    job = _Job(cluster, topic)
    try:
        await each(lambda partition: job.start(partition, kind, arguments), partitions)
        if job.unknown is not None and not job.records:
            raise job.unknown
        pause_s = _POLL_FIRST_S
        while True:
            if progress is not None:
                progress(job.result)
            running = job.running
            if not running:
                break
            await anyio.sleep(pause_s)
            pause_s = min(pause_s * _POLL_FACTOR, _POLL_MAX_S)
            await each(job.poll, running)
    except BaseException:
        await job.stop()
        raise
    result = job.result
    if any(record.state == STOPPED for record in job.records.values()):
        raise Conflict(f"the {kind} job in topic {topic!r} was stopped", **result._asdict())
    return result


class _Job:
    """One job in all partitions. Its random id ensures that a repeated request does not start it twice."""

    def __init__(self, cluster: Cluster, topic: str) -> None:
        self.records: dict[int, JobRecord] = {}
        self.unknown: UnknownGroup | None = None
        self._asked: set[int] = set()
        self._cluster = cluster
        self._topic = topic
        self._job_id = secrets.token_bytes(JOB_ID_BYTES)

    @property
    def result(self) -> JobResult:
        records = self.records.values()
        return JobResult(
            sum(record.matched for record in records),
            sum(record.done for record in records),
            sum(record.too_late for record in records),
        )

    @property
    def running(self) -> list[int]:
        return [partition for partition, record in self.records.items() if record.state == RUNNING]

    async def start(self, partition: int, kind: str, arguments: Mapping[str, Any]) -> None:
        """Start the job in a partition. Raise UnknownGroup only if no partition knows the group."""
        self._asked.add(partition)
        try:
            await self._call(JobStart(self._topic, partition, self._job_id, kind, arguments))
        except UnknownGroup as error:
            self._asked.discard(partition)
            self.unknown = error

    async def poll(self, partition: int) -> None:
        await self._call(JobStatus(self._topic, partition, self._job_id))

    async def _call(self, request: JobStart | JobStatus | JobStop) -> None:
        self.records[request.partition] = JobRecord.parse(await call_leader(self._cluster, request))

    async def stop(self) -> None:
        """Stop the parts that may still be running, as far as this is possible in a short time."""
        left = [p for p in self._asked if p not in self.records or self.records[p].state == RUNNING]
        with anyio.CancelScope(shield=True), anyio.move_on_after(self._cluster.options.cancel_timeout_s):
            await each(self._stop_one, left)

    async def _stop_one(self, partition: int) -> None:
        # Ignore errors: the job never began there, or the leader is unreachable. The original error is raised anyway.
        with suppress(SandqError):
            await self._call(JobStop(self._topic, partition, self._job_id))
