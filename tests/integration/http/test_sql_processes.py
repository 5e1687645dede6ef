"""The processes that answer SQL over HTTP: a statement that exceeds a limit ends alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

from sandq.model.config_sql import SqlSection
from sandq.model.limits import Limits
from sandq.node.running import Serving
from sandq.server.http import sql_processes
from tests.integration.sql.test_process import NOT_INTERRUPTED
from tests.support.http_client import NO_TLS
from tests.support.nodes.gateway import PATIENT, gateway
from tests.support.nodes.http_requests import Web
from tests.support.waiting import PATIENCE_S, until_holds

ENDLESS = "WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n FROM r) SELECT COUNT(*) FROM r"
"""A statement that never ends and needs constant memory."""


GONE_AT_ONCE = replace(PATIENT, leave_s=0.01)
"""Deadlines with which a silent client counts as disconnected almost at once."""


@asynccontextmanager
async def asking(node: Serving, **section: Any) -> AsyncIterator[Web]:
    server = f"127.0.0.1:{node.client_port}"
    async with (
        gateway(server, Limits(), GONE_AT_ONCE, sql=SqlSection(http=True, **section)) as address,
        httpx.AsyncClient(verify=NO_TLS, base_url=f"http://{address}", timeout=PATIENCE_S) as client,
    ):
        yield Web(client)


def workers() -> list[int]:
    """Return the ids of the SQL processes that this process started."""
    pids = [pid for task in Path("/proc/self/task").iterdir() for pid in read_if_exists(task / "children").split()]
    return [int(pid) for pid in pids if "sandq.server.http.sql_worker" in read_if_exists(f"/proc/{pid}/cmdline")]


def read_if_exists(path: Path | str) -> str:
    """Return a file's text, or nothing if its thread or process has ended meanwhile."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


async def test_statement_that_needs_too_much_memory_is_refused_and_the_next_is_answered(node: Serving) -> None:
    async with asking(node) as web:
        columns = "information_schema.columns"
        for statement in (
            f"SELECT LENGTH(GROUP_CONCAT(REPEAT(a.column_name, 500))) FROM {columns} a, {columns} b",
            "WITH RECURSIVE r AS (SELECT REPEAT('a', 60000) AS x UNION ALL SELECT x FROM r) SELECT * FROM r",
            "SELECT LENGTH(REPLACE(REPEAT('a', 60000), 'a', REPEAT('b', 65000)))",
            "SELECT DATE_ADD('9999-12-31', INTERVAL 1 YEAR)",
        ):
            found = await web.post("/sql", {"statement": statement}, 400)
            assert "sandq" not in found["detail"], found
            assert (await web.post("/sql", {"statement": "SELECT 1"}))["rows"] == [[1]]


async def test_statement_that_is_not_interrupted_ends_in_its_time(
    node: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_processes, "GRACE_S", 0.01)
    async with asking(node, timeout="1500ms") as web:
        many = " UNION ALL ".join([NOT_INTERRUPTED] * 3)
        found = await web.post("/sql", {"statement": many}, 504)
        assert found["code"] == "TIMED_OUT" and found["retriable"]
        await until_holds(lambda: not workers())


async def test_process_that_ends_takes_its_statement_alone(node: Serving) -> None:
    async with asking(node) as web:
        answers: list[Any] = []

        async def ask() -> None:
            answers.append(await web.post("/sql", {"statement": ENDLESS}, 400))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await until_holds(lambda: bool(workers()))
            os.kill(workers()[0], signal.SIGKILL)
        assert "ended its process" in answers[0]["detail"]
        assert (await web.post("/sql", {"statement": "SELECT 1"}))["rows"] == [[1]]
        (idle,) = workers()
        os.kill(idle, signal.SIGKILL)
        await until_holds(lambda: not workers())
        assert (await web.post("/sql", {"statement": "SELECT 2"}))["rows"] == [[2]]
    assert not workers(), "the processes must end with HTTP"


async def test_statement_ends_with_its_client(node: Serving) -> None:
    async with asking(node) as web:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(web.post, "/sql", {"statement": ENDLESS})
            await until_holds(lambda: bool(workers()))
            tasks.cancel_scope.cancel()
        await web.client.aclose()
        await until_holds(lambda: not workers())


BOUNDED = """
import resource
from sandq.server.http.sql_worker import limit_memory
from sandq.sql import Budget
from sandq.sql.duck import Duck
mib = 1 << 20
budget = Budget(scan_bytes=64 * mib, result_bytes=64 * mib, memory_bytes=64 * mib)
Duck(budget).close()
limit_memory(budget)
print(resource.getrlimit(resource.RLIMIT_DATA)[0] < 1 << 30)
try:
    bytearray(1 << 30)
except MemoryError:
    print("refused")
"""


def test_process_takes_less_than_a_gigabyte() -> None:
    environ = os.environ | {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
    found = subprocess.run([sys.executable, "-c", BOUNDED], env=environ, capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["True", "refused"]
