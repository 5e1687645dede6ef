"""The files that a job reads, in an order that is always the same, and how they are cut for Spark.

They are found through Hadoop's file systems, as Spark reads them: a local path, hdfs://, s3a://, ...; a directory with
all that is below it, or a pattern ("in/*.csv"). What Spark passes over (names
that begin with "_" or ".") is passed over here, and refused where it is named.
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
"""Of one job; each costs the driver a few calls."""
SPLIT_BYTES: Final = 8 << 20
"""A Spark partition reads so much, or more when there would be more than SPLITS partitions."""
OPEN_BYTES: Final = 1 << 20
"""What opening a file counts for: small ones share a Spark partition."""
SPLITS: Final = 2000
"""Each Spark partition is a producer of its own to the broker, and a topic's partition remembers 10,000 of them."""
_WRITE_ID_FORM: Final = 1
"""Goes into write ids: another one whenever the same files would be cut or mapped in another way."""

_NAME: Final = "{}: Spark does not read files of such a name; give it another one"
_WRITTEN: Final = re.compile(
    r"part-[0-9]{5}-.*\.json|\.part-[0-9]{5}-.*\.json\.crc|_SUCCESS|\._SUCCESS\.crc|_temporary"
)
_ENDINGS: Final = {"parquet": PARQUET, "pq": PARQUET, "csv": CSV, "json": JSON, "jsonl": JSON, "ndjson": JSON}
_PACKED: Final = frozenset({"gz", "bz2", "zst", "snappy", "lz4", "deflate"})


@dataclass(frozen=True, slots=True)
class InputFile:
    """A file as it stood when it was looked for; `modified_ms` in epoch milliseconds."""

    path: str
    size: int
    modified_ms: int


def find_files(spark: SparkSession, paths: Sequence[str]) -> list[InputFile]:
    """The files of these paths, each once, sorted. InvalidRequest when a path has none, or they are too many."""
    found: dict[str, InputFile] = {}
    for path in paths:
        own = list(_below(spark, path))
        if not own:
            raise InvalidRequest(f"{path}: there is no file to read")
        for file in own:
            if file.path.rpartition("/")[2].startswith("_"):  # "_a=1.csv": some of Spark's readers pass over it
                raise InvalidRequest(_NAME.format(file.path))
        found.update((file.path, file) for file in own)
        if len(found) > FILES_MAX:
            raise InvalidRequest(f"{path}: with it there are more than {FILES_MAX:,} files; name fewer at a time")
    return [found[path] for path in sorted(found)]


def file_system(spark: SparkSession, path: str) -> tuple[Any, Any]:
    """Hadoop's FileSystem and Path of a path."""
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
    except Exception as error:  # Java's, of a file system
        raise InvalidRequest(f"{path}: it cannot be looked at: {first_line(error)[:500]}") from None


def check_own(spark: SparkSession, path: str) -> None:
    """InvalidRequest unless a directory is not there, or is one that Spark wrote as lines of JSON: it is about to be
    replaced."""
    system, place = file_system(spark, path)
    if not system.exists(place):
        return
    names = [status.getPath().getName() for status in system.listStatus(place)]
    strange = [name for name in names if not _WRITTEN.fullmatch(name)]
    if strange or not system.getFileStatus(place).isDirectory():
        raise InvalidRequest(f"{path}: it is there already, and not of an earlier run of this job; name another place")


def check_apart(spark: SparkSession, files: Sequence[InputFile], paths: Sequence[str], place: str) -> None:
    """InvalidRequest when what is written to a directory is, or would be when the job is run again, read by it."""
    whole = whole_path(spark, place)
    within = next((file.path for file in files if file.path.startswith(f"{whole}/")), None)
    around = next((path for path in paths if f"{whole}/".startswith(f"{whole_path(spark, path)}/")), None)
    if within is not None or around is not None:
        raise InvalidRequest(f"{place}: it is part of what is read ({within or around}); name a place outside of that")


def whole_path(spark: SparkSession, path: str) -> str:
    """A path as `InputFile` has it, with its file system."""
    system, place = file_system(spark, path)
    return str(system.makeQualified(place).toString())


def _is_passed_over(name: str) -> bool:
    """Spark's rule."""
    return (name.startswith("_") and "=" not in name) or name.startswith(".") or name.endswith("._COPYING_")


def _file(status: Any) -> InputFile:
    return InputFile(status.getPath().toString(), status.getLen(), status.getModificationTime())


def kind_of(files: Sequence[InputFile], kind: str | None = None) -> str:
    """What the files are, by their names unless that is said. InvalidRequest when the names do not tell."""
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
        raise InvalidRequest(f"{found[None]}: its name does not tell its format; name it: {', '.join(KINDS)}")
    raise InvalidRequest(f"the files are of several formats ({', '.join(found.values())}); read one at a time")


def _guessed(path: str) -> str | None:
    endings = path.rpartition("/")[2].lower().split(".")[1:]
    while endings and endings[-1] in _PACKED:
        endings.pop()
    return _ENDINGS.get(endings[-1]) if endings else None


def cutting(files: Sequence[InputFile]) -> dict[str, str]:
    """Settings of Spark by which the files are always cut in the same way, whatever machine does it."""
    total = sum(file.size for file in files) + len(files) * OPEN_BYTES
    return {
        "spark.sql.files.maxPartitionBytes": str(max(SPLIT_BYTES, -(-total // SPLITS))),
        "spark.sql.files.openCostInBytes": str(OPEN_BYTES),
        # Otherwise the number of cores counts.
        "spark.sql.files.minPartitionNum": "1",
        "spark.sql.files.maxPartitionNum": "",
    }


def write_id_of(topic: str, files: Sequence[InputFile], what: Mapping[str, Any], job: str = "schedule") -> str:
    """A name that the same rows for the same topic always have: who writes them again writes nothing.

    `what`: the format, the mapping and the options of the reader. A file counts as the same one when its path, size and
    modification time are.
    """
    told = {
        "form": _WRITE_ID_FORM,
        "topic": topic,
        "files": [[file.path, file.size, file.modified_ms] for file in files],
        "what": what,
    }
    text = json.dumps(told, sort_keys=True, ensure_ascii=True)
    return f"{job}-{hashlib.sha256(text.encode()).hexdigest()[:32]}"
