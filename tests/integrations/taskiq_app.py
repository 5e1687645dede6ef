"""The application of the `taskiq worker` that `test_taskiq.py` kills."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from sandq_workers.taskiq import SandqBroker

broker = SandqBroker(os.environ["SANDQ_URL"], lease="1s")


@broker.task
async def held(word: str) -> None:
    """Note the begin, and never end."""
    Path(os.environ["LINES"]).write_text(f"{word} begins\n")  # noqa: ASYNC240
    await asyncio.Event().wait()
