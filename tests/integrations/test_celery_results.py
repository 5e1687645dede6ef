"""The result backend, tasks that wait, and periodic tasks, with an application and a worker in this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sandq.errors import NotFound
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, wait_until

pytest.importorskip("celery", reason="`make test` installs requirements-workers.lock")

import celery.contrib.testing.tasks  # noqa: F401 the worker's own task
from celery import Celery, chord, group
from celery.beat import BeatLazyFunc
from celery.contrib.testing.worker import start_worker
from celery.exceptions import BackendStoreError, ChordError, ImproperlyConfigured, TaskRevokedError, TimeoutError
from celery.schedules import crontab, schedule
from sandq_workers.celery import cancel, move, why
from sandq_workers.celery.beat import SandqScheduler, expression, store_schedules, times_of


class Shop:
    """An application with a few tasks."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.app = app = Celery("shop", broker=url, backend=url, set_as_current=True)
        app.conf.update(worker_hijack_root_logger=False, result_chord_join_timeout=PATIENCE_S)
        app.conf.update(result_extended=True, result_expires=3600)

        @app.task(name="shop.add")
        def add(a: int, b: int) -> int:
            return a + b

        @app.task(name="shop.total")
        def total(numbers: list[int]) -> int:
            return sum(numbers)

        @app.task(name="shop.fail")
        def fail() -> None:
            raise ValueError("no")

        self.add, self.total, self.fail = add, total, fail

    def close(self) -> None:
        self.app.backend.close()
        self.app.close()


@pytest.fixture
def shop(node: NodeProcess, tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(f"sandq://{node.address}/{tmp_path.name}")
    yield shop
    shop.close()


@pytest.fixture
def worker(shop: Shop) -> Iterator[None]:
    with start_worker(shop.app, pool="solo", perform_ping_check=False, shutdown_timeout=PATIENCE_S):
        yield


# -- results ---------------------------------------------------------------------------------------------------------


def test_results_of_tasks_groups_and_chords(shop: Shop, worker: None) -> None:
    assert shop.add.delay(2, 3).get(timeout=PATIENCE_S) == 5
    with pytest.raises(ValueError, match="no"):
        shop.fail.delay().get(timeout=PATIENCE_S)
    assert group(shop.add.s(n, n) for n in range(10))().get(timeout=PATIENCE_S) == [2 * n for n in range(10)]
    assert chord([shop.add.s(n, n) for n in range(10)])(shop.total.s()).get(timeout=PATIENCE_S) == 90
    failed = chord([shop.add.s(1, 1), shop.fail.s()])(shop.total.s())
    # Which of the two depends on whether the member or the body is seen first.
    with pytest.raises((ValueError, ChordError), match="no"):
        failed.get(timeout=PATIENCE_S)


def test_result_is_extended_forgotten_and_expires(shop: Shop, worker: None) -> None:
    result = shop.add.delay(2, 3)
    assert result.get(timeout=PATIENCE_S) == 5
    assert (result.name, result.args, result.queue) == ("shop.add", [2, 3], "celery")
    backend = shop.app.backend
    keys = backend.keys.client.kv(backend.keys.topic)
    entry = keys.get(backend.get_key_for_task(result.id))
    assert 3500 < entry.expires_ms / 1000 - datetime.now(UTC).timestamp() <= 3601
    backend.expire(backend.get_key_for_task(result.id), 3601)
    assert keys.get(entry.key).version == entry.version, "about the same time is not written again"
    backend.expire(backend.get_key_for_task(result.id), 0)
    assert keys.get(entry.key).expires_ms is None
    result.forget()
    assert shop.app.AsyncResult(result.id).state == "PENDING" and keys.get(entry.key) is None


def test_member_of_a_chord_that_returns_twice_counts_once(shop: Shop) -> None:
    backend, key = shop.app.backend, b"chord-unlock-1"
    counts = []
    for index in (0, 2, 2, 0, 1, None, None):
        backend._part.index = index
        counts.append(backend.incr(key))
    assert counts == [1, 2, 2, 2, 3, 4, 5]


def test_members_that_return_at_once_are_all_counted(shop: Shop) -> None:
    backend, counts = shop.app.backend, []

    def count(index: int) -> None:
        backend._part.index = index
        counts.append(backend.incr(b"chord-unlock-2"))

    threads = [threading.Thread(target=count, args=[index]) for index in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(counts) == list(range(1, 21))


def test_result_that_does_not_come_times_out(shop: Shop) -> None:
    waiting = shop.add.apply_async((1, 1), countdown=3600)
    with pytest.raises(TimeoutError):
        waiting.get(timeout=0.02)
    with pytest.raises(TimeoutError):
        group(shop.add.s(n, n).set(countdown=3600) for n in range(2))().get(timeout=0.02)


def test_large_value_and_a_wrong_url_are_errors_of_celery(shop: Shop) -> None:
    with pytest.raises(BackendStoreError, match="bytes"):
        shop.app.backend.set(b"k", os.urandom(20 << 20))
    with pytest.raises(ImproperlyConfigured, match="unknown option 'tsl'"):
        _ = Celery("wrong", backend="sandq://127.0.0.1:1?tsl=true", set_as_current=False).backend
    uri = Celery("masked", backend="sandq://secret@127.0.0.1:1", set_as_current=False).backend.as_uri()
    assert uri == "sandq://**@127.0.0.1:1"


# -- tasks that wait -------------------------------------------------------------------------------------------------


def test_waiting_task_is_explained_moved_and_cancelled(shop: Shop) -> None:
    task = shop.add.apply_async((1, 1), countdown=3600)
    assert why(task.id)["queue"] == "celery" and why(task.id)["state"] == "delayed"
    at = datetime.now(UTC) + timedelta(days=2)
    move(task.id, eta=at)
    assert why(task.id)["deliver_ms"] == -int(-at.timestamp() * 1000 // 1)
    move(task.id, countdown=7200)
    assert cancel(task.id) == cancel(task.id) == "cancelled"
    for call in (cancel, why, lambda name: move(name, countdown=1)):
        with pytest.raises(NotFound, match="no queue of the application knows the task 'other'"):
            call("other")
    redis = Celery("other", broker="memory://", set_as_current=False)
    with pytest.raises(ImproperlyConfigured, match="not sandq"):
        cancel(task.id, app=redis)


def test_done_task_cannot_be_cancelled(shop: Shop, worker: None) -> None:
    task = shop.add.delay(1, 1)
    assert task.get(timeout=PATIENCE_S) == 2
    assert cancel(task.id) in ("acked", "gone", "leased")


def test_revoked_task_never_runs_and_its_result_ends(shop: Shop) -> None:
    waiting = [shop.add.apply_async((n, n), countdown=0.5) for n in range(3)]
    waiting[0].revoke()
    shop.app.control.revoke([each.id for each in waiting[1:]])
    for each in waiting:
        assert each.state == "REVOKED"
        with pytest.raises(TaskRevokedError, match="revoked"):
            each.get(timeout=PATIENCE_S)
    shop.app.control.revoke("unknown")
    later = shop.add.apply_async((5, 5), countdown=0.6)
    # A worker that starts now has not heard of the revocations.
    with start_worker(shop.app, pool="solo", perform_ping_check=False, shutdown_timeout=PATIENCE_S):
        assert later.get(timeout=PATIENCE_S) == 10
    assert {each.state for each in waiting} == {"REVOKED"}


def test_chord_with_a_revoked_member_fails(shop: Shop, worker: None) -> None:
    found = chord([shop.add.s(1, 1).set(countdown=3600), shop.add.s(2, 2)])(shop.total.s())
    found.parent.children[1].get(timeout=PATIENCE_S)
    found.parent.children[0].revoke()
    with pytest.raises(TaskRevokedError):
        found.get(timeout=PATIENCE_S)


def test_task_that_is_sent_again_replaces_the_one_that_waits(shop: Shop, worker: None) -> None:
    for number in (1, 2):
        result = shop.add.apply_async((number, 10), task_id="again", countdown=0.3)
    assert result.get(timeout=PATIENCE_S) == 12
    assert cancel("again") in ("acked", "gone", "leased")


# -- periodic tasks --------------------------------------------------------------------------------------------------


class Odd(schedule):  # type: ignore[misc]
    """A type of schedule that only Celery knows."""


def entry_of(shop: Shop, times: Any, **more: Any) -> Any:
    return SandqScheduler.Entry(name="e", task="shop.add", schedule=times, app=shop.app, **more)


def test_times_of_periodic_tasks(shop: Shop) -> None:
    shop.app.conf.timezone = "Europe/Berlin"
    every = crontab(minute="*/15", hour="9-17", day_of_week="mon-fri", month_of_year="1,7")
    assert expression(every) == "0,15,30,45 9,10,11,12,13,14,15,16,17 * 1,7 1,2,3,4,5"
    assert expression(crontab()) == "* * * * *" and expression(crontab(day_of_month="1")).split()[2] == "1"
    assert expression(crontab(day_of_month="13", day_of_week="fri")) is None
    found = times_of(entry_of(shop, crontab(minute="0", app=shop.app)))
    assert found == {"cron": "0 * * * *", "zone": "Europe/Berlin"}
    assert times_of(entry_of(shop, 30.0)) == {"every": timedelta(seconds=30)}
    for times, more, reason in (
        (schedule(30, relative=True), {}, "has no equivalent"),
        (Odd(), {}, "Odd has no equivalent"),
        (30.0, {"options": {"countdown": 5}}, "countdown"),
        (30.0, {"args": (BeatLazyFunc(int),)}, "computed for each run"),
        (crontab(day_of_month="13", day_of_week="fri"), {}, "at once"),
        (schedule(30, nowfun=datetime.now), {}, "clock of its own"),
    ):
        assert reason in times_of(entry_of(shop, times, **more))


def test_entries_of_beat_become_schedules_that_fire(shop: Shop, worker: None) -> None:
    shop.app.conf.beat_schedule = {
        "often": {"task": "shop.add", "schedule": 1.0, "args": (20, 1), "options": {"expires": 60}},
        "nightly": {"task": "shop.add", "schedule": crontab(hour="3", minute="0"), "args": (1, 1)},
        "odd": {"task": "shop.add", "schedule": Odd(60), "args": (1, 1)},
    }
    found = store_schedules(shop.app)
    assert found.stored == 2 and list(found.own) == ["odd"]
    backend = shop.app.backend
    topic = backend.keys.topic.replace("celery.results", "celery")
    schedules = backend.keys.client.schedules(topic)
    names = [one.name for one in schedules.list()]
    assert names == ["beat/shop/nightly", "beat/shop/often"]
    done: set[str] = set()

    def has_two_runs() -> bool:
        rows = [backend.decode(entry.value) for entry in backend.keys.client.kv(backend.keys.topic).scan()]
        done.update(row["task_id"] for row in rows if row.get("result") == 21)
        return len(done) >= 2

    backend.get(b"x")  # creates the topic
    wait_until(has_two_runs)
    del shop.app.conf.beat_schedule["often"]
    del shop.app.conf.beat_schedule["odd"]
    scheduler = SandqScheduler(shop.app)
    assert scheduler.schedule == {} and "broker" in scheduler.info
    scheduler.close()
    assert [one.name for one in schedules.list()] == ["beat/shop/nightly"]
