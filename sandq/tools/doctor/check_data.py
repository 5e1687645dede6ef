"""Checks of `sandq doctor` on the contents of a data directory. They change nothing in it.

LevelDB cannot open a database without writing. So it opens a temporary directory of links to the tables, and only while
no node holds the lock. The storage's own recovery code reads the log, through files that discard writes.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from sandq.broker.replication.replica import METADATA_GROUP, MetadataReplica
from sandq.metadata.commands import Entry
from sandq.metadata.state import check_level
from sandq.model.errors import Corruption, SandqError, StartupError
from sandq.model.features import KNOWN
from sandq.node import LOCK_NAME, STORES_NAME
from sandq.raft.wire import REGULAR
from sandq.storage import identity, level_check
from sandq.storage.level_stores import LOCK as STORES_LOCK
from sandq.storage.level_stores import LevelStores
from sandq.storage.pointers import Pointers
from sandq.storage.secret_file import OTHERS
from sandq.storage.wal_groups import RecoveredGroup
from sandq.storage.wal_recovery import recover
from sandq.tools.doctor.check import Check, bytes_text, failed, ok, skipped, warning
from sandq.tools.read_only import ReadOnlyFiles, is_locked, lock_holder

NEWER = "start that version on it; docs/upgrading.md says more"
OTHER_VERSION = "start the version that wrote it, or name an empty directory in node.data_dir (docs/upgrading.md)"
NAMED_FILES = 3
"""Maximum number of file names in the warning about files that other users can access."""
RESTORE = "restore it from a backup, or copy the node's data from other nodes again; do not delete single files"


class DataDirectory:
    """A data directory, with the results of its checks that later checks need."""

    def __init__(self, path: Path, node_id: str) -> None:
        self.path = path
        self.files = ReadOnlyFiles(path)
        self.store_uuid: str | None = None
        self.is_running = False
        self._node_id = node_id

    def checks(self) -> Iterator[Check]:
        """Do the checks in the order in which a start of the node would fail on them."""
        if not self.path.is_dir() or not any(self.path.iterdir()):
            yield ok("data", "nothing is stored yet")
            return
        yield self._lock()
        yield self._mode()
        yield self._identity()
        if self.store_uuid is None:
            return
        yield self._wal()
        yield self._stores()

    def _lock(self) -> Check:
        path = self.path / LOCK_NAME
        self.is_running = is_locked(path) or is_locked(self.path / STORES_NAME / STORES_LOCK)
        if not self.is_running:
            return ok("lock", "no process uses the data directory")
        pid = lock_holder(path)
        return ok("lock", f"a node is running on it{'' if pid is None else f' (process {pid})'}")

    def _mode(self) -> Check:
        """Check the rights of other users. If the directory is closed to them, they cannot access any file in it."""
        mode = self.path.stat().st_mode & 0o777
        if not mode & OTHERS:
            return ok("mode", f"for its owner alone (mode {mode:o})")
        found = f"{self.path} is open to others than its owner (mode {mode:o})"
        names = sorted(str(path.relative_to(self.path)) for path in _open_files(self.path))
        if names:
            more = f" and {len(names) - NAMED_FILES} more" if len(names) > NAMED_FILES else ""
            found += f", and so are {', '.join(names[:NAMED_FILES])}{more}: they may read messages"
        return warning("mode", found, f"chmod -R go= {self.path}")

    def _identity(self) -> Check:
        try:
            found = identity.load(self.files)
        except (SandqError, OSError) as error:
            return failed("identity", _text(error), OTHER_VERSION if type(error) is StartupError else RESTORE)
        if found is None:
            if self.files.exists("wal"):
                return ok("identity", "none yet: a first start was interrupted; the next one starts from the beginning")
            return failed(
                "identity",
                f"{self.path} has files, but none of a node: it may not be a data directory",
                "set node.data_dir to the right directory, or to an empty one",
            )
        self.store_uuid = found.store_uuid
        if found.node != self._node_id:
            return failed(
                "identity",
                f"the directory belongs to node {found.node}, and the configuration says {self._node_id}",
                "set node.data_dir to the directory of this node, or node.id to the id in the directory",
            )
        return ok(
            "identity", f"node {found.node}, store {found.store_uuid}, cluster {found.cluster_uuid or 'none yet'}"
        )

    def _wal(self) -> Check:
        if self.is_running:
            return skipped("wal", f"a node is writing it; you can read it with: sandq wal dump {self.path}")
        try:
            pointers = Pointers.open(self.files, create=False)
            found = recover(self.files, "wal", lambda group: pointers.get(group) is not None)
            _check_log(found.groups)
        except (SandqError, OSError) as error:
            todo = f"sandq wal dump {self.path} shows its records; {RESTORE}"
            return failed("wal", _text(error), NEWER if type(error) is StartupError else todo)
        finally:
            self.files.close()
        size = sum(found.sizes.values())
        text = f"{len(found.sizes)} segments, {bytes_text(size)}, {len(found.groups)} groups"
        if found.cut_bytes:
            text += (
                "; its end is torn, as after a power failure; the next start repairs it: no acknowledged data is lost"
            )
        elif found.sealed:
            text += "; stopped cleanly"
        return ok("wal", text)

    def _stores(self) -> Check:
        if self.is_running:
            return skipped("stores", "a node has them open")
        path = self.path / STORES_NAME
        try:
            metadata = Pointers.open(self.files, create=False).get(METADATA_GROUP)
            # Opening the metadata replica checks that this version can read the state.
            tables = try_stores(path, lambda stores: metadata and MetadataReplica(stores, metadata.store))
            size = sum(entry.stat().st_size for entry in os.scandir(path) if entry.name.endswith((".ldb", ".sst")))
        except (SandqError, OSError) as error:
            if is_locked(self.path / LOCK_NAME):
                return skipped("stores", "a node has been started meanwhile")
            todo = NEWER if type(error) is StartupError else RESTORE
            return failed("stores", _text(error).replace("sandq-doctor", path.name), todo)
        finally:
            self.files.close()
        return ok("stores", f"LevelDB opens; {tables} tables, {bytes_text(size)}")


def _check_log(groups: Mapping[int, RecoveredGroup]) -> None:
    """Raise StartupError if the metadata in the log has a feature level that this version does not know."""
    metadata = groups.get(METADATA_GROUP)
    for command, _, _ in () if metadata is None else metadata.entries:
        if command[0] == REGULAR:
            try:
                raised_to = Entry.decode(command[1:]).raised_to
            except Corruption:
                continue  # the node starts even so, and shuts its replica of the metadata (ADR 46)
            if raised_to:
                check_level(raised_to, KNOWN)


def _open_files(directory: Path) -> Iterator[Path]:
    """Yield the files below a directory that users other than the owner can reach, and may read or write.

    A running node may create and remove files meanwhile.
    """
    for parent, directories, files in os.walk(directory):
        directories[:] = [name for name in directories if _is_open(Path(parent, name))]
        yield from [path for path in (Path(parent, name) for name in files) if _is_open(path)]


def _is_open(path: Path) -> bool:
    """Return whether users other than the owner have rights to a file. False if it no longer exists, or is a link."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return False
    return bool(status.st_mode & OTHERS) and not stat.S_ISLNK(status.st_mode)


def try_stores(path: Path, inspect: Callable[[LevelStores], object] = lambda stores: None) -> int:
    """Open a LevelDB directory without changing it, call `inspect` with its stores, and return its number of tables.

    Raises Corruption, StorageFailed.
    """
    level_check.check_directory(path)
    with tempfile.TemporaryDirectory(prefix="sandq-doctor-") as directory:
        links = Path(directory) / "stores"
        links.mkdir()
        tables = 0
        for entry in os.scandir(path):
            if entry.name.endswith((".ldb", ".sst")):
                (links / entry.name).symlink_to(Path(entry.path).absolute())
                tables += 1
            elif entry.name.startswith("MANIFEST-") or entry.name in ("CURRENT", level_check.MARK):
                shutil.copyfile(entry.path, links / entry.name)
        stores = LevelStores(links, create=False)
        try:
            inspect(stores)
        finally:
            stores.close()
    return tables


def _text(error: Exception) -> str:
    return error.message if isinstance(error, SandqError) else str(error)
