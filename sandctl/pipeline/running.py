"""Running a job of Spark from the command line: its options, what it is doing on standard error, its summary, and
Ctrl-C.

The job runs in a thread of its own, with Spark's session: a signal that interrupts a call into Java would leave that
connection with half an answer. The main thread only looks, and cancels Spark's tasks when the key is pressed.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import click

from sandctl.interrupts import Interrupts
from sandctl.options.common import run, servers, shown_token, tls_in_environment
from sandctl.output.progress import Progress
from sandctl.output.results import done, say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

Servers = tuple[str, ...]
Tell = Callable[[str], None]
Work = Callable[["SparkSession", Servers, Tell], T]
"""`work(spark, servers, tell)`; `tell` is to be called with each thing that is begun."""

LOOK_S = 0.2


class Summary(Protocol):
    """What most jobs return."""

    def lines(self) -> Iterable[str]:
        """For people."""

    def record(self) -> Mapping[str, Any]:
        """For programs."""


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


@contextmanager
def usage_errors() -> Iterator[None]:
    """An error of ours in there is one of wrong usage."""
    from sandq.model.errors import SandqError

    try:
        yield
    except SandqError as error:
        raise click.UsageError(error.message) from None


def pairs(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """The callback of an option that is NAME=VALUE, and given several times."""
    if not texts:  # as when a shell completes a line, which is to cost nothing
        return {}
    from sandq.spark.jobs.mapping import parse_pairs

    with usage_errors():
        return parse_pairs(texts, option.opts[0])


def spark_options(command: F) -> F:
    """`--master` and `--conf`, of commands that run Spark."""
    command = click.option(
        "--conf",
        metavar="NAME=VALUE",
        multiple=True,
        callback=pairs,
        help="A setting of Spark; may be given several times.",
    )(command)
    return click.option("--master", metavar="URL", help="Where Spark runs.  [default: local[*]]")(command)


def check_topic(topic: str) -> None:
    """Told before Spark is started, which takes seconds: StartupError when it is not installed; UnknownTopic."""
    from sandq.spark.jobs.session import check_extra

    check_extra()
    run(lambda client: client.admin.topic(topic))


def run_job(work: Work[Summary], *, master: str | None, conf: Mapping[str, str], stopped: str) -> None:
    """Run a job, and print its summary. `stopped`: what is said after Ctrl-C."""
    try:
        found = run_spark(work, master=master, conf=conf)
    except KeyboardInterrupt:
        say(f"stopped; {stopped}", err=True)
        raise
    done("\n".join(found.lines()), found.record())


@contextmanager
def credentials_in_environment() -> Iterator[None]:
    """What this command is told of who it is holds for jobs inside the block, and for Spark's processes on this
    machine."""
    if (token := shown_token()) is not None:
        os.environ["SANDQ_TOKEN"] = token
    with tls_in_environment():
        yield


def run_spark(work: Work[T], *, master: str | None, conf: Mapping[str, str]) -> T:
    """What `work` returns. StartupError when Spark is not installed, or does not start.

    KeyboardInterrupt when Ctrl-C ended it: Spark's tasks are cancelled then, and Spark has ended.
    """
    job, outcome = _Job(), Future[T]()
    asked = servers()  # the job's thread knows nothing of this command

    def in_thread() -> None:
        from sandq.spark.jobs.session import session

        try:
            with session(master=master, conf=conf) as job.spark:
                job.tell("starting")
                outcome.set_result(work(job.spark, asked, job.tell))
        except BaseException as error:
            if not outcome.done():
                outcome.set_exception(error)
        finally:
            job.spark = None
            job.ended.set()

    with credentials_in_environment(), Interrupts() as interrupts, Progress() as progress:
        interrupts.cancel = job.stopped.set
        threading.Thread(target=in_thread, name="sandctl-spark", daemon=True).start()
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
