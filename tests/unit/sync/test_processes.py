"""Tests of the blocking client in whole processes: forks, Ctrl-C, and the end of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sandq.protocol.frames import Type
from tests.support.client.fake_server import SILENCE, FakeServer
from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE_S, wait_until

PRELUDE = """
    import os, sys, time, signal, threading, gc
    import sandq
    import sandq.client.client as client_module, sandq.sync.client as sync_module
    from functools import partial
    from sandq.client.options import Options
    from sandq.errors import ForkedError
    # The machine may stand still, and nothing is given up for that.
    sync_module._EXIT_S = sync_module._LEAVE_S = sync_module._CLOSE_S = 1000.0
    client_module.Options = partial(Options, close_timeout_s=1000.0)
    client = sandq.sync.connect(sys.argv[1])
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(server: FakeServer) -> Iterator[Start]:
    """Run a program with the address of the fake server. Wait for its line "ready"."""
    begun: list[subprocess.Popen[str]] = []

    def run(source: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", textwrap.dedent(PRELUDE) + textwrap.dedent(source), server.address],
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        begun.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        return process

    yield run
    for process in begun:
        process.kill()
        process.communicate()


def ended(process: subprocess.Popen[str], within_s: float = PATIENCE_S) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=within_s)
    return process.returncode, out, err


def test_forked_child_gets_an_error(start: Start, server: FakeServer) -> None:
    process = start("""
        client.produce("t", b"one")
        client.produce("t", b"two")
        parent = os.getpid()
        with client, client.producer("t") as producer, client.subscribe("t", group="g") as subscription:
            message = next(subscription)
            rows = client.messages("t").list()
            next(rows)
            receipt = producer.send(b"three")
            receipt.wait()
            batches = subscription.batches()
            # Another thread is amid a call, and holds what it holds.
            def wait():
                try:
                    for other in subscription:
                        pass
                except sandq.errors.ClosedError:
                    pass

            threading.Thread(target=wait, daemon=True).start()
            time.sleep(0.05)
            print("ready", flush=True)
            child = os.fork()
            if child == 0:
                uses = [
                    lambda: client.produce("t", b"x"), lambda: client.producer("t"), lambda: client.messages("t"),
                    lambda: client.subscribe("t", group="g"), lambda: client.dead("t", "g"), lambda: client.close(),
                    lambda: client.fetch("t", 0), lambda: client.run("t", "g", print), lambda: client.__enter__(),
                    lambda: client.admin.list_topics(), lambda: client.leases("t", "g"), lambda: next(subscription),
                    lambda: next(batches), lambda: subscription.flush(), lambda: producer.send(b"x"),
                    lambda: producer.send_many([b"x"]), lambda: producer.flush(), lambda: message.ack(),
                    lambda: message.nack(), lambda: message.extend("1m"), lambda: next(rows), lambda: receipt.wait(),
                ]
                for number, use in enumerate(uses):
                    try:
                        use()
                    except ForkedError as error:
                        assert str(error) == (
                            f"the client was made in another process (pid {parent}); make one after the fork"
                        ), str(error)
                    else:
                        raise AssertionError(f"use {number} worked in the child")
                message.__repr__(), message.value, message.headers
                with sandq.sync.connect(sys.argv[1]) as own:
                    own.produce("t", b"from the child")
                print("told", len(uses), flush=True)
                del uses, use, message, rows, receipt, batches
                gc.collect()
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            message.ack().wait()
            client.produce("t", b"from the parent")
        print("closed")
    """)
    assert ended(process) == (0, "told 22\nclosed\n", "")
    values = {row.value: row.state for row in server.stored["t", 0]}
    assert values[b"one"] == "acked"
    assert {b"from the child", b"from the parent"} <= set(values)


def test_a_forked_child_may_just_end(start: Start) -> None:
    process = start("""
        print("ready", flush=True)
        with client, client.producer("t") as producer, client.subscribe("t", group="g") as subscription:
            child = os.fork()
            if child:
                assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                client.produce("t", b"x")
                next(subscription).ack().wait()
        if not child:
            del producer, subscription, client
            gc.collect()
    """)
    assert ended(process) == (0, "", "")


BLOCKED = {
    "an iteration": """
        with client.subscribe("t", group="g") as subscription:
            print("ready", flush=True)
            next(subscription)
    """,
    "a call": """
        print("ready", flush=True)
        client.admin.stats("t")
    """,
    "run": """
        print("ready", flush=True)
        client.run("t", "g", print)
    """,
    "a receipt": """
        with client.producer("t") as producer:
            receipt = producer.send(b"never answered")
            print("ready", flush=True)
            receipt.wait()
    """,
    "leaving": """
        with client.producer("t") as producer:
            producer.send(b"never answered")
            print("ready", flush=True)
    """,
}


@pytest.mark.parametrize("where", BLOCKED)
def test_ctrl_c_leaves_at_once(start: Start, server: FakeServer, where: str) -> None:
    for kind in (Type.TOPIC_STATS, Type.PRODUCE):
        server.script[kind].append(SILENCE)
    body = textwrap.indent(textwrap.dedent(BLOCKED[where]), " " * 8)
    process = start(f"""
try:
    with client:
{body}
except KeyboardInterrupt:
    print("interrupted", threading.active_count())
""")
    seen = {"a call": Type.TOPIC_STATS, "run": Type.SUBSCRIBE}.get(where)
    wait_until(lambda: server.produced or server.subscribed or server.of_type(seen or Type.PRODUCE))
    wait_until(lambda: is_blocked(process.pid))
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)  # the waits at such an end are much longer than the time limit of the test
    assert (code, out) == (0, "interrupted 1\n"), err
    quiet = where not in ("a receipt", "leaving")
    assert "Traceback" not in err and "Exception" not in err
    assert not err or not quiet


def is_blocked(pid: int) -> bool:
    """Return whether the main thread of a process is blocked.

    It may be blocked by something other than the expected wait.
    """
    return Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_sigterm_drains_run(start: Start, server: FakeServer) -> None:
    process = start("""
        ending = threading.Event()

        def end(number, frame):
            ending.set()
            sys.exit(0)

        signal.signal(signal.SIGTERM, end)
        client.produce("t", b"one")

        def handler(message):
            print("ready", flush=True)
            ending.wait()
            print("handled", flush=True)

        with client:
            client.run("t", "g", handler)
    """)
    process.send_signal(signal.SIGTERM)
    assert ended(process) == (0, "handled\n", "")
    assert [row.state for row in server.stored["t", 0]] == ["acked"]


def test_a_second_ctrl_c_does_not_wait_for_handlers(start: Start, server: FakeServer) -> None:
    process = start("""
        client.produce("t", b"one")
        wait = threading.Event.wait

        def wait_for_handlers(event, timeout=None):
            if timeout is not None and timeout > 3000:
                print("waits", flush=True)
            return wait(event, timeout)

        threading.Event.wait = wait_for_handlers

        def handler(message):
            print("ready", flush=True)
            time.sleep(600)

        try:
            client.run("t", "g", handler, grace="1h")
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            os._exit(3)
    """)
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None and process.stdout.readline() == "waits\n"
    assert process.poll() is None, "the handler gets its grace time"
    process.send_signal(signal.SIGINT)
    assert ended(process)[:2] == (3, "interrupted\n")


def test_a_client_that_was_not_closed_keeps_no_process(start: Start, server: FakeServer) -> None:
    process = start("""
        client.produce("t", b"one")
        subscription = client.subscribe("t", group="g").__enter__()
        next(subscription).ack()
        print("ready", flush=True)
    """)
    assert ended(process) == (0, "", "")
    assert [row.state for row in server.stored["t", 0]] == ["acked"], "the queued messages were sent"
