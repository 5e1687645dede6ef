"""Checks of `sandq doctor` on the disk of a data directory: its file system, its free space, the duration of a sync."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sandq.model.config import NodeConfig
from sandq.tools.doctor.check import Check, bytes_text, failed, ok, skipped, warning
from sandq.tools.doctor.check_host import check_false_syncs, mount_options, mount_point

SYNCS = 100
SYNC_BYTES = 4096
SYNC_SAMPLE_S = 3.0
"""Time limit for measuring syncs, in s, for slow disks."""
SLOW_SYNC_MS = 20
MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs")
REMOTE_FILE_SYSTEMS = ("nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs")
SEGMENTS = 3
"""Number of segments to expect: the current segment, the next one, and one that is not released yet."""
MEMTABLES_BYTES = 64 << 20


def needed_bytes(config: NodeConfig) -> int:
    """Return the free bytes that a node needs for its log up to a checkpoint, and for LevelDB's writes meanwhile."""
    return SEGMENTS * config.storage.segment_bytes + 2 * config.storage.checkpoint_bytes + MEMTABLES_BYTES


def nearest_existing(path: Path) -> Path:
    """Return the path, or its nearest parent directory that exists."""
    path = path.absolute()
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def check_data_dir(data_dir: Path) -> Check:
    """Check that the user can write to the directory, or create it."""
    if data_dir.exists():
        if not data_dir.is_dir():
            return failed("data_dir", f"{data_dir} is not a directory", "set node.data_dir to a directory")
        if not os.access(data_dir, os.R_OK | os.W_OK | os.X_OK):
            return failed(
                "data_dir",
                f"{data_dir} cannot be written by this user",
                f"chown it to {_user()}",
            )
        return ok("data_dir", str(data_dir))
    above = nearest_existing(data_dir)
    if not above.is_dir():
        return failed("data_dir", f"{above} is not a directory", "set node.data_dir to another one")
    if not os.access(above, os.W_OK | os.X_OK):
        return failed(
            "data_dir",
            f"{data_dir} does not exist, and {above} cannot be written by this user",
            f"create it, and chown it to {_user()}",
        )
    return ok("data_dir", f"{data_dir} (does not exist yet; the first start creates it)")


def _user() -> str:
    return f"the user that runs sandq (here: uid {os.getuid()})"


def check_file_system(data_dir: Path, mounts: str | None = None) -> Check:
    """Check that the file system of the data directory keeps its data."""
    found = file_system(nearest_existing(data_dir), mounts)
    if found is None:
        return skipped("file system", "the kernel does not report it")
    kind, point = found
    if kind in MEMORY_FILE_SYSTEMS:
        return warning(
            "file system",
            f"{kind} at {point}: it is in memory, and its data is lost at a restart",
            "put node.data_dir on a disk",
        )
    if kind in REMOTE_FILE_SYSTEMS:
        return warning(
            "file system",
            f"{kind} at {point}: locks and syncs may not work over a network",
            "use a disk of this machine",
        )
    if kind == "overlay":
        return ok("file system", f"overlay at {point}: the data is removed with the container; a volume would stay")
    return ok("file system", f"{kind} at {point}")


def file_system(path: Path, mounts: str | None = None) -> tuple[str, str] | None:
    """Return (type, mount point) of the file system that contains a path. None if it is unknown."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="surrogateescape")
        except OSError:
            return None
    text = str(path.resolve())
    best: tuple[str, str] | None = None
    for line in mounts.splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = mount_point(fields[1])
        inside = text == point or text.startswith(point.rstrip("/") + "/")
        if inside and (best is None or len(point) >= len(best[1])):
            best = fields[2], point
    return best


def least_bytes(config: NodeConfig, data_dir: Path) -> int:
    """Return the free bytes that the node needs to start. A new node creates the first segment of its log."""
    return 0 if (data_dir / "wal").exists() else config.storage.segment_bytes


def check_space(data_dir: Path, needed: int, least: int = 0) -> Check:
    """Check the free bytes. Below `needed`: a warning. Below `least`: a failure."""
    status = os.statvfs(nearest_existing(data_dir))
    free = status.f_bavail * status.f_frsize
    if free < least:
        return failed(
            "free space",
            f"{bytes_text(free)}; a new node cannot start with less than {bytes_text(least)}, for its log",
            "free some, or lower storage.segment_bytes",
        )
    if free < needed:
        return warning(
            "free space",
            f"{bytes_text(free)}; a node needs about {bytes_text(needed)} in addition to its messages",
            "free some, or lower storage.segment_bytes and storage.checkpoint_bytes",
        )
    return ok("free space", bytes_text(free))


def check_syncs(data_dir: Path, environ: Mapping[str, str]) -> Iterator[Check]:
    """Measure fdatasync on a file without a name in the data directory, and check whether the results are credible."""
    try:
        times_ms = sync_times_ms(nearest_existing(data_dir))
    except OSError as error:
        yield failed("fsync", f"cannot be measured: {error.strerror}", "see data_dir")
        return
    yield _sync_time(times_ms)
    found = file_system(nearest_existing(data_dir))
    if found is not None and found[0] not in MEMORY_FILE_SYSTEMS:
        yield check_false_syncs(times_ms[len(times_ms) // 2], mount_options(found[1]), environ)


def _sync_time(times_ms: Sequence[float]) -> Check:
    middle, high = times_ms[len(times_ms) // 2], times_ms[max(0, -(-len(times_ms) * 99 // 100) - 1)]
    text = f"p50 {middle:.2f} ms, p99 {high:.2f} ms ({len(times_ms)} of {SYNC_BYTES >> 10} KiB)"
    if high > SLOW_SYNC_MS:
        return warning("fsync", text, "each message waits for a sync: use a faster disk")
    return ok("fsync", text)


def sync_times_ms(directory: Path) -> list[float]:
    """Return the sorted durations of syncs, in ms. The file never has a name, so no file stays on the disk after a
    crash."""
    block = os.urandom(SYNC_BYTES)
    times_ms: list[float] = []
    with tempfile.TemporaryFile(dir=directory) as file:
        descriptor = file.fileno()
        os.pwrite(descriptor, bytes(SYNCS * SYNC_BYTES), 0)
        os.fsync(descriptor)
        until_s = time.monotonic() + SYNC_SAMPLE_S
        for at in range(SYNCS):
            began_s = time.perf_counter()
            os.pwrite(descriptor, block, at * SYNC_BYTES)
            os.fdatasync(descriptor)
            times_ms.append((time.perf_counter() - began_s) * 1000)
            if time.monotonic() > until_s:
                break
    return sorted(times_ms)
