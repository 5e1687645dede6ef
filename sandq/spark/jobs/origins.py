"""Reading the files of the job schedule so that every row is there, also one that cannot be read: its text then says
what it was.

    parquet   columns with their types; a file that cannot be read fails the job before anything is sent
    csv       with a line of headings; all columns are text; a line that does not fit them is a row with its text
    json      an object a line. A line is read as text and looked into, nothing is inferred: a field has in each row the
              type that it has there. A line that is no object is a row with its text; an empty one is none

The rows come in the order of the files (which are named one by one), and nothing here shuffles them: whoever reads the
same files again gets the same rows in the same Spark partitions.
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
"""Options of Spark's readers that are set here, or would leave rows out."""


@dataclass(frozen=True)
class Field:
    """A column's value, and its type as Spark's simpleString gives it."""

    value: Column
    kind: str


class Origin:
    """A DataFrame of rows as they stand in their files.

    `corrupt`: why a row cannot be used at all -> whether that is so. `shown`: name -> what is written down of a row
    that is rejected, null where there is none.
    """

    def __init__(self, frame: DataFrame, corrupt: Mapping[str, Column], shown: Mapping[str, Column]) -> None:
        self.frame = frame
        self.corrupt = corrupt
        self.shown = shown

    def field(self, name: str) -> Field:
        """A column, or a part of one ("user.id"). InvalidSetting when there is none."""
        for parts in ([name], name.split(".")):
            found = _walk(self.frame.schema, parts)
            if found is not None and found[0][0] not in (FILE, LINE, CORRUPT):
                path, kind = found
                return Field(F.col(".".join(map(_quoted, path))), kind)
        there = ", ".join(self.columns)
        raise InvalidSetting(f"the files have no column {name!r}; they have {there[:SHOWN_CHARS]}")

    def part(self, name: str) -> Column:
        """The same, as it becomes a part of a JSON object."""
        return self.field(name).value

    def headers(self, name: str) -> Field:
        """The same, for a column of headers."""
        return self.field(name)

    @property
    def columns(self) -> list[str]:
        """Those of the files."""
        return [name for name in self.frame.columns if name not in (FILE, LINE, CORRUPT, DOCUMENT)]

    def every(self) -> Field:
        """All columns, as one."""
        return Field(_struct(self.columns), "struct")


class JsonOrigin(Origin):
    """Documents: every field can be asked for, and is null where a row has none. What is no text is its JSON."""

    def field(self, name: str) -> Field:
        return Field(F.try_variant_get(F.col(DOCUMENT), _path(name), "string"), "string")

    def part(self, name: str) -> Column:
        return F.try_variant_get(F.col(DOCUMENT), _path(name), "variant")

    def headers(self, name: str) -> Field:
        return Field(F.try_variant_get(F.col(DOCUMENT), _path(name), HEADERS), HEADERS)

    def every(self) -> Field:
        return Field(F.col(LINE), "string")  # as it stands there, to the byte


def read_files(
    spark: SparkSession, paths: Sequence[str], kind: str, options: Mapping[str, str] | None = None
) -> Origin:
    """The rows of these files; `options` are for Spark's reader of this kind. InvalidSetting when one of them is not
    for others to set."""
    wrong = sorted(name for name in options or () if name.lower() in OURS)
    if wrong:
        raise InvalidSetting(f"options of the reader: {', '.join(wrong)} cannot be set here")
    reader = spark.read.options(**{**_options(kind), **dict(options or {})})
    read = {PARQUET: _parquet, CSV: _csv, JSON: _json}[kind]
    # The paths are files that were found: a bracket in a name is a bracket. (Spark has an option that says so; with
    # it, it reads all files once more for each name that has one.)
    return read(spark, reader, [escaped(path) for path in paths])


def escaped(path: str) -> str:
    """A path that Spark takes for no pattern."""
    return _PATTERN.sub(r"\\\1", path)


def _options(kind: str) -> dict[str, str]:
    # What cannot be read is never left out.
    common = {"ignoreCorruptFiles": "false", "ignoreMissingFiles": "false"}
    return {
        PARQUET: {**common, "mergeSchema": "true"},
        CSV: {
            **common,
            **{"header": "true", "enforceSchema": "false", "mode": "PERMISSIVE", "columnPruning": "false"},
            # A line feed within quotes else ends a row, whose rest can look like another one. It costs that a file is
            # not cut.
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
    unfit = f"row: it does not have the {len(names)} columns of the line of headings, or is no CSV"
    no_text = "row: not UTF-8 (or it holds U+FFFD, which stands for that)"
    corrupt = {
        unfit: F.col(CORRUPT).isNotNull(),
        no_text: F.contains(F.concat_ws("", *(F.col(_quoted(name)) for name in names)), F.lit("\ufffd")),
    }
    return Origin(frame, corrupt, {"row": _struct(names), "line": F.col(CORRUPT)})


def _json(spark: SparkSession, reader: Any, paths: list[str]) -> Origin:
    frame = reader.text(paths).select(F.col("value").alias(LINE), F.col("_metadata.file_path").alias(FILE))
    frame = frame.filter(F.trim(LINE) != "")
    is_text = F.is_valid_utf8(LINE)
    # Spark's parser stops at the end of the first value and passes over the rest of the line: so there is an end to
    # look for behind it.
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


def _walk(schema: StructType, parts: Sequence[str]) -> tuple[list[str], str] | None:
    """The names of a column and its parts as they are spelled there, and its type."""
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
    """A field of a document ("user.id": a field of a field)."""
    parts = name.split(".")
    for part in parts:
        if not part or ("'" in part and '"' in part):
            raise InvalidSetting(f"{name!r} is no field of a JSON object; a dot stands between a field and its part")
    quoted = [f'["{part}"]' if "'" in part else f"['{part}']" for part in parts]
    return f"$.{_ROW}" + "".join(quoted)
