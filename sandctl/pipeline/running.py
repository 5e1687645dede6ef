"""Running a job of Spark from the command line: what it is doing on standard error, and Ctrl-C.

The job runs in a thread of its own, with Spark's session: a signal that interrupts a call into Java would leave that
connection with half an answer. The main thread only looks, and cancels Spark's tasks when the key is pressed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandctl.interrupts import Interrupts
from sandctl.progress import Progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Tell = Callable[[str], None]
Work = Callable[["SparkSession", Tell], T]

LOOK_S = 0.2


class _Interrupted(Exception):
    """Ends the job between two steps."""


class _Job:
    """What the two threads share."""

    def __init__(self) -> None:
        self.doing = "starting Spark"
        self.spark: SparkSession | None = None
        self.stopped = threading.Event()
        self.ended = threading.Event()

    def tell(self, doing: str) -> None:
        if self.stopped.is_set():
            raise _Interrupted
        self.doing = doing


def spark_options(command: F) -> F:
    """`--master` and `--conf`, of commands that run Spark."""
    command = click.option(
        "--conf", metavar="NAME=VALUE", multiple=True, help="A setting of Spark; may be given several times."
    )(command)
    return click.option("--master", metavar="URL", help="Where Spark runs.  [default: local[*]]")(command)


def run_spark(work: Work[T], *, master: str | None = None, conf: Mapping[str, str] | None = None) -> T:
    """What `work(spark, tell)` returns; `tell` is to be called with each thing that is begun.

    KeyboardInterrupt when Ctrl-C ended it: Spark's tasks are cancelled then, and Spark has ended.
    """
    job, outcome = _Job(), Future[T]()

    def run() -> None:
        from sandq.spark.jobs.session import session

        try:
            with session(master=master, conf=conf) as job.spark:
                job.tell("starting")
                outcome.set_result(work(job.spark, job.tell))
        except BaseException as error:
            if not outcome.done():
                outcome.set_exception(error)
        finally:
            job.spark = None
            job.ended.set()

    with Interrupts() as interrupts, Progress() as progress:
        interrupts.cancel = job.stopped.set
        threading.Thread(target=run, name="sandctl-spark", daemon=True).start()
        while not job.ended.wait(LOOK_S):
            _look(job, progress)
    if job.stopped.is_set() and outcome.exception() is not None:
        raise KeyboardInterrupt
    return outcome.result()


def _look(job: _Job, progress: Progress) -> None:
    spark = job.spark
    if spark is None:
        progress.tell(job.doing)
        return
    from sandq.spark.jobs.session import task_counts

    try:
        if job.stopped.is_set():
            spark.sparkContext.cancelAllJobs()
        done, total = task_counts(spark)
    except Exception:  # Spark is just ending
        return
    progress.tell(f"{job.doing}: {done:,} of {total:,} tasks" if total else job.doing)
