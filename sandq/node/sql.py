"""SQL of a node: a separate process that the node starts, and restarts when it ends.

Queries therefore use neither the memory nor the processor time of the node's process.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final

import trio

from sandq.model.config import NodeConfig
from sandq.model.logger import get_logger
from sandq.node.tls import own_hosts, own_names
from sandq.server import logs
from sandq.tools.sql_gateway import check_installed

log = get_logger("sandq.sql")

STOP_S: Final = 5.0
"""Time in seconds that the process has to end. After it, the process is killed, with its running statements."""
BACK_OFF_FIRST_S: Final = 0.1
"""Delay before the first restart of the process, in seconds. The delay doubles with each restart."""
BACK_OFF_MOST_S: Final = 5.0
"""Maximum delay before a restart, in seconds."""
STEADY_S: Final = 60.0
"""If a process lived this long, in seconds, the next delay is `BACK_OFF_FIRST_S` again."""


@contextlib.asynccontextmanager
async def serving_sql(config: NodeConfig, listeners: Sequence[trio.SocketListener], server: str) -> AsyncIterator[None]:
    """Run a process that serves SQL on these sockets inside the block.

    If there are no sockets, start no process. Raises StartupError."""
    if not listeners:
        yield
        return
    check_installed()
    descriptors = [listener.socket.fileno() for listener in listeners]
    line = json.dumps(_settings_of(config, descriptors, server)).encode() + b"\n"
    stopping, ended = trio.Event(), trio.Event()

    async def run() -> None:
        try:
            await keep_running(lambda: _run_one(line, descriptors, stopping), stopping)
        finally:
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                stopping.set()
                await ended.wait()


async def keep_running(run_one: Callable[[], Any], stopping: trio.Event) -> None:
    """Run the process, and restart it with growing delays each time that it ends, until `stopping` is set.

    `run_one` runs the process once and returns the reason of its end."""
    back_off_s = BACK_OFF_FIRST_S
    while not stopping.is_set():
        started_s = trio.current_time()
        reason = await run_one()
        if stopping.is_set():
            return
        if trio.current_time() - started_s >= STEADY_S:
            back_off_s = BACK_OFF_FIRST_S
        log.error("the SQL process has ended and is restarted", why=reason, in_s=back_off_s)
        with trio.move_on_after(back_off_s):
            await stopping.wait()
        back_off_s = min(2 * back_off_s, BACK_OFF_MOST_S)


async def _run_one(line: bytes, descriptors: Sequence[int], stopping: trio.Event) -> str:
    """Run the process until it ends, and return the reason of its end."""
    # The process finds modules by the same path as this process, regardless of its working directory.
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([path or os.getcwd() for path in sys.path])}
    try:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-P", "-m", "sandq.tools.sql_process"],
            stdin=subprocess.PIPE,
            pass_fds=descriptors,
            env=environ,
        )
    except OSError as error:
        return f"the process cannot be started: {error.strerror or error}"
    assert process.stdin is not None
    try:
        with contextlib.suppress(trio.BrokenResourceError):
            await process.stdin.send_all(line)
        async with trio.open_nursery() as nursery:

            async def end() -> None:
                await stopping.wait()
                assert process.stdin is not None
                await process.stdin.aclose()
                await trio.sleep(STOP_S)
                log.warning("the SQL process has not ended in time and is killed", after_s=STOP_S)
                process.kill()

            nursery.start_soon(end)
            code = await process.wait()
            nursery.cancel_scope.cancel()
        return f"signal {-code}" if code < 0 else f"exit code {code}"
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                process.kill()
                await process.wait()
            await trio.aclose_forcefully(process.stdin)


def _settings_of(config: NodeConfig, descriptors: Sequence[int], server: str) -> Mapping[str, Any]:
    """Return the settings of the process, which it reads as one line of JSON."""
    log_format, log_level = logs.as_set_up()
    has_certificate = config.tls.cert_file is not None
    return {
        "servers": [server],
        "listeners": list(descriptors),
        "sql": config.sql.model_dump(mode="json"),
        "tls": config.tls.model_dump(mode="json", exclude_none=True) if has_certificate else None,
        "own_hosts": list(own_hosts(config)),
        "own_names": list(own_names(config)),
        "insecure": config.security.insecure,
        "log_format": log_format,
        "log_level": log_level,
    }
