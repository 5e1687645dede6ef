"""The scans of the job schedule over its rows: find the bad rows, write them to a directory, send the good rows."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, Observation, SparkSession
from pyspark.sql import functions as F

from sandq.client.producer import MessageValidation
from sandq.model.errors import InvalidSetting, SandqError
from sandq.spark.jobs.files import check_apart, check_own, cutting, find_files, kind_of, write_id_of
from sandq.spark.jobs.mapping import RowMapping
from sandq.spark.jobs.origins import FILE, JsonOrigin, Origin, read_files
from sandq.spark.jobs.rows import Messages, is_bad, messages, reasons
from sandq.spark.jobs.session import active
from sandq.spark.jobs.summary import Reason, ScheduleSummary

EXAMPLE_CHARS: Final = 1000
"""Maximum number of characters of a row that is shown as an example."""
_FORMAT: Final = "sandq"
_RULES: Final = "org.apache.spark.sql.catalyst.optimizer"
_IN_STEPS: Final = {"spark.sql.optimizer.excludedRules": f"{_RULES}.PushDownPredicates,{_RULES}.CollapseProject"}
"""Keeps Spark from merging the projections of `rows`: each check would then parse the row again."""


@dataclass(frozen=True)
class Checked:
    """Rows that were checked."""

    summary: ScheduleSummary
    origin: Origin
    made: Messages

    def write_rejected(self, path: str) -> None:
        """Write the bad rows as JSON lines, with the file, the reasons, and the row or its text.

        Replaces the output of an earlier run of the same job. Raises InvalidRequest if `path` has other files.
        """
        check_own(self.made.frame.sparkSession, path)
        parts = [F.col(FILE).alias("file"), reasons(self.made.checks).alias("reasons")]
        parts += [column.alias(name) for name, column in self.origin.shown.items()]
        bad = self.made.frame.filter(is_bad(self.made.checks)).select(*parts)
        observed = Observation()
        bad.observe(observed, F.count(F.lit(1)).alias("rows")).write.mode("overwrite").option(
            "ignoreNullFields", "false"
        ).json(path)
        self._compare(observed, self.summary.rejected, "bad")

    def send(self, options: Mapping[str, str]) -> int:
        """Send the good rows through the sink. Return their number when all are stored."""
        good = self.made.frame.filter(~is_bad(self.made.checks)).select(*self.message())
        observed = Observation()
        watched = good.observe(observed, F.count(F.lit(1)).alias("rows"))
        with active(watched.sparkSession):
            watched.write.format(_FORMAT).options(**options).mode("append").save()
        return int(observed.get["rows"])

    def message(self) -> list[Column]:
        """Return the columns of the sink."""
        return [column.alias(name) for name, column in self.made.columns.items()]

    def _compare(self, observed: Observation, expected: int, adjective: str) -> None:
        found = int(observed.get["rows"])
        if found != expected:
            raise SandqError(f"{expected:,} rows were {adjective}, later {found:,}: the files were changed meanwhile")


def check(
    spark: SparkSession,
    topic: str,
    paths: Sequence[str],
    mapping: RowMapping,
    limits: MessageValidation,
    *,
    kind: str | None = None,
    read_options: Mapping[str, str] | None = None,
    write_id: str | None = None,
    rejected: str | None = None,
) -> Checked:
    """Check all rows of the files. `rejected`: directory for the bad rows, which must not be part of the input.

    Raises InvalidSetting, InvalidRequest for arguments that do not fit together.
    """
    began_s = time.monotonic()
    files = find_files(spark, paths)
    if rejected is not None:
        check_apart(spark, files, paths, rejected)
    kind = kind_of(files, kind)
    own = own_session(spark, {**cutting(files), **_IN_STEPS})
    origin = read_files(own, [file.path for file in files], kind, read_options)
    made = messages(origin, mapping, limits)
    settings = {"format": kind, "mapping": mapping.record(), "options": dict(read_options or {})}
    found = _counts(origin, made)
    if isinstance(origin, JsonOrigin) and found["rows"]:
        _check_fields(made, found)
    texts = zip(made.checks, range(len(made.checks)), strict=True)
    summary = ScheduleSummary(
        topic=topic,
        write_id=write_id or write_id_of(topic, files, settings),
        files=len(files),
        rows=found["rows"],
        sent=0,
        rejected=found["bad"] or 0,
        reasons=[
            Reason(one.text, found[f"failed_{at}"], found[f"example_{at}"].asDict(recursive=True))
            for one, at in texts
            if found[f"failed_{at}"]
        ],
        already_due=found["already_due"] or 0,
        first_ms=found["first_ms"],
        last_ms=found["last_ms"],
        check_s=time.monotonic() - began_s,
    )
    return Checked(summary, origin, made)


def own_session(spark: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    """Create a session of the same Spark with these settings; settings of the caller's session have no effect in it."""
    from sandq.spark.datasource import SandqDataSource

    own = spark.newSession()
    # Register the source, because Spark finds it by name only if it is installed for every Python that Spark starts.
    own.dataSource.register(SandqDataSource)
    own.conf.set("spark.sql.session.timeZone", "UTC")
    own.conf.set("spark.sql.ansi.enabled", "true")
    own.conf.set("spark.sql.caseSensitive", "false")
    own.conf.set("spark.sql.files.ignoreCorruptFiles", "false")
    own.conf.set("spark.sql.files.ignoreMissingFiles", "false")
    set_all(own, settings)
    return own


def set_all(own: SparkSession, settings: Mapping[str, str]) -> None:
    """Change settings of a session; an empty value removes a setting."""
    for name, value in settings.items():
        if value:
            own.conf.set(name, value)
        else:
            own.conf.unset(name)


def _counts(origin: Origin, made: Messages) -> dict[str, Any]:
    """Scan all rows once.

    Return the numbers of all and of bad rows, the number and an example of failed rows for each check, the first and
    last delivery time of good rows, and the number of rows with a value for each mapped column.
    """
    now_ms = time.time_ns() // 1_000_000
    bad = is_bad(made.checks)
    flags = [F.coalesce(check.failed, F.lit(False)).alias(f"check_{at}") for at, check in enumerate(made.checks)]
    present = [column.alias(f"present_{at}") for at, column in enumerate(made.mapped.values())]
    shown = F.when(bad, F.struct(F.col(FILE).alias("file"), *_example(origin))).alias("example")
    checked = made.frame.select(*flags, *present, bad.alias("bad"), made.columns["deliver_at"].alias("at"), shown)
    good_at = F.when(~F.col("bad"), F.col("at"))
    counts = [
        F.count(F.lit(1)).alias("rows"),
        F.count_if("bad").alias("bad"),
        F.min(good_at).alias("first_ms"),
        F.max(good_at).alias("last_ms"),
        F.count_if(good_at <= now_ms).alias("already_due"),
        *(F.count_if(f"present_{at}").alias(f"present_{at}") for at in range(len(present))),
    ]
    for at in range(len(flags)):
        counts.append(F.count_if(f"check_{at}").alias(f"failed_{at}"))
        example = F.first(F.when(F.col(f"check_{at}"), F.col("example")), ignorenulls=True)
        counts.append(example.alias(f"example_{at}"))
    (row,) = checked.agg(*counts).collect()
    return dict(row.asDict(recursive=False))


def _example(origin: Origin) -> list[Column]:
    text = {
        name: F.to_json(column, {"ignoreNullFields": "false"}) if name == "row" else column
        for name, column in origin.shown.items()
    }
    return [F.left(column, F.lit(EXAMPLE_CHARS)).alias(name) for name, column in text.items()]


def _check_fields(made: Messages, found: Mapping[str, Any]) -> None:
    """Raise InvalidSetting for mapped fields that no document has: documents have no schema to check them against."""
    missing = [name for at, name in enumerate(made.mapped) if not found[f"present_{at}"]]
    if missing:
        raise InvalidSetting(f"no row has the field {' or '.join(map(repr, missing))}: nothing was sent")
