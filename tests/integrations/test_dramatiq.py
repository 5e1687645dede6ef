"""Dramatiq on sandq: the broker, results and rate limits, with a node in a process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandq.errors import InvalidRequest, NotFound
from tests.support.paths import ROOT
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, wait_until

pytest.importorskip("dramatiq", reason="`make test` installs requirements-workers.lock")

import dramatiq
from dramatiq.errors import ConnectionClosed, QueueJoinTimeout, QueueNotFound, RateLimitExceeded
from dramatiq.rate_limits import Barrier, BucketRateLimiter, ConcurrentRateLimiter, WindowRateLimiter
from dramatiq.results import ResultMissing, Results, ResultTimeout
from dramatiq.results.errors import ResultFailure
from sandq_workers.dramatiq import SandqBroker, SandqRateLimits, SandqResults

PATIENCE_MS = int(PATIENCE_S * 1000)


@pytest.fixture
def url(node: NodeProcess, tmp_path: Path) -> str:
    return f"sandq://{node.address}/{tmp_path.name}"


@pytest.fixture
def broker(url: str) -> Iterator[SandqBroker]:
    broker = SandqBroker(url)
    broker.add_middleware(Results(backend=SandqResults(url)))
    dramatiq.set_broker(broker)
    yield broker
    broker.close()
    broker.get_results_backend().close()


@pytest.fixture
def limits(url: str) -> Iterator[SandqRateLimits]:
    backend = SandqRateLimits(url)
    yield backend
    backend.close()


@pytest.fixture
def worker(broker: SandqBroker) -> Iterator[Any]:
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=4)
    worker.start()
    yield worker
    worker.stop(PATIENCE_MS)


def test_actors_run_with_results_pipelines_and_groups(broker: SandqBroker, worker: Any) -> None:
    @dramatiq.actor(store_results=True)
    def add(a: int, b: int) -> int:
        return a + b

    @dramatiq.actor(store_results=True, max_retries=0)
    def fail() -> None:
        raise ValueError("no")

    message = add.send(2, 3)
    assert message.get_result(block=True, timeout=PATIENCE_MS) == 5
    assert (add.message(1, 2) | add.message(10)).run().get_result(block=True, timeout=PATIENCE_MS) == 13
    group = dramatiq.group([add.message(n, n) for n in range(5)]).run()
    assert list(group.get_results(block=True, timeout=PATIENCE_MS)) == [0, 2, 4, 6, 8]
    with pytest.raises(ResultFailure, match="no"):
        fail.send().get_result(block=True, timeout=PATIENCE_MS)
    broker.join("default", timeout=PATIENCE_MS)
    waiting = add.send_with_options(args=(1, 1), delay=3_600_000)
    with pytest.raises(ResultMissing):
        waiting.get_result()
    with pytest.raises(ResultTimeout):
        waiting.get_result(block=True, timeout=20)


def test_delayed_message_waits_in_the_broker(broker: SandqBroker, worker: Any) -> None:
    seen: list[float] = []

    @dramatiq.actor
    def remind() -> None:
        seen.append(time.time())

    began = time.time()
    remind.send_with_options(delay=400)
    broker.join("default", timeout=PATIENCE_MS)
    assert len(seen) == 1 and seen[0] >= began + 0.4
    assert broker.get_declared_delay_queues() == set()


def test_message_is_retried_with_back_off_and_then_given_up(broker: SandqBroker, worker: Any) -> None:
    runs: list[str] = []

    @dramatiq.actor(max_retries=2, min_backoff=10, max_backoff=50)
    def fail(name: str) -> None:
        runs.append(name)
        raise ValueError(name)

    fail.send("a")
    wait_until(lambda: len(runs) == 3)
    client, topic = broker.client, broker.topic("default")
    wait_until(lambda: client.dead(topic, "workers").counts() == {"rejected": 1})
    (letter,) = client.dead(topic, "workers").list()
    assert "ValueError: a" in letter.error
    client.dead(topic, "workers").redrive()
    wait_until(lambda: len(runs) > 3)


def test_priorities_of_the_broker(url: str) -> None:
    broker = SandqBroker(url, max_priority=5)
    dramatiq.set_broker(broker)
    seen: list[int] = []

    @dramatiq.actor
    def note(number: int) -> None:
        seen.append(number)

    for priority in (0, 5, 2, 9):
        note.send_with_options(args=(priority,), broker_priority=priority)
    worker = dramatiq.Worker(broker, worker_timeout=100, worker_threads=1)
    worker.start()
    broker.join("default", timeout=PATIENCE_MS)
    worker.stop()
    assert [*sorted(seen[:2]), *seen[2:]] == [5, 9, 2, 0]
    broker.close()


def test_waiting_message_is_explained_moved_and_cancelled(broker: SandqBroker) -> None:
    @dramatiq.actor
    def remind() -> None: ...

    message = remind.send_with_options(delay=3_600_000)
    told = broker.why(message.message_id)
    assert (told["queue"], told["state"]) == ("default", "delayed")
    broker.move(message.message_id, delay=7_200_000)
    assert broker.why(message.message_id)["deliver_ms"] > told["deliver_ms"]
    assert broker.cancel(message.message_id) == broker.cancel(message.message_id) == "cancelled"
    with pytest.raises(NotFound, match="no declared queue knows the message 'x'"):
        broker.cancel("x")
    broker.join("default", timeout=PATIENCE_MS)


def test_flush_join_and_undeclared_queues(broker: SandqBroker) -> None:
    @dramatiq.actor
    def remind() -> None: ...

    broker.flush_all()
    for _ in range(3):
        remind.send_with_options(delay=3_600_000)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=50)
    broker.flush("default")
    broker.join("default", timeout=PATIENCE_MS)
    for call in (broker.consume, broker.flush, broker.join):
        with pytest.raises(QueueNotFound):
            call("missing")
    with pytest.raises(QueueNotFound):
        broker.enqueue(remind.message().copy(queue_name="missing"))


def test_message_of_another_program_becomes_a_dead_letter(broker: SandqBroker, worker: Any) -> None:
    @dramatiq.actor(store_results=True)
    def one() -> int:
        return 1

    assert one.send().get_result(block=True, timeout=PATIENCE_MS) == 1
    broker.client.produce(broker.topic("default"), b"\xff no message")
    wait_until(lambda: broker.client.dead(broker.topic("default"), "workers").counts() == {"rejected": 1})
    assert one.send().get_result(block=True, timeout=PATIENCE_MS) == 1


def test_prefetched_messages_are_given_back(broker: SandqBroker) -> None:
    @dramatiq.actor
    def note() -> None: ...

    sent = [note.send() for _ in range(3)]
    consumer = broker.consume("default", prefetch=2, timeout=PATIENCE_MS)
    first, second = next(consumer), next(consumer)
    consumer._timeout_s = 0.05
    assert next(consumer) is None, "two messages are held"
    consumer.requeue([second])
    consumer.ack(first)
    consumer.close()
    again = broker.consume("default", prefetch=5, timeout=PATIENCE_MS)
    found = [next(again), next(again)]
    assert {message.message_id for message in found} == {message.message_id for message in sent[1:]}
    assert [message.held.attempt for message in found] == [1, 1]
    for message in found:
        again.ack(message)
    again.close()


def test_wrong_url_and_a_broker_that_is_away(broker: SandqBroker) -> None:
    with pytest.raises(InvalidRequest, match="unknown option 'tsl'"):
        SandqBroker("sandq://127.0.0.1?tsl=true")
    away = SandqBroker("sandq://127.0.0.1:1?timeout=1s&delivery_timeout=1s")
    away.declare_queue("default")
    with pytest.raises(ConnectionClosed):
        away.enqueue(dramatiq.Message("default", "a", (), {}, {}))
    with pytest.raises(ConnectionClosed):
        away.consume("default")


# -- rate limits -----------------------------------------------------------------------------------------------------


def test_concurrent_limit(limits: SandqRateLimits) -> None:
    limiter = ConcurrentRateLimiter(limits, "c", limit=2)
    with limiter.acquire(), limiter.acquire(raise_on_failure=False) as second:
        assert second
        with pytest.raises(RateLimitExceeded), limiter.acquire():
            pass
    with limiter.acquire(raise_on_failure=False) as again:
        assert again


def test_bucket_and_window_are_exact_among_threads(limits: SandqRateLimits) -> None:
    bucket, window = (
        BucketRateLimiter(limits, "b", limit=7, bucket=60_000_000),
        WindowRateLimiter(limits, "w", limit=7, window=300),
    )
    for limiter in (bucket, window):
        got: list[bool] = []

        def take(limiter: Any = limiter, got: list[bool] = got) -> None:
            for _ in range(4):
                with limiter.acquire(raise_on_failure=False) as acquired:
                    got.append(acquired)

        threads = [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert (len(got), sum(got)) == (16, 7)


def test_barrier(limits: SandqRateLimits) -> None:
    barrier = Barrier(limits, "x", ttl=60_000)
    assert barrier.create(parties=2) and not barrier.create(parties=2)
    assert not barrier.wait(block=False) and not limits.wait("other", timeout=20)
    waiter = threading.Thread(target=barrier.wait, kwargs={"timeout": PATIENCE_MS})
    waiter.start()
    assert barrier.wait(block=False)
    waiter.join(PATIENCE_S)
    assert not waiter.is_alive()


# -- processes -------------------------------------------------------------------------------------------------------

PROGRAM = """
import os, time
from pathlib import Path
import dramatiq
from sandq_workers.dramatiq import SandqBroker

dramatiq.set_broker(SandqBroker(os.environ["URL"], lease="2s"))


@dramatiq.actor(max_retries=0)
def held(word, gate):
    with open(os.environ["LINES"], "a") as lines:
        lines.write(f"{word}-begins\\n")
    while not Path(gate).exists():
        time.sleep(0.05)
    with open(os.environ["LINES"], "a") as lines:
        lines.write(f"{word}-ends\\n")
"""


def test_killed_worker_loses_nothing(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "held_app.py").write_text(PROGRAM)
    lines, gate = tmp_path / "lines", tmp_path / "gate"
    monkeypatch.setenv("URL", url)
    monkeypatch.setenv("LINES", str(lines))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "held_app", raising=False)
    import held_app

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "dramatiq", "held_app", "-p", "1", "-t", "2", "--path", str(tmp_path)]
        with (tmp_path / "log").open("ab") as out:
            return subprocess.Popen(command, stdout=out, stderr=out, cwd=tmp_path, start_new_session=True)

    def has(*words: str) -> bool:
        return {*words} <= {*(lines.read_text().split() if lines.exists() else ())}

    words = [f"w{n}" for n in range(5)]
    for word in words:
        held_app.held.send(word, str(gate))
    first = start()
    try:
        wait_until(lambda: sum(has(f"{word}-begins") for word in words) == 2)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    gate.touch()
    second = start()
    try:
        wait_until(lambda: has(*(f"{word}-ends" for word in words)))
        second.terminate()
        assert second.wait(PATIENCE_S) == 0
    finally:
        if second.poll() is None:
            os.killpg(second.pid, signal.SIGKILL)
            second.wait()
    held_app.dramatiq.get_broker().close()
    assert sorted(line for line in lines.read_text().split() if line.endswith("ends")) == [f"{w}-ends" for w in words]


def test_example_of_the_page_runs(node: NodeProcess) -> None:
    page = (ROOT / "docs" / "integrations" / "dramatiq.md").read_text(encoding="utf-8")
    code = page.partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(code.replace("sandq://127.0.0.1:7170", f"sandq://{node.address}/dramatiq-page"), names)
    assert names["broker"].cancel(names["message"].message_id) == "cancelled"
    names["broker"].close()
    names["broker"].get_results_backend().close()
