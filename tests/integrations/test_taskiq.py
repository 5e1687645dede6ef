"""Taskiq on a real node: workers in this process, and one in a process of its own, which is killed."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.support.paths import ROOT
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, wait_until

pytest.importorskip("taskiq", reason="`make test` installs requirements-workers.lock")

from sandq_workers.taskiq import ResultIsMissingError, SandqBroker, SandqResultBackend, SandqScheduleSource
from sandq_workers.taskiq.schedules import times_of
from taskiq import (
    Context,
    ScheduledTask,
    SimpleRetryMiddleware,
    SmartRetryMiddleware,
    TaskiqDepends,
    TaskiqResult,
)
from taskiq.abc.broker import AsyncBroker
from taskiq.depends.progress_tracker import TaskProgress
from taskiq.exceptions import ResultGetError, ResultSetError, SendTaskError
from taskiq.message import BrokerMessage
from taskiq.receiver import Receiver
from taskiq.serializers import PickleSerializer

import sandq
from sandq.errors import ConnectionLost, InvalidName, InvalidRequest, NotFound, TooLate

CONTEXT: Any = TaskiqDepends()


def run(work: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await work

    asyncio.run(limited())


@pytest.fixture
def url(node: NodeProcess, tmp_path: Path) -> str:
    return f"sandq://{node.address}/{tmp_path.name}"


@pytest.fixture
def broker(url: str) -> SandqBroker:
    return SandqBroker(url).with_result_backend(SandqResultBackend(url))


@asynccontextmanager
async def started(broker: AsyncBroker) -> AsyncIterator[None]:
    await broker.startup()
    try:
        yield
    finally:
        await broker.shutdown()


@asynccontextmanager
async def working(broker: AsyncBroker, **options: Any) -> AsyncIterator[None]:
    """Run a worker in this event loop."""
    broker.is_worker_process = True
    receiver = Receiver(broker, **{"max_async_tasks": 10, "run_startup": False, **options})
    finish = asyncio.Event()
    async with started(broker):
        task = asyncio.create_task(receiver.listen(finish))
        try:
            yield
        finally:
            finish.set()
            await task


async def result_of(task: Any) -> Any:
    return (await task.wait_result(check_interval=0.01)).return_value


async def dead_letters(url: str, group: str = "workers") -> list[str]:
    place, _, prefix = url.removeprefix("sandq://").partition("/")
    async with sandq.connect(place) as client:
        return [str(letter.error) async for letter in client.dead(f"{prefix}.taskiq", group).list()]


async def counted(url: str) -> int:
    """Return the number of pending messages of the queue."""
    place, _, prefix = url.removeprefix("sandq://").partition("/")
    async with sandq.connect(place) as client:
        return len([True async for _ in client.messages(f"{prefix}.taskiq").list()])


def test_task_runs_and_returns_its_result(broker: SandqBroker, url: str) -> None:
    @broker.task
    async def add(a: int, b: int) -> int:
        return a + b

    @broker.task(queue_name="other @")
    def fails(text: str, context: Context = CONTEXT) -> None:
        raise ValueError(text, context.message.labels["count"])

    async def work() -> None:
        async with working(broker):
            assert await result_of(await add.kiq(2, 3)) == 5
        listening = SandqBroker(url, queue_name="other @").with_result_backend(broker.result_backend)
        listening.local_task_registry = broker.local_task_registry
        async with started(broker):
            task = await fails.kicker().with_labels(count=7).kiq("no")
            async with working(listening):
                result = await task.wait_result(check_interval=0.01)
        assert result.is_err and isinstance(result.error, ValueError) and result.error.args == ("no", 7)

    run(work())


def test_broker_serves_each_event_loop_without_a_startup(broker: SandqBroker) -> None:
    received: list[int] = []

    @broker.task
    async def receive(number: int) -> None:
        received.append(number)

    async def send(number: int) -> None:
        await receive.kiq(number)

    async def work() -> None:
        async with working(broker):
            assert await result_of(await receive.kiq(3)) is None

    run(send(1))
    run(send(2))
    run(work())
    assert sorted(received) == [1, 2, 3]


def test_delayed_task_is_explained_moved_and_cancelled(broker: SandqBroker, url: str) -> None:
    times: list[datetime] = []

    @broker.task
    async def note() -> None:
        times.append(datetime.now(UTC))

    async def work() -> None:
        async with started(broker):
            cancelled = await note.kicker().with_labels(delay=3600).kiq()
            why = await broker.why(cancelled.task_id)
            assert (why["queue"], why["state"]) == ("taskiq", "delayed")
            assert await broker.cancel(cancelled.task_id) == "cancelled"
            moved = await note.kicker().with_labels(delay=3600, unique_key="moved").kiq()
            replacing = await note.kicker().with_labels(delay=3600, unique_key="moved").kiq()
            assert await counted(url) == 1
            at = datetime.now(UTC) + timedelta(seconds=0.3)
            await broker.move("moved", time=at)
            for unknown in (moved.task_id, "never sent"):
                with pytest.raises(NotFound):
                    await broker.why(unknown)
            async with working(broker):
                await result_of(replacing)
                assert len(times) == 1 and times[0] >= at
        async with started(broker):
            assert await broker.cancel("moved") in ("acked", "gone")
            with pytest.raises((TooLate, NotFound)):
                await broker.move("moved", delay=1)

    run(work())


def test_priorities_and_tenants_choose_the_order(url: str) -> None:
    broker = SandqBroker(url, kind="fair", prefetch=1)
    order: list[str] = []
    done = asyncio.Event()

    @broker.task
    async def note(word: str) -> None:
        order.append(word)
        if len(order) == 3:
            done.set()

    async def work() -> None:
        async with started(broker):
            await note.kicker().with_labels(priority=0, tenant="a").kiq("low")
            await note.kicker().with_labels(priority=99, tenant="a").kiq("high")
            await note.kicker().with_labels(tenant="a", unique_key="k", delay=60).kiq("moved")
            await broker.move("k", delay=0, tenant="a")
            async with working(broker, max_async_tasks=1):
                await done.wait()

    run(work())
    assert order.index("high") < order.index("low")


@pytest.mark.parametrize("labels", [{"priority": 1}, {"tenant": "a"}, {"delay": "soon"}, {"delay": float("nan")}])
def test_wrong_label_is_refused_when_the_task_is_sent(broker: SandqBroker, labels: dict[str, Any]) -> None:
    @broker.task
    async def nothing() -> None: ...

    async def work() -> None:
        with pytest.raises(SendTaskError) as caught:
            await nothing.kicker().with_labels(**labels).kiq()
        assert isinstance(caught.value.__cause__, InvalidRequest)
        await broker.shutdown()

    run(work())


@pytest.mark.parametrize(
    "middleware",
    [
        SimpleRetryMiddleware(default_retry_label=True),
        SmartRetryMiddleware(default_retry_label=True, default_delay=0.1),
        None,
    ],
)
def test_task_that_fails_is_tried_again_by_the_middleware(broker: SandqBroker, middleware: Any) -> None:
    tries: list[str] = []
    source = SandqScheduleSource(broker)
    broker.add_middlewares(
        middleware or SmartRetryMiddleware(default_retry_label=True, default_delay=0.1, schedule_source=source)
    )

    @broker.task
    async def flaky(context: Context = CONTEXT) -> int:
        tries.append(context.message.task_id)
        if len(tries) < 3:
            raise KeyError(len(tries))
        return len(tries)

    async def work() -> None:
        async with working(broker):
            task = await flaky.kiq()
            assert await result_of(task) == 3 and tries == [task.task_id] * 3

    run(work())


def test_message_that_the_worker_cannot_run_becomes_a_dead_letter(broker: SandqBroker, url: str) -> None:
    @broker.task
    async def fine() -> str:
        return "fine"

    def message(task_id: str, data: bytes) -> BrokerMessage:
        return BrokerMessage(task_id=task_id, task_name="?", message=data, labels={})

    def known(**labels: Any) -> bytes:
        return fine.kicker().with_labels(**labels)._prepare_message().model_dump_json().encode()

    async def work() -> None:
        async with working(broker):
            await broker.kick(message("1", b"\xff"))
            await broker.kick(message("2", b""))
            await broker.kick(message("3", known().replace(b"fine", b"gone")))
            await broker.kick(message("4", known(ack_type="never")))
            assert await result_of(await fine.kiq()) == "fine"
        letters = await dead_letters(url)
        assert len(letters) == 4
        assert sum("has no task" in letter for letter in letters) == 1
        assert sum("Unknown acknowledge type" in letter for letter in letters) == 1

    run(work())


def test_message_stays_leased_after_the_listener_was_closed(broker: SandqBroker) -> None:
    """Taskiq closes the listener when a worker stops, and then waits for the tasks that run."""

    @broker.task
    async def slow() -> None: ...

    async def work() -> None:
        async with started(broker):
            task = await slow.kiq()
            messages = broker.listen()
            (message,) = [await anext(messages)]
            await messages.aclose()
            assert await broker.cancel(task.task_id) == "leased"
            acked = message.ack()
            assert acked is not None
            await acked
            assert await broker.cancel(task.task_id) == "acked"

    run(work())


def test_message_of_a_task_that_outlives_its_worker_is_given_back(broker: SandqBroker) -> None:
    begun = asyncio.Event()

    @broker.task
    async def hangs() -> None:
        begun.set()
        await asyncio.sleep(PATIENCE_S)

    async def work() -> None:
        async with working(broker, wait_tasks_timeout=0.01):
            await hangs.kiq()
            await begun.wait()
        async with started(broker):
            messages = broker.listen()
            assert b"hangs" in (await anext(messages)).data
            await messages.aclose()

    run(work())


def test_schedules_fire_in_the_broker_with_an_id_for_each_task(broker: SandqBroker) -> None:
    source, ids = SandqScheduleSource(broker), list[tuple[str, str]]()
    arrived = asyncio.Queue[str]()

    @broker.task
    async def note(word: str, context: Context = CONTEXT) -> None:
        ids.append((word, context.message.task_id))
        arrived.put_nowait(word)

    async def work() -> None:
        async with working(broker):
            at = datetime.now(UTC) + timedelta(milliseconds=200)
            once = await note.schedule_by_time(source, at, "once")
            every = await note.schedule_by_interval(source, 1, "every")
            in_an_hour = datetime.now(UTC) + timedelta(hours=1)
            unscheduled = await note.schedule_by_time(source, in_an_hour, "never")
            chosen = await note.kicker().with_task_id("chosen").schedule_by_time(source, in_an_hour, "never")
            for schedule, task_id in ((unscheduled, unscheduled.schedule_id), (chosen, "chosen")):
                assert (await broker.why(task_id))["state"] == "delayed"
                await schedule.unschedule()
                with pytest.raises(NotFound):
                    await broker.why(task_id)
            assert await arrived.get() == "once" and datetime.now(UTC) >= at
            assert [await arrived.get() for _ in range(2)] == ["every", "every"]
            await every.unschedule()
            await every.unschedule()
            await once.unschedule()
            assert await source.stored() == [] == await source.get_schedules()
        assert ids[0] == ("once", once.schedule_id)
        assert len({task_id for _, task_id in ids}) == 3

    run(work())


def test_task_of_a_schedule_keeps_its_id_when_it_is_delivered_again(broker: SandqBroker) -> None:
    source, ids = SandqScheduleSource(broker), list[str]()

    @broker.task
    async def nothing() -> None: ...

    async def work() -> None:
        async with started(broker):
            await nothing.kicker().with_schedule_id("s").schedule_by_interval(source, 1)
        for _ in range(2):
            async with started(broker):
                message = await anext(broker.listen())
                ids.append(broker.formatter.loads(message.data).task_id)
                await source.delete_schedule("s")

    run(work())
    assert ids[0] == ids[1] != "s"


def test_schedules_of_labels_are_stored_changed_and_deleted(broker: SandqBroker) -> None:
    source = SandqScheduleSource(broker)
    schedule: list[dict[str, Any]] = [
        {"cron": "0 9 * * MON-FRI", "cron_offset": "Europe/Berlin", "args": [1]},
        {"interval": 60, "schedule_id": "minute"},
    ]

    @broker.task(task_name="report", schedule=schedule, priority_of_mine="x")
    async def report(number: int = 0) -> None: ...

    async def work() -> None:
        async with started(broker):
            assert await source.store_labels() == ["report/0", "minute"]
            await report.schedule_by_cron(source, "*/5 * * * *")
            first = {one.schedule_id: one for one in await source.stored()}
            assert len(first) == 3
            found = first["report/0"]
            assert (found.cron, found.cron_offset, found.args) == ("0 9 * * MON-FRI", "Europe/Berlin", [1])
            assert found.labels["priority_of_mine"] == "x" and "schedule" not in found.labels
            assert first["minute"].interval == timedelta(minutes=1)
            schedule[:] = [{"cron": "0 8 * * *"}]
            assert await source.store_labels() == ["report/0"]
            changed = {one.schedule_id: one for one in await source.stored()}
            assert len(changed) == 2 and changed["report/0"].cron == "0 8 * * *"
            schedule[:] = [{"time": datetime.now(UTC)}]
            with pytest.raises(InvalidRequest, match="schedule_by_time"):
                await source.store_labels()

    run(work())


def test_schedules_of_tenants_are_stored_and_deleted(url: str) -> None:
    broker = SandqBroker(url, kind="fair")
    source = SandqScheduleSource(broker)

    @broker.task
    async def nothing() -> None: ...

    async def work() -> None:
        async with started(broker):
            kicker = nothing.kicker().with_labels(tenant="a", priority=3)
            every = await kicker.schedule_by_interval(source, 60)
            once = await kicker.schedule_by_time(source, datetime.now(UTC) + timedelta(days=1))
            assert [one.interval for one in await source.stored()] == [timedelta(minutes=1)]
            await every.unschedule()
            assert await source.stored() == [] and await counted(url) == 1
            await once.unschedule()
            assert await counted(url) == 0

    run(work())


def test_schedule_of_a_different_program_is_not_listed(broker: SandqBroker, url: str) -> None:
    source = SandqScheduleSource(broker)

    @broker.task
    async def nothing() -> None: ...

    async def work() -> None:
        async with started(broker):
            await nothing.schedule_by_interval(source, 60)
            client = await broker.clients.get()
            await client.schedules(broker.topic("taskiq")).create("taskiq/odd", b"\xff", every="1h")
            assert [one.interval for one in await source.stored()] == [timedelta(minutes=1)]

    run(work())


@pytest.mark.parametrize(
    ("times", "found"),
    [
        ({"cron": "* * * * *"}, {"cron": "* * * * *", "zone": "UTC"}),
        ({"cron": "0 9 1 * *", "cron_offset": timedelta(hours=2)}, {"cron": "0 9 1 * *", "zone": "Etc/GMT-2"}),
        ({"cron": "0 9 1 * *", "cron_offset": timedelta(hours=-5)}, {"cron": "0 9 1 * *", "zone": "Etc/GMT+5"}),
        ({"cron": "0 9 * * 1", "cron_offset": "Asia/Tokyo"}, {"cron": "0 9 * * 1", "zone": "Asia/Tokyo"}),
        ({"cron": "0 9 */2 * 1"}, {"cron": "0 9 */2 * 1", "zone": "UTC"}),
        ({"interval": 5}, {"every": 5}),
        ({"cron": "0 9 1 * 1"}, None),
        ({"cron": "0 9 * * 1", "cron_offset": timedelta(minutes=30)}, None),
        ({"cron": "0 9 * * 1", "cron_offset": timedelta(hours=15)}, None),
    ],
)
def test_times_of_a_schedule_are_those_of_sandq_or_refused(times: dict[str, Any], found: dict[str, Any] | None) -> None:
    schedule = ScheduledTask(task_name="t", labels={}, args=[], kwargs={}, **times)
    if found is None:
        with pytest.raises(InvalidRequest):
            times_of(schedule)
    else:
        assert times_of(schedule) == found


def result(value: Any, **more: Any) -> TaskiqResult[Any]:
    return TaskiqResult(is_err=False, return_value=value, execution_time=0.5, log="text", **more)


def test_results_and_progress_are_stored(url: str) -> None:
    async def work() -> None:
        backend: SandqResultBackend[Any] = SandqResultBackend(url, result_ex_time=60)
        pickling: SandqResultBackend[Any] = SandqResultBackend(url, serializer=PickleSerializer(), topic="pickled")
        with pytest.raises(ResultIsMissingError):
            await backend.get_result("t")
        assert not await backend.is_result_ready("t") and await backend.get_progress("t") is None
        await backend.set_progress("t", TaskProgress(state="half", meta={"done": 50}))
        assert not await backend.is_result_ready("t")
        progress = await backend.get_progress("t")
        assert progress is not None and (progress.state, progress.meta) == ("half", {"done": 50})
        await backend.set_result("t", result([1, datetime(2030, 1, 1)], labels={"a": 1}))
        assert await backend.is_result_ready("t")
        for _ in range(2):
            found = await backend.get_result("t")
            assert (found.return_value, found.log, found.labels) == ([1, "2030-01-01T00:00:00"], None, {"a": 1})
        assert (await backend.get_result("t", with_logs=True)).log == "text"
        await pickling.set_result("t" * 300, result(datetime(2030, 1, 1), error=KeyError("k")))
        found = await pickling.get_result("t" * 300)
        assert found.return_value == datetime(2030, 1, 1) and isinstance(found.error, KeyError)
        for value in (object(), "x" * 9_000_000):
            with pytest.raises(ResultSetError):
                await backend.set_result("t", result(value))
        await pickling.shutdown()
        await backend.shutdown()

    run(work())


def test_result_is_removed_after_it_was_read_or_has_expired(url: str) -> None:
    async def work() -> None:
        once: SandqResultBackend[Any] = SandqResultBackend(url, keep_results=False)
        brief: SandqResultBackend[Any] = SandqResultBackend(url, result_px_time=30)
        await once.set_result("a", result(1))
        assert (await once.get_result("a")).return_value == 1
        with pytest.raises(ResultGetError):
            await once.get_result("a")
        await brief.set_result("b", result(2))
        while await brief.is_result_ready("b"):
            pass
        await once.shutdown()
        await brief.shutdown()

    run(work())


@pytest.mark.parametrize(
    "times", [{"result_ex_time": 0}, {"result_px_time": -1}, dict(result_ex_time=1, result_px_time=1)]
)
def test_wrong_time_of_results_is_refused(times: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="result_ex_time"):
        SandqResultBackend("sandq://a", **times)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: SandqBroker("redis://a"), InvalidRequest),
        (lambda: SandqBroker("sandq://a?tsl=true"), InvalidRequest),
        (lambda: SandqBroker("sandq://a", kind="fare"), InvalidRequest),
        (lambda: SandqBroker("sandq://a", queue_name=""), InvalidName),
        (lambda: SandqBroker("sandq://a", additional_queues=["@" * 99]), InvalidName),
        (lambda: SandqBroker("sandq://a", queue="a"), TypeError),  # type: ignore[call-arg]
        (lambda: SandqResultBackend("sandq://a?x=1"), InvalidRequest),
    ],
)
def test_wrong_argument_is_refused(make: Callable[[], object], error: type[Exception]) -> None:
    with pytest.raises(error):
        make()


def test_worker_waits_for_the_broker_and_survives_its_restart(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path)
    url = f"sandq://{node.address}?delivery_timeout=60s"
    broker, sender = SandqBroker(url), SandqBroker(url)
    arrived = asyncio.Queue[int]()

    @broker.task(task_name="note")
    async def note(number: int) -> None:
        arrived.put_nowait(number)

    sending = sender.register_task(note.original_func, "note")

    async def work() -> None:
        with pytest.raises(ConnectionLost):
            await sender.startup()
        async with working(broker):
            await asyncio.to_thread(node.start)
            async with started(sender):
                await sending.kiq(1)
                assert await arrived.get() == 1
                await asyncio.to_thread(node.kill)
                await asyncio.to_thread(node.start)
                await sending.kiq(2)
                assert await arrived.get() == 2
                async with sandq.connect(node.address) as client:
                    await client.admin.delete_topic("taskiq")
                await sending.kiq(3)
                assert await arrived.get() == 3

    run(work())
    node.close()


def test_task_of_a_killed_worker_runs_again(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDQ_URL", url)
    lines = tmp_path / "lines"
    monkeypatch.setenv("LINES", str(lines))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    log = (tmp_path / "worker.log").open("wb")
    command = [
        sys.executable,
        "-m",
        "taskiq",
        "worker",
        "taskiq_app:broker",
        "--workers",
        "1",
        "--ack-type",
        "when_saved",
    ]
    worker = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    broker = SandqBroker(url)
    ran = asyncio.Event()

    @broker.task(task_name="taskiq_app:held")
    async def held(word: str) -> None:
        ran.set()

    async def send() -> None:
        async with started(broker):
            await held.kiq("a")

    async def work() -> None:
        async with working(broker):
            await ran.wait()

    try:
        run(send())
        wait_until(lambda: lines.exists() and lines.read_text() == "a begins\n")
    finally:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
        log.close()
    run(work())


def test_example_of_the_page_runs(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "integrations" / "taskiq.md").read_text(encoding="utf-8")
    shop: Any = ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", shop)
    for block in re.findall(r"```python run\n(.*?)```", page, re.S):
        exec(compile(block.replace("sandq://127.0.0.1:7170", url), "taskiq.md", "exec"), shop.__dict__)

    async def work() -> None:
        async with working(shop.broker):
            assert await result_of(await shop.add.kiq(2, 3)) == 5
        await shop.main()
        async with started(shop.broker):
            assert [one.schedule_id for one in await shop.source.stored()] == ["nightly"]

    run(work())
    assert capsys.readouterr().out == "delayed\ncancelled\n"
