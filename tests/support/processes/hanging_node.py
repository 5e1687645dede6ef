"""`python -m tests.support.processes.hanging_node`: run a node whose disk begins to hang at a signal.

After SIGUSR1, every sync waits. After SIGUSR2, every write of the stores waits. SIGHUP ends both."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import trio

from sandq.model.config import NodeConfig, load_config
from sandq.node import run_node
from sandq.server import logs
from sandq.storage.files import RealFiles
from sandq.storage.level_stores import LevelStores
from tests.support.storage.faulty_files import FaultyFiles, Plan

syncs, writes = threading.Event(), threading.Event()
"""Events that are set while syncs, or writes of the stores, may continue."""


class HangingStores(LevelStores):
    def write(self, changes: Sequence[tuple[bytes, bytes | None]]) -> None:
        writes.wait()
        super().write(changes)


def hang(name: str) -> None:
    syncs.wait()


def abandon() -> None:
    logs.finish()
    os._exit(3)


async def serve(config: NodeConfig, data_dir: Path) -> None:
    syncs.set()
    writes.set()
    plan = Plan(on_sync=hang)
    handled = signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP, signal.SIGTERM
    with trio.open_signal_receiver(*handled) as signals:
        files = FaultyFiles(RealFiles(data_dir), plan)
        async with run_node(config, files=files, stores=HangingStores, abandon=abandon):
            async for number in signals:
                match number:
                    case signal.SIGUSR1:
                        syncs.clear()
                    case signal.SIGUSR2:
                        writes.clear()
                    case signal.SIGHUP:
                        syncs.set()
                        writes.set()
                    case _:
                        break


def main() -> None:
    config = load_config(None, os.environ)
    logs.set_up("json", "info", config.node.id)
    data_dir = Path(config.node.data_dir)
    data_dir.mkdir(exist_ok=True)
    trio.run(serve, config, data_dir)


if __name__ == "__main__":
    main()
