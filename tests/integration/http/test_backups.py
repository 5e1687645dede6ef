"""Backups by HTTP: to where the configuration says, and nowhere else."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from sandq.node import run_node
from tests.support.nodes.http_requests import Web
from tests.support.nodes.small_node import small_config
from tests.support.waiting import PATIENCE_S, until_answer


@pytest.fixture
async def backing(tmp_path: Path) -> AsyncIterator[Web]:
    """HTTP of a node that says where backups go."""
    key = tmp_path / "key"
    key.write_text(os.urandom(32).hex())
    key.chmod(0o600)
    config = small_config(
        tmp_path / "node",
        LISTEN__HTTP="127.0.0.1:0",
        BACKUP__URL=str(tmp_path / "backups"),
        BACKUP__KEY_FILE=str(key),
        BACKUP__IDENTITIES="true",
    )
    async with run_node(config) as serving:
        assert serving.http is not None
        host, port = serving.http
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=PATIENCE_S) as client:
            yield Web(client)


async def test_a_backup_is_made_listed_and_verified(backing: Web, tmp_path: Path) -> None:
    await backing.post("/topics", {"name": "t", "partitions": 2}, 201)
    begun = await backing.post("/backups", {"topics": ["t"]}, 202)
    assert begun["partitions_done"] == 0

    async def look() -> Any:
        return await backing.get("/backups")

    found = await until_answer(look, lambda told: told["running"] is None)
    (backup,) = found["backups"]
    assert found["last"] == {"backup_id": backup["backup_id"], "error": None}
    assert (backup["topics"], backup["encrypted"], backup["identities"]) == (["t"], True, True)
    verified = await backing.post(f"/backups/{backup['backup_id']}/verify", None, 200)
    assert verified["partitions"] == 2
    (path,) = (tmp_path / "backups").glob("*/data/t/0/00000.sandq")
    path.write_bytes(path.read_bytes()[:-1])
    damaged = await backing.post(f"/backups/{backup['backup_id']}/verify", None, 400)
    assert str(path) in str(damaged)
    await backing.post("/backups/20000101T000000Z-000000/verify", None, 404)
    await backing.post("/backups", {"topics": ["none"]}, 202)
    found = await until_answer(look, lambda told: told["running"] is None)
    assert found["last"]["error"] == "there is no topic 'none'"


async def test_it_is_off_unless_the_configuration_names_a_place(web: Web) -> None:
    for path in ("/backups", "/backups/20000101T000000Z-000000/verify"):
        assert "backup.url" in str(await web.post(path, None, 409))
    assert "backup.url" in str(await web.get("/backups", 409))
