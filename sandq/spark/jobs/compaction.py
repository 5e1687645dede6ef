"""The job compact_archive: many small files of an archive become few, and whoever reads it notices nothing.

    PATH/_spark_metadata/19.compact     which files count; by another one in its place the new ones do, all at once
    PATH/_compaction/RUN.json           what a run wrote and put out of use, noted before it does either
    PATH/topic=orders/date=2030-01-31/compacted-RUN-0.zstd.parquet

Rows are copied into new files, which nobody lists yet; they are counted; then the list is replaced in one step. Files
that do not count any more stay for a while, for those who read by the list of before; a later run deletes what it finds
noted and not listed. So a run may end anywhere: before that step nothing has happened, after it all has. An archive
that is written to meanwhile makes a longer list of its own, of the old files maybe: then those count, and stay.

What the last micro-batches wrote is not in a list of all yet (`archive_log`), and is left as it is.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sandq.model.errors import InvalidRequest, SandqError, Unavailable
from sandq.model.times import Duration, duration_ms
from sandq.spark.jobs.archive_log import FILES, ListedFile, bins, last_compact, list_text, parse_list, with_bins
from sandq.spark.jobs.directories import SparkDirectories
from sandq.spark.jobs.origins import escaped
from sandq.spark.jobs.session import failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTES: Final = "_compaction"
TARGET_BYTES: Final = 128 << 20
"""Of a new file, at most."""
KEEP: Final = "1d"


@dataclass(frozen=True, slots=True)
class CompactionSummary:
    """What a run of `compact_archive` did. `before`, `after`: files that are listed. `bytes`: that were copied.
    `deleted`: files that earlier runs had put out of use."""

    path: str
    before: int
    after: int
    bytes: int
    deleted: int
    seconds: float

    def record(self) -> dict[str, Any]:
        """For programs."""
        return {
            "job": "compact",
            "path": self.path,
            "files_before": self.before,
            "files_after": self.after,
            "bytes": self.bytes,
            "deleted": self.deleted,
            "seconds": round(self.seconds, 3),
        }

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{self.path}: {self.before:,} files are {self.after:,} now",
            f"  copied    {self.bytes:,} bytes",
            f"  deleted   {self.deleted:,} files of earlier runs",
            f"  took      {self.seconds:.1f} s",
        ]


def compact_archive(
    spark: SparkSession, path: str, *, target_bytes: int = TARGET_BYTES, keep: Duration = KEEP
) -> CompactionSummary:
    """Put small files of an archive together, up to `target_bytes` each, by topic and day.

    `keep`: files that were put out of use so long ago are deleted; it must be longer than anybody reads by one list.
    InvalidRequest: there is no archive. Unavailable: it was written to at the same moment; nothing has changed.
    """
    began_s = time.monotonic()
    try:
        return _Run(spark, path.rstrip("/"), target_bytes, duration_ms(keep)).run(began_s)
    except Exception as error:
        raise failure(error, "compact") from error


class _Run:
    def __init__(self, spark: SparkSession, path: str, target_bytes: int, keep_ms: int) -> None:
        self._spark = spark
        self._path = path
        self._target_bytes = target_bytes
        self._keep_ms = keep_ms
        self._at = SparkDirectories(spark)
        self._name = f"{int(time.time() * 1000):013d}-{secrets.token_hex(4)}"

    def run(self, began_s: float) -> CompactionSummary:
        names = self._at.names(f"{self._path}/{FILES}")
        if not names:
            raise InvalidRequest(f"{self._path}: there is no archive; `sandctl pipeline archive` makes one")
        listed = self._listed(names)
        deleted = self._clean(listed)
        groups: list[list[ListedFile]] = []
        name = last_compact(names)
        if name is not None:
            text = self._at.text(f"{self._path}/{FILES}/{name}")
            files = parse_list(text, f"{self._path}/{FILES}/{name}")
            groups = bins(files, self._target_bytes)
            if groups:
                self._replace(name, text, files, groups)
        after = len(listed) - sum(len(group) - 1 for group in groups)
        copied = sum(file.size for group in groups for file in group)
        return CompactionSummary(self._path, len(listed), after, copied, deleted, time.monotonic() - began_s)

    def _replace(
        self, name: str, text: str, files: Sequence[ListedFile], groups: Sequence[Sequence[ListedFile]]
    ) -> None:
        targets = [
            f"{group[0].directory}/compacted-{self._name}-{place}.zstd.parquet" for place, group in enumerate(groups)
        ]
        old = [file.path for group in groups for file in group]
        self._at.put(f"{self._path}/{NOTES}/{self._name}.json", json.dumps({"new": targets, "old": old}))
        merged = [
            (group, self._merged(group, target, place))
            for place, (group, target) in enumerate(zip(groups, targets, strict=True))
        ]
        place = f"{self._path}/{FILES}/{name}"
        if last_compact(self._at.names(f"{self._path}/{FILES}")) != name or self._at.text(place) != text:
            raise Unavailable(f"{self._path}: it was written to meanwhile; nothing has changed, run it again")
        self._at.put(place, list_text(with_bins(files, merged)))
        if last_compact(self._at.names(f"{self._path}/{FILES}")) != name:
            raise Unavailable(f"{self._path}: it was written to at the same moment; run it again")
        self._at.delete(f"{self._path}/{NOTES}/{self._name}")

    def _merged(self, group: Sequence[ListedFile], target: str, place: int) -> ListedFile:
        """One file with the rows of several, where nobody looks for it yet."""
        from sandq.spark.jobs.archive import archive_schema

        schema = archive_schema()
        schema = type(schema)([field for field in schema if field.name not in ("topic", "date")])
        draft = f"{self._path}/{NOTES}/{self._name}/{place}"
        paths = [escaped(self._plain(file.path)) for file in group]
        rows = self._spark.read.schema(schema).parquet(*paths)
        ordered = rows.coalesce(1).sortWithinPartitions("partition", "offset")
        ordered.write.option("compression", "zstd").parquet(draft)
        had, has = rows.count(), self._spark.read.schema(schema).parquet(draft).count()
        parts = [name for name in self._at.names(draft) if name.startswith("part-")]
        if had != has or len(parts) != 1:
            raise SandqError(f"{target}: it would have {has} of {had} rows, in {len(parts)} files; nothing has changed")
        self._at.move(f"{draft}/{parts[0]}", self._plain(target))
        status = self._at.status(self._plain(target))
        record = {
            **group[0].record,
            "path": target,
            "size": status.getLen(),
            "modificationTime": status.getModificationTime(),
        }
        return ListedFile(target, status.getLen(), record)

    def _plain(self, uri: str) -> str:
        """The path that a list's URI stands for."""
        java: Any = self._spark._jvm
        return str(java.org.apache.hadoop.fs.Path(java.java.net.URI(uri)).toString())

    def _listed(self, names: Sequence[str]) -> set[str]:
        """Every file that counts."""
        name = last_compact(names)
        after = -1 if name is None else int(name.partition(".")[0])
        lists = [one for one in names if one.isdecimal() and int(one) > after] + ([] if name is None else [name])
        found = set()
        for one in lists:
            place = f"{self._path}/{FILES}/{one}"
            found |= {file.path for file in parse_list(self._at.text(place), place)}
        return found

    def _clean(self, listed: set[str]) -> int:
        """Delete what earlier runs left, of so long ago: drafts, and files that are not listed (any more)."""
        deleted = 0
        until_ms = time.time() * 1000 - self._keep_ms
        names = self._at.names(f"{self._path}/{NOTES}")
        for note in sorted(name for name in names if name.endswith(".json") and name[0].isdecimal()):
            if int(note.partition("-")[0]) > until_ms:
                continue
            told = json.loads(self._at.text(f"{self._path}/{NOTES}/{note}"))
            for uri in [*told["old"], *told["new"]]:
                deleted += uri not in listed and self._at.delete(self._plain(uri))
            self._at.delete(f"{self._path}/{NOTES}/{note.removesuffix('.json')}")
            self._at.delete(f"{self._path}/{NOTES}/{note}")
        return deleted
