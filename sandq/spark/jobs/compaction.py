"""The job compact_archive: many small files of an archive become few, and whoever reads it notices nothing.

    PATH/_spark_metadata/19.compact     which files count; by another one in its place the new ones do, all at once
    PATH/_compaction/RUN.json           what a run wrote and put out of use, noted before it does either, and once more
                                        just before the list is replaced
    PATH/topic=orders/date=2030-01-31/compacted-RUN-0.zstd.parquet

Rows are copied into new files, which nobody lists yet; they are counted; then the list is replaced in one step. Files
that do not count any more stay for a while, for those who read by the list of before; a later run deletes what it finds
noted and not listed. So a run may end anywhere: before that step nothing has happened, after it all has. An archive
that is written to meanwhile makes a longer list of its own, of the old files maybe: then those count, and stay.

What the last micro-batches wrote is not in a list of all yet (`archive_log`), and is left as it is.

A list names files by their whole paths. In a copy of an archive these are files of the other one, which are not to be
touched: that is refused. So is an archive of which a replay has not ended, which is known by the files that it reads.
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
"""Of a new file, at most."""
KEEP: Final = "1d"
KEEP_LEAST: Final = "10m"
"""What runs now may be about to list what it wrote, or what another one has just put out of use."""


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

    `keep`: files that were put out of use so long ago are deleted; it must be longer than anybody reads by one list,
    and KEEP_LEAST at least. InvalidRequest: there is no archive, or it is a copy of another one, or a replay of it has
    not ended. Unavailable: it was written to at the same moment; nothing has changed.
    """
    began_s = time.monotonic()
    keep_ms = duration_ms(keep)
    if keep_ms < duration_ms(KEEP_LEAST):
        raise InvalidRequest(f"keep: {KEEP_LEAST} at least: others may be reading, or writing, by the list of before")
    try:
        return _Run(spark, path.rstrip("/"), target_bytes, keep_ms).run(began_s)
    except Exception as error:
        raise failure(error, "compact") from error


def now_ms() -> int:
    """By this machine's clock."""
    return time.time_ns() // 1_000_000


class _Run:
    def __init__(self, spark: SparkSession, path: str, target_bytes: int, keep_ms: int) -> None:
        from sandq.spark.jobs.checking import own_session
        from sandq.spark.jobs.files import whole_path

        # The caller's may leave out what cannot be read, or cut files.
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
            f"{group[0].directory}/compacted-{self._name}-{place}.zstd.parquet" for place, group in enumerate(groups)
        ]
        old = [file.path for group in groups for file in group]
        note, noted = f"{self._name}.json", json.dumps({"new": targets, "old": old})
        check_replays(self._at, self._path, {self._plain(path) for path in old})
        self._at.put(f"{self._path}/{NOTES}/{note}", noted)
        merged = [
            (group, self._merged(group, target, place))
            for place, (group, target) in enumerate(zip(groups, targets, strict=True))
        ]
        place = f"{self._path}/{FILES}/{name}"
        if last_compact(self._at.names(f"{self._path}/{FILES}")) != name or self._at.text(place) != text:
            raise Unavailable(f"{self._path}: it was written to meanwhile; nothing has changed, run it again")
        check_replays(self._at, self._path, {self._plain(path) for path in old})
        # A run that began so much later that this one was over by its `keep` has deleted what is here, or is about to.
        if note not in self._at.names(f"{self._path}/{NOTES}"):
            raise Unavailable(
                f"{self._path}: it took too long, and was put out of use; nothing has changed, run it again"
            )
        self._at.put(f"{self._path}/{NOTES}/{note}", noted)  # what it puts out of use stays from now on so long
        for _, new in merged:
            self._at.status(self._plain(new.path))
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
        from sandq.spark.jobs.origins import escaped  # it loads Spark

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
        """SandqError when files have a column that would be left out: another version wrote them."""
        found = self._spark.read.option("mergeSchema", "true").parquet(*paths).columns
        strange = sorted({*found} - {*known})
        if strange:
            raise SandqError(f"{target}: its files have columns that this version does not know: {', '.join(strange)}")

    def _plain(self, uri: str) -> str:
        """The path that a list's URI stands for."""
        java: Any = self._spark._jvm
        return str(java.org.apache.hadoop.fs.Path(java.java.net.URI(uri)).toString())

    def _listed(self, names: Sequence[str]) -> set[str]:
        """Every file that counts. InvalidRequest: there is no archive here, or not all of its lists."""
        lists = current_lists(names)
        if not lists:
            raise InvalidRequest(f"{self._path}: there is no archive; `sandctl pipeline archive` makes one")
        found = set()
        for one in lists:
            place = f"{self._path}/{FILES}/{one}"
            if one not in names:
                raise InvalidRequest(f"{place}: this list of files is not there; nothing is done without all of them")
            found |= {file.path for file in parse_list(self._at.text(place), place)}
        elsewhere = next((path for path in found if not self._plain(path).startswith(f"{self._whole}/")), None)
        if elsewhere is not None:
            raise InvalidRequest(
                f"{self._path}: its list names files of another place ({elsewhere}): name the archive by the path "
                "that it is written by. A copy of an archive cannot be compacted"
            )
        return found

    def _clean(self, listed: set[str]) -> int:
        """Delete what earlier runs left, of so long ago: drafts, and files that are not listed (any more)."""
        deleted = 0
        until_ms = now_ms() - self._keep_ms
        names = self._at.names(f"{self._path}/{NOTES}")
        for note in sorted(name for name in names if name.endswith(".json") and name[0].isdecimal()):
            if self._at.status(f"{self._path}/{NOTES}/{note}").getModificationTime() > until_ms:
                continue
            told = json.loads(self._at.text(f"{self._path}/{NOTES}/{note}"))
            for uri in [*told["old"], *told["new"]]:
                deleted += uri not in listed and self._at.delete(self._plain(uri))
            self._at.delete(f"{self._path}/{NOTES}/{note.removesuffix('.json')}")
            self._at.delete(f"{self._path}/{NOTES}/{note}")
        return deleted
