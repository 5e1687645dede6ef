"""Creates a Spark session for jobs (`session`), and makes Spark's errors readable (`failure`).

If Spark is already started (by spark-submit, in a notebook), its session is used as it is. Otherwise a session is
created on all cores of this machine. Other machines cannot reach it, it has no web page, and its log is a temporary
file.
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
JAVA: Final = "Java 17 or later is required as well (JAVA_HOME, or java in PATH)"
LOG_CHARS: Final = 2000
"""Bytes of the end of Spark's log that are shown in an error."""
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
    # Without a metastore, Spark starts faster and leaves no files behind.
    "spark.sql.catalogImplementation": "in-memory",
}


_HOME: Final = "SPARK_HOME"
_HOME_PARTS: Final = ("bin", "conf", "jars", "sbin")
_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Environment variable that spark-submit sets; then it has chosen all settings."""
_LOGGERS: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
"""Loggers to which PySpark also writes each exception before it raises it."""


def check_extra() -> None:
    """Raise StartupError if the packages of the extra `spark` are not installed."""
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
    """Use the existing session, or create one that is stopped at the end of the block.

    `conf`: settings of Spark, which override those of this module. Raises StartupError if Spark or Java is missing or
    does not start. Raises InvalidSetting if Spark is already started and `master` or `conf` is given.
    """
    check_extra()
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None or _SUBMITTED in os.environ:
        if master is not None or conf:
            raise InvalidSetting("Spark is already started: its master and settings cannot be changed any more")
        yield SparkSession.builder.getOrCreate()
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = master or MASTER
    with tempfile.TemporaryFile() as log, spark_home(is_local=chosen.startswith("local")) as home:
        with home_in_environment(home):
            created = _started(chosen, dict(conf or {}), log)
        try:
            yield created
        finally:
            _stop(created)


@contextlib.contextmanager
def spark_home(*, is_local: bool) -> Iterator[Path | None]:
    """Create a home directory of Spark with which Python workers load the installed PySpark; None if it cannot be used.

    By default, workers load PySpark from a zip archive in Spark's home, which each of them compiles again. This costs
    half a second of CPU time for each of the about ten workers of a small job. The created home has everything that
    Spark needs except that archive. It works only for Spark on this machine, with workers that run the interpreter in
    which this PySpark is installed.
    """
    import pyspark

    installed = Path(pyspark.__file__).parent
    pythons = {os.environ.get("PYSPARK_PYTHON"), os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable)}
    if not is_local or _HOME in os.environ or pythons != {sys.executable}:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="sandq-spark-") as directory:
        try:
            for name in _HOME_PARTS:
                if (installed / name).exists():
                    Path(directory, name).symlink_to(installed / name)
            found: Path | None = Path(directory)
        except OSError:  # the file system does not support links
            found = None
        yield found


@contextlib.contextmanager
def home_in_environment(home: Path | None) -> Iterator[None]:
    """Set SPARK_HOME during the block, for the Java process that is started in it."""
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
        # The JVM writes to standard error before Spark's settings can prevent it.
        gateway = launch_gateway(settings, {"stderr": log, "stdout": log})
    except (PySparkRuntimeError, OSError) as error:
        raise StartupError(f"Java did not start: {_tail(log) or error}. {JAVA}") from None
    try:
        return SparkSession(SparkContext(conf=settings, gateway=gateway))
    except Exception as error:
        gateway.shutdown()
        raise StartupError(f"Spark did not start: {first_line(error)}\n{_tail(log)}") from None


def _stop(spark: Any) -> None:
    """Stop the session and its JVM, so that a later job of this process can use different settings."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    # If the JVM has died, stopping fails; the error that ended it is more important.
    with contextlib.suppress(Py4JError, OSError):
        spark.stop()
    if gateway is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    if gateway.proc is not None:  # it exits when its standard input is closed
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
    """Convert an error of Spark into an error of sandq.

    If a task of sandq caused it, return that error: Spark includes the text of the task's traceback in its own error.
    Otherwise use the first line of Spark's error and of its cause. `doing` is the prefix of the message.
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
    """Return the first line of an error; for a Java exception also its root cause, without the stack trace."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        return next(_lines(error), type(error).__name__)
    cause = java
    while cause.getCause() is not None:
        cause = cause.getCause()
    message = next(_lines(java.getMessage()), str(java.getClass().getName()))
    reason = "" if cause.equals(java) else " ".join(_lines(cause.getMessage()))
    return message if not reason or reason in message else f"{message}: {reason}"


def _lines(text: object) -> Iterator[str]:
    return (line.strip() for line in str(text or "").splitlines() if line.strip())


@contextlib.contextmanager
def active(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread during the block.

    Spark looks for the sink in the active session. A thread may have no active session, or a different one.
    """
    session: Any = spark
    sessions = getattr(session._jvm, "org.apache.spark.sql.classic.SparkSession")
    before = sessions.getActiveSession()
    sessions.setActiveSession(session._jsparkSession)
    try:
        yield
    finally:
        if before.isDefined():
            sessions.setActiveSession(before.get())
        else:
            sessions.clearActiveSession()


def task_counts(spark: SparkSession) -> tuple[int, int]:
    """Return (number of completed tasks, number of all tasks) of the active stages."""
    tracker = spark.sparkContext.statusTracker()
    stages = [tracker.getStageInfo(number) for number in tracker.getActiveStageIds()]
    known = [stage for stage in stages if stage is not None]
    return sum(stage.numCompletedTasks for stage in known), sum(stage.numTasks for stage in known)
