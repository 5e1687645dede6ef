"""The job schedule: sends rows of Parquet, CSV or JSON files as messages, each at the time in its row.

    check   the first scan of all rows finds the bad ones, and writes them with all reasons to a separate directory. If
            there are more bad rows than allowed, nothing is sent.
    send    the second scan sends the good rows, each exactly once.

So each row is either sent or rejected; the counts of both scans are compared.

A repeated job sends nothing twice, and after a failure it sends the missing rows. Each Spark partition is a producer
whose id is computed from the write id, and the write id is computed from the files and the arguments. Brokers remember
a producer for a week after its last batch; a job that is repeated later sends everything again. A different `write_id`
makes it a new job.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sandq.client.producer import MessageValidation, check_rank
from sandq.model.errors import Conflict, InvalidRequest, SandqError
from sandq.model.names import COMPACTED
from sandq.model.ports import DEFAULT_SERVER
from sandq.model.times import Duration
from sandq.spark.jobs.calling import CLIENT_NAME
from sandq.spark.jobs.mapping import RowMapping, row_mapping
from sandq.spark.jobs.session import failure
from sandq.spark.jobs.summary import Reason, ScheduleSummary
from sandq.spark.option_texts import SERVERS
from sandq.sync import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from sandq.spark.jobs.checking import Checked

EXAMPLES: Final = 3
"""Number of reasons for which an error shows an example row."""
SHOWN_CHARS: Final = 300
_WRITE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_ALLOWED: Final = re.compile(r"([0-9]{1,15})|([0-9]{1,3}(?:\.[0-9]{1,6})?)%")

Stage = Callable[[str], object]
"""Called with the name of each stage when it begins: "checking", "writing the rejected rows", "sending"."""


class Allowed(NamedTuple):
    """Maximum number of bad rows: a number, or a share of all rows."""

    rows: int = 0
    share: Fraction | None = None

    def of(self, rows: int) -> int:
        """Return the maximum number of bad rows among `rows` rows."""
        return self.rows if self.share is None else int(rows * self.share)

    @classmethod
    def parse(cls, text: str | int) -> Allowed:
        """Parse "100" or "0.5%". Raises InvalidRequest."""
        match = _ALLOWED.fullmatch(str(text))
        if match is not None and match[1] is not None:
            return cls(int(match[1]))
        if match is not None and Fraction(match[2]) <= 100:
            return cls(0, Fraction(match[2]) / 100)
        raise InvalidRequest(f"max_rejected: a number of rows, or a share like 0.5%, is expected, not {text!r}")


def schedule(
    spark: SparkSession,
    topic: str,
    paths: Sequence[str],
    mapping: Mapping[str, str],
    *,
    format: str | None = None,
    value_json: Sequence[str] = (),
    default_delay: Duration | None = None,
    time_zone: str | None = None,
    on_conflict: str | None = None,
    rejected: str | None = None,
    max_rejected: str | int = 0,
    write_id: str | None = None,
    dry_run: bool = False,
    read_options: Mapping[str, str] | None = None,
    servers: Sequence[str] = (),
    stage: Stage | None = None,
) -> ScheduleSummary:
    """Send the rows of files (paths, directories, patterns) to a topic, each at its time.

    `mapping` maps fields of a message to columns: `value`, `key`, `deliver_at` (a timestamp, RFC 3339 or epoch ms),
    `delay_ms`, `ttl_ms`, `unique_key`, `headers` (a map), or `header.NAME`; if the topic accepts them, also `priority`
    and `tenant`. Instead of `value`, `value_json` names columns that become a JSON object ("*": all).

    `default_delay`: for rows without a time or delay. `time_zone`: zone of times without one. `on_conflict`: the
    reaction if a unique key is taken: "ignore" (the default), "replace" or "reject". `rejected`: directory for the
    rejected rows. `max_rejected`: maximum number of rejected rows (100, or "0.5%"). `dry_run`: only check.
    `read_options`: options for Spark's reader (`{"sep": ";"}`).

    Raises InvalidSetting or InvalidRequest for wrong arguments, and TooManyRejected; nothing was sent then. After any
    other error while sending (ConnectionLost, ...), part of the rows may be stored, and the same call sends the rest.
    """
    mapped = row_mapping(
        mapping, value_json=value_json, default_delay=default_delay, time_zone=time_zone, on_conflict=on_conflict
    )
    allowed = Allowed.parse(max_rejected)
    if rejected is None and allowed != Allowed():
        raise InvalidRequest("max_rejected: give a directory for the rejected rows (rejected), so that none is lost")
    if write_id is not None and not _WRITE_ID.fullmatch(write_id):
        raise InvalidRequest("write_id: 1 to 200 of A-Z a-z 0-9 . _ - are expected, beginning with a letter or digit")
    kind, limits = _asked(topic, servers)
    check_rank(topic, kind, mapped.columns.get("priority"), mapped.columns.get("tenant"))
    begin_stage = stage or (lambda name: None)
    from sandq.spark.jobs.checking import check  # import Spark only after all checks that do not need it

    try:
        begin_stage("checking")
        reading: dict[str, Any] = {"kind": format, "read_options": read_options, "write_id": write_id}
        checked = check(spark, topic, paths, mapped, limits, rejected=rejected, **reading)
        return _run(checked, mapped, allowed, rejected, servers, dry_run, begin_stage)
    except Exception as error:
        raise failure(error, "schedule") from error


class TooManyRejected(InvalidRequest):
    """More rows are bad than allowed; nothing was sent. `summary` has the reasons."""

    def __init__(self, message: str, summary: ScheduleSummary) -> None:
        super().__init__(message)
        self.summary = summary


def _asked(topic: str, servers: Sequence[str]) -> tuple[str, MessageValidation]:
    """Return the kind of a topic, and checks with the brokers' limits.

    Raises UnknownTopic, or InvalidRequest for a compacted topic, which does not accept delayed messages.
    """
    with connect(*servers, name=CLIENT_NAME) as client:
        record = client.admin.topic(topic)
        if record.kind == COMPACTED:
            raise InvalidRequest(f"topic {topic!r} is {record.kind}: it stores values of keys, not delayed messages")
        return record.kind, MessageValidation(client.limits)


def _run(
    checked: Checked,
    mapping: RowMapping,
    allowed: Allowed,
    rejected: str | None,
    servers: Sequence[str],
    dry_run: bool,
    begin_stage: Stage,
) -> ScheduleSummary:
    summary = checked.summary
    rejected_path: str | None = None
    if summary.rejected and rejected is not None:
        begin_stage("writing the rejected rows")
        rejected_path = f"{rejected.rstrip('/')}/{summary.write_id}"
        checked.write_rejected(rejected_path)
    summary = replace(summary, rejected_path=rejected_path, dry_run=dry_run)
    if dry_run:
        return summary
    if summary.rejected > allowed.of(summary.rows):
        raise TooManyRejected(_too_many(summary, allowed), summary)
    begin_stage("sending")
    began_s = time.monotonic()
    options = {SERVERS: ",".join(servers) or DEFAULT_SERVER, "topic": summary.topic}
    if mapping.on_conflict is not None:
        options["onConflict"] = mapping.on_conflict
    try:
        sent = checked.send({**options, "writeId": summary.write_id})
    except Exception as error:
        found = failure(error, "sending")
        if type(found) is Conflict:  # changed rows: a repetition would fail again
            raise found from error
        found.add_note("part of the rows may be stored; run the same command again, which stores only the missing rows")
        raise found from error
    if sent != summary.rows - summary.rejected:
        good = summary.rows - summary.rejected
        raise SandqError(f"{good:,} rows were good, but {sent:,} were sent: the files were changed meanwhile")
    return replace(summary, sent=sent, send_s=time.monotonic() - began_s)


def _too_many(summary: ScheduleSummary, allowed: Allowed) -> str:
    limit = f"{allowed.of(summary.rows):,}" if allowed.share is None else f"{float(allowed.share * 100):.6g}% of them"
    lines = [f"{summary.rejected:,} of {summary.rows:,} rows are bad, {limit} are allowed: nothing was sent"]
    for number, reason in enumerate(summary.reasons):
        example = f", as in {_shown(reason)}" if number < EXAMPLES else ""
        lines.append(f"  {reason.rows:,}: {reason.text}{example}")
    if summary.rejected_path is not None:
        lines.append(f"  the rows are in {summary.rejected_path}")
    return "\n".join(lines)


def _shown(reason: Reason) -> str:
    shown = next((str(text) for name, text in reason.example.items() if name != "file" and text is not None), "")
    cut = shown if len(shown) <= SHOWN_CHARS else shown[:SHOWN_CHARS] + "..."
    return f"{reason.example.get('file')}: {cut}"
