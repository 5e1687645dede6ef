"""Tests of embedded brokers in whole programs: kills, forks, Ctrl-C, and programs that share a directory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import sandq
from sandq.errors import DataDirInUse
from sandq.storage.files import RealFiles
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE_S

PRELUDE = """
    import os, sys, time
    import sandq
    from sandq.errors import ForkedError
    data = sys.argv[1]
"""
TOPIC = "t"

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Run a program with a data directory as its argument. Wait for its line "ready"."""
    begun: list[subprocess.Popen[str]] = []

    def run(source: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(source), str(tmp_path)],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line == "ready\n", (line, process.communicate()[1])
        return process

    yield run
    for process in begun:
        process.kill()
        process.communicate()


def values(data: Path, count: int | None = None) -> list[bytes]:
    """Return `count` messages that a group gets from a directory; None: all up to the last one, b"end"."""
    found: list[bytes] = []
    with sandq.sync.embedded(data) as client:
        client.produce(TOPIC, b"end")
        with client.subscribe(TOPIC, group="g") as subscription:
            while len(found) != count and (count is not None or b"end" not in found):
                message = next(subscription)
                message.ack().wait()
                found.append(message.value)
    return found


def test_confirmed_messages_survive_a_kill(start: Start, tmp_path: Path) -> None:
    process = start("""
        with sandq.sync.embedded(data) as client:
            client.admin.create_topic("t")
            print("ready", flush=True)
            number = 0
            while True:
                client.produce("t", b"%d" % number)
                print(number, flush=True)
                number += 1
    """)
    assert process.stdout is not None
    while int(process.stdout.readline()) < 100:
        pass
    process.kill()
    rest, _ = process.communicate()
    last = int(([line for line in rest.split("\n")[:-1] if line] or ["100"])[-1])
    found = values(tmp_path)
    assert found[: last + 1] == [b"%d" % number for number in range(last + 1)]
    assert len(found) <= last + 3  # at most one message was stored, and not yet confirmed


def test_settled_messages_do_not_come_again_after_a_kill(start: Start, tmp_path: Path) -> None:
    process = start("""
        with sandq.sync.embedded(data) as client:
            client.admin.create_topic("t", lease="1s")
            for number in range(10):
                client.produce("t", b"%d" % number)
            with client.subscribe("t", group="g", credit=1, lease="1s") as subscription:
                for number, message in enumerate(subscription):
                    if number == 5:
                        break  # held, and not acked
                    message.ack().wait()
                print("ready", flush=True)
                time.sleep(1000)
    """)
    process.kill()
    process.communicate()
    assert sorted(values(tmp_path, 6)) == [b"5", b"6", b"7", b"8", b"9", b"end"]


def test_forked_child_gets_an_error_and_harms_nothing(start: Start, tmp_path: Path) -> None:
    process = start("""
        with sandq.sync.embedded(data) as client:
            client.admin.create_topic("t")
            client.produce("t", b"one")
            child = os.fork()
            if child == 0:
                try:
                    client.produce("t", b"two")
                except ForkedError as error:
                    assert f"made in another process (pid {os.getppid()})" in error.message
                    sys.exit(7)  # leaves the block, and runs what runs at the end of a process
                sys.exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            client.produce("t", b"three")
        print("ready", flush=True)
    """)
    assert process.communicate() == ("", "")
    assert process.returncode == 0
    assert values(tmp_path) == [b"one", b"three", b"end"]


def test_forked_child_gets_an_error_from_the_async_client(start: Start) -> None:
    process = start("""
        import asyncio, multiprocessing, anyio

        def work(client):
            async def use():
                calls = [lambda: client.produce("t", b"two"), lambda: client.admin.list_topics()]
                for call in calls:
                    try:
                        await call()
                    except ForkedError:
                        continue
                    raise AssertionError("it worked in the child")
            asyncio.run(use())

        async def main():
            async with sandq.embedded(data) as client:
                await client.admin.create_topic("t")
                await client.produce("t", b"one")
                child = multiprocessing.get_context("fork").Process(target=work, args=(client,))
                child.start()
                await anyio.to_thread.run_sync(child.join)
                assert child.exitcode == 0, child.exitcode
                await client.produce("t", b"three")
            print("ready", flush=True)

        anyio.run(main)
    """)
    assert process.communicate() == ("", "")
    assert process.returncode == 0


def test_child_that_outlives_its_parent_does_not_hold_the_directory(start: Start, tmp_path: Path) -> None:
    process = start("""
        client = sandq.sync.embedded(data)
        client.admin.create_topic("t")
        if os.fork() == 0:
            print("ready", flush=True)
            sys.stdin.read()
            os._exit(0)
        time.sleep(1000)
    """)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert values(tmp_path) == [b"end"]


@pytest.mark.parametrize("kind", ["blocking", "trio", "asyncio"])
def test_interrupt_stops_the_broker(start: Start, tmp_path: Path, kind: str) -> None:
    if kind == "blocking":
        process = start("""
            with sandq.sync.embedded(data) as client:
                client.admin.create_topic("t")
                client.produce("t", b"one")
                print("ready", flush=True)
                time.sleep(1000)
        """)
    else:
        process = start(f"""
            import anyio

            async def main():
                async with sandq.embedded(data) as client:
                    await client.admin.create_topic("t")
                    await client.produce("t", b"one")
                    print("ready", flush=True)
                    await anyio.sleep_forever()

            anyio.run(main, backend="{kind}")
        """)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode in (-signal.SIGINT, 1, 130)
    assert err.rstrip().endswith("KeyboardInterrupt") and "hang" not in err, err
    assert not (tmp_path / "socket").exists()  # it was stopped, not only ended
    assert values(tmp_path) == [b"one", b"end"]


def test_program_that_does_not_close_ends_and_loses_nothing(start: Start, tmp_path: Path) -> None:
    process = start("""
        client = sandq.sync.embedded(data)
        client.admin.create_topic("t")
        client.produce("t", b"one")
        print("ready", flush=True)
    """)
    assert process.communicate(timeout=PATIENCE_S) == ("", "")
    assert process.returncode == 0
    assert values(tmp_path) == [b"one", b"end"]


OWNER = """
    with sandq.sync.embedded(data) as client:
        client.admin.create_topic("t")
        client.produce("t", b"one")
        print("ready", flush=True)
        sys.stdin.read()
        time.sleep(1000)
"""


def test_directory_of_another_program_is_refused_with_its_pid(start: Start, tmp_path: Path) -> None:
    process = start(OWNER)
    with pytest.raises(DataDirInUse) as refused:
        sandq.sync.embedded(tmp_path)
    assert f"another process (pid {process.pid}) uses the data directory {tmp_path}" in refused.value.message
    assert refused.value.details["pid"] == process.pid


def test_directory_is_taken_over_after_a_kill(start: Start, tmp_path: Path) -> None:
    process = start(OWNER)
    with sandq.sync.embedded(tmp_path, share=True) as client, client.subscribe(TOPIC, group="g") as subscription:
        message = next(subscription)
        assert message.value == b"one"
        message.ack().wait()
        process.kill()
        client.produce(TOPIC, b"two", timeout=PATIENCE_S)
        assert next(subscription).value == b"two"
        with pytest.raises(DataDirInUse, match=f"this process \\(pid {os.getpid()}\\)"):
            RealFiles(tmp_path).lock("lock")
