"""Tests of a client that is connected by a Unix socket: tokens, TLS, failures and forks."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest

from sandq.client.options import DEFAULTS, Options
from sandq.client.tls import tls_of
from sandq.client.transport.cluster import Cluster
from sandq.client.transport.connection import Connection
from sandq.client.transport.credentials import check_clear
from sandq.errors import ConnectionLost, ForkedError, InvalidRequest, StorageFailed


def test_token_is_sent_through_a_socket_of_this_machine() -> None:
    check_clear("token", "/data/socket", DEFAULTS)
    check_clear("token", "", DEFAULTS)
    for remote in (("192.0.2.1", 7170), None):
        with pytest.raises(InvalidRequest, match="in the clear"):
            check_clear("token", remote, DEFAULTS)


async def test_missing_socket_is_named(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    with pytest.raises(ConnectionLost, match=f"cannot connect to unix:{path}: No such file or directory"):
        await Connection.open(f"unix:{path}", 0, client_name="test", timeout_s=10.0, options=DEFAULTS)


async def test_tls_is_not_used_at_a_socket(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    listener = await anyio.create_unix_listener(path)
    first: list[bytes] = []

    async def take(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            first.append(await stream.receive())

    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, take)
        options = Options(tls=tls_of(True, None, None, None, {}))
        with pytest.raises(ConnectionLost, match="it closed the connection"):
            await Connection.open(f"unix:{path}", 0, client_name="test", timeout_s=10.0, options=options)
        tasks.cancel_scope.cancel()
    assert first[0][:1] == b"\0"  # a frame, and no handshake


async def test_requests_fail_with_the_error_of_the_node() -> None:
    cluster = Cluster([("unix:/a/socket", 0)], "test", DEFAULTS)
    cluster.check_open()
    cluster.fail(StorageFailed("the disk hangs"))
    assert isinstance(cluster.missing("t"), StorageFailed)
    with pytest.raises(StorageFailed, match="the disk hangs"):
        cluster.check_open()


async def test_forked_process_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster([("unix:/a/socket", 0)], "test", DEFAULTS)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(ForkedError, match=f"made in another process \\(pid {parent}\\)"):
        cluster.check_usable()
