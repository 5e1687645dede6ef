"""Access to the small files of an archive: list, read, and replace a file in one step.

`SparkDirectories` uses Hadoop's file systems, as Spark does. `LocalDirectories` reads files of this machine without
Spark.
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
    """Read access to directories; paths are absolute, with or without a scheme."""

    def names(self, path: str) -> Sequence[str]:
        """Return the names in a directory; none if it does not exist."""

    def text(self, path: str) -> str:
        """Return the text of a file."""


class LocalDirectories:
    """Directories of this machine."""

    def names(self, path: str) -> Sequence[str]:
        try:
            return os.listdir(_local(path))
        except FileNotFoundError:
            return ()

    def text(self, path: str) -> str:
        return Path(_local(path)).read_text(encoding="utf-8")


class SparkDirectories:
    """Directories of any file system that Spark supports."""

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
        """Return Hadoop's FileStatus of a file."""
        system, place = self._found(path)
        return system.getFileStatus(place)

    def put(self, path: str, text: str) -> None:
        """Write or replace a file atomically: readers see the whole old or the whole new text, even after a crash."""
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
        """Move a file to a new path in the same file system; on return the move is durable.

        Raises OSError if the path exists.
        """
        system, place = self._found(path)
        target = self._found(to)[1]
        if not system.rename(place, target):
            raise OSError(f"{path} cannot be renamed to {to}")
        if system.getScheme() == "file":  # other file systems make a file durable when it is closed
            found = Path(system.makeQualified(target).toUri().getPath())
            _sync(found)
            _sync(found.parent)

    def delete(self, path: str) -> bool:
        """Delete a file, or a directory with its content. Return whether it existed."""
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
    # Hadoop's checksum file belongs to the old text. Hadoop also reads files without one.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    draft.replace(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Sync a file, or the names in a directory, to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
