"""Run a Spark job from the command line: options, progress on standard error, summary, and Ctrl-C.

The job and Spark's session run in a thread of their own: a signal that interrupts a call into Java would leave half a
response in the connection to Java. The main thread only watches, and cancels Spark's tasks on Ctrl-C.
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
"""The job, called as `work(spark, servers, tell)`. It calls `tell` at the start of each step."""

POLL_S = 0.2


class Summary(Protocol):
    """The result of most jobs."""

    def lines(self) -> Iterable[str]:
        """Return the result for people."""

    def record(self) -> Mapping[str, Any]:
        """Return the result for programs."""


class _Interrupted(Exception):
    """Ends the job between two steps."""


class _Job:
    """State that the two threads share."""

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
    """Convert a SandqError of the block to a usage error."""
    from sandq.model.errors import SandqError

    try:
        yield
    except SandqError as error:
        raise click.UsageError(error.message) from None


def pairs(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> dict[str, str]:
    """Parse an option NAME=VALUE that may be given several times. This is the callback of the option."""
    if not texts:  # shell completion must not import the jobs
        return {}
    from sandq.spark.jobs.mapping import parse_pairs

    with usage_errors():
        return parse_pairs(texts, option.opts[0])


def spark_options(command: F) -> F:
    """Add `--master` and `--conf`, for commands that run Spark."""
    command = click.option(
        "--conf",
        metavar="NAME=VALUE",
        multiple=True,
        callback=pairs,
        help="A setting of Spark; may be given several times.",
    )(command)
    return click.option("--master", metavar="URL", help="Master of the Spark cluster.  [default: local[*]]")(command)


def check_topic(topic: str) -> None:
    """Check before Spark starts, which takes seconds. Raises StartupError without Spark, and UnknownTopic."""
    from sandq.spark.jobs.session import check_extra

    check_extra()
    run(lambda client: client.admin.topic(topic))


def run_job(work: Work[Summary], *, master: str | None, conf: Mapping[str, str], stopped: str) -> None:
    """Run a job, and print its summary. `stopped` is printed after Ctrl-C."""
    try:
        found = run_spark(work, master=master, conf=conf)
    except KeyboardInterrupt:
        say(f"stopped; {stopped}", err=True)
        raise
    done("\n".join(found.lines()), found.record())


@contextmanager
def credentials_in_environment() -> Iterator[None]:
    """Apply this command's authentication to jobs inside the block, and to Spark's processes on this machine."""
    if (token := shown_token()) is not None:
        os.environ["SANDQ_TOKEN"] = token
    with tls_in_environment():
        yield


def run_spark(work: Work[T], *, master: str | None, conf: Mapping[str, str]) -> T:
    """Return the result of `work`. Raises StartupError if Spark is not installed or does not start.

    Raises KeyboardInterrupt after Ctrl-C, once Spark's tasks are cancelled and Spark has stopped.
    """
    job, outcome = _Job(), Future[T]()
    asked = servers()  # the job's thread does not have this command's settings

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
        while not job.ended.wait(POLL_S):
            _show_progress(job, progress)
    if job.stopped.is_set() and outcome.exception() is not None:
        raise KeyboardInterrupt
    return outcome.result()


def _show_progress(job: _Job, progress: Progress) -> None:
    spark = job.spark
    if spark is None:
        progress.tell(job.doing)
        return
    from sandq.spark.jobs.session import task_counts

    try:
        if job.stopped.is_set():
            spark.sparkContext.cancelAllJobs()
        done, total = task_counts(spark)
    except Exception:  # Spark is about to stop
        return
    progress.tell(f"{job.doing}: {done:,} of {total:,} tasks" if total else job.doing)
