"""The parent's end of a load: a process that is told what to do, says when it is ready, and is let go."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from types import MappingProxyType, TracebackType
from typing import Any

from benchmarks.process import Meter, Metered, MeteredNode, running
from benchmarks.result import Measured, Setting, Told
from benchmarks.wire import Wire
from demo.node import ROOT

TOGETHER_S = 0.1
"""After it is told to go a load waits so long, so that others can be told as well."""
END_S = 10.0
_LINES = 12


class LoadFailed(Exception):
    """A load ended by itself; the text has the end of what it said."""


class Load:
    """`python -m benchmarks.load`, which is ended with the block."""

    def __init__(self, do: str, **spec: Any) -> None:
        self._name = do
        self._spec = {"do": do, **spec}

    def __enter__(self) -> Load:
        self._errors = tempfile.TemporaryFile("w+")
        command = [sys.executable, "-m", "benchmarks.load", str(os.getpid())]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True
        )
        self._say(json.dumps(self._spec))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            # What was not read in time by a process that is gone now stays in the pipe.
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]

    def ready(self) -> dict[str, Any]:
        """Wait until everything is prepared; what the load says of itself."""
        return self._hear()

    def go(self, at_s: float | None = None) -> None:
        """Let it run from a moment of `time.perf_counter` on, which all processes share; from now on without one."""
        self._say(f"go {time.perf_counter() if at_s is None else at_s!r}")

    def stop(self) -> None:
        """Tell a load that has no end of its own to come to one."""
        self._say("stop")

    def told(self) -> Told:
        """Wait until it is through."""
        return Told.of(self._hear())

    def check(self) -> None:
        """LoadFailed when it has ended already."""
        if self._process.poll() is not None:
            raise self._failed()

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failed() from None

    def _hear(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise self._failed()
        found: dict[str, Any] = json.loads(line)
        return found

    def _failed(self) -> LoadFailed:
        self._process.wait(END_S)
        self._errors.seek(0)
        lines = "\n".join(self._errors.read().splitlines()[-_LINES:])
        return LoadFailed(f"the load {self._name} ended with exit code {self._process.returncode}:\n{lines}")


def measure(nodes: Metered, do: str, **spec: Any) -> Measured:
    """Run one load; what it and the nodes took."""
    with Load(do, **spec) as load:
        load.ready()
        meter = Meter(nodes)
        load.go()
        told = load.told()
        used = meter.stop()
    return Measured.of(told, used)


@contextlib.contextmanager
def node_with(
    setting: Setting,
    topic: str,
    partitions: int = 1,
    *,
    node_settings: Mapping[str, str] = MappingProxyType({}),
    **settings: Any,
) -> Iterator[MeteredNode]:
    """A new node with a topic, whose settings are the last ones."""
    with running(setting.where, setting.name, **node_settings) as node:
        wire = Wire(node.port)
        wire.create_topic(topic, partitions, **settings)
        wire.close()
        yield node
