"""The application of `test_celery.py`: tasks that append a line to the file LINES for each run.

It has nothing of sandq but the URL of the broker, which the test sets in CELERY_BROKER_URL.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Queue

app = Celery("tests")
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"lease": "2s"},
    task_ignore_result=True,
    task_queues=[Queue("celery"), Queue("ranked", max_priority=9)],
    task_default_queue="celery",
    worker_prefetch_multiplier=1,
)


def note(line: str) -> None:
    """Append a line with the time of this call, which is one write."""
    descriptor = os.open(os.environ["LINES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line} {time.time()}\n".encode())
    finally:
        os.close(descriptor)


@app.task
def say(word: str) -> None:
    """Note a word."""
    note(word)


@app.task(bind=True, acks_late=True)
def again(task: Any) -> None:
    """Fail the first time, and ask for a retry."""
    note(f"again-{task.request.retries}-eta-{task.request.eta}")
    if not task.request.retries:
        raise task.retry(countdown=0.2)


@app.task(acks_late=True, reject_on_worker_lost=True)
def held(word: str, gate: str) -> None:
    """Note the begin, wait until the file `gate` exists, and note the end."""
    note(f"{word}-begins")
    while not Path(gate).exists():
        time.sleep(0.05)
    note(f"{word}-ends")
