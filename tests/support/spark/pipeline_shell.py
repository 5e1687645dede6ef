"""Provide a shell whose `sandctl pipeline` commands run in this process, with the existing Spark session.

A Java process for each command would take ten seconds of CPU time. Here `sandctl` is a small program that passes its
arguments, its directory and its standard output to the test, and exits with the code of the command."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.processes.shell import Done, Shell, run_here
from tests.support.sandctl.patient import patient

_PROGRAM = """\
#!{python} -SE
import json, os, socket, sys
args = sys.argv[1:]
if args[:1] != ["pipeline"]:
    os.execv({python!r}, [*{patient!r}, *args])
asking = socket.socket(socket.AF_UNIX)
asking.connect({path!r})
socket.send_fds(asking, [json.dumps([args, os.getcwd()]).encode() + b"\\n"], [1, 2])
sys.exit(int(asking.recv(16)))
"""


class PipelineShell(Shell):
    """A `Shell` that records its commands in `ran`."""

    def __init__(self, spark: Any, directory: Path, **environ: str) -> None:
        super().__init__(directory, **environ)
        self._jvm = spark.sparkContext._jvm
        self.ran: list[str] = []
        self._path = str(directory / "pipeline.socket")
        program = directory / "bin" / "sandctl"
        program.write_text(_PROGRAM.format(python=sys.executable, patient=patient(), path=self._path))

    def run(self, line: str) -> Done:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self._path)
            listener.listen()
            try:
                return self._serve(listener, line)
            finally:
                os.unlink(self._path)

    def _serve(self, listener: socket.socket, line: str) -> Done:
        with subprocess.Popen(
            ["bash", "-o", "pipefail", "-c", line],
            cwd=self.directory,
            env=self._environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        ) as process:
            ended: list[tuple[str, str]] = []

            def wait() -> None:
                ended.append(process.communicate())
                with socket.socket(socket.AF_UNIX) as knock:
                    knock.connect(self._path)

            waiting = threading.Thread(target=wait)
            waiting.start()
            while not ended:
                asking, _ = listener.accept()
                with asking:
                    self._answer(asking)
            waiting.join()
            return Done(process.returncode, *ended[0])

    def _answer(self, asking: socket.socket) -> None:
        data, descriptors, _, _ = socket.recv_fds(asking, 1 << 20, 2)
        if not data:
            return  # `wait` connected without sending anything: the shell has ended
        args, directory = json.loads(data)
        self.ran.append(" ".join(args[:2]))
        with contextlib.ExitStack() as stack:
            out, err = (stack.enter_context(os.fdopen(descriptor, "w")) for descriptor in descriptors)
            with self._java_in(directory):
                done = run_here(args, self._environ, Path(directory))
            out.write(done.out)
            err.write(done.err)
        asking.sendall(str(done.code).encode())

    @contextlib.contextmanager
    def _java_in(self, directory: str) -> Iterator[None]:
        """Resolve relative paths from `directory`. Without this, Java uses the directory in which it was started."""
        system, hadoop = self._jvm.java.lang.System, self._jvm.org.apache.hadoop
        files = hadoop.fs.FileSystem.get(hadoop.conf.Configuration())
        before = system.getProperty("user.dir")
        for place in (directory, before):
            system.setProperty("user.dir", place)
            files.setWorkingDirectory(hadoop.fs.Path(place))
            if place is directory:
                yield
