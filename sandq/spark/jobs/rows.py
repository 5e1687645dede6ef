"""Converts rows of files into messages, and finds bad rows, with Spark expressions: no Python code runs per row.

The messages have the columns of the sink. A check is a text and a condition; a row is bad if a condition is true. The
checks find every row that the sink would refuse. They are needed because the sink ends the write at the first bad row,
when other rows are already stored.

All expressions are deterministic: a row always gives the same message and the same check results.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from sandq.client.producer import MessageValidation
from sandq.model.limits import FIXED
from sandq.model.names import TENANT_PATTERN, TENANT_RULE
from sandq.spark.jobs.instants import instant, whole_number, wrong_instant
from sandq.spark.jobs.mapping import EVERY, HEADER, RowMapping
from sandq.spark.jobs.origins import Field, Origin
from sandq.spark.jobs.row_headers import all_headers, named_headers, wrong_headers, wrong_named
from sandq.spark.sink.columns import DELAY_MAX_MS

_BYTES: Final = ("value", "key", "unique_key")
_NESTED: Final = ("struct", "array", "map")
_RAW_HEADERS: Final = "raw headers"


@dataclass(frozen=True)
class Check:
    """A row is bad, for the reason `text`, where `failed` is true. Null counts as false."""

    text: str
    failed: Column


@dataclass(frozen=True)
class Messages:
    """The messages of all rows.

    `frame`: the rows, with all columns that the other fields refer to. `columns`: the columns of the sink. `checks`:
    the checks of a row. `mapped`: for each used column of the files, whether a row has a value.
    """

    frame: DataFrame
    columns: dict[str, Column]
    checks: list[Check]
    mapped: dict[str, Column]


def messages(origin: Origin, mapping: RowMapping, limits: MessageValidation) -> Messages:
    """Return the messages of all rows, and their checks.

    Raises InvalidSetting if a column does not exist, or if its type cannot be converted.
    """
    # The fields of the files, then the columns of the messages, then the checks.
    wanted = {
        name: origin.headers(of) if name == "headers" else origin.field(of) for name, of in mapping.columns.items()
    }
    wanted |= {f"{HEADER}{name}": origin.field(of) for name, of in mapping.headers.items()}
    if "value" not in wanted:
        wanted["value"] = _object(origin, mapping)
    if "headers" in wanted:
        # To distinguish a missing value from a value that is not a map.
        wanted[_RAW_HEADERS] = origin.field(mapping.columns["headers"])
    # Each step is a separate projection, so that values that the next step uses several times are computed once.
    frame, values = _staged(origin.frame, "field", {name: field.value for name, field in wanted.items()})
    fields = {name: Field(values[name], field.kind) for name, field in wanted.items()}
    frame, columns = _staged(frame, "message", _message_columns(fields, mapping))
    broken = [Check(text, failed) for text, failed in origin.corrupt.items()]
    # Other checks make no sense for a row that cannot be read.
    is_whole = ~_any([check.failed for check in broken])
    own = _checks(fields, columns, mapping, limits)
    checks = [*broken, *(Check(check.text, is_whole & check.failed) for check in own)]
    frame, failed = _staged(frame, "check", {str(at): _true(check.failed) for at, check in enumerate(checks)})
    # For the report: whether each named column of the files has a value.
    named = {**mapping.columns, **{f"{HEADER}{name}": of for name, of in mapping.headers.items()}}
    return Messages(
        frame,
        columns,
        [Check(check.text, failed[str(at)]) for at, check in enumerate(checks)],
        {of: values[_RAW_HEADERS if name == "headers" else name].isNotNull() for name, of in named.items()},
    )


def _staged(frame: DataFrame, step: str, made: Mapping[str, Column]) -> tuple[DataFrame, dict[str, Column]]:
    """Return the frame with additional columns, and references to these columns."""
    names = {name: f"_sandq_{step}_{at}" for at, name in enumerate(made)}
    staged = frame.select("*", *(column.alias(names[name]) for name, column in made.items()))
    return staged, {name: F.col(own) for name, own in names.items()}


def _true(condition: Column) -> Column:
    return F.coalesce(condition, F.lit(False))


def _any(conditions: list[Column]) -> Column:
    found = F.lit(False)
    for condition in conditions:
        found = found | _true(condition)
    return found


def is_bad(checks: list[Check]) -> Column:
    """Return the condition that any check failed."""
    return _any([check.failed for check in checks])


def reasons(checks: list[Check]) -> Column:
    """Return the texts of the failed checks, as an array."""
    return F.array_compact(F.array(*(F.when(check.failed, F.lit(check.text)) for check in checks)))


def as_text(field: Field) -> Column:
    """Return a field as text: numbers and times in Spark's format, structures as JSON."""
    if field.kind.startswith(_NESTED):
        return F.to_json(field.value, {"ignoreNullFields": "false"})
    return field.value.cast("string")


def as_bytes(field: Field) -> Column:
    """Return a field as bytes: bytes unchanged, everything else as text in UTF-8."""
    return field.value if field.kind == "binary" else as_text(field).cast("binary")


def _object(origin: Origin, mapping: RowMapping) -> Field:
    """Return the columns of `value_json` as one structure."""
    if mapping.value_json == (EVERY,):
        return origin.every()
    return Field(F.struct(*(origin.part(name).alias(name) for name in mapping.value_json)), "struct")


# ------------------------------------------------------------------------------------------------ the message


def _message_columns(fields: Mapping[str, Field], mapping: RowMapping) -> dict[str, Column]:
    """Return the columns of the sink."""
    made = {name: as_bytes(fields[name]) for name in _BYTES if name in fields}
    made["deliver_at"] = F.lit(None).cast("bigint")
    if "deliver_at" in fields:
        made["deliver_at"] = instant(fields["deliver_at"], mapping.time_zone)
    for name in ("delay_ms", "ttl_ms"):
        if name in fields:
            made[name] = whole_number(fields[name], name)
    if "priority" in fields:
        made["priority"] = whole_number(fields["priority"], "priority", signed=True)
    if "tenant" in fields:
        made["tenant"] = as_text(fields["tenant"])
    if mapping.default_delay_ms is not None:
        default = F.lit(mapping.default_delay_ms).cast("bigint")
        made["delay_ms"] = F.when(~_says_when(fields), default).otherwise(
            made.get("delay_ms", F.lit(None).cast("bigint"))
        )
    headers = all_headers(fields["headers"]) if "headers" in fields else named_headers(_named(fields))
    if headers is not None:
        made["headers"] = headers
    return made


def _named(fields: Mapping[str, Field]) -> dict[str, Field]:
    return {name[len(HEADER) :]: field for name, field in fields.items() if name.startswith(HEADER)}


def _says_when(fields: Mapping[str, Field]) -> Column:
    given = [fields[name].value.isNotNull() for name in ("deliver_at", "delay_ms") if name in fields]
    return _any(given)


# ------------------------------------------------------------------------------------------------ checks


def _checks(
    fields: Mapping[str, Field],
    made: Mapping[str, Column],
    mapping: RowMapping,
    limits: MessageValidation,
) -> Iterator[Check]:
    yield Check("value: missing", made["value"].isNull())
    most = {"value": limits.message_bytes, "key": limits.key_bytes, "unique_key": FIXED.unique_key_bytes}
    for name in _BYTES:
        if name in made:
            yield Check(f"{name}: more than {most[name]:,} bytes", F.octet_length(made[name]) > most[name])
    if "unique_key" in made:
        yield Check("unique_key: empty", F.octet_length(made["unique_key"]) == 0)
    yield from _rank_checks(fields, made)
    yield from _time_checks(fields, made, mapping)
    if "headers" in fields:
        own = fields["headers"]
        yield Check("headers: not a JSON object", fields[_RAW_HEADERS].value.isNotNull() & own.value.isNull())
        wrong = wrong_headers(own, limits.headers_bytes)
    else:
        wrong = wrong_named(_named(fields), limits.headers_bytes)
    for text, failed in wrong.items():
        yield Check(f"headers: {text}", failed)


def _rank_checks(fields: Mapping[str, Field], made: Mapping[str, Column]) -> Iterator[Check]:
    if "priority" in fields:
        number, least, most = made["priority"], FIXED.priority_least, FIXED.priority_most
        is_none = number.isNull() | (number < least) | (number > most)
        text = f"priority: not a whole number within {least}..{most}"
        yield Check(text, fields["priority"].value.isNotNull() & is_none)
    if "tenant" in made:
        name = made["tenant"]
        # Java's $ would allow a line feed after the name, so use \z.
        is_name = F.rlike(name, F.lit(rf"\A{TENANT_PATTERN}\z")) & (F.char_length(name) <= FIXED.tenant_bytes)
        yield Check(f"tenant: not allowed; the rule: {TENANT_RULE}", ~is_name)


def _time_checks(fields: Mapping[str, Field], made: Mapping[str, Column], mapping: RowMapping) -> Iterator[Check]:
    if "deliver_at" in fields:
        wrong = wrong_instant(fields["deliver_at"], made["deliver_at"], mapping.time_zone)
        for text, failed in wrong.items():
            yield Check(f"deliver_at: {text}", failed)
    for name, least in (("delay_ms", 0), ("ttl_ms", 1)):
        if name in fields:
            number = made[name]
            is_none = number.isNull() | (number < least) | (number > DELAY_MAX_MS)
            text = f"{name}: not a whole number of milliseconds within {least}..{DELAY_MAX_MS}"
            yield Check(text, fields[name].value.isNotNull() & is_none)
    if {"deliver_at", "delay_ms"} <= set(fields):
        both = fields["deliver_at"].value.isNotNull() & fields["delay_ms"].value.isNotNull()
        yield Check("delay_ms: deliver_at is set as well; set only one of them", both)
    if mapping.default_delay_ms is None:
        names = " and ".join(name for name in ("deliver_at", "delay_ms") if name in fields)
        yield Check(f"{names}: missing, and there is no default delay", ~_says_when(fields))
