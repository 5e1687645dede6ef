"""Reads the files of the job schedule. No row is lost: a row that cannot be parsed is returned with its text.

    parquet   columns with their types. A file that cannot be read fails the job before anything is sent.
    csv       with a header line; all columns are text. A line that does not fit the header is a row with its text.
    json      one object per line. A line is read as text, and fields are extracted when they are needed. So no type is
              inferred: a field may have a different type in each row. A line that is no object is a row with its text.
              Empty lines are ignored.

The rows have the order of the given files, and are not shuffled: reading the same files again gives the same rows in
the same Spark partitions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from sandq.model.errors import InvalidSetting
from sandq.spark.jobs.files import CSV, JSON, PARQUET

CORRUPT: Final = "_sandq_corrupt"
FILE: Final = "_sandq_file"
LINE: Final = "_sandq_line"
DOCUMENT: Final = "_sandq_document"
HEADERS: Final = "map<string,string>"
_PATTERN: Final = re.compile(r"([\\{}\[\]*?])")
_ROW: Final = "row"
_END: Final = "end"
SHOWN_CHARS: Final = 1000
OURS: Final = frozenset(
    name.lower()
    for name in (
        *("mode", "columnNameOfCorruptRecord", "header", "enforceSchema", "columnPruning", "inferSchema"),
        *("mergeSchema", "ignoreCorruptFiles", "ignoreMissingFiles", "pathGlobFilter", "recursiveFileLookup"),
        *("modifiedBefore", "modifiedAfter", "samplingRatio", "wholetext", "lineSep", "maxColumns", "__globPaths__"),
    )
)
"""Options of Spark's readers that users cannot set: they are set here, or would leave rows out."""


@dataclass(frozen=True)
class Field:
    """The value of a column, and its type as Spark's simpleString."""

    value: Column
    kind: str


class Origin:
    """The rows of files as a DataFrame.

    `corrupt`: conditions for rows that cannot be used, by the text of the reason. `shown`: columns by which a rejected
    row is shown, by name; they may be null.
    """

    def __init__(self, frame: DataFrame, corrupt: Mapping[str, Column], shown: Mapping[str, Column]) -> None:
        self.frame = frame
        self.corrupt = corrupt
        self.shown = shown

    def field(self, name: str) -> Field:
        """Return a column, or a part of one ("user.id"). Raises InvalidSetting if it does not exist."""
        for parts in ([name], name.split(".")):
            found = _find(self.frame.schema, parts)
            if found is not None and found[0][0] not in (FILE, LINE, CORRUPT):
                path, kind = found
                return Field(F.col(".".join(map(_quoted, path))), kind)
        existing = ", ".join(self.columns)
        raise InvalidSetting(f"the files have no column {name!r}; they have {existing[:SHOWN_CHARS]}")

    def part(self, name: str) -> Column:
        """Return a column or a part of one, for use in a JSON object."""
        return self.field(name).value

    def headers(self, name: str) -> Field:
        """Return a column of headers."""
        return self.field(name)

    @property
    def columns(self) -> list[str]:
        """The columns of the files."""
        return [name for name in self.frame.columns if name not in (FILE, LINE, CORRUPT, DOCUMENT)]

    def every(self) -> Field:
        """Return all columns as one structure."""
        return Field(_struct(self.columns), "struct")


class JsonOrigin(Origin):
    """JSON documents. Every field name is allowed; the field is null in rows without it.

    Values that are not texts are returned as JSON.
    """

    def field(self, name: str) -> Field:
        return Field(F.try_variant_get(F.col(DOCUMENT), _path(name), "string"), "string")

    def part(self, name: str) -> Column:
        return F.try_variant_get(F.col(DOCUMENT), _path(name), "variant")

    def headers(self, name: str) -> Field:
        return Field(F.try_variant_get(F.col(DOCUMENT), _path(name), HEADERS), HEADERS)

    def every(self) -> Field:
        return Field(F.col(LINE), "string")  # the unchanged line


def read_files(
    spark: SparkSession, paths: Sequence[str], kind: str, options: Mapping[str, str] | None = None
) -> Origin:
    """Read the rows of these files; `options` are for Spark's reader. Raises InvalidSetting for options in `OURS`."""
    wrong = sorted(name for name in options or () if name.lower() in OURS)
    if wrong:
        raise InvalidSetting(f"options of the reader: {', '.join(wrong)} cannot be set here")
    reader = spark.read.options(**{**_options(kind), **dict(options or {})})
    read = {PARQUET: _parquet, CSV: _csv, JSON: _json}[kind]
    # The paths are existing files, so special characters in names must be escaped. (Spark's option for that reads all
    # files again for each name with such a character.)
    return read(spark, reader, [escaped(path) for path in paths])


def escaped(path: str) -> str:
    """Escape the characters of a path that Spark would interpret as a pattern."""
    return _PATTERN.sub(r"\\\1", path)


def _options(kind: str) -> dict[str, str]:
    # Unreadable files must be errors.
    common = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
    return {
        PARQUET: {**common, "mergeSchema": "true"},
        CSV: {
            **common,
            **{"header": "true", "enforceSchema": "false", "mode": "PERMISSIVE", "columnPruning": "false"},
            # Without multiLine, a line feed within quotes ends a row, and the rest can look like a valid row. The
            # disadvantage is that a file is not split.
            **{"multiLine": "true", "escape": '"'},
        },
        JSON: common,
    }[kind]


def _parquet(spark: SparkSession, reader: Any, paths: list[str]) -> Origin:
    frame = reader.parquet(*paths)
    frame = frame.select("*", F.col("_metadata.file_path").alias(FILE))
    return Origin(frame, {}, {"row": _struct([name for name in frame.columns if name != FILE])})


def _csv(spark: SparkSession, reader: Any, paths: list[str]) -> Origin:
    names = reader.csv(paths[0]).columns
    columns = ", ".join(f"{_quoted(name)} string" for name in (*names, CORRUPT))
    frame = reader.option("columnNameOfCorruptRecord", CORRUPT).schema(columns).csv(paths)
    frame = frame.select("*", F.col("_metadata.file_path").alias(FILE))
    unfit = f"row: it does not have the {len(names)} columns of the header line, or is no CSV"
    no_text = "row: not UTF-8 (or it contains U+FFFD, which replaces invalid bytes)"
    corrupt = {
        unfit: F.col(CORRUPT).isNotNull(),
        no_text: F.contains(F.concat_ws("", *(F.col(_quoted(name)) for name in names)), F.lit("\ufffd")),
    }
    return Origin(frame, corrupt, {"row": _struct(names), "line": F.col(CORRUPT)})


def _json(spark: SparkSession, reader: Any, paths: list[str]) -> Origin:
    frame = reader.text(paths).select(F.col("value").alias(LINE), F.col("_metadata.file_path").alias(FILE))
    frame = frame.filter(F.trim(LINE) != "")
    is_text = F.is_valid_utf8(LINE)
    # Spark's parser ignores everything after the first value of a line. So wrap the line into an object with a second
    # field: if the line has more than one value, the wrapped text is invalid or the second field is not found.
    wrapped = F.concat(F.lit(f'{{"{_ROW}":'), F.col(LINE), F.lit(f',"{_END}":0}}'))
    document = F.when(is_text, F.try_parse_json(wrapped))
    frame = frame.withColumn(DOCUMENT, document)
    read = F.try_variant_get(F.col(DOCUMENT), f"$.{_END}", "int").isNotNull()
    is_object = F.startswith(F.ltrim(LINE), F.lit("{"))
    corrupt = {
        "line: not a JSON object": is_text & ~F.coalesce(read & is_object, F.lit(False)),
        "line: not UTF-8": ~is_text,
    }
    shown = {
        "line": F.when(is_text, F.col(LINE)),
        "line_base64": F.when(~is_text, F.base64(F.col(LINE).cast("binary"))),
    }
    return JsonOrigin(frame, corrupt, shown)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _struct(names: Sequence[str]) -> Column:
    return F.struct(*(F.col(_quoted(name)) for name in names))


def _find(schema: StructType, parts: Sequence[str]) -> tuple[list[str], str] | None:
    """Return the names of a column and its parts with the schema's spelling, and its type; None if not found."""
    path: list[str] = []
    kind: Any = schema
    for part in parts:
        fields = kind.fields if isinstance(kind, StructType) else ()
        found = next((field for field in fields if field.name.lower() == part.lower()), None)
        if found is None:
            return None
        path.append(found.name)
        kind = found.dataType
    return path, kind.simpleString()


def _path(name: str) -> str:
    """Return the JSON path of a field of a document ("user.id" is a field of a field)."""
    parts = name.split(".")
    for part in parts:
        if not part or ("'" in part and '"' in part):
            raise InvalidSetting(f"{name!r} is no field of a JSON object; a dot separates a field and its part")
    quoted = [f'["{part}"]' if "'" in part else f"['{part}']" for part in parts]
    return f"$.{_ROW}" + "".join(quoted)
