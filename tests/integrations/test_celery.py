"""A real Celery application with a prefork worker, which changes nothing but the URL of its broker."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integrations.workers import Worker
from tests.support.paths import ROOT
from tests.support.processes.node import NodeProcess
from tests.support.waiting import wait_until

pytest.importorskip("celery", reason="`make test` installs requirements-workers.lock")

from sandq_workers.celery.beat import store_schedules


class Bench:
    """An application, the lines that its tasks have noted, and its workers."""

    def __init__(self, app: Any, directory: Path) -> None:
        self.app = app
        self.directory = directory
        self._workers: list[Worker] = []

    def worker(self, name: str) -> Worker:
        self._workers.append(Worker("celery_app", name, self.directory / f"{name}.log"))
        return self._workers[-1]

    def lines(self) -> list[str]:
        path = self.directory / "lines"
        return [line.rpartition(" ")[0] for line in path.read_text().splitlines()] if path.exists() else []

    def time_of(self, line: str) -> float:
        text = (self.directory / "lines").read_text()
        return next(float(each.rpartition(" ")[2]) for each in text.splitlines() if each.startswith(f"{line} "))

    def wait_for(self, *lines: str) -> None:
        wait_until(lambda: {*lines} <= {*self.lines()})

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()


@pytest.fixture
def bench(node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setenv("CELERY_BROKER_URL", f"sandq://{node.address}/{tmp_path.name}")
    monkeypatch.setenv("LINES", str(tmp_path / "lines"))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.delitem(sys.modules, "celery_app", raising=False)
    import celery_app

    bench = Bench(celery_app, tmp_path)
    yield bench
    bench.close()
    celery_app.app.close()


def test_worker_runs_tasks_with_countdown_retry_and_priority(bench: Bench) -> None:
    app = bench.app
    for priority in (0, 9):
        app.say.apply_async([f"p{priority}"], queue="ranked", priority=priority)
    sent_at = time.time()
    app.say.apply_async(["later"], countdown=1)
    app.say.apply_async(["next year"], countdown=366 * 86400)
    app.say.apply_async(["expired"], countdown=0.5, expires=0.001)
    app.again.delay()
    worker = bench.worker("w1@h")
    bench.wait_for("later", "again-0-eta-None", "again-1-eta-None", "p0", "p9")
    assert bench.time_of("later") >= sent_at + 1
    assert app.app.control.ping(timeout=5, limit=1) == [{"w1@h": {"ok": "pong"}}]
    queues = app.app.control.inspect(["w1@h"], timeout=5, limit=1).active_queues()["w1@h"]
    assert {queue["name"] for queue in queues} == {"celery", "ranked"}
    with app.app.connection() as connection:
        events: list[str] = []

        def take(event: dict[str, Any]) -> None:
            events.append(event["type"])
            receiver.should_stop = True

        receiver = app.app.events.Receiver(connection, handlers={"*": take})
        receiver.capture(limit=60, timeout=60, wakeup=False)
    assert events == ["worker-heartbeat"]
    assert worker.stop() == 0
    assert not {"expired", "next year"} & {*bench.lines()}


def test_killed_worker_loses_nothing_and_a_warm_stop_gives_back(bench: Bench) -> None:
    app, gate = bench.app, bench.directory / "gate"
    words = [f"held{number}" for number in range(5)]
    for word in words:
        app.held.delay(word, str(gate))
    first = bench.worker("w1@h")
    wait_until(lambda: len(bench.lines()) >= 2)
    first.kill()  # two tasks run, and two or more are prefetched
    assert not any(line.endswith("-ends") for line in bench.lines())
    gate.touch()
    second = bench.worker("w2@h")
    bench.wait_for(*(f"{word}-ends" for word in words))
    assert sorted(line for line in bench.lines() if line.endswith("-ends")) == [f"{word}-ends" for word in words]
    assert second.stop() == 0


def test_examples_of_the_page_run(node: NodeProcess, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs" / "integrations" / "celery.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "shop"}
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code.replace("sandq://127.0.0.1:7170", f"sandq://{node.address}/page"), names)
    assert capsys.readouterr().out == "delayed\ncancelled\n"
    with names["app"].connection() as connection:
        channel = connection.default_channel
        assert channel.basic_get("celery") is None and channel.queue_purge("celery") == 1
    assert store_schedules(names["app"]).stored == 1
    names["app"].close()
