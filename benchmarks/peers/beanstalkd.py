"""beanstalkd: one tube, with its log in files."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.peers import server
from benchmarks.peers.loop import value
from benchmarks.peers.peer import REPLY_BYTES, Client, Consumer, Lines, Link, Peer, PeerError, connect
from benchmarks.peers.workloads import DUE_PER_S, LEAD_MS, VALUE_BYTES

RUN_S: Final = 600
"""Time for which a job stays reserved for its consumer."""
_JOB = re.compile(rb"RESERVED (\d+) %d\r\n.{%d}\r\n|DELETED(\r\n)" % (VALUE_BYTES, VALUE_BYTES))
_COUNTED = re.compile(rb"current-jobs-(?:ready|delayed|reserved): (\d+)")


class Beanstalkd(Peer):
    program = "beanstalkd"
    package = "beanstalkd"

    def __init__(self, sync_ms: int) -> None:
        self.name = f"beanstalkd-f{sync_ms}"
        self.syncs_first = sync_ms == 0
        self.durability = "fsync before each response" if self.syncs_first else f"page cache; fsync every {sync_ms} ms"
        self.notes = (
            f"one tube, log in files (-f{sync_ms}), pipelined puts; reserve and delete, pipelined. Delays are whole "
            "seconds: for the lateness, messages are put at the pace at which they will be due, with the delay counted "
            "from then. (Without -b nothing is stored: not measured)"
        )
        self._sync_ms = sync_ms

    def version(self) -> str:
        told = subprocess.run([str(self.executable()), "-v"], capture_output=True, text=True)
        return told.stdout.strip()

    @contextlib.contextmanager
    def serving(self, directory: Path) -> Iterator[tuple[int, int]]:
        port = server.free_port()
        log = directory / "log"
        log.mkdir()
        options = ("-l", "127.0.0.1", "-p", str(port), "-b", str(log), f"-f{self._sync_ms}")
        with server.running([str(self.executable()), *options], directory) as pid:
            server.wait_until_ready(self.client(port).ping, pid)
            yield pid, port

    def client(self, port: int) -> Client:
        return BeanstalkdClient(port)


def put(text: bytes, delay_s: int) -> bytes:
    return b"put 0 %d %d %d\r\n%s\r\n" % (delay_s, RUN_S, len(text), text)


class BeanstalkdClient(Client):
    def ping(self) -> None:
        self._stats()

    def _stats(self) -> bytes:
        with connect(self.port) as connection:
            connection.sendall(b"stats-tube default\r\n")
            answer = connection.recv(REPLY_BYTES)
            while answer.startswith(b"OK") and not answer.endswith(b"\n\r\n"):
                answer += connection.recv(REPLY_BYTES)
        if not answer.startswith(b"OK"):
            raise PeerError(f"stats-tube: {answer!r}")
        return answer

    def link(self, at: int, size: int, scheduled: bool) -> Link:
        return BeanstalkdLink(self.port, size)

    def consumer(self, messages: int, scheduled: bool, window: int) -> Consumer:
        # A waiting reserve blocks all later commands of its connection, including deletes. So at most one reserve
        # waits.
        return BeanstalkdConsumer(self.port, messages, 1 if scheduled else window)

    def stored(self) -> int:
        return sum(map(int, _COUNTED.findall(self._stats())))

    def put_paced(self, messages: int) -> bool:
        """Put messages one after the other. Each is due a fixed delay after it was sent, the first after the last was
        put."""
        delay_s = -(-messages // DUE_PER_S) + -(-LEAD_MS // 1000)
        with connect(self.port) as connection:
            began = time.time()
            for number in range(messages):
                time.sleep(max(0.0, began + number / DUE_PER_S - time.time()))
                connection.sendall(put(value(int(time.time() * 1000) + 1000 * delay_s, number), delay_s))
                answer = connection.recv(REPLY_BYTES)
                if not answer.startswith(b"INSERTED"):
                    raise PeerError(f"put: {answer!r}")
        return True


class BeanstalkdLink(Link):
    def __init__(self, port: int, size: int) -> None:
        super().__init__(connect(port))
        self.answers_each = size
        self._lines = Lines()

    def request(self, number: int, values: Sequence[bytes], dues_ms: Sequence[int] | None) -> bytes:
        if dues_ms is None:
            return b"".join([put(text, 0) for text in values])
        now_ms = int(time.time() * 1000)
        delays_s = [-((now_ms - due_ms) // 1000) for due_ms in dues_ms]
        return b"".join([put(text, delay_s) for text, delay_s in zip(values, delays_s, strict=True)])

    def count(self, data: bytes) -> int:
        lines = self._lines.feed(data)
        many = lines.count(b"INSERTED ")
        if many != lines.count(b"\n"):
            raise PeerError(f"not all were inserted: {lines[:500]!r}")
        return many


class BeanstalkdConsumer(Consumer):
    """Keeps `window` reserves in flight; deletes each job that arrives, and reserves another."""

    def __init__(self, port: int, messages: int, window: int) -> None:
        super().__init__(connect(port))
        self._window = min(window, messages)
        self._unreserved = messages - self._window
        self._kept = b""

    def start(self) -> bytes:
        return b"reserve\r\n" * self._window

    def receive(self, data: bytes) -> bytes:
        data = self._kept + data
        end, out = 0, []
        for match in _JOB.finditer(data):
            if match.start() != end:
                break
            end = match.end()
            if match[2]:
                self.done += 1
                continue
            out.append(b"delete %s\r\n" % match[1])
            if self._unreserved:
                self._unreserved -= 1
                out.append(b"reserve\r\n")
        self._kept = data[end:]
        if self._kept[:1] not in (b"", b"R", b"D"):
            raise PeerError(f"neither a job nor deleted: {self._kept[:200]!r}")
        return b"".join(out)
