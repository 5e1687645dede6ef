"""Tests of a backup by HTTP that fails unexpectedly: the server continues and reports the error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from sandq.server.http import backups
from sandq.server.http.backups import BackupTarget, HttpBackups


async def test_any_error_is_reported_and_ends_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*args: Any, **options: Any) -> None:
        raise RuntimeError("who would have thought")

    monkeypatch.setattr(backups, "create_backup", fails)
    client: Any = None
    async with anyio.create_task_group() as tasks:
        served = HttpBackups(client, BackupTarget(str(tmp_path)), tasks)
        await served.begin(None)
        await anyio.wait_all_tasks_blocked()
        found = await served.list()
    assert found["running"] is None and found["last"]["error"] == "who would have thought"
