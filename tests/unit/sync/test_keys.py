"""Tests of keys through the blocking client."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice

import pytest

import sandq
from sandq.errors import ClosedError, HistoryGone, InvalidRequest, VersionChanged
from sandq.protocol.frames import Type
from tests.support.client.fake_server import FakeServer
from tests.support.client.threaded_server import ThreadedServer
from tests.support.waiting import PATIENCE_S, wait_until


@pytest.fixture
def kv(server: FakeServer, client: sandq.sync.Client) -> sandq.sync.Keys:
    server.add_topic("k", 3, kind="compacted")
    return client.kv("k")


def shown(changes: Iterator[sandq.Change], count: int) -> list[tuple[bytes, bytes | None]]:
    return [(change.key, change.value) for change in islice(changes, count)]


def test_writing_and_reading(kv: sandq.sync.Keys, server: FakeServer) -> None:
    version = kv.put("a", "1", headers={"n": 1}, ttl="1h")
    entry = kv.get("a")
    assert entry is not None and (entry.value, entry.version, entry.headers) == (b"1", version, {"n": 1})
    with pytest.raises(VersionChanged) as refused:
        kv.cas("a", "2", expected=None)
    assert refused.value.details == {"version": version}
    kv.delete("a", expected=kv.cas("a", "2", expected=version))
    assert kv.get("a") is None and kv.topic == "k"
    versions = kv.put_many((f"k{n:04d}", str(n)) for n in range(1200))
    assert len(versions) == 1200 and len(server.produced) < 20
    assert [row.version for row in kv.scan() if row] == versions
    assert [row.key for row in kv.scan(prefix="k000", limit=3)] == [b"k0000", b"k0001", b"k0002"]
    many = kv.get_many(["k0001", "none"], consistency="stale")
    assert many.stale_ms == 17 and many[0] is not None and many[1] is None
    with pytest.raises(InvalidRequest, match="item 1 of put_many"):
        kv.put_many({"x": "1", "": "2"})
    with pytest.raises(InvalidRequest, match="prefix"):
        kv.scan(prefix="a", start="b")


def test_gets_of_many_threads(kv: sandq.sync.Keys, server: FakeServer) -> None:
    kv.put_many({f"k{n}": str(n) for n in range(200)})
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(kv.get, [f"k{n}" for n in range(200)]))
    assert [entry and entry.value for entry in found] == [b"%d" % n for n in range(200)]


def test_watching(kv: sandq.sync.Keys, server: FakeServer) -> None:
    with kv.watch("a") as watch:
        assert watch.topic == "k" and iter(watch) is watch
        kv.put_many([("a", str(n)) for n in range(100)])
        kv.put("b", "x")
        kv.delete("a")
        assert shown(watch, 60) == [(b"a", b"%d" % n) for n in range(60)]
        position = json.loads(json.dumps(watch.position))
        assert shown(watch, 41) == [*((b"a", b"%d" % n) for n in range(60, 100)), (b"a", None)]
    with pytest.raises(ClosedError):
        next(watch)
    with kv.watch("a", start=position) as watch:
        assert shown(watch, 2) == [(b"a", b"60"), (b"a", b"61")]


def test_watch_raises_after_its_block(kv: sandq.sync.Keys) -> None:
    kv.put_many([("a", str(n)) for n in range(10)])
    with kv.watch("a", start="earliest") as watch:
        next(watch)
    with pytest.raises(ClosedError):
        next(watch)


def test_a_thread_that_waits_is_woken(kv: sandq.sync.Keys, client: sandq.sync.Client) -> None:
    ended: list[object] = []

    def wait(watch: sandq.sync.Watch) -> None:
        try:
            for change in watch:
                ended.append(change.value)
        except ClosedError as error:
            ended.append(type(error))

    with kv.watch() as watch:
        thread = threading.Thread(target=wait, args=(watch,))
        thread.start()
        kv.put("a", "1")
        wait_until(lambda: ended)
        client.close()
        thread.join(PATIENCE_S)
    assert ended == [b"1", ClosedError]


def test_slow_client_is_not_sent_more(kv: sandq.sync.Keys, server: FakeServer) -> None:
    kv.put_many([("a", str(n)) for n in range(100)])
    server.watch_changes = 10
    with kv.watch("a", start="earliest") as watch:
        assert shown(watch, 1) == [(b"a", b"0")]
        for _ in range(10):
            kv.get("a")  # these replies come after all requests that followed earlier replies
        assert len(server.of_type(Type.KV_WATCH)) <= 5, "two replies wait in the client, and two at the server"
        assert shown(watch, 99) == [(b"a", b"%d" % n) for n in range(1, 100)]


def test_errors(kv: sandq.sync.Keys, server: FakeServer, threaded: ThreadedServer) -> None:
    with pytest.raises(InvalidRequest, match="one of key and prefix"):
        kv.watch("a", prefix="b")
    with kv.watch("a", start="earliest") as watch:
        kv.put("a", "1")
        assert shown(watch, 1) == [(b"a", b"1")]
        wait_until(lambda: server.kv_watches)
        server.script[Type.KV_WATCH].append(HistoryGone("gone"))
        kv.put("a", "2")
        assert shown(watch, 1) == [(b"a", b"2")]
        for _ in range(2):
            with pytest.raises(HistoryGone):
                next(watch)


def test_use_in_a_forked_process_is_refused(kv: sandq.sync.Keys) -> None:
    """The bridge raises the error before any request is sent."""
    kv._portal._pid -= 1
    try:
        with pytest.raises(sandq.errors.ForkedError):
            kv.get("a")
        with pytest.raises(sandq.errors.ForkedError):
            kv.scan()
    finally:
        kv._portal._pid += 1
