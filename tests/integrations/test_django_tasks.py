"""Django tasks on sandq: the backend, the worker and the outbox, with a node in a process."""

from __future__ import annotations

import asyncio
import importlib.util
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sandq.errors import ConnectionLost
from tests.support.paths import ROOT
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, wait_until

pytest.importorskip("django_tasks", reason="`make test` installs requirements-workers.lock")

from django.conf import settings

HERE = Path(__file__).parent


class Site:
    """A Django project in this process, and its workers."""

    def __init__(self, directory: Path, environ: dict[str, str]) -> None:
        from sandq_workers.django.api import task_backends

        import django_app  # isort: skip

        self.tasks: Any = django_app
        self.directory = directory
        self._environ = environ
        self._backends = task_backends

    def backend(self, alias: str = "default") -> Any:
        return self._backends[alias]

    @contextmanager
    def worker(self, *queues: str, alias: str = "default", threads: int = 4) -> Iterator[None]:
        """Run a worker in a thread."""
        from sandq_workers.django.worker import Worker

        worker = Worker(self.backend(alias), queues, threads)
        errors: list[BaseException] = []

        def run() -> None:
            try:
                worker.run()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            worker.stop()
            thread.join(PATIENCE_S)
        assert not thread.is_alive() and not errors, errors

    def start(self, command: str, *options: str, **environ: str) -> subprocess.Popen[bytes]:
        """Start a command of manage.py in a process."""
        return subprocess.Popen(
            (sys.executable, "-m", "django", command, "--skip-checks", *options),
            cwd=HERE, env={**os.environ, **self._environ, **environ},
        )  # fmt: skip

    def finished(self, *results: Any) -> bool:
        for result in results:
            if not result.is_finished:
                result.refresh()
        return all(result.is_finished for result in results)


@pytest.fixture(scope="module")
def site(node: NodeProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    directory = tmp_path_factory.mktemp("site")
    environ = {
        "SITE_URL": f"sandq://{node.address}/site",
        "SITE_DB": str(directory / "db.sqlite3"),
        "DJANGO_SETTINGS_MODULE": "django_settings",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(HERE))
        for name in ("SITE_URL", "SITE_DB"):
            patch.setenv(name, environ[name])
        import django_settings

        settings.configure(**{name: value for name, value in vars(django_settings).items() if name.isupper()})
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        call_command("migrate", verbosity=0)
        yield Site(directory, environ)
        connections.close_all()
        for name in ("django_app", "django_settings"):
            sys.modules.pop(name, None)


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    path = tmp_path / "lines"
    path.touch()
    return path


def _sent(record: str) -> tuple[dict[str, Any], bytes]:
    """Return the arguments of `SandqBackend.send` for a row of the outbox."""
    return json.loads(record), record.encode()


def test_tasks_run_and_have_results(site: Site) -> None:
    from sandq_workers.django.api import TaskResultDoesNotExist, TaskResultStatus
    from sandq_workers.django.records import UnknownTask, decoded

    tasks, backend = site.tasks, site.backend()
    sum_ = tasks.add.using(queue_name="q1").enqueue(1, b=2)
    assert sum_.enqueued_at is not None and sum_.status == TaskResultStatus.READY and sum_.attempts == 0
    results = [each.using(queue_name="q1").enqueue() for each in (tasks.again, tasks.broken, tasks.odd, tasks.large)]
    coroutine = asyncio.run(tasks.later.using(queue_name="q1").aenqueue(7))
    gone = tasks.add.using(queue_name="q1").enqueue(1, 2)
    assert backend.client.messages("site.q1").cancel(unique_key=gone.id)
    record = backend.stored(gone.id) | {"id": "gone", "task": "django_app.gone"}
    backend.send(record, json.dumps(record).encode())
    backend.client.produce("site.q1", b"no record")
    with site.worker("q1"):
        wait_until(lambda: site.finished(sum_, coroutine, *results))
        wait_until(lambda: len(list(backend.client.dead("site.q1", "workers").list())) == 5)
        wait_until(lambda: asyncio.run(tasks.add.aget_result(sum_.id)).is_finished)
    again, broken, odd, large = results
    assert (sum_.return_value, coroutine.return_value) == (3, 7)
    assert sum_.attempts == 1 and sum_.started_at is not None and sum_.finished_at >= sum_.started_at
    assert (again.return_value, again.attempts) == (2, 2) and again.errors[0].exception_class is RuntimeError
    for result, kind, attempts in ((broken, KeyError, 2), (odd, TypeError, 2)):
        assert (result.status, result.attempts) == (TaskResultStatus.FAILED, attempts)
        assert result.errors[-1].exception_class is kind
    assert large.status == TaskResultStatus.FAILED and "TooLarge" in large.errors[0].exception_class_path
    reasons = [letter.error for letter in backend.client.dead("site.q1", "workers").list()]
    assert any("django_app.gone" in reason for reason in reasons) and any("not a task" in reason for reason in reasons)
    assert backend.stored("gone")["status"] == "FAILED"
    for wrong in ("nothing", "", "x" * 2000, "gone"):
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(wrong)
    good = backend.stored(sum_.id)
    # A worker was killed between the result and the ack; a dead letter is redriven.
    backend.client.produce("site.q1", json.dumps(good).encode(), priority=-1)
    letter = next(each for each in backend.client.dead("site.q1", "workers").list() if "broken" in (each.error or ""))
    backend.client.dead("site.q1", "workers").redrive_ids([letter.id])
    with site.worker("q1", threads=1):
        wait_until(lambda: (broken.refresh(), broken.attempts == 3 and broken.is_finished)[1])
    sum_.refresh()
    assert sum_.attempts == 1
    for wrong_record in (
        [], {}, {**good, "id": ""}, {**good, "id": "x" * 2000}, {**good, "priority": None}, {**good, "errors": {}},
        {**good, "run_after": "soon"},
    ):  # fmt: skip
        with pytest.raises(UnknownTask):
            decoded(json.dumps(wrong_record))
    with pytest.raises(UnknownTask):
        decoded(b"[" * 200_000)


def test_priority_and_run_after_decide_the_order(site: Site, lines: Path) -> None:
    from django.utils import timezone

    say, path = site.tasks.say.using(queue_name="q2"), str(lines)
    for priority in (-100, 0, 100):
        say.using(priority=priority).enqueue(f"p{priority}", path)
    say.using(run_after=timezone.now() + timedelta(days=366)).enqueue("next year", path)
    due = timezone.now() + timedelta(seconds=0.5)
    late = say.using(run_after=due, priority=100).enqueue("late", path)
    with site.worker("q2", threads=1):
        wait_until(lambda: site.finished(late))
    assert lines.read_text().split() == ["p100", "p0", "p-100", "late"]
    assert late.started_at >= due
    with pytest.raises(Exception, match="3650 days"):
        say.using(run_after=timezone.now() + timedelta(days=4000))


def test_commit_sends_and_rollback_does_not(site: Site) -> None:
    from django.db import transaction
    from sandq_workers.django.api import TaskResultDoesNotExist

    add, backend = site.tasks.add.using(queue_name="q3"), site.backend()
    with transaction.atomic():
        sent = add.enqueue(1, 2)
        with pytest.raises(TaskResultDoesNotExist):
            backend.get_result(sent.id)
    assert backend.get_result(sent.id).args == [1, 2]
    with pytest.raises(ValueError), transaction.atomic():
        lost = add.enqueue(3, 4)
        raise ValueError
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(lost.id)
    with pytest.raises(TypeError):
        add.enqueue(object(), 1)


def test_killed_worker_loses_nothing_and_sigterm_ends_tasks(site: Site, lines: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    words = ["a", "b", "c"]
    results = [site.tasks.held.using(queue_name="q4").enqueue(word, str(lines), str(gate)) for word in words]
    first = site.start("sandq_worker", "--queue", "q4", "--threads", "2")
    wait_until(lambda: len(lines.read_text().splitlines()) == 2)
    first.kill()
    first.wait()
    second = site.start("sandq_worker", "--queue", "q4", "--concurrency", "2")
    wait_until(lambda: len(lines.read_text().splitlines()) == 4)
    second.terminate()
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(0.3)  # its two tasks run
    gate.touch()
    assert second.wait(PATIENCE_S) == 0
    assert len([line for line in lines.read_text().splitlines() if line.endswith("ends")]) == 2
    with site.worker("q4"):
        wait_until(lambda: site.finished(*results))
    ends = sorted(line for line in lines.read_text().splitlines() if line.endswith("ends"))
    assert ends == [f"{word} ends" for word in words]
    assert sorted(result.attempts for result in results) in ([1, 1, 2], [1, 2, 2])


def test_outbox_survives_kills_before_and_after_sending(
    site: Site, lines: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from django.core.management import call_command
    from django.db import transaction
    from sandq_workers.django.models import OutboxTask
    from sandq_workers.django.relay import relay

    say, backend = site.tasks.say.using(queue_name="q5", backend="outbox"), site.backend("outbox")
    with pytest.raises(ValueError), transaction.atomic():
        say.enqueue("rolled back", str(lines))
        raise ValueError
    # A process that commits, and is killed before anything is sent.
    code = (
        "import django, os, signal; django.setup(); import django_app; from django.db import transaction\n"
        "with transaction.atomic():\n"
        f"    django_app.say.using(queue_name='q5', backend='outbox').enqueue('committed', {str(lines)!r})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    killed = subprocess.run((sys.executable, "-c", code), cwd=HERE, env={**os.environ, **site._environ}, check=False)
    assert killed.returncode == -signal.SIGKILL
    result = say.get_result(OutboxTask.objects.get().task_id)
    moved = site.tasks.say.using(queue_name="q6", backend="outbox").enqueue("moved", str(lines))
    with monkeypatch.context() as patch:
        stored = type(backend).stored

        def stored_before_relay(*args: Any) -> Any:
            """Let the relay send the row between the two reads of `get_result`."""
            patch.undo()
            found = stored(*args)
            backend.send(*_sent(OutboxTask.objects.get(task_id=moved.id).record))
            OutboxTask.objects.filter(task_id=moved.id).delete()
            return found

        patch.setattr(type(backend), "stored", stored_before_relay)
        assert backend.get_result(moved.id).id == moved.id
    assert result.args[0] == "committed" and not result.is_finished

    # A relay that ends between sending a row and deleting it.
    class Killed(BaseException):
        pass

    send = type(backend).send

    def send_and_die(*args: Any) -> None:
        send(*args)
        raise Killed

    monkeypatch.setattr(type(backend), "send", send_and_die)
    with pytest.raises(Killed):
        relay(backend)
    monkeypatch.undo()
    row = OutboxTask.objects.get()
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)
    assert len(list(backend.client.messages("site.q5").list())) == 1
    refused = OutboxTask.objects.create(task_id="refused", backend="outbox", record="[]")
    out = io.StringIO()
    call_command("sandq_outbox", "--backend", "outbox", "--once", stdout=out, skip_checks=True)
    assert out.getvalue() == "1 tasks were sent\n"
    assert len(list(backend.client.messages("site.q5").list())) == 1
    refused.refresh_from_db()
    assert "not a task" in refused.error
    refused.delete()
    with site.worker("q5", alias="outbox"):
        wait_until(lambda: site.finished(result))
        row.save(force_insert=True)  # of a relay that reads the row before another relay deletes it
        more = say.enqueue("more", str(lines))
        wait_until(lambda: site.finished(more))
        wait_until(lambda: not OutboxTask.objects.exists())
    assert lines.read_text().splitlines() == ["committed", "more"]
    last = say.enqueue("last", str(lines))
    command = site.start("sandq_outbox", "--backend", "outbox")
    wait_until(lambda: not OutboxTask.objects.exists())
    command.terminate()
    assert command.wait(PATIENCE_S) == 0 and backend.stored(last.id) is not None


def test_checks_name_what_is_wrong(site: Site, tmp_path: Path) -> None:
    from django.core.checks import run_checks
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import CommandError, call_command
    from django.test import override_settings
    from sandq_workers.django import SandqBackend

    def problems(queues: Any = ("default",), **options: Any) -> str:
        backend = SandqBackend("shop", {"QUEUES": queues, "OPTIONS": options})
        return "\n".join(str(message.msg) for message in backend.check())

    assert not problems() and not list(site.backend("outbox").check())
    assert "begins with sandq://" in problems(url="redis://here")
    assert "did you mean 'max_attempts'?" in problems(max_attemps=3)
    for wrong in (
        {"max_attempts": 0}, {"result_ttl": -1}, {"kind": "fast"}, {"outbox": 1}, {"settings": 3}, {"group": ""},
        {"outbox_interval": float("inf")}, {"lease": 3}, {"url": None},
    ):  # fmt: skip
        assert next(iter(wrong)) in problems(**wrong)
    assert "no 'other'" in problems(database="other")
    assert "topic of the results" in problems(queues=["django.results"])
    assert "characters as a topic" in problems(queues=["x" * 300])
    assert not problems(result_ttl=timedelta(hours=1), kind="timer")
    wrong = {"BACKEND": "sandq_workers.django.SandqBackend", "OPTIONS": {"url": "redis://here"}}
    with override_settings(TASKS={**settings.TASKS, "wrong": wrong}):
        assert [message.id for message in run_checks()] == ["sandq.E001"]
    broken = SandqBackend("shop", {"OPTIONS": {"url": "redis://here"}})
    with pytest.raises(ImproperlyConfigured, match="sandq://"):
        broken.enqueue(site.tasks.add, [1, 2], {})
    for options in (["--backend", "none"], ["--threads", "0", "--queue", "q"], []):
        with pytest.raises(CommandError):
            call_command("sandq_worker", *options, skip_checks=True)


def test_broker_that_is_away(site: Site, tmp_path: Path) -> None:
    from sandq_workers.django import SandqBackend
    from sandq_workers.django.worker import Worker

    node = NodeProcess(tmp_path)
    options = {"url": f"sandq://{node.address}?timeout=1s&delivery_timeout=1s", "lease": "2s"}
    backend = SandqBackend("default", {"QUEUES": [], "OPTIONS": options})
    with pytest.raises(ConnectionLost):
        backend.enqueue(site.tasks.add, [1, 2], {})
    worker = Worker(backend, ["q7"], 1)
    thread = threading.Thread(target=worker.run)
    thread.start()
    try:
        node.start()
        add = site.tasks.add.using(queue_name="q7")
        first = backend.enqueue(add, [1, 2], {})
        wait_until(lambda: backend.get_result(first.id).is_finished)
        node.kill()
        node.start()
        second = backend.enqueue(add, [3, 4], {})
        wait_until(lambda: backend.get_result(second.id).is_finished)
    finally:
        worker.stop()
        thread.join(PATIENCE_S)
        node.close()
        backend.keys.close()
    assert not thread.is_alive()


def test_examples_of_the_page_run(site: Site, node: NodeProcess) -> None:
    from django.test import override_settings

    page = (ROOT / "docs" / "integrations" / "django.md").read_text(encoding="utf-8")
    setting, code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]
    names: dict[str, Any] = {}
    exec(setting.replace("127.0.0.1:7170", f"{node.address}/page"), names)
    assert names["INSTALLED_APPS"] == ["sandq_workers.django"]
    with override_settings(TASKS=names["TASKS"]):
        names["__name__"] = "django_page"
        module = type(sys)("django_page")
        sys.modules["django_page"] = module
        try:
            vars(module).update(names)
            has_tasks = importlib.util.find_spec("django.tasks") is not None
            exec(code if has_tasks else code.replace("from django.tasks", "from django_tasks"), vars(module))
            result = vars(module)["result"]
            with site.worker("default"):
                wait_until(lambda: site.finished(vars(module)["first"]))
            result.refresh()
            assert vars(module)["first"].return_value == "order 17" and not result.is_finished
        finally:
            del sys.modules["django_page"]
