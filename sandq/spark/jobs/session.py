"""A Spark session for jobs, and what Spark says when something fails, made readable.

Where Spark is started already (by spark-submit, in a notebook) it is used as it is. Else a session is made: on all
cores of this machine, reachable from nowhere else, without a web page, its log in a file that goes when it does.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from sandq.model import errors
from sandq.model.errors import Conflict, InvalidRequest, InvalidSetting, SandqError, StartupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER: Final = "local[*]"
APP_NAME: Final = "sandq"
INSTALL: Final = "pip install 'sandq[spark]'"
JAVA: Final = "Java 17 or later must be there as well (JAVA_HOME, or java in PATH)"
LOG_CHARS: Final = 2000
"""So much of the end of Spark's log goes into an error."""
ERROR_CHARS: Final = 2000
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_QUIET: Final = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    # Without a metastore it starts sooner, and leaves no files behind.
    "spark.sql.catalogImplementation": "in-memory",
}


_HOME: Final = "SPARK_HOME"
_HOME_PARTS: Final = ("bin", "conf", "jars", "sbin")
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by spark-submit, which has chosen everything."""
_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""PySpark writes each exception there, too, before it raises it."""


def check_extra() -> None:
    """StartupError when what the extra brings is not installed."""
    missing = []
    for name in ("pyspark", "pyarrow"):
        try:
            __import__(name)
        except ImportError:
            missing.append(name)
    if missing:
        raise StartupError(f"this needs {' and '.join(missing)}: {INSTALL}; {JAVA}")


@contextlib.contextmanager
def session(*, master: str | None = None, conf: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """The session that is there, or one that is stopped at the end.

    `conf`: settings of Spark, in place of those that are made here. StartupError when Spark or Java is missing, or
    does not start; InvalidSetting when Spark is started already and `master` or `conf` ask for another one.
    """
    check_extra()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None or _SUBMITTED in os.environ:
        if master is not None or conf:
            raise InvalidSetting("Spark is started already: its master and settings cannot be chosen any more")
        yield SparkSession.builder.getOrCreate()
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = master or MASTER
    with tempfile.TemporaryFile() as log, spark_home(is_local=chosen.startswith("local")) as home:
        with home_in_environment(home):
            made = _started(chosen, dict(conf or {}), log)
        try:
            yield made
        finally:
            _stop(made)


@contextlib.contextmanager
def spark_home(*, is_local: bool) -> Iterator[Path | None]:
    """A home of Spark by which Python workers load PySpark from where it is installed; None: the one that there is.

    Spark has them load it out of an archive in its home, which is compiled anew by each of them: half a second of CPU
    for every one of the ten that a small job begins. So this home has all that Spark looks for but that archive. It is
    for Spark on this machine alone, and for workers that run the interpreter in which this PySpark is installed.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    pythons = {os.environ.get("PYSPARK_PYTHON"), os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable)}
    if not is_local or _HOME in os.environ or pythons != {sys.executable}:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="sandq-spark-") as place:
        try:
            for name in _HOME_PARTS:
                if (installed / name).exists():
                    Path(place, name).symlink_to(installed / name)
            found: Path | None = Path(place)
        except OSError:  # a file system without links
            found = None
        yield found


@contextlib.contextmanager
def home_in_environment(home: Path | None) -> Iterator[None]:
    """Have Java, when it is started inside the block, take a home of Spark."""
    if home is None:
        yield
        return
    os.environ[_HOME] = str(home)
    try:
        yield
    finally:
        del os.environ[_HOME]


def _started(master: str, conf: Mapping[str, str], log: IO[bytes]) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    for name in _LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    chosen = {"spark.app.name": APP_NAME, **_QUIET, **(_LOCAL if master.startswith("local") else {}), **conf}
    settings = SparkConf(loadDefaults=False).setMaster(master).setAll(list(chosen.items()))
    try:
        # The JVM speaks on standard error before any setting of Spark can quieten it.
        gateway = launch_gateway(settings, {"stderr": log, "stdout": log})
    except (PySparkRuntimeError, OSError) as error:
        raise StartupError(f"Java did not start: {_tail(log) or error}. {JAVA}") from None
    try:
        return SparkSession(SparkContext(conf=settings, gateway=gateway))
    except Exception as error:
        gateway.shutdown()
        raise StartupError(f"Spark did not start: {first_line(error)}\n{_tail(log)}") from None


def _stop(made: Any) -> None:
    """End it with its JVM: another job of this process may want other settings."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    # A JVM that has died cannot be asked to stop; what it died of is what is to be told.
    with contextlib.suppress(Py4JError, OSError):
        made.stop()
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    if gateway.proc is not None:  # it ends when its standard input does
        gateway.proc.stdin.close()
        gateway.proc.wait()


def _tail(log: IO[bytes]) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - LOG_CHARS))
    text = log.read().decode("utf-8", "replace")
    return "\n".join(line for line in text.splitlines() if "incubator" not in line).strip()


# ------------------------------------------------------------------------------------------------ failures

_OURS: Final = re.compile(r"\bsandq\.(?:model\.errors|spark\.sink\.(?:partition_sender|refusals))\.(\w+): (.*)")
_OF_SINK: Final[dict[str, type[SandqError]]] = {"ChangedRows": Conflict, "RowRefused": InvalidRequest}


def failure(error: BaseException, doing: str) -> SandqError:
    """What Spark raised, as an error of ours: what a task of ours said, else Spark's first line and what caused it.

    A task's error comes as the text of its traceback, within the text of Spark's own.
    """
    if isinstance(error, SandqError):
        return error
    found = _OURS.findall(str(error))
    if not found:
        return SandqError(f"{doing}: {first_line(error)[:ERROR_CHARS]}")
    name, text = found[-1]
    kind: type[SandqError] = getattr(errors, name, None) or _OF_SINK.get(name, SandqError)
    return kind(f"{doing}: {text[:ERROR_CHARS]}")


def first_line(error: BaseException) -> str:
    """What an error says, of Java's without its traceback: its first line, and what was the cause of all."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return next(_lines(error), type(error).__name__)
    cause = java
    while cause.getCause() is not None:
        cause = cause.getCause()
    said = next(_lines(java.getMessage()), str(java.getClass().getName()))
    why = "" if cause.equals(java) else " ".join(_lines(cause.getMessage()))
    return said if not why or why in said else f"{said}: {why}"


def _lines(text: object) -> Iterator[str]:
    return (line.strip() for line in str(text or "").splitlines() if line.strip())


@contextlib.contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Have a session be this thread's while something is written: Spark looks there for the sink, and a thread may
    have none, or another one."""
    made: Any = spark
    sessions = getattr(made._jvm, "org.apache.spark.sql.classic.SparkSession")
    before = sessions.getActiveSession()
    sessions.setActiveSession(made._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def task_counts(spark: SparkSession) -> tuple[int, int]:
    """(Done, all) tasks of what runs now."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    there = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in there), sum(stage.numTasks for stage in there)
