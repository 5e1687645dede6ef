"""The job schedule: rows of Parquet, CSV or JSON files become messages, each at the time that its row says.

    check   a pass over all rows finds the bad ones. They are written, with all reasons, to a place of their own; when
            there are more of them than may be, nothing is sent
    send    a second pass sends the others, exactly once

So each row is either sent or among the rejected ones; the counts of both passes are compared.

Running it again sends nothing twice: a Spark partition is a producer whose name follows from the write id, and that
from the topic, the mapping and the files (path, size, modification time); its rows come in the same order each time.
After a failure the same call sends what is missing. The brokers remember a producer for a week after its last batch:
whoever runs a job again after that sends everything again. Another `write_id` makes it another job.
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
"""Reasons of which an error shows a row."""
SHOWN_CHARS: Final = 300
_WRITE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_ALLOWED: Final = re.compile(r"([0-9]{1,15})|([0-9]{1,3}(?:\.[0-9]{1,6})?)%")

Stage = Callable[[str], object]
"""Called with what the job is doing now: "checking", "writing the rejected rows", "sending"."""


class Allowed(NamedTuple):
    """How many rows may be bad: so many, or such a share of all."""

    rows: int = 0
    share: Fraction | None = None

    def of(self, rows: int) -> int:
        """How many that are, of so many."""
        return self.rows if self.share is None else int(rows * self.share)

    @classmethod
    def parse(cls, text: str | int) -> Allowed:
        """ "100" or "0.5%". InvalidRequest when it is neither."""
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

    `mapping`: part of a message -> column: `value`, `key`, `deliver_at` (a time stamp, RFC 3339 or epoch ms),
    `delay_ms`, `ttl_ms`, `unique_key`, `headers` (a map), or `header.NAME`, and where the topic takes them `priority`
    and `tenant`; instead of `value`, `value_json` names the columns of which the value is a JSON object ("*": all).
    `default_delay`: for rows that do not say when. `time_zone`:
    of times without one. `on_conflict`: what is done when a unique key is taken: "ignore" (the default), "replace" or
    "reject". `rejected`: a directory for the rows that are not sent. `max_rejected`: how many these may be (100, or
    "0.5%"). `dry_run`: only check. `read_options`: for Spark's reader (`{"sep": ";"}`).

    InvalidSetting, InvalidRequest: something cannot be as it is asked for; TooManyRejected: nothing was sent. Whatever
    else fails while it sends (ConnectionLost, ...): part of the rows may be stored, and the same call sends the rest.
    """
    mapped = row_mapping(
        mapping, value_json=value_json, default_delay=default_delay, time_zone=time_zone, on_conflict=on_conflict
    )
    allowed = Allowed.parse(max_rejected)
    if rejected is None and allowed != Allowed():
        raise InvalidRequest("max_rejected: name a directory for the rejected rows, too; no row is dropped unseen")
    if write_id is not None and not _WRITE_ID.fullmatch(write_id):
        raise InvalidRequest("write_id: 1 to 200 of A-Z a-z 0-9 . _ - and the first one a letter or a digit")
    kind, limits = _asked(topic, servers)
    check_rank(topic, kind, mapped.columns.get("priority"), mapped.columns.get("tenant"))
    tell = stage or (lambda what: None)
    from sandq.spark.jobs.checking import check  # Spark is loaded when all that needs none is known to be right

    try:
        tell("checking")
        looked: dict[str, Any] = {"kind": format, "read_options": read_options, "write_id": write_id}
        checked = check(spark, topic, paths, mapped, limits, rejected=rejected, **looked)
        return _run(checked, mapped, allowed, rejected, servers, dry_run, tell)
    except Exception as error:
        raise failure(error, "schedule") from error


class TooManyRejected(InvalidRequest):
    """More rows are bad than may be; nothing was sent. `summary` tells what is wrong with them."""

    def __init__(self, message: str, summary: ScheduleSummary) -> None:
        super().__init__(message)
        self.summary = summary


def _asked(topic: str, servers: Sequence[str]) -> tuple[str, MessageValidation]:
    """The kind of a topic, and what the brokers accept of a message. InvalidRequest for a topic that takes no messages
    for later; UnknownTopic."""
    with connect(*servers, name=CLIENT_NAME) as client:
        record = client.admin.topic(topic)
        if record.kind == COMPACTED:
            raise InvalidRequest(f"topic {topic!r} is {record.kind}: it takes values of keys, not messages for later")
        return record.kind, MessageValidation(client.limits)


def _run(
    checked: Checked,
    mapping: RowMapping,
    allowed: Allowed,
    rejected: str | None,
    servers: Sequence[str],
    dry_run: bool,
    tell: Stage,
) -> ScheduleSummary:
    summary = checked.summary
    place: str | None = None
    if summary.rejected and rejected is not None:
        tell("writing the rejected rows")
        place = f"{rejected.rstrip('/')}/{summary.write_id}"
        checked.write_rejected(place)
    summary = replace(summary, rejected_path=place, dry_run=dry_run)
    if dry_run:
        return summary
    if summary.rejected > allowed.of(summary.rows):
        raise TooManyRejected(_too_many(summary, allowed), summary)
    tell("sending")
    began_s = time.monotonic()
    options = {SERVERS: ",".join(servers) or DEFAULT_SERVER, "topic": summary.topic}
    if mapping.on_conflict is not None:
        options["onConflict"] = mapping.on_conflict
    try:
        sent = checked.send({**options, "writeId": summary.write_id})
    except Exception as error:
        found = failure(error, "sending")
        if type(found) is Conflict:  # changed rows: the same again would fail again
            raise found from error
        found.add_note("part of the rows may be stored; run the same again: what is stored is not stored twice")
        raise found from error
    if sent != summary.rows - summary.rejected:
        good = summary.rows - summary.rejected
        raise SandqError(f"{good:,} rows were good, and {sent:,} were sent: the files were changed meanwhile")
    return replace(summary, sent=sent, send_s=time.monotonic() - began_s)


def _too_many(summary: ScheduleSummary, allowed: Allowed) -> str:
    may = f"{allowed.of(summary.rows):,}" if allowed.share is None else f"{float(allowed.share * 100):.6g}% of them"
    lines = [f"{summary.rejected:,} of {summary.rows:,} rows are bad, {may} may be: nothing was sent"]
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
