"""`python -m tests.support.processes.next_node`: run a node of the next version (`tests.support.nodes.next_level`).

After SIGUSR1, the node proposes a `Mark` with its own name in each partition that it leads. It logs the result, or the
reason of the rejection.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import structlog
import trio

import sandq.node
from sandq.cli import main
from sandq.model.config import NodeConfig
from sandq.model.errors import SandqError
from sandq.node import run_node
from sandq.node.running import Serving
from tests.support.nodes.next_level import NEXT, Mark, next_version

log = structlog.get_logger("sandq.tests")


@asynccontextmanager
async def run_next(config: NodeConfig, **options: Any) -> AsyncIterator[Serving]:
    async with run_node(config, levels=NEXT, **options) as serving, trio.open_nursery() as nursery:
        await nursery.start(_mark, serving, config.node.id)
        yield serving
        nursery.cancel_scope.cancel()


async def _mark(serving: Serving, name: str, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    with trio.open_signal_receiver(signal.SIGUSR1) as signals:
        task_status.started()
        async for _ in signals:
            for topic in serving.broker.catalog.topics.values():
                for partition, leader in topic.partitions.items():
                    if leader.raft_group.ready:
                        try:
                            told = {"result": await leader.raft_group.call(Mark(name))}
                        except SandqError as error:
                            told = {"code": error.code, "error": error.message}
                        log.info("mark", partition=partition, **told)
            log.info("marks proposed")


if __name__ == "__main__":
    sandq.node.run_node = run_next  # type: ignore[assignment]
    with next_version():
        main()
