"""Run shell lines in which `sandctl` and `sandq` are commands, and `sandctl` alone.

Starting Python and loading the client takes a third of a second of CPU time, twenty times as much as a command. The
modules of a `sandq` tool need 0.7 s. So lines that need no shell run in this process, by the same entry point. The
effects of a process (signals, pipes, exit) are tested in tests/unit/sandctl/test_process.py and tests/unit/tools."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import select
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import anyio
import anyio.from_thread
import anyio.to_thread
import click
import sniffio
from click.testing import CliRunner

from sandctl import settings
from sandctl.main import main
from sandq import cli
from sandq.tools.doctor import check_ports
from tests.support.paths import ROOT
from tests.support.processes.node import NodeProcess
from tests.support.sandctl.patient import patient
from tests.support.waiting import PATIENCE_S

_TOOLS = ("certs", "check-config", "doctor", "recover", "wal")
"""Subcommands of `sandq` that do not start a node."""
_NEEDS_A_SHELL = re.compile(r"[|<>$&;`\n]")


Run = Callable[[str], Awaitable["Done"]]
"""Runs a shell line, within an event loop."""


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


def run_here(
    args: Sequence[str],
    environ: Mapping[str, str],
    directory: Path,
    stdin: str = "",
    program: click.Command = main,
) -> Done:
    """Run sandctl, or another program of this repository, in this process, with the timeouts of tests."""
    patience = dict.fromkeys(("CONNECT_S", "REQUEST_S", "DELIVERY_S"), PATIENCE_S)
    with (
        contextlib.chdir(directory),
        mock.patch.multiple(settings, **patience),
        mock.patch.object(check_ports, "REPLY_S", PATIENCE_S),
    ):
        result = CliRunner(env=environ).invoke(program, list(args), input=stdin.encode())
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Done(result.exit_code, result.stdout_bytes.decode(errors="replace"), result.stderr)


def _is_free() -> bool:
    """Return whether a command may run in this thread: the main thread, without a running event loop.

    A command handles signals and runs its own event loop."""
    if threading.current_thread() is not threading.main_thread():
        return False
    try:
        sniffio.current_async_library()
    except sniffio.AsyncLibraryNotFoundError:
        return True
    return False


class Shell:
    """Calls `shell(line)` run a line of bash in `directory`, expect exit code 0 and return its standard output."""

    def __init__(self, directory: Path, **environ: str) -> None:
        self.directory = directory
        programs = directory / "bin"
        programs.mkdir()
        python = [sys.executable]
        for name, command in (("sandctl", patient()), ("sandq", [*python, "-m", "sandq.cli"]), ("python", python)):
            # Block SIGINT until sandctl has started its work (see `patient`). A document's `timeout` may send SIGINT
            # earlier; during its own start, Python would print a traceback.
            block = "env --block-signal=INT " if name == "sandctl" else ""
            (programs / name).write_text(f'#!/bin/sh\nexec {block}{shlex.join(command)} "$@"\n')
            (programs / name).chmod(0o755)
        path = f"{programs}:{os.environ['PATH']}"
        self._environ = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path, **environ}

    def run(self, line: str) -> Done:
        """Run a line; may also be called in a thread while an event loop runs."""
        words = shlex.split(line, comments=True)
        if not _NEEDS_A_SHELL.search(line) and _is_free():
            if words[0] == "sandctl":
                return run_here(words[1:], self._environ, self.directory)
            if words[0] == "sandq" and words[1] in _TOOLS:
                return run_here(words[1:], self._environ, self.directory, program=cli.main)
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.directory,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",  # the output may contain binary data
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    def __call__(self, line: str, code: int = 0) -> str:
        done = self.run(line)
        assert done.code == code, (line, done)
        assert "Traceback" not in done.err, done.err
        return done.out

    def interrupt(self, line: str, after: bytes) -> tuple[int, bytes, bytes]:
        """Start a line, and press Ctrl-C once it has printed `after`. Return (exit code, standard output and error)."""
        command = ["bash", "-c", f"exec {line}"]
        return interrupt(command, lambda printed: after in printed, cwd=self.directory, env=self._environ)


def interrupt(command: list[str], is_enough: Callable[[bytes], bool], **options: Any) -> tuple[int, bytes, bytes]:
    """Start a command, send SIGINT once its output is enough; return (exit code, standard output, standard error)."""
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options
    ) as process:
        assert process.stdout is not None
        printed = b""
        try:
            while not is_enough(printed):
                ready, _, _ = select.select([process.stdout], [], [], PATIENCE_S)
                assert ready, f"not enough was printed: {printed!r}"
                more = os.read(process.stdout.fileno(), 65_536)
                assert more, (command, process.communicate())
                printed += more
            process.send_signal(signal.SIGINT)
            rest, errors = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    return process.returncode, printed + rest, errors


class Ctl:
    """Calls `ctl("topic list")` run sandctl and expect exit code 0. Other arguments are appended to these words."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.environ = os.environ | {"PYTHONPATH": str(ROOT), "SANDCTL_SERVERS": node.address, "COLUMNS": "200"}

    def __call__(self, words: str, *more: str, stdin: str = "", code: int = 0) -> Done:
        done = run_here([*words.split(), *more], self.environ, self.node.directory, stdin)
        assert done.code == code, (words, more, done)
        return done

    def json(self, words: str, *more: str) -> Any:
        return json.loads(self(words, *more, "-o", "json").out)


def run_with_commands(page: Callable[[Run], Awaitable[None]], shell: Shell) -> None:
    """Run an async function in another thread. Run the shell lines that it requests in this thread, one at a time."""
    asked: queue.SimpleQueue[tuple[str, Future[Done]] | None] = queue.SimpleQueue()

    async def run(line: str) -> Done:
        done: Future[Done] = Future()
        asked.put((line, done))
        return await anyio.to_thread.run_sync(done.result)

    with anyio.from_thread.start_blocking_portal("trio") as portal:
        ended = portal.start_task_soon(page, run)
        ended.add_done_callback(lambda _: asked.put(None))
        while (wanted := asked.get()) is not None:
            line, done = wanted
            try:
                done.set_result(shell.run(line))
            except BaseException as error:
                done.set_exception(error)
        ended.result()
