"""Backups over HTTP are stored only at the configured location."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import sandq
from sandq.backup import BackupFollower, BackupKey, create_backup, open_location
from sandq.node.running import Serving
from tests.support.http_client import NO_TLS
from tests.support.nodes.http_requests import Web
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.waiting import PATIENCE_S, until_answer


@pytest.fixture
async def backed(tmp_path: Path) -> AsyncIterator[Serving]:
    """A node with a configured backup location."""
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
        yield serving


@pytest.fixture
async def backing(backed: Serving) -> AsyncIterator[Web]:
    """HTTP client of that node."""
    assert backed.http is not None
    host, port = backed.http
    async with httpx.AsyncClient(verify=NO_TLS, base_url=f"http://{host}:{port}", timeout=PATIENCE_S) as client:
        yield Web(client)


async def test_a_backup_is_made_listed_and_verified(backing: Web, tmp_path: Path) -> None:
    await backing.post("/topics", {"name": "t", "partitions": 2}, 201)
    begun = await backing.post("/backups", {"topics": ["t"]}, 202)
    assert begun["partitions_done"] == 0

    async def backup_status() -> Any:
        return await backing.get("/backups")

    found = await until_answer(backup_status, lambda status: status["running"] is None)
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
    found = await until_answer(backup_status, lambda status: status["running"] is None)
    assert found["last"]["error"] == "there is no topic 'none'"


async def test_topics_of_a_backup_are_made_again(backing: Web) -> None:
    await backing.post("/topics", {"name": "t", "partitions": 2}, 201)
    await backing.post("/topics/t", {"text": "later", "delay": "2h"}, 201)
    await backing.post("/topics/t/groups/g/lease", {"max": 1})

    async def backup_status() -> Any:
        return await backing.get("/backups")

    await backing.post("/backups", None, 202)
    found = await until_answer(backup_status, lambda status: status["running"] is None)
    path = f"/backups/{found['last']['backup_id']}/restore"
    for names in ({}, {"prefix": "a/"}, {"names": {"none": "x"}}):
        await backing.post(path, names, 202)
        found = await until_answer(backup_status, lambda status: status["restoring"] is None)
        assert found["last_restore"]["error"] and not found["last_restore"]["topics"], names
    begun = await backing.post(path, {"prefix": "again-"}, 202)
    assert begun["partitions_done"] == 0
    found = await until_answer(backup_status, lambda status: status["restoring"] is None)
    last = found["last_restore"]
    assert (last["error"], last["topics"]) == (None, {"t": "again-t"})
    (message,) = (await backing.get("/topics/again-t/messages"))["messages"]
    assert message["state"] == "delayed"
    (group,) = (await backing.get("/topics/again-t/groups"))["groups"]
    assert "paused" in group["reason"]
    await backing.post("/backups/20000101T000000Z-000000/restore", {}, 404)
    await backing.post(path, {"names": {"t": 1}}, 400)


async def test_a_backup_with_increments_is_restored_as_it_was_only_where_that_is_said(
    backed: Serving, backing: Web, tmp_path: Path
) -> None:
    await backing.post("/topics", {"name": "t", "partitions": 1}, 201)
    key = BackupKey.read(tmp_path / "key")
    place = open_location(str(tmp_path / "backups"))
    async with sandq.connect(f"127.0.0.1:{backed.client_port}") as client:
        made = await create_backup(client, place, key=key, follow=True)
        await backing.post("/topics/t", {"text": "behind it"}, 201)
        await BackupFollower(client, place, made, key=key).step()
    path = f"/backups/{made.backup_id}/restore"
    assert "increments" in str(await backing.post(path, {"prefix": "base-"}, 409))
    await backing.post(path, {"prefix": "base-", "base": True}, 202)

    async def backup_status() -> Any:
        return await backing.get("/backups")

    found = await until_answer(backup_status, lambda status: status["restoring"] is None)
    assert found["last_restore"]["topics"] == {"t": "base-t"}
    assert (await backing.get("/topics/base-t/messages"))["messages"] == []


async def test_backups_are_off_without_a_configured_directory(web: Web) -> None:
    for path in ("/backups", *(f"/backups/20000101T000000Z-000000/{act}" for act in ("verify", "restore"))):
        assert "backup.url" in str(await web.post(path, None, 409))
    assert "backup.url" in str(await web.get("/backups", 409))
