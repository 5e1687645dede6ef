"""The parent's side of a load: starts the process, waits until it is ready, and lets it run."""

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
from benchmarks.result import LoadResult, Measured, Setting
from benchmarks.wire import Wire
from demo.node import ROOT

TOGETHER_S = 0.1
"""Delay between the start signal and the load, so that several loads can start together."""
END_S = 10.0
_LINES = 12


class LoadFailed(Exception):
    """A load ended by itself; the text has the end of its output."""


class Load:
    """Run `python -m benchmarks.load`; it ends with the block."""

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
            # If the process has ended, output that was not read yet is still in the pipe.
            with contextlib.suppress(BrokenPipeError):
                stream.close()  # type: ignore[union-attr]

    def ready(self) -> dict[str, Any]:
        """Wait until the load is prepared. Return the data that the load reports before it runs."""
        return self._hear()

    def go(self, at_s: float | None = None) -> None:
        """Let the load run from a time of `time.perf_counter`, which all processes share; without a time, from now."""
        self._say(f"go {time.perf_counter() if at_s is None else at_s!r}")

    def stop(self) -> None:
        """Ask an endless load to finish."""
        self._say("stop")

    def result(self) -> LoadResult:
        """Wait for the result."""
        return LoadResult.of(self._hear())

    def check(self) -> None:
        """Raise LoadFailed if it has already ended."""
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
    """Run one load; return its result with the resource use of the nodes."""
    with Load(do, **spec) as load:
        load.ready()
        meter = Meter(nodes)
        load.go()
        result = load.result()
        used = meter.stop()
    return Measured.of(result, used)


@contextlib.contextmanager
def node_with(
    setting: Setting,
    topic: str,
    partitions: int = 1,
    *,
    node_settings: Mapping[str, str] = MappingProxyType({}),
    **settings: Any,
) -> Iterator[MeteredNode]:
    """A new node with a topic; the last arguments are the topic's settings."""
    with running(setting.where, setting.name, **node_settings) as node:
        wire = Wire(node.port)
        wire.create_topic(topic, partitions, **settings)
        wire.close()
        yield node
