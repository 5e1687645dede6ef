"""The blocking face in whole processes: forks, Ctrl-C, and the end of a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator

import pytest

from tests.support.client.fake_server import FakeServer
from tests.support.paths import ROOT

PRELUDE = """
    import os, sys, time, signal, threading, gc
    import sandq
    from sandq.errors import ForkedError
    client = sandq.sync.connect(sys.argv[1])
"""

Start = Callable[[str], "subprocess.Popen[str]"]


@pytest.fixture
def start(server: FakeServer) -> Iterator[Start]:
    """Run a program with the address of the fake server; wait for its line "ready"."""
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


def ended(process: subprocess.Popen[str], within_s: float = 10) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=within_s)
    return process.returncode, out, err


def test_a_forked_child_is_told(start: Start, server: FakeServer) -> None:
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
    from sandq.protocol.frames import Type
    from tests.support.client.fake_server import SILENCE

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
    time.sleep(0.3)  # it is blocked by now
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    code, out, err = ended(process)
    assert (code, out) == (0, "interrupted 1\n"), err
    quiet = where not in ("a receipt", "leaving")
    assert "Traceback" not in err and "Exception" not in err
    assert not err or not quiet
    assert time.monotonic() - begun < 5


def test_sigterm_drains_run(start: Start, server: FakeServer) -> None:
    process = start("""
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        client.produce("t", b"one")

        def handler(message):
            print("ready", flush=True)
            time.sleep(0.5)
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
        handling = threading.Event()

        def handler(message):
            print("ready", flush=True)
            time.sleep(60)

        try:
            client.run("t", "g", handler)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            os._exit(3)
    """)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None, "the handler has its grace time"
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
    assert [row.state for row in server.stored["t", 0]] == ["acked"], "what was queued has been sent"
