"""Keep logs pinned during long work: nodes release them after five minutes without a request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

import anyio

from sandq.client.backups import BackupTransfer
from sandq.model.errors import SandqError

AGAIN_S: Final = 60.0
"""Interval of pin requests, in seconds."""


async def with_pins(
    work: Callable[[], Awaitable[None]],
    transfer: BackupTransfer,
    reader: str,
    pins: Callable[[], Iterable[tuple[str, int, int]]],
) -> None:
    """Run `work`, and meanwhile keep the logs pinned that `pins` returns.

    `pins()`: (topic, partition, index of the entry before the first pinned one) of each log.

    Raises the SandqError of the work.
    """
    errors: list[SandqError] = []

    async def keep() -> None:
        while True:
            await anyio.sleep(AGAIN_S)
            for topic, partition, index in list(pins()):
                with suppress(SandqError):
                    await transfer.pin_log(topic, partition, reader, index)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(keep)
        try:
            await work()
        except SandqError as error:
            errors.append(error)
        tasks.cancel_scope.cancel()
    if errors:
        raise errors[0]
