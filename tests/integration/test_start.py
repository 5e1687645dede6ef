"""The start of a node: ports and HTTP come before storage."""

from __future__ import annotations

import socket
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from sandq.model.errors import Corruption, DataDirInUse, StartupError, StorageFailed
from sandq.node import restarts, run_node
from sandq.node.running import Serving
from sandq.server import listening
from sandq.server.http.node_link import STARTING
from sandq.server.http.thread import ThreadLaunch
from sandq.storage.stores import LevelStores, Stores
from tests.support.http_client import NO_TLS
from tests.support.nodes.small_node import small_config
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S


class Start:
    """A node that pauses while its storage opens, so that a test can check its ports. The event loop is blocked
    meanwhile."""

    def __init__(self, directory: Path) -> None:
        self.client_port, self.http_port = free_port(), free_port()
        at = {"LISTEN__CLIENT": f"127.0.0.1:{self.client_port}", "LISTEN__HTTP": f"127.0.0.1:{self.http_port}"}
        self.config = small_config(directory, **at)
        self.launch = ThreadLaunch()
        self.found: dict[str, Any] = {}

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{self.http_port}{path}", verify=NO_TLS, timeout=PATIENCE_S)

    def open_stores(self, path: Path, create: bool) -> Stores:
        with pytest.raises(ConnectionRefusedError):  # so that clients immediately ask other nodes
            socket.create_connection(("127.0.0.1", self.client_port))
        self.found = {name: self.get(name) for name in ("/livez", "/readyz")}
        return LevelStores(path, create=create)

    def fail(self, path: Path, create: bool) -> Stores:
        raise Corruption("the stores are damaged")


async def test_http_answers_while_storage_opens(tmp_path: Path) -> None:
    start = Start(tmp_path)
    async with run_node(start.config, launch=start.launch, stores=start.open_stores):
        assert start.found["/livez"].json() == {"status": "ok"}
        refused = start.found["/readyz"]
        assert (refused.status_code, refused.json()["detail"]) == (503, STARTING)


async def test_start_that_fails_ends_http_and_frees_the_ports(tmp_path: Path) -> None:
    start = Start(tmp_path)
    with pytest.RaisesGroup(Corruption, flatten_subgroups=True, allow_unwrapped=True):
        async with run_node(start.config, launch=start.launch, stores=start.fail):
            pass
    assert start.launch.thread is not None and start.launch.thread.returncode is not None
    for port in (start.client_port, start.http_port):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
    async with run_node(start.config, launch=start.launch):
        assert start.get("/livez").status_code == 200


async def test_http_port_of_a_killed_node_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The HTTP process of a killed node ends a little later than the node."""
    start, attempts = Start(tmp_path), 0
    left = socket.create_server(("127.0.0.1", start.http_port))

    async def listen(host: str, port: int, setting: str) -> list[trio.SocketListener]:
        nonlocal attempts
        attempts += 1
        try:
            return await listening.listen(host, port, setting)
        finally:
            left.close()  # it is in use during the first attempt only

    monkeypatch.setattr("sandq.node.start.listen", listen)
    async with run_node(start.config, launch=start.launch):
        assert start.get("/livez").status_code == 200
    assert attempts == 2


async def test_http_port_that_stays_in_use_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandq.node.start.HTTP_FREED_WITHIN_S", 0.1)
    start = Start(tmp_path)
    in_use = pytest.raises(StartupError, match=f"127.0.0.1:{start.http_port} is in use by another process")
    with socket.create_server(("127.0.0.1", start.http_port)), in_use:
        async with run_node(start.config, launch=start.launch):
            pass


async def test_second_node_of_a_data_directory_takes_no_ports(tmp_path: Path) -> None:
    first, second = Start(tmp_path), Start(tmp_path)
    async with run_node(first.config, launch=first.launch):
        with pytest.raises(DataDirInUse):
            async with run_node(second.config, launch=second.launch):
                pass
        assert second.launch.thread is None


async def test_port_of_clients_that_is_taken_launches_nothing(tmp_path: Path) -> None:
    first, second = Start(tmp_path / "one"), Start(tmp_path / "two")
    second.config = small_config(
        tmp_path / "two", LISTEN__CLIENT=f"127.0.0.1:{first.client_port}", LISTEN__HTTP="127.0.0.1:0"
    )
    async with run_node(first.config, launch=first.launch):
        with pytest.raises(StartupError, match=r"listen\.client"):
            async with run_node(second.config, launch=second.launch):
                pass
        assert second.launch.thread is None


async def test_restart_with_a_full_disk_waits_for_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarts, "RETRY_S", 0.1)
    config, opened, stop = small_config(tmp_path), list[bool](), trio.Event()

    def open_stores(path: Path, create: bool) -> Stores:
        opened.append(create)
        if len(opened) == 2:
            raise StorageFailed("no room", errno="ENOSPC")
        return LevelStores(path, create=create)

    def on_ready(node: Serving) -> None:
        (stop if len(opened) == 3 else node.restart).set()

    await restarts.serve_until(stop, partial(run_node, config, stores=open_stores), on_ready)
    assert opened == [True, False, False]
