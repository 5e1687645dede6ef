"""The job compact_archive: merges small files of an archive into few large ones, while readers continue to work.

    PATH/_spark_metadata/19.compact     the list of valid files; replacing it makes the new files valid in one step
    PATH/_compaction/RUN.json           note with the new and the old files of a run; it is written before the files,
                                        and again just before the list is replaced
    PATH/topic=orders/date=2030-01-31/compacted-RUN-0.zstd.parquet      a new file

A run copies rows into new files that no list contains yet, and counts them. Then it replaces the list in one step. The
old files stay for a while, for readers of the previous list. A later run deletes the files that are in a note but not
in the list. So a run may be killed at any time: before the list is replaced nothing has changed, afterwards the merge
is complete. If the job archive writes a newer compact list meanwhile, that list may contain the old files: then the old
files stay valid, and are not deleted.

Files of the last micro-batches are not in a compact list yet (`archive_log`), and are not merged.

A list contains absolute paths. In a copy of an archive these are files of the original, which must not be touched: a
copy is refused. An archive with an unfinished replay is refused as well, because a replay is identified by its files.
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
from sandq.spark.jobs.archive_log import (
    FILES,
    ListedFile,
    bins,
    current_lists,
    last_compact,
    list_text,
    parse_list,
    with_bins,
)
from sandq.spark.jobs.directories import SparkDirectories
from sandq.spark.jobs.replay_notes import check_replays
from sandq.spark.jobs.session import failure

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOTES: Final = "_compaction"
TARGET_BYTES: Final = 128 << 20
"""Maximum bytes of a new file."""
KEEP: Final = "1d"
KEEP_LEAST: Final = "10m"
"""Minimum time for which old files are kept, because running jobs may still read them, or may have read a list that
contains them."""


@dataclass(frozen=True, slots=True)
class CompactionSummary:
    """The result of a run of `compact_archive`.

    `before` and `after`: number of valid files. `bytes`: bytes that were copied. `deleted`: number of old files of
    earlier runs that were deleted.
    """

    path: str
    before: int
    after: int
    bytes: int
    deleted: int
    seconds: float

    def record(self) -> dict[str, Any]:
        """Return the result for programs."""
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
        """Return the result as lines for people."""
        return [
            f"{self.path}: {self.before:,} files are {self.after:,} now",
            f"  copied    {self.bytes:,} bytes",
            f"  deleted   {self.deleted:,} files of earlier runs",
            f"  took      {self.seconds:.1f} s",
        ]


def compact_archive(
    spark: SparkSession, path: str, *, target_bytes: int = TARGET_BYTES, keep: Duration = KEEP
) -> CompactionSummary:
    """Merge small files of an archive into files of up to `target_bytes`, by topic and day.

    `keep`: time after which replaced files are deleted. It must be longer than the longest query over the archive, and
    at least KEEP_LEAST.

    Raises InvalidRequest if there is no archive, if it is a copy, or if a replay of it is unfinished. Raises
    Unavailable if the archive was written to at the same moment; nothing has changed then.
    """
    began_s = time.monotonic()
    keep_ms = duration_ms(keep)
    if keep_ms < duration_ms(KEEP_LEAST):
        raise InvalidRequest(f"keep: at least {KEEP_LEAST}, because running jobs may still use the previous list")
    try:
        return _Run(spark, path.rstrip("/"), target_bytes, keep_ms).run(began_s)
    except Exception as error:
        raise failure(error, "compact") from error


def now_ms() -> int:
    """Return the time of this machine, in epoch ms."""
    return time.time_ns() // 1_000_000


class _Run:
    def __init__(self, spark: SparkSession, path: str, target_bytes: int, keep_ms: int) -> None:
        from sandq.spark.jobs.checking import own_session
        from sandq.spark.jobs.files import whole_path

        # The settings of the caller's session may skip unreadable files, or split files.
        self._spark = own_session(spark, {"spark.sql.files.maxRecordsPerFile": "0"})
        self._path = path
        self._whole = whole_path(spark, path)
        self._target_bytes = target_bytes
        self._keep_ms = keep_ms
        self._at = SparkDirectories(spark)
        self._name = f"{now_ms():013d}-{secrets.token_hex(4)}"

    def run(self, began_s: float) -> CompactionSummary:
        names = self._at.names(f"{self._path}/{FILES}")
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
            f"{group[0].directory}/compacted-{self._name}-{index}.zstd.parquet" for index, group in enumerate(groups)
        ]
        old = [file.path for group in groups for file in group]
        note, noted = f"{self._name}.json", json.dumps({"new": targets, "old": old})
        check_replays(self._at, self._path, {self._plain(path) for path in old})
        self._at.put(f"{self._path}/{NOTES}/{note}", noted)
        merged = [
            (group, self._merged(group, target, index))
            for index, (group, target) in enumerate(zip(groups, targets, strict=True))
        ]
        list_path = f"{self._path}/{FILES}/{name}"
        if last_compact(self._at.names(f"{self._path}/{FILES}")) != name or self._at.text(list_path) != text:
            raise Unavailable(f"{self._path}: it was written to meanwhile; nothing has changed, run it again")
        check_replays(self._at, self._path, {self._plain(path) for path in old})
        # If this run took longer than the `keep` of a later run, that run has deleted the note and the new files.
        if note not in self._at.names(f"{self._path}/{NOTES}"):
            raise Unavailable(
                f"{self._path}: it took too long, and a later run has deleted its files; nothing has changed, run it "
                "again"
            )
        self._at.put(f"{self._path}/{NOTES}/{note}", noted)  # later runs count `keep` from the note's file time
        for _, new in merged:
            self._at.status(self._plain(new.path))
        self._at.put(list_path, list_text(with_bins(files, merged)))
        if last_compact(self._at.names(f"{self._path}/{FILES}")) != name:
            raise Unavailable(f"{self._path}: it was written to at the same moment; run it again")
        self._at.delete(f"{self._path}/{NOTES}/{self._name}")

    def _merged(self, group: Sequence[ListedFile], target: str, index: int) -> ListedFile:
        """Write a file with the rows of a group; no list contains it yet."""
        from sandq.spark.jobs.archive import archive_schema

        schema = archive_schema()
        schema = type(schema)([field for field in schema if field.name not in ("topic", "date")])
        draft = f"{self._path}/{NOTES}/{self._name}/{index}"
        from sandq.spark.jobs.origins import escaped  # imports Spark

        paths = [escaped(self._plain(file.path)) for file in group]
        self._check_columns(target, paths, schema.names)
        rows = self._spark.read.schema(schema).parquet(*paths)
        ordered = rows.coalesce(1).sortWithinPartitions("partition", "offset")
        ordered.write.option("compression", "zstd").parquet(draft)
        had, has = rows.count(), self._spark.read.schema(schema).parquet(escaped(draft)).count()
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

    def _check_columns(self, target: str, paths: Sequence[str], known: Sequence[str]) -> None:
        """Raise SandqError if files have unknown columns, which would be lost: a different version wrote them."""
        found = self._spark.read.option("mergeSchema", "true").parquet(*paths).columns
        strange = sorted({*found} - {*known})
        if strange:
            raise SandqError(f"{target}: its files have columns that this version does not know: {', '.join(strange)}")

    def _plain(self, uri: str) -> str:
        """Return the path of a URI in a list."""
        java: Any = self._spark._jvm
        return str(java.org.apache.hadoop.fs.Path(java.java.net.URI(uri)).toString())

    def _listed(self, names: Sequence[str]) -> set[str]:
        """Return all valid files. Raises InvalidRequest if there is no archive, a list is missing, or it is a copy."""
        lists = current_lists(names)
        if not lists:
            raise InvalidRequest(f"{self._path}: there is no archive; `sandctl pipeline archive` creates one")
        found = set()
        for one in lists:
            list_path = f"{self._path}/{FILES}/{one}"
            if one not in names:
                raise InvalidRequest(f"{list_path}: this list of files is missing; nothing was changed")
            found |= {file.path for file in parse_list(self._at.text(list_path), list_path)}
        elsewhere = next((path for path in found if not self._plain(path).startswith(f"{self._whole}/")), None)
        if elsewhere is not None:
            raise InvalidRequest(
                f"{self._path}: its list names files outside of it ({elsewhere}): use the path with which the archive "
                "is written. A copy of an archive cannot be compacted"
            )
        return found

    def _clean(self, listed: set[str]) -> int:
        """Delete files of earlier runs after `keep`: drafts, and files that are not listed. Return their number."""
        deleted = 0
        until_ms = now_ms() - self._keep_ms
        names = self._at.names(f"{self._path}/{NOTES}")
        for note in sorted(name for name in names if name.endswith(".json") and name[0].isdecimal()):
            if self._at.status(f"{self._path}/{NOTES}/{note}").getModificationTime() > until_ms:
                continue
            noted = json.loads(self._at.text(f"{self._path}/{NOTES}/{note}"))
            for uri in [*noted["old"], *noted["new"]]:
                deleted += uri not in listed and self._at.delete(self._plain(uri))
            self._at.delete(f"{self._path}/{NOTES}/{note.removesuffix('.json')}")
            self._at.delete(f"{self._path}/{NOTES}/{note}")
        return deleted
