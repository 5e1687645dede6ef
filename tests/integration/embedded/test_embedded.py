"""Tests of a node in the process of its program: with both faces of the client, and by other processes."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import pytest
import structlog
import trio

import sandq
from sandq.errors import ClosedError, DataDirInUse, InvalidRequest, StartupError, TopicExists
from sandq.model.unix_sockets import PATH_BYTES, socket_of
from sandq.storage.files import RealFiles
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE_S, until_holds, wait_until

TOPIC = "reminders"
MEMORY_BYTES = 90_000_000
"""Maximum memory of a broker in a program, before the program uses it much."""


async def store(client: sandq.Client, *values: bytes) -> None:
    with suppress(TopicExists):
        await client.admin.create_topic(TOPIC)
    for value in values:
        await client.produce(TOPIC, value)


async def delivered(client: sandq.Client, count: int) -> list[bytes]:
    """Return the values of the next messages of one group, and ack them."""
    found: list[bytes] = []
    with anyio.fail_after(PATIENCE_S):
        async with client.subscribe(TOPIC, group="g") as subscription:
            async for message in subscription:
                await message.ack()
                found.append(message.value)
                if len(found) == count:
                    break
    return found


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_messages_of_an_embedded_broker_survive_its_end(tmp_path: Path, backend: str) -> None:
    async def first() -> None:
        async with sandq.embedded(tmp_path / "data") as client:
            await store(client, b"one", b"two")
            assert await delivered(client, 1) == [b"one"]

    async def second() -> None:
        async with sandq.embedded(tmp_path / "data") as client:
            await store(client, b"three")
            assert await delivered(client, 2) == [b"two", b"three"]

    anyio.run(first, backend=backend)
    anyio.run(second, backend=backend)


def test_blocking_client_runs_an_embedded_broker(tmp_path: Path) -> None:
    with sandq.sync.embedded(tmp_path) as client:
        client.admin.create_topic(TOPIC)
        client.produce(TOPIC, b"one")
    with pytest.raises(ClosedError):
        client.produce(TOPIC, b"two")
    client = sandq.sync.embedded(tmp_path)
    try:
        with client.subscribe(TOPIC, group="g") as subscription:
            message = next(subscription)
            assert message.value == b"one"
            message.ack().wait()
    finally:
        client.close()
    RealFiles(tmp_path).lock("lock").close()  # nothing holds it any more


async def test_socket_is_for_its_owner_only(tmp_path: Path) -> None:
    async with sandq.embedded(tmp_path):
        path = socket_of(tmp_path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        async with sandq.connect(f"unix:{path}") as other:
            await store(other, b"one")
    assert not path.exists()


async def test_second_broker_of_a_directory_is_refused(tmp_path: Path) -> None:
    async with sandq.embedded(tmp_path) as client:
        with pytest.raises(DataDirInUse) as refused:
            async with sandq.embedded(tmp_path):
                pass
        assert f"this process (pid {os.getpid()}) uses the data directory {tmp_path}" in refused.value.message
        await store(client, b"the first still works")


def test_shared_directory_is_taken_over(tmp_path: Path) -> None:
    first = sandq.sync.embedded(tmp_path, share=True)
    first.admin.create_topic(TOPIC)
    with sandq.sync.embedded(tmp_path, share=True) as second, second.subscribe(TOPIC, group="g") as subscription:
        with first:
            first.produce(TOPIC, b"one")
            assert first.cluster_uuid == second.cluster_uuid
            message = next(subscription)
            assert message.value == b"one"
            message.ack().wait()
        second.produce(TOPIC, b"two", timeout=PATIENCE_S)
        assert next(subscription).value == b"two"


@pytest.mark.parametrize("end", [RuntimeError, KeyboardInterrupt])
async def test_broker_stops_if_the_body_raises(tmp_path: Path, end: type[BaseException]) -> None:
    with pytest.raises(end):
        async with sandq.embedded(tmp_path) as client:
            await store(client, b"one")
            raise end
    RealFiles(tmp_path).lock("lock").close()
    async with sandq.embedded(tmp_path) as client:
        assert await delivered(client, 1) == [b"one"]


async def test_broker_stops_if_the_body_is_cancelled(tmp_path: Path) -> None:
    with trio.CancelScope() as scope:
        async with sandq.embedded(tmp_path) as client:
            await store(client, b"one")
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    RealFiles(tmp_path).lock("lock").close()


async def test_long_path_of_a_directory_works(tmp_path: Path) -> None:
    directory = tmp_path / ("a" * 100) / ("b" * 100)
    assert len(os.fsencode(directory)) > PATH_BYTES
    async with sandq.embedded(directory) as client:
        await store(client, b"one")
        assert await delivered(client, 1) == [b"one"]


async def test_listen_opens_ports(tmp_path: Path) -> None:
    async with sandq.embedded(tmp_path, listen={"client": "127.0.0.1:0"}) as client:
        await store(client, b"one")
        (row,) = (await client.admin.cluster())["nodes"]
        assert row["client"].startswith("127.0.0.1:")
        async with sandq.connect(row["client"]) as other:
            assert await delivered(other, 1) == [b"one"]


@pytest.mark.parametrize("listen", [{"http": "127.0.0.1:0"}, {"client": "127.0.0.1:0", "peer": "x"}, 7170, "all"])
async def test_bad_listen_is_refused(tmp_path: Path, listen: Any) -> None:
    with pytest.raises(InvalidRequest, match="listen: True"):
        async with sandq.embedded(tmp_path / "data", listen=listen):
            pass


async def test_port_without_protection_is_refused_beyond_this_machine(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="insecure"):
        async with sandq.embedded(tmp_path / "data", listen={"client": "192.0.2.1:0"}):
            pass


async def test_config_of_a_node_applies(tmp_path: Path) -> None:
    config = tmp_path / "node.yaml"
    config.write_text("node: {id: node7}\nauto_create_topics: {patterns: ['*']}\n")
    async with sandq.embedded(tmp_path / "data", config=config) as client:
        await client.produce("created-by-use", b"one")
    async with sandq.embedded(tmp_path / "data") as client:  # the directory keeps the id of its node
        (row,) = (await client.admin.cluster())["nodes"]
        assert row["node"] == "node7"


def process_state() -> dict[str, object]:
    """Return what a guest in a process must not change."""
    umask = os.umask(0o077)
    os.umask(umask)
    root = logging.getLogger()
    return {
        "switch interval": sys.getswitchinterval(),
        "collector": (gc.get_threshold(), gc.isenabled()),
        "frozen": gc.get_freeze_count(),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "signals": {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE)},
        "logging": (root.level, list(root.handlers), logging.raiseExceptions),
        "structlog": (structlog.is_configured(), structlog.get_config()["wrapper_class"]),
        "umask": umask,
        "environment": dict(os.environ),
        "directory": Path.cwd(),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook),
    }


def test_process_is_left_as_it_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    structlog.reset_defaults()
    before = process_state()
    with sandq.sync.embedded(tmp_path) as client:
        client.admin.create_topic(TOPIC)
        assert process_state() == before
    assert process_state() == before
    assert capfd.readouterr() == ("", "")


async def test_read_only_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., int] = os.open

    def refuse(path: Any, flags: int, *rest: Any, **named: Any) -> int:
        if str(path).startswith(str(tmp_path)) and flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(13, "Permission denied")
        return real(path, flags, *rest, **named)

    monkeypatch.setattr("sandq.storage.files.os.open", refuse)
    with pytest.raises(sandq.errors.StorageFailed, match=f"cannot open {tmp_path}/lock: Permission denied"):
        async with sandq.embedded(tmp_path):
            pass


def test_start_that_is_cancelled_leaves_no_broker(tmp_path: Path) -> None:
    """Ctrl-C cancels the main task of asyncio like this, also within a shield."""

    async def main() -> None:
        async def start() -> None:
            async with sandq.embedded(tmp_path):
                await asyncio.sleep(1000)

        task = asyncio.create_task(start())
        await until_holds((tmp_path / "lock").exists)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    RealFiles(tmp_path).lock("lock").close()


def test_embedded_broker_needs_little_memory(tmp_path: Path) -> None:
    program = f"""if True:
        import sandq
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * {resource.getpagesize()}
        before = resident()
        with sandq.sync.embedded({str(tmp_path)!r}) as client:
            client.admin.create_topic("t")
            client.produce("t", b"one")
            (message,) = client.leases("t", "g").take(1, wait="60s", ack=True)
            print(resident() - before)
    """
    output = subprocess.check_output([sys.executable, "-c", program], env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert int(output) < MEMORY_BYTES


def test_listen_serves_http_in_a_process_that_ends_with_the_broker(tmp_path: Path) -> None:
    with sandq.sync.embedded(tmp_path, listen={"client": "127.0.0.1:0", "http": "127.0.0.1:0"}) as client:
        (row,) = client.admin.cluster()["nodes"]
        url = f"http://{row['http']}/readyz"

        def is_ready() -> bool:
            with suppress(OSError), urllib.request.urlopen(url, timeout=PATIENCE_S) as reply:
                return bool(reply.status == 200)
            return False

        wait_until(is_ready)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=PATIENCE_S)
