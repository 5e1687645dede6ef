"""`python -m tests.support.processes.faulty_node`: run a node whose disk begins to fail at a signal.

After SIGUSR1, every sync fails (EIO). After SIGUSR2, every write fails (ENOSPC)."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import trio

from sandq.model.config import NodeConfig, load_config
from sandq.node import run_node
from sandq.server import logs
from sandq.storage.files import RealFiles
from tests.support.storage.faulty_files import FaultyFiles, Plan


async def serve(config: NodeConfig, data_dir: Path) -> None:
    plan = Plan()
    with trio.open_signal_receiver(signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM) as signals:
        async with run_node(config, files=FaultyFiles(RealFiles(data_dir), plan)):
            async for number in signals:
                match number:
                    case signal.SIGUSR1:
                        plan.fail_sync_at = 0
                    case signal.SIGUSR2:
                        plan.full = True
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
