"""Small files of an archive's directories, through Hadoop's file systems, as Spark has them, or of this machine without
Spark: what is there, what a file says, and one that takes another one's place in one step.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEME = "file:"


class Directories(Protocol):
    """What is asked of a file system; paths are absolute, with or without a scheme."""

    def names(self, path: str) -> Sequence[str]:
        """Names in a directory; none when it is not there."""

    def text(self, path: str) -> str:
        """All of a file."""


class LocalDirectories:
    """Those of this machine."""

    def names(self, path: str) -> Sequence[str]:
        try:
            return os.listdir(_local(path))
        except FileNotFoundError:
            return ()

    def text(self, path: str) -> str:
        return Path(_local(path)).read_text(encoding="utf-8")


class SparkDirectories:
    """Those of any file system that Spark has."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._jvm: Any = spark._jvm

    def _found(self, path: str) -> tuple[Any, Any]:
        from sandq.spark.jobs.files import file_system

        return file_system(self._spark, path)

    def names(self, path: str) -> Sequence[str]:
        system, place = self._found(path)
        return [status.getPath().getName() for status in system.listStatus(place)] if system.exists(place) else ()

    def text(self, path: str) -> str:
        system, place = self._found(path)
        stream = system.open(place)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def status(self, path: str) -> Any:
        """Hadoop's FileStatus."""
        system, place = self._found(path)
        return system.getFileStatus(place)

    def put(self, path: str, text: str) -> None:
        """Write a file, or another one in its place: whoever reads it meanwhile, or after a crash, has all of the old
        one or all of the new one."""
        system, place = self._found(path)
        if system.getScheme() == "file":
            _put_local(Path(system.makeQualified(place).toUri().getPath()), text)
            return
        system.mkdirs(place.getParent())  # not all file systems do that for a file
        managers = self._jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
        stream = managers.create(place.getParent(), system.getConf()).createAtomic(place, True)
        try:
            stream.write(text.encode())
            stream.close()
        except BaseException:
            stream.cancel()
            raise

    def move(self, path: str, to: str) -> None:
        """Give a file a name that nobody has, in another directory of the file system, and have it there after a crash,
        too. OSError when it has one."""
        system, place = self._found(path)
        target = self._found(to)[1]
        if not system.rename(place, target):
            raise OSError(f"{path} cannot be renamed to {to}")
        if system.getScheme() == "file":  # others have it when it is closed
            found = Path(system.makeQualified(target).toUri().getPath())
            _sync(found)
            _sync(found.parent)

    def delete(self, path: str) -> bool:
        """A file, or a directory with all in it; whether it was there."""
        system, place = self._found(path)
        return bool(system.delete(place, True))


def _local(path: str) -> str:
    return "/" + path.removeprefix(_SCHEME).lstrip("/") if path.startswith(_SCHEME) else path


def _put_local(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    # Hadoop's checksum is of the old one; it does without.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    draft.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Have a file, or the names in a directory, on the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
