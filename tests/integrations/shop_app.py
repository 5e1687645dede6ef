"""An application of Celery with 30 tasks, as it would be written for any broker.

It has nothing of sandq but the URL, which the test sets in CELERY_BROKER_URL. Tasks that leave no result append a line
to the file LINES.
"""

from __future__ import annotations

import os
import time
from typing import Any

from celery import Celery, group, shared_task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from kombu import Queue

app = Celery("shop")
app.conf.update(
    result_backend=os.environ["CELERY_BROKER_URL"],
    broker_connection_retry_on_startup=True,
    broker_transport_options={"lease": "5s"},
    task_queues=[Queue("celery"), Queue("mails"), Queue("ranked", max_priority=9)],
    task_default_queue="celery",
    task_routes={"shop_app.mail_*": {"queue": "mails"}, "shop_app.urgent": {"queue": "ranked"}},
    task_track_started=True,
    result_extended=True,
    result_expires=3600,
    worker_prefetch_multiplier=2,
    beat_schedule={"sweep": {"task": "shop_app.sweep", "schedule": 1.0, "options": {"expires": 30}}},
)


def note(line: str) -> None:
    descriptor = os.open(os.environ["LINES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line} {time.time()}\n".encode())
    finally:
        os.close(descriptor)


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task
def multiply(a: int, b: int) -> int:
    return a * b


@app.task
def total(numbers: list[int]) -> int:
    return sum(numbers)


@app.task
def upper(text: str) -> str:
    return text.upper()


@app.task
def join(texts: list[str]) -> str:
    return "-".join(texts)


@app.task
def echo(*args: Any, **kwargs: Any) -> list[Any]:
    return [list(args), kwargs]


@app.task
def fail(text: str) -> None:
    raise ValueError(text)


@app.task(autoretry_for=(KeyError,), retry_backoff=0.05, retry_jitter=False, max_retries=3)
def flaky(path: str) -> int:
    """Fail twice, and succeed."""
    with open(path, "a+") as file:
        file.write("x")
        file.seek(0)
        count = len(file.read())
    if count < 3:
        raise KeyError(count)
    return count


@app.task(bind=True, max_retries=5)
def again(task: Any) -> int:
    """Ask for two retries."""
    if task.request.retries < 2:
        raise task.retry(countdown=0.1)
    retries: int = task.request.retries
    return retries


@app.task(bind=True, max_retries=1)
def hopeless(task: Any) -> None:
    """Give up after a retry."""
    raise task.retry(exc=LookupError("hopeless"), countdown=0.05)


@app.task(acks_late=True)
def late(a: int) -> int:
    return a


@app.task(acks_late=True, reject_on_worker_lost=True)
def careful(a: int) -> int:
    return a


@app.task
def at_time() -> float:
    return time.time()


@app.task
def mail_welcome(name: str) -> str:
    return f"welcome {name}"


@app.task
def mail_goodbye(name: str) -> str:
    return f"goodbye {name}"


@app.task
def urgent(priority: int) -> int:
    note(f"urgent-{priority}")
    return priority


@app.task(rate_limit="20/s")
def limited(number: int) -> float:
    return time.time()


@app.task(ignore_result=True)
def forget(word: str) -> None:
    note(word)


@app.task(bind=True)
def ignored(task: Any) -> None:
    task.update_state(state="CUSTOM", meta={"done": 1})
    raise Ignore


@app.task(acks_late=True)
def rejected() -> None:
    note("rejected")
    raise Reject("broken", requeue=False)


@app.task(bind=True)
def progress(task: Any) -> str:
    task.update_state(state="PROGRESS", meta={"done": 50})
    return str(task.AsyncResult(task.request.id).state)


@app.task(soft_time_limit=0.5, time_limit=20)
def slow() -> str:
    try:
        time.sleep(15)
    except SoftTimeLimitExceeded:
        return "too slow"
    return "done"


@app.task(bind=True)
def about(task: Any) -> dict[str, Any]:
    request = task.request
    return {"id": request.id, "queue": request.delivery_info["routing_key"], "eta": request.eta}


@app.task(bind=True)
def replaced(task: Any, a: int) -> None:
    raise task.replace(add.s(a, 100))


@app.task
def fan_out(count: int) -> Any:
    """Start a group without waiting for it; return its ids."""
    return [one.id for one in group(add.s(n, 1) for n in range(count)).apply_async().results]


@app.task
def linked(result: int) -> None:
    note(f"linked-{result}")


@app.task
def on_error(request: Any, exc: Exception, traceback: Any) -> None:
    note(f"error-{exc}")


@app.task(serializer="pickle")
def pickled(value: Any) -> Any:
    return value


@shared_task
def shared(a: int) -> int:
    return -a


@app.task
def sweep() -> None:
    note("sweep")
