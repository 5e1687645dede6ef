"""Finds the input files of a job, in a fixed order, and the settings with which Spark splits them.

Files are found through Hadoop's file systems, as in Spark: local paths, hdfs://, s3a://, ...; a path is a file, a
directory with everything below it, or a pattern ("in/*.csv"). Names that Spark ignores (they begin with "_" or ".") are
ignored here as well, and are an error if they are given explicitly.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from sandq.model.errors import InvalidRequest
from sandq.spark.jobs.session import first_line

PARQUET: Final = "parquet"
CSV: Final = "csv"
JSON: Final = "json"
KINDS: Final = (PARQUET, CSV, JSON)
FILES_MAX: Final = 10_000
"""Maximum number of files of a job; each costs the driver a few calls."""
SPLIT_BYTES: Final = 8 << 20
"""Bytes that a Spark partition reads. A partition reads more if there would be more than SPLITS partitions
otherwise."""
OPEN_BYTES: Final = 1 << 20
"""Bytes that Spark adds to the size of each file for the cost of opening it. Small files still share a Spark
partition."""
SPLITS: Final = 2000
"""Maximum number of Spark partitions: each is a producer, and a topic's partition remembers 10,000 producers."""
_WRITE_ID_FORM: Final = 1
"""Part of write ids. Change it whenever the same files would be split or mapped in a different way."""

_NAME: Final = "{}: Spark does not read files with such a name; rename it"
_WRITTEN: Final = re.compile(
    r"part-[0-9]{5}-.*\.json|\.part-[0-9]{5}-.*\.json\.crc|_SUCCESS|\._SUCCESS\.crc|_temporary"
)
_ENDINGS: Final = {"parquet": PARQUET, "pq": PARQUET, "csv": CSV, "json": JSON, "jsonl": JSON, "ndjson": JSON}
_PACKED: Final = frozenset({"gz", "bz2", "zst", "snappy", "lz4", "deflate"})


@dataclass(frozen=True, slots=True)
class InputFile:
    """State of a file when it was found; `modified_ms` in epoch milliseconds."""

    path: str
    size: int
    modified_ms: int


def find_files(spark: SparkSession, paths: Sequence[str]) -> list[InputFile]:
    """Return the files of these paths, each once, sorted.

    Raises InvalidRequest if a path has no file, or if there are too many.
    """
    found: dict[str, InputFile] = {}
    for path in paths:
        own = list(_below(spark, path))
        if not own:
            raise InvalidRequest(f"{path}: there is no file to read")
        for file in own:
            if file.path.rpartition("/")[2].startswith("_"):  # some of Spark's readers ignore "_a=1.csv"
                raise InvalidRequest(_NAME.format(file.path))
        found.update((file.path, file) for file in own)
        if len(found) > FILES_MAX:
            raise InvalidRequest(f"{path}: with it there are more than {FILES_MAX:,} files; give fewer at a time")
    return [found[path] for path in sorted(found)]


def file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Return Hadoop's FileSystem and Path of a path."""
    jvm: Any = spark._jvm
    java: Any = spark._jsc
    place = jvm.org.apache.hadoop.fs.Path(path)
    return place.getFileSystem(java.hadoopConfiguration()), place


def _below(spark: SparkSession, path: str) -> Sequence[InputFile]:
    try:
        system, place = file_system(spark, path)
        is_named = bool(system.exists(place))
        roots = [system.getFileStatus(place)] if is_named else list(system.globStatus(place) or ())
        files = []
        for root in roots:
            name = root.getPath().getName()
            if _is_passed_over(name) and not (is_named and root.isDirectory()):
                if is_named:
                    raise InvalidRequest(_NAME.format(path))
                continue
            if root.isFile():
                files.append(_file(root))
                continue
            top = root.getPath().toString().rstrip("/")
            listed = system.listFiles(root.getPath(), True)
            while listed.hasNext() and len(files) <= FILES_MAX:
                file = _file(listed.next())
                parts = file.path.removeprefix(top).strip("/").split("/")
                if not any(map(_is_passed_over, parts)):
                    files.append(file)
        return files
    except InvalidRequest:
        raise
    except Exception as error:  # any Java exception of a file system
        raise InvalidRequest(f"{path}: it cannot be listed: {first_line(error)[:500]}") from None


def check_own(spark: SparkSession, path: str) -> None:
    """Raise InvalidRequest if a path exists and is not a directory that Spark wrote as JSON lines.

    The caller is about to replace the directory, and must not delete other files.
    """
    system, place = file_system(spark, path)
    if not system.exists(place):
        return
    names = [status.getPath().getName() for status in system.listStatus(place)]
    strange = [name for name in names if not _WRITTEN.fullmatch(name)]
    if strange or not system.getFileStatus(place).isDirectory():
        raise InvalidRequest(f"{path}: it exists, and is not from an earlier run of this job; give a different path")


def check_apart(spark: SparkSession, files: Sequence[InputFile], paths: Sequence[str], output: str) -> None:
    """Raise InvalidRequest if the job reads files of its output directory, or would in a later run."""
    whole = whole_path(spark, output)
    within = next((file.path for file in files if file.path.startswith(f"{whole}/")), None)
    around = next((path for path in paths if f"{whole}/".startswith(f"{whole_path(spark, path)}/")), None)
    if within is not None or around is not None:
        raise InvalidRequest(
            f"{output}: it is part of the input ({within or around}); give a path outside of the input"
        )


def whole_path(spark: SparkSession, path: str) -> str:
    """Return a path with its file system, as in `InputFile`."""
    system, place = file_system(spark, path)
    return str(system.makeQualified(place).toString())


def _is_passed_over(name: str) -> bool:
    """Return whether Spark ignores a name. This repeats Spark's rule."""
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")


def _file(status: Any) -> InputFile:
    return InputFile(status.getPath().toString(), status.getLen(), status.getModificationTime())


def kind_of(files: Sequence[InputFile], kind: str | None = None) -> str:
    """Return the format of the files: `kind` if it is given, otherwise by their names.

    Raises InvalidRequest if the names do not show a single format.
    """
    if kind is not None:
        if kind not in KINDS:
            raise InvalidRequest(f"format: one of {', '.join(KINDS)} is expected, not {kind!r}")
        return kind
    found: dict[str | None, str] = {}
    for file in files:
        found.setdefault(_guessed(file.path), file.path)
    if len(found) == 1:
        guessed = next(iter(found))
        if guessed is not None:
            return guessed
    if None in found:
        raise InvalidRequest(f"{found[None]}: its name does not show its format; give it: {', '.join(KINDS)}")
    raise InvalidRequest(f"the files have several formats ({', '.join(found.values())}); read one format at a time")


def _guessed(path: str) -> str | None:
    endings = path.rpartition("/")[2].lower().split(".")[1:]
    while endings and endings[-1] in _PACKED:
        endings.pop()
    return _ENDINGS.get(endings[-1]) if endings else None


def cutting(files: Sequence[InputFile]) -> dict[str, str]:
    """Return Spark settings with which the files are always split in the same way, on any machine."""
    total = sum(file.size for file in files) + len(files) * OPEN_BYTES
    return {
        "spark.sql.files.maxPartitionBytes": str(max(SPLIT_BYTES, -(-total // SPLITS))),
        "spark.sql.files.openCostInBytes": str(OPEN_BYTES),
        # Without these, the number of cores would influence the splits.
        "spark.sql.files.minPartitionNum": "1",
        "spark.sql.files.maxPartitionNum": "",
    }


def write_id_of(topic: str, files: Sequence[InputFile], settings: Mapping[str, Any], job: str = "schedule") -> str:
    """Return a write id that is always the same for the same rows and topic, so that a repeated job writes nothing.

    `settings`: the format, the mapping and the options of the reader. A file is the same if its path, size and
    modification time are the same.
    """
    identity = {
        "form": _WRITE_ID_FORM,
        "topic": topic,
        "files": [[file.path, file.size, file.modified_ms] for file in files],
        "what": settings,
    }
    text = json.dumps(identity, sort_keys=True, ensure_ascii=True)
    return f"{job}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
