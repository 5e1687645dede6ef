"""Abusive clients, each kind under its name, and the victim that must be served meanwhile.

An abuser runs for a number of seconds, whatever the node does: if it is refused, cut off or not read, it begins again.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count, cycle, repeat
from typing import Any, NamedTuple

from benchmarks.load.work import Done, Ready
from benchmarks.result import CALLED, Latency, LoadResult
from benchmarks.wire import Wire
from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.errors import SandqError
from sandq.protocol.frames import encode_frame
from sandq.protocol.request import Request
from sandq.protocol.requests import Ack, Hello, Lease, Metadata, Ping, Produce, Subscribe
from sandq.protocol.requests_admin import ClusterInfo, GroupList, TopicCreate, TopicStats
from sandq.protocol.requests_keys import KvGet, KvScan, KvWatch
from sandq.protocol.requests_log import Fetch
from sandq.protocol.requests_messages import Cancel, Forecast, List
from sandq.protocol.requests_schedules import ScheduleList, SchedulePreview, SchedulePut

VICTIM, FAT, WIDE, KEYS = "victim", "fat", "wide", "keys"
"""Topics: of the victim; with large messages; with many partitions; compacted."""
WIDE_PARTITIONS = 256
NICE = 19
"""Nice value of an abuser. In practice, an abuser runs on another machine, so here it leaves the processor to the node
and the victim.
"""
ROWS, ROW_BYTES = 16, 1 << 20
"""Messages per batch of FAT and KEYS, and their sizes in bytes."""
PAUSE_S = 0.005
CHUNK = 32
"""Requests sent in one call."""
NUMBERS = 8192
"""Request numbers used in turn for a repeated request: more than may be in flight, unless the frames get too large."""
NUMBERED_BYTES = 16 << 20
"""Maximum bytes of the frames with all these numbers. The frames are built once, to leave the processor to the node."""
SOCKETS = 100
"""Connections of one abuser that holds as many as it can."""
STEP_S = 0.05
RECEIVE_BYTES = 1 << 18
MB = 1 << 20


class Target(NamedTuple):
    """Address of the node."""

    port: int
    http: int


Abuse = Callable[[Target, float], int]
"""Run until a time of `time.perf_counter`; return the number of requests."""


def victim(port: int, seconds: float) -> Ready:
    """Produce one message after the other, each after the response to the previous message."""
    wire = Wire(port)
    request = Produce(VICTIM, 0, 0, 0, 0, 0, encode({Column.VALUE: [bytes(100)]}))
    wire.call(request.frame)

    def run(began_s: float) -> Done:
        nonlocal seconds
        taken: list[float] = []
        refused = 0
        while (now := time.perf_counter()) < began_s + seconds:
            try:
                wire.call(request.frame)
            except SandqError:
                refused += 1
            except OSError:  # no response, or closed
                refused += 1
                seconds = 0
            taken.append(time.perf_counter() - now)
            time.sleep(PAUSE_S)
        wire.close()
        result = LoadResult(len(taken), time.perf_counter() - began_s, details={"refused": refused})
        return Done(result, lambda: Latency.of(CALLED, taken))

    return Ready(run)


def abuse(kind: str, port: int, http: int, seconds: float) -> Ready:
    """Run one abuser of a kind."""
    target = Target(port, http)

    def run(began_s: float) -> Done:
        os.nice(NICE)
        asked = KINDS[kind](target, began_s + seconds)
        return Done(LoadResult(asked, time.perf_counter() - began_s))

    return Ready(run)


# -- over the client port -----------------------------------------------------------------------------------------


Blocks = Callable[[], Iterator[bytes]]
"""Yield frames of requests without end, `CHUNK` in each block, for a connection."""


def _pounds(requests: Blocks, *, reads: bool = True) -> Abuse:
    """Send requests without end, as fast as the node accepts them; read the responses, or none of them."""

    def pound(at: Target, until_s: float) -> int:
        asked = 0
        while time.perf_counter() < until_s:
            with suppress(OSError):
                sock = _connected(at.port, reads)
                coming, out = requests(), b""
                while time.perf_counter() < until_s:
                    if not out:
                        out = next(coming)
                        asked += CHUNK
                    readable, writable, _ = select.select([sock] if reads else [], [sock], [], STEP_S)
                    if readable and not sock.recv(RECEIVE_BYTES):
                        break
                    if writable:
                        out = out[sock.send(out) :]
                sock.close()
        return asked

    return pound


def _connected(port: int, reads: bool) -> socket.socket:
    sock = socket.socket()
    if not reads:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(STEP_S * 20)
    sock.connect(("127.0.0.1", port))
    sock.sendall(Hello(2, "benchmarks", {}).frame(1))
    sock.setblocking(False)
    return sock


def _made(requests: Callable[[], Iterator[Request]]) -> Blocks:
    """Yield requests that are all different."""

    def blocks() -> Iterator[bytes]:
        numbers, coming = count(2), requests()
        while True:
            yield b"".join([next(coming).frame(next(numbers)) for _ in range(CHUNK)])

    return blocks


def _again(request: Request) -> Blocks:
    """Yield the same request without end."""
    if NUMBERS * len(request.frame(NUMBERS)) > NUMBERED_BYTES:
        return _made(lambda: repeat(request))

    def blocks() -> Iterator[bytes]:
        firsts = range(2, 2 + NUMBERS, CHUNK)
        return cycle(b"".join([request.frame(first + at) for at in range(CHUNK)]) for first in firsts)

    return blocks


def _unread(request: Request) -> Abuse:
    return _pounds(_again(request), reads=False)


def _read(request: Request) -> Abuse:
    return _pounds(_again(request))


def _subscriptions() -> Iterator[Request]:
    for number in count(2**40):
        yield Subscribe(number, FAT, "pushed", f"c{number}", 1000, None, "earliest", [])


def _topics() -> Iterator[Request]:
    for number in count(time.perf_counter_ns()):
        yield TopicCreate(f"t{number}", "timer", 64, 1, {})


def _cancels() -> Iterator[Request]:
    while True:
        yield Cancel(FAT, 0, [[0, bytes([1, *bytes(12), number % 256, 0, 0])] for number in range(1000)])


def _schedules() -> Iterator[Request]:
    """Yield schedules, each with a different expression that takes long to parse."""
    batch = encode({Column.VALUE: [bytes(100)]})
    for number in count(time.perf_counter_ns()):
        rules = [{"cron": f"{number % 60} {at % 24} 29 2 *", "zone": "Europe/Berlin"} for at in range(100)]
        yield SchedulePut(FAT, 0, [[f"s{number}-{at}", None, rule, batch, False] for at, rule in enumerate(rules)])


def _garbage(at: Target, until_s: float) -> int:
    """Yield frames with wrong fields."""
    frame = encode_frame(3, 7, FAT, "0", [[[0]]] * 100)
    asked = 0
    while time.perf_counter() < until_s:
        with suppress(OSError):
            sock = _connected(at.port, True)
            while time.perf_counter() < until_s:
                readable, writable, _ = select.select([sock], [sock], [], STEP_S)
                if readable and not sock.recv(RECEIVE_BYTES):
                    break
                if writable:
                    asked += sock.send(frame * CHUNK) // len(frame)
            sock.close()
    return asked


def _holds(head: bytes, rest: bytes, *, hello: bool, http: bool = False) -> Abuse:
    """Hold many connections. Each has sent a part of something, and sends a little more now and then."""

    def hold(at: Target, until_s: float) -> int:
        socks: list[socket.socket] = []
        made = 0
        while time.perf_counter() < until_s:
            if len(socks) < SOCKETS:
                with suppress(OSError):
                    sock = socket.create_connection(("127.0.0.1", at.http if http else at.port), STEP_S * 20)
                    if hello:
                        sock.sendall(Hello(2, "benchmarks", {}).frame(1))
                    sock.sendall(head)
                    sock.setblocking(False)
                    socks.append(sock)
                    made += 1
            for sock in [*socks]:
                try:
                    sock.send(rest)
                except BlockingIOError:
                    pass
                except OSError:
                    sock.close()
                    socks.remove(sock)
            if len(socks) >= SOCKETS:
                time.sleep(STEP_S)
        for sock in socks:
            sock.close()
        return made

    return hold


def _connects(at: Target, until_s: float) -> int:
    made = 0
    while time.perf_counter() < until_s:
        with suppress(OSError), socket.create_connection(("127.0.0.1", at.port), STEP_S * 20) as sock:
            sock.sendall(b"\0\0\0\x10\x93")
            made += 1
    return made


# -- over HTTP ------------------------------------------------------------------------------------------------------


def _http(method: str, path: str, body: Callable[[], bytes] = bytes) -> Abuse:
    """Send the same request repeatedly, each on a new connection; read the response."""

    def ask(at: Target, until_s: float) -> int:
        data, asked = _http_request(method, path, body()), 0
        while time.perf_counter() < until_s:
            with suppress(OSError), socket.create_connection(("127.0.0.1", at.http), STEP_S * 20) as sock:
                sock.settimeout(max(STEP_S, until_s - time.perf_counter()))
                sock.sendall(data)
                asked += 1
                while sock.recv(RECEIVE_BYTES):
                    pass
        return asked

    return ask


def _http_request(method: str, path: str, body: bytes, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
    return head.encode() + body


def _many(item: str, times: int) -> bytes:
    return ('{"messages":[' + ",".join([item] * times) + "]}").encode()


def _members(times: int) -> str:
    return "{" + ",".join([f'"k{number}":0' for number in range(times)]) + "}"


def _twice() -> bytes:
    return ("{" + ",".join(f'"k{number}":0' for number in range(9_000)) + ',"z":0,"z":0}').encode()


_PRODUCE = Produce(FAT, 0, 0, 0, 0, 0, encode({Column.VALUE: [bytes(1000)]}))
_LARGE = Produce(FAT, 0, 0, 0, 0, 0, encode({Column.VALUE: [bytes(MB)]}))
_SCAN = KvScan(KEYS, 0, False, b"", None, 10_000, 8 * MB)
_WATCH = KvWatch(KEYS, 0, bytes(16), None, True, b"", None, 65_536, 8 * MB, 0)
_WAIT = KvWatch(KEYS, 0, bytes(16), None, True, b"zz", None, 1, MB, 30_000)
_FETCH = Fetch(FAT, 0, offsets.FIRST, None, 1_000_000, 2**31, True)
_LIST = List(FAT, 0, None, 0, 2**48 - 1, None, 1000, None, True)

KINDS: dict[str, Abuse] = {
    "metadata": _read(Metadata([WIDE])),
    "metadata_unread": _unread(Metadata([WIDE])),
    "cluster_info": _read(ClusterInfo()),
    "topic_stats": _read(TopicStats(WIDE)),
    "group_list": _read(GroupList(WIDE)),
    "forecast": _read(Forecast(WIDE, "second", 3600)),
    "fetch": _read(_FETCH),
    "fetch_unread": _unread(_FETCH),
    "list": _read(_LIST),
    "list_unread": _unread(_LIST),
    "kv_scan": _read(_SCAN),
    "kv_scan_unread": _unread(_SCAN),
    "kv_get": _read(KvGet(KEYS, 0, False, [b"%05d" % number for number in range(1000)])),
    "kv_watch": _read(_WATCH),
    "kv_watch_unread": _unread(_WATCH),
    "kv_watch_waits": _read(_WAIT),
    "lease_waits": _read(Lease(WIDE, "waits", "c", 1, 60_000, None, "latest", False)),
    "subscribe": _pounds(_made(_subscriptions)),
    "subscribe_unread": _pounds(_made(_subscriptions), reads=False),
    "produce": _read(_PRODUCE),
    "produce_large": _read(_LARGE),
    "ack": _read(Ack(1, 0, [[number, None] for number in range(1, 1000)])),
    "cancel": _pounds(_made(_cancels)),
    "schedules": _pounds(_made(_schedules)),
    "schedule_list": _read(ScheduleList(FAT, 0, "", 1000, None)),
    "schedule_preview": _read(SchedulePreview("p", {"cron": "0 0 29 2 *", "zone": "Europe/Berlin"}, None, 1000)),
    "topic_create": _pounds(_made(_topics)),
    "ping": _read(Ping()),
    "garbage": _garbage,
    "connects": _connects,
    "half_frames": _holds((32 << 20).to_bytes(4, "big") + b"\x93\x03\x02" + bytes(MB), bytes(65_536), hello=True),
    "half_hellos": _holds((4000).to_bytes(4, "big") + b"\x93\x01", b"\0", hello=False),
    "http_twice": _http("POST", "/topics", _twice),
    "http_deep": _http("POST", f"/topics/{FAT}", lambda: b'{"json":' + b"[" * 900 + b"]" * 900 + b"}"),
    "http_arrays": _http("POST", f"/topics/{FAT}", lambda: b'{"json":[' + b",".join([b"[]"] * 49_990) + b"]}"),
    "http_parts": _http("POST", f"/topics/{FAT}", lambda: b'{"json":[' + b",".join([b"0"] * 249_990) + b"]}"),
    "http_unknown": _http("POST", f"/topics/{FAT}", lambda: _members(9_990).encode()),
    "http_unknown_many": _http("POST", f"/topics/{FAT}", lambda: _many(_members(20), 10_000)),
    "http_messages": _http("POST", f"/topics/{FAT}", lambda: _many('{"text":"' + "x" * 2000 + '"}', 10_000)),
    "http_text": _http("POST", f"/topics/{FAT}", lambda: b'{"text":"' + b"x" * (30 * MB) + b'"}'),
    "http_acks": _http("POST", f"/topics/{FAT}/groups/g/ack", lambda: _many('{"lease_token":"1.0.1"}', 80_000)),
    "http_pages": _http("GET", f"/topics/{FAT}/0?limit=1000"),
    "http_lines_unread": _holds(
        b"GET /topics/fat/0 HTTP/1.1\r\nHost: localhost\r\nAccept: application/x-ndjson\r\n\r\n",
        b"",
        hello=False,
        http=True,
    ),
    "http_half_bodies": _holds(
        _http_request("POST", f"/topics/{FAT}", bytes(MB), 30 * MB), bytes(4096), hello=False, http=True
    ),
    "http_half_heads": _holds(b"GET /topics HTTP/1.1\r\nHost: localhost\r\nX: ", b"a", hello=False, http=True),
    "http_waits": _holds(
        _http_request("POST", f"/topics/{WIDE}/groups/waits/lease", b'{"wait":"60s"}'), b"", hello=False, http=True
    ),
}  # fmt: skip
"""Abusers by their names in rows."""


def fill(port: int) -> None:
    """Create the topics that the abusers use."""
    wire = Wire(port)
    wire.create_topic(VICTIM)
    wire.create_topic(FAT)
    wire.create_topic(WIDE, WIDE_PARTITIONS)
    wire.call(TopicCreate(KEYS, "compacted", 1, 1, {}).frame)
    values: list[Any] = [bytes(1000)] * (ROW_BYTES // 1000)
    for row in range(ROWS):
        wire.call(Produce(FAT, 0, 0, 0, 0, 0, encode({Column.VALUE: values})).frame)
        keys: list[Any] = [b"%05d" % (row * len(values) + at) for at in range(len(values))]
        wire.call(Produce(KEYS, 0, 0, 0, 0, 0, encode({Column.KEY: keys, Column.VALUE: values})).frame)
    wire.close()
