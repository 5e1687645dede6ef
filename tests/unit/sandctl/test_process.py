"""Tests of sandctl as a process: imports of --help, completion, closed pipes, full disks, Ctrl-C, and bad input."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from sandctl import interrupts
from sandctl.main import COMMANDS, main
from sandctl.options import names
from sandq.model.errors import NotLeader, UnknownTopic
from sandq.protocol.frames import Type, encode_error
from sandq.protocol.requests import Lease
from tests.support.client.fake_server import SILENCE, FakeServer
from tests.support.paths import ROOT
from tests.support.sandctl.patient import LONG_S, patient
from tests.support.waiting import PATIENCE_S, wait_until
from tests.unit.sandctl.commands.test_groups import commands

ENDLESS = ["bench", "produce", "--rate", "200", "--duration", "500s"]
HEAVY = ("anyio", "asyncio", "trio", "msgpack", "pydantic", "rich", "sandq.client", "sandq.errors", "yaml", "zstandard")
HOSTILE = ("\x1b[31mred", "a\nb", "a/b", "../../etc", "", " ", "x" * 250, "ü", "\u202e", "%s%n", "$(id)", "\udcff")
PATHS = sorted(commands(main))
ANY_NUMBER = (
    *(("consume",), ("message", "cancel"), ("kv", "get"), ("kv", "delete")),
    *(("pipeline", "forecast"), ("pipeline", "report")),
    *(("identity", "grant"), ("identity", "ungrant"), ("role", "put"), ("topic", "raise-replicas")),
)
"""Commands that accept any number of ids, keys, topics or grants."""


def python(code: str, **environ: str) -> list[str]:
    result = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environ, cwd=ROOT, capture_output=True, text=True, check=True
    )
    return result.stdout.splitlines()


def test_help_imports_nothing_heavy_and_no_command() -> None:
    """The help of the whole command imports no commands. This keeps --help below 100 ms."""
    code = (
        "import sys; from sandctl.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules],"
        " sorted(name for name in sys.modules if name.startswith('sandctl')))"
    )
    names = [
        f"sandctl{name}"
        for name in (
            "",
            ".lazy",
            ".main",
            ".options",
            ".options.common",
            ".options.contexts",
            ".options.login",
            ".options.times",
            ".output",
            ".output.escaping",
            ".settings",
        )
    ]
    assert python(code)[-1] == f"[] {names}"


def test_help_of_no_command_imports_anything_heavy() -> None:
    """One process runs the help of all commands. At the end it has the imports of all of them."""
    code = (
        "import contextlib, io, sys; from sandctl.main import main\n"
        f"for path in {[list(path) for path in PATHS]!r}:\n"
        "    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):\n"
        "        main([*path, '--help'])\n"
        f"    print(path, [name for name in {HEAVY!r} if name in sys.modules])"
    )
    found = python(code)
    assert len(found) == len(PATHS) and all(line.endswith("] []") for line in found), found


def test_command_list_has_the_help_of_each_command() -> None:
    listed = CliRunner().invoke(main, ["--help"]).output
    for name, place in COMMANDS.items():
        command = main.commands[name]
        assert command.name == name and place.short_help[:30] in listed
        assert command.get_short_help_str(100) == place.short_help, name


# Completion.


def complete(words: str, *, shell: str = "bash", complete_s: float = LONG_S, **environ: str) -> list[str]:
    """Return the completions that the shell gets for the last of these words.

    A loaded machine may take longer than a user would wait: `complete_s`.
    """
    parts = words.split(" ")
    told = {"COMP_WORDS": words, "COMP_CWORD": str(len(parts) - 1), "_SANDCTL_COMPLETE": f"{shell}_complete"}
    done = subprocess.run(
        patient(change=f"sandctl.options.names.COMPLETE_S = {complete_s}"),
        env=os.environ | told | environ,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.stderr == "", done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_and_options_complete_without_a_server() -> None:
    assert complete("sandctl top") == ["topic"]
    assert complete("sandctl ") == list(COMMANDS)
    assert complete("sandctl message c") == ["cancel"]
    assert complete("sandctl produce --js") == ["--jsonl", "--json"]
    assert complete("sandctl -o js") == ["json", "jsonl"]
    assert complete("sandctl completion z") == ["zsh"]


def test_names_of_topics_and_groups_come_from_the_server(server: FakeServer) -> None:
    for name in ("orders", "ore", "other"):
        server.add_topic(name)
    server.groups["g"] = {}
    environ = {"SANDCTL_SERVERS": server.address}
    assert complete("sandctl topic show or", **environ) == ["orders", "ore"]
    assert complete("sandctl consume orders --group ", **environ) == ["g"]
    assert complete("sandctl group show orders ", **environ) == ["g"]
    assert complete("sandctl bench produce --topic ot", **environ) == ["other"]
    assert complete("sandctl cluster transfer orders 0 n", **environ) == ["n1", "n3"]
    assert complete(f"sandctl -s {server.address} produce ", SANDCTL_SERVERS="127.0.0.1:1") == sorted(server.topics)
    server.add_topic("or\x1b[31m")
    assert complete("sandctl topic show or", **environ) == ["orders", "ore"], "no control sequence for a terminal"


def test_a_server_that_is_not_there_completes_nothing_and_soon(server: FakeServer) -> None:
    assert complete("sandctl topic show ", SANDCTL_SERVERS="127.0.0.1:1") == []
    assert complete("sandctl topic show ", SANDCTL_SERVERS="nonsense") == []
    environ = {"SANDCTL_SERVERS": server.address}
    server.script[Type.GROUP_LIST] += [UnknownTopic("no")]
    assert complete("sandctl consume orders --group ", **environ) == []
    # All other waits of the process are much longer than the time limit of this test.
    server.script[Type.METADATA] += [SILENCE] * 50
    assert complete("sandctl topic show ", complete_s=names.COMPLETE_S, **environ) == []
    assert names.COMPLETE_S <= 0.5


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_are_valid(shell: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0 and "_SANDCTL_COMPLETE" in result.output and f"{shell}_complete" in result.output
    if shell == "bash":
        (tmp_path / "script").write_text(result.output)
        subprocess.run(["bash", "-n", str(tmp_path / "script")], check=True)


def test_bash_completes(tmp_path: Path) -> None:
    """The script as bash runs it, with a command called sandctl."""
    (tmp_path / "sandctl").write_text(f'#!/bin/sh\nexec {sys.executable} -m sandctl "$@"\n')
    (tmp_path / "sandctl").chmod(0o755)
    code = (
        'eval "$(sandctl completion bash)"; COMP_WORDS=(sandctl mess); COMP_CWORD=1; '
        '_sandctl_completion sandctl; echo "${COMPREPLY[@]}"'
    )
    environ = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", code], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "message\n"


# Ends of the process


def test_a_reader_that_leaves(spawn: Any, ctl: Any, server: FakeServer) -> None:
    ctl("produce", "t", "--lines", input=b"line\n" * 3000)
    for args in (
        ["produce", "t", "x", "--count", "5000"],
        ["message", "list", "t", "--limit", "all"],
        ["message", "list", "t", "--limit", "all", "-o", "jsonl"],
        ["consume", "t", "-g", "g"],
        ["topic", "list"],
    ):
        reading, writing = os.pipe()
        process = spawn(*args, stdout=writing)
        os.close(writing)
        os.close(reading)
        assert process.wait(PATIENCE_S) == 1 and process.stderr.read() == b"", args


def test_output_that_is_closed_or_full(spawn: Any) -> None:
    with open("/dev/full", "wb") as full:
        process = spawn("topic", "list", stdout=full)
        assert process.wait(PATIENCE_S) == 1 and process.stderr.read() == b"sandctl: No space left on device\n"
    closed = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m sandctl topic --help >&-"], cwd=ROOT, capture_output=True, check=False
    )
    assert (closed.returncode, closed.stderr) == (0, b"")


def test_interrupted_while_it_connects(spawn: Any, server: FakeServer) -> None:
    server.script[Type.HELLO] += [SILENCE] * 100
    process = spawn("topic", "list")
    wait_until(lambda: server.of_type(Type.HELLO))
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130 and process.stderr.read().strip() == b""


@pytest.mark.parametrize(
    ("program", "imported"),
    [
        ("sandctl", "click"),
        ("sandctl", "sandctl.options.common"),
        ("sandctl", "sandctl.commands.topics"),
        ("sandq", "click"),
        ("sandq", "sandq.tools.running"),
    ],
)
def test_interrupted_while_it_is_loaded(program: str, imported: str) -> None:
    code = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {imported!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        f"from {program}.__main__ import run\n"
        "run()\n"
    )
    command = [sys.executable, "-c", code, "topic", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, b"", b"")


@pytest.mark.parametrize("first", [True, False], ids=["twice", "once"])
def test_interrupted_while_it_ends(first: bool) -> None:
    """The cleanup raised the exception: a traceback is printed, and the process ends by the signal."""
    code = (
        "import os, signal, sys, sandctl.__main__, sandctl.main, sandctl.interrupts\n"
        f"sandctl.interrupts.IMPATIENT_S = {2 * PATIENCE_S}\n"
        "def press(*_): os.kill(os.getpid(), signal.SIGINT)\n"
        f"sandctl.main.main = press if {first} else lambda: sys.exit(130)\n"
        "change, leave = signal.signal, sys.exit\n"
        "signal.signal = lambda number, handler: (handler is signal.SIG_IGN and press(), change(number, handler))[1]\n"
        "sys.exit = lambda code: (press() if sys.exc_info()[0] else None, leave(code))\n"
        "sandctl.__main__.run()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, b"", b"")


def test_interrupted_in_the_middle_of_json(spawn: Any, server: FakeServer) -> None:
    """The printed text is a complete document."""
    process = spawn("-o", "json", "produce", "t", "x", "--count", "100000", "--rate", "100")
    first = process.stdout.readline() + process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, errors = process.stdout.read(), process.stderr.read()
    assert process.wait(PATIENCE_S) == 130 and b"Traceback" not in errors
    assert 0 < len(json.loads(first + rest)) < 100_000


# Bad input.


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_unknown_arguments_are_refused(ctl: Any, server: FakeServer, path: tuple[str, ...]) -> None:
    """Wrong usage sends no request. The error names the similar option."""
    for more in (["--no-such-option"], ["--outptu", "json"], ["-o", "xml"], ["a"] * 9):
        if path[:2] in ANY_NUMBER and more[0] == "a":
            continue
        result = ctl(*path, *more)
        assert result.exit_code == 2 and "Error: " in result.stderr and "Usage: " in result.stderr, more
    assert "--output" in ctl(*path, "--outptu", "json").stderr
    assert server.frames == []


@pytest.mark.parametrize(
    "args",
    [
        ["topic", "create", "{}"],
        ["topic", "show", "{}"],
        ["topic", "update", "{}", "--ttl", "1h"],
        ["topic", "delete", "{}", "--yes"],
        ["topic", "purge", "{}", "--yes"],
        ["topic", "forecast", "{}"],
        ["produce", "{}", "x"],
        ["produce", "{}", "x", "--count", "3"],
        ["produce", "{}", "--lines"],
        ["consume", "{}", "-g", "g"],
        ["consume", "t", "-g", "{}"],
        ["message", "list", "{}"],
        ["message", "cancel", "{}", "--all", "--yes"],
        ["message", "get", "{}", "--unique-key", "k"],
        ["group", "list", "{}"],
        ["group", "seek", "t", "{}", "--to", "latest", "--yes"],
        ["group", "delete", "t", "{}", "--yes"],
        ["group", "update", "t", "{}", "--reset"],
        ["dead", "list", "t", "-g", "{}"],
        ["dead", "purge", "{}", "-g", "g", "--all", "--yes"],
        ["kv", "get", "{}", "a"],
        ["kv", "put", "{}", "a", "b"],
        ["kv", "cas", "{}", "a", "b", "--absent"],
        ["kv", "delete", "{}", "a"],
        ["kv", "scan", "{}"],
        ["kv", "watch", "{}"],
        ["cluster", "partitions", "--topic", "{}"],
        ["bench", "produce", "--topic", "{}"],
    ],
    ids=lambda args: " ".join(args),
)
def test_names_that_are_none(ctl: Any, server: FakeServer, args: list[str]) -> None:
    for name in HOSTILE:
        result = ctl(*[name if arg == "{}" else arg for arg in args], input=b"x\n")
        assert result.exit_code in (1, 2) and isinstance(result.exception, SystemExit), (name, result.output)
        assert result.stdout in ("", "[]\n"), f"no request may be sent with {name!a}"
        assert result.stderr.startswith(("sandctl: ", "Error: ", "Usage: ")), name
        assert all(line.isprintable() for line in result.stderr.splitlines()), name
        assert set(server.topics) == {"t"} and server.produced == [] and not server.subscribed, name


@pytest.mark.parametrize(
    "args",
    [
        ["message", "get", "t", "not-an-id"],
        ["message", "cancel", "t", "01HN7K2B6R0000000001000000", "x"],
        ["message", "move", "t", "01HN7K2B6R0000000001000000", "--at", "yesterday"],
        ["message", "move", "t", "01HN7K2B6R0000000001000000", "--in", "-5m"],
        ["message", "list", "t", "--since", "1893456000"],
        ["message", "list", "t", "--limit", "0"],
        ["message", "list", "t", "--limit", "9" * 99],
        ["message", "list", "t", "--state", "dead"],
        ["topic", "create", "x", "--partitions", "many"],
        ["topic", "create", "x", "--backoff", "random"],
        ["topic", "forecast", "t", "--count", "99999"],
        ["group", "seek", "t", "g", "--to", "somewhere", "--yes"],
        ["dead", "redrive", "t", "-g", "g", "--rate", "0"],
        ["dead", "list", "t", "-g", "g", "--reason", "boredom"],
        ["consume", "t", "-g", "g", "--max", "1e3"],
        ["consume", "t", "-g", "g", "--lease", "1y"],
        ["produce", "t", "x", "--partition", "first"],
        ["produce", "t", "x", "--on-conflict", "panic"],
        ["produce", "t", "x", "--header", "\x1b"],
        ["produce", "t", "--file", "/"],
        ["completion", "tcsh"],
        ["cluster", "partitions", "--limit", "-1"],
    ],
    ids=lambda args: ascii(" ".join(args))[:60],
)
def test_values_of_the_wrong_kind(ctl: Any, server: FakeServer, args: list[str]) -> None:
    result = ctl(*args)
    assert result.exit_code == 2 and result.stdout == "" and "Error: " in result.stderr
    assert all(line.isprintable() for line in result.stderr.splitlines())
    assert server.frames == []


def test_messages_that_are_too_large(ctl: Any, server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.limits = {"message_bytes": 1000, "key_bytes": 10, "headers_bytes": 50}
    for args, data in (
        (["--file", "-"], b"x" * 1001),
        (["x", "--key", "k" * 11], b""),
        (["x", "--header", "a=" + "b" * 100], b""),
        (["--lines"], b"x" * 1001),
        (["--jsonl"], b'{"text": "' + b"x" * 1001 + b'"}'),
        (["--file", "-", "--count", "2"], b"x" * 1001),
    ):
        result = ctl("produce", "t", *args, input=data)
        is_one_of_many = args[0] in ("--lines", "--jsonl") or "--count" in args
        assert result.exit_code == (1 if is_one_of_many else 2) and result.stderr and server.produced == [], args
    for module in ("commands.produce", "options.payload"):
        monkeypatch.setattr(f"sandctl.{module}.LINE_BYTES_MAX", 100)
    assert ctl("produce", "t", "--file", "-", input=b"x" * 101).exit_code == 2
    result = ctl("produce", "t", "--lines", input=b"fine\n" + b"x" * 200_000)
    assert result.exit_code == 1 and "line 2: longer than" in result.stderr and "1 message sent" in result.stderr


def test_consume_ends_when_the_server_has_no_ready_messages(ctl: Any, server: Any) -> None:
    """The command ends because the server reports that no message is left, not because of a timeout."""
    ctl("produce", "t", "--lines", input=b"a\nb\n")
    assert ctl("consume", "t", "-g", "g").stdout == "a\nb\n" and server.leases >= 1
    asked = server.leases
    assert ctl("consume", "t", "-g", "g").stdout == ""
    assert server.leases == asked + 1
    assert {Lease.parse(frame).wait_ms for frame in server.of_type(Type.LEASE)} == {0}, "at once"

    def once_more(connection: Any, frame: Any) -> None:
        """Messages that became ready meanwhile but were not pushed come with the reply."""
        server.auto = False
        server.script[Type.PRODUCE].clear()
        for rows in server.stored.values():
            rows[0].state = "ready"
        server.answer(connection, frame)

    server.script[Type.LEASE] += [once_more]
    assert ctl("consume", "t", "-g", "g", "-o", "jsonl").stdout.startswith('{"text": "a"')
    assert [row.state for row in server.stored["t", 0]] == ["acked", "acked"]


@pytest.mark.parametrize(
    ("args", "gap_s"),
    [
        (ENDLESS, 0.0),
        (ENDLESS, 0.03),
        (["consume", "t", "-g", "g", "--follow"], 0.003),
        (["produce", "t", "--lines"], 0.0),
    ],
)
def test_interrupted_twice_at_once(spawn: Any, server: FakeServer, args: list[str], gap_s: float) -> None:
    """The signal can arrive twice: a key bounces, or terminal and parent both send it. It counts as one Ctrl-C."""
    process = spawn(*args, change=f"sandctl.interrupts.IMPATIENT_S = {2 * PATIENCE_S}")
    wait_until(lambda: server.produced or server.subscribed or (args[0] == "produce" and server.of_type(Type.METADATA)))
    process.send_signal(signal.SIGINT)
    time.sleep(gap_s)
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130
    assert b"Traceback" not in process.stderr.read() and set(server.topics) == {"t"}


def test_interrupted_again_while_it_cleans_up(spawn: Any, server: FakeServer) -> None:
    """Ctrl-C is pressed again, as an impatient user does.

    The removal that the first Ctrl-C started is complete at the end.
    """
    processes: list[Any] = []

    def interrupted(connection: Any, frame: Any) -> None:
        processes[0].send_signal(signal.SIGINT)
        connection.send(encode_error(frame[1], NotLeader("ask again")))

    server.script[Type.TOPIC_DELETE] += [interrupted]
    change = f"sandctl.interrupts.IMPATIENT_S = {2 * PATIENCE_S}"
    processes.append(spawn(*ENDLESS, change=change))
    wait_until(lambda: server.produced)
    processes[0].send_signal(signal.SIGINT)
    assert processes[0].wait(PATIENCE_S) == 130
    assert b"Traceback" not in processes[0].stderr.read() and set(server.topics) == {"t"}
    assert len(server.of_type(Type.TOPIC_DELETE)) == 2


def test_second_interrupt_ends_at_once(spawn: Any, server: FakeServer) -> None:
    """The command waits for the answer to its cleanup. The second Ctrl-C ends it at once."""
    server.script[Type.TOPIC_DELETE] += [SILENCE] * 9
    process = spawn(
        "bench", "produce", "--rate", "200", "--duration", "500s", change="sandctl.interrupts.IMPATIENT_S = 0.0"
    )
    wait_until(lambda: server.produced)
    process.send_signal(signal.SIGINT)
    wait_until(lambda: server.of_type(Type.TOPIC_DELETE))
    process.send_signal(signal.SIGINT)
    assert process.wait(PATIENCE_S) == 130, "without the second signal the command would wait much longer"
    assert b"Traceback" not in process.stderr.read()


def test_a_second_signal_counts_when_it_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now_s=100.0)
    done: list[str] = []
    handled = {name: getattr(signal, name) for name in ("SIGINT", "SIGALRM", "ITIMER_REAL", "default_int_handler")}
    none = SimpleNamespace(**handled, signal=lambda *_: None, setitimer=lambda *_: None, getsignal=lambda _: None)
    monkeypatch.setattr(interrupts, "signal", none)
    monkeypatch.setattr(interrupts, "time", SimpleNamespace(monotonic=lambda: clock.now_s))
    monkeypatch.setattr(interrupts, "_end", lambda *_: done.append("ended"))
    with interrupts.Interrupts() as pressed:
        with pytest.raises(KeyboardInterrupt):
            pressed._on_signal(signal.SIGINT, None)  # nothing is running that could be cancelled
        pressed.cancel = lambda: done.append("cancelled")
        for clock.now_s in (100.0, 100.0, 100.03, 100.5):
            pressed._on_signal(signal.SIGINT, None)
        assert done == ["cancelled"]
        clock.now_s = 100.51
        pressed._on_signal(signal.SIGINT, None)
        assert done == ["cancelled", "ended"]


def test_a_message_that_is_half_out_is_finished(spawn: Any, server: FakeServer) -> None:
    """The interrupt comes while the reader is slow. A begun message is completed, so the JSON is whole."""
    process = spawn("-o", "json", "consume", "t", "-g", "g", "--follow")
    wait_until(lambda: server.subscribed)
    spawn("produce", "t", "--lines").communicate(b"x" * 200_000)
    first = os.read(process.stdout.fileno(), 10)
    process.send_signal(signal.SIGINT)
    data = first + process.stdout.read()
    assert process.wait(PATIENCE_S) == 130 and len(json.loads(data)) == 1
    assert server.stored["t", 0][0].state == "ready", "the message was not acked"
