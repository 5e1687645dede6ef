"""Checks of `sandq doctor` on the host: memory, swap, stolen time, the clock source, and false syncs."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandq.tools.doctor.check import Check, bytes_text, failed, ok, skipped, warning

SLOW_CLOCKS: Final = frozenset({"acpi_pm", "hpet", "jiffies", "pit"})
"""Clock sources that are slow to read: each read is a system call, and often waits for a device."""
SWAPPED_BYTES: Final = 64 << 20
"""Up to this many bytes of all processes in swap, there is no warning."""
MEMORY_OVERHEAD: Final = 256 << 20
"""Bytes of memory of a node outside its budget: Python, libraries, LevelDB's caches."""
STEAL_SAMPLE_S: Final = 0.5
STOLEN_SHARE: Final = 0.02
"""If more than this share of the cores' time is stolen, messages are noticeably late."""
FALSE_SYNC_MS: Final = 0.01
"""Shortest possible duration of a sync, in ms. A shorter sync cannot have written the data."""
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
NO_BARRIERS: Final = frozenset({"nobarrier", "barrier=0"})


def _read(path: str) -> str | None:
    try:
        # A mount point may have any name.
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return None


def check_clock_source(source: str | None = None) -> Check:
    """Check that the kernel reads the time from a fast source."""
    found = source or _read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if found is None:
        return skipped("clock source", "the kernel does not report it")
    if found in SLOW_CLOCKS:
        return warning(
            "clock source",
            f"{found}: each read of the clock takes microseconds, and a node reads it often",
            "set the kernel's clock source to tsc, or to that of the hypervisor (kvm-clock), if available",
        )
    return ok("clock source", found)


def _memory_limit() -> str | None:
    """Return the memory limit of this process's control group (version 2 or 1)."""
    limits = (_read(path) for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    return next((limit for limit in limits if limit is not None), None)


def check_memory(memory_bytes: int, meminfo: str | None = None, limit: str | None = None) -> Check:
    """Check that the machine has as much memory as the node may use. `limit`: limit of the control group."""
    sizes = _meminfo(meminfo if meminfo is not None else _read("/proc/meminfo"))
    total = sizes.get("MemTotal")
    if total is None:
        return skipped("memory", "the kernel does not report its size")
    where = "this machine has"
    group = limit if limit is not None else _memory_limit()
    if group is not None and group.isdecimal() and int(group) < total:
        total, where = int(group), "its control group allows"
    wanted = memory_bytes + MEMORY_OVERHEAD
    if total < wanted:
        return warning(
            "memory",
            f"{where} {bytes_text(total)}; limits.memory_bytes is {bytes_text(memory_bytes)}, and a node uses about "
            f"{bytes_text(MEMORY_OVERHEAD)} more: the kernel may end it",
            f"set limits.memory_bytes to {max(total - MEMORY_OVERHEAD, total // 2) >> 20}MiB or less, or add memory",
        )
    return ok("memory", f"{where} {bytes_text(total)}; the node uses up to {bytes_text(memory_bytes)} for requests")


def check_swap(meminfo: str | None = None) -> Check:
    """Check how much memory of this machine is in swap."""
    sizes = _meminfo(meminfo if meminfo is not None else _read("/proc/meminfo"))
    total, free = sizes.get("SwapTotal"), sizes.get("SwapFree")
    if total is None or free is None:
        return skipped("swap", "the kernel does not report it")
    if not total:
        return ok("swap", "there is none")
    used = total - free
    text = f"{bytes_text(used)} of {bytes_text(total)} are used"
    if used > SWAPPED_BYTES:
        return warning(
            "swap",
            f"{text}: a node stops while its memory is read from the disk, and other nodes may consider it dead",
            "keep its memory out of swap: MemorySwapMax=0 of systemd, or no swap on this machine",
        )
    return ok("swap", text)


def _meminfo(text: str | None) -> dict[str, int]:
    """Return the sizes in bytes, by name."""
    found: dict[str, int] = {}
    for line in (text or "").splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdecimal():
            found[name] = int(fields[0]) * (1024 if fields[1:] == ["kB"] else 1)
    return found


def check_stolen_time(sample_s: float = STEAL_SAMPLE_S) -> Check:
    """Check that the hypervisor takes little CPU time from this machine."""
    before = _read("/proc/stat")
    time.sleep(sample_s)
    share = stolen_share(before, _read("/proc/stat"))
    if share is None:
        return skipped("stolen time", "the kernel does not report it")
    text = f"{share:.1%} of the cores' time went to other machines"
    if share > STOLEN_SHARE:
        return warning(
            "stolen time",
            f"{text} within {sample_s:g} s: messages are late by as much",
            "move the node to a host with fewer machines, or to dedicated cores",
        )
    return ok("stolen time", text)


def stolen_share(before: str | None, after: str | None) -> float | None:
    """Return the share of the time between two readings of /proc/stat that the hypervisor gave to other machines."""
    first, second = _times(before), _times(after)
    if first is None or second is None:
        return None
    spent = [late - early for early, late in zip(first, second, strict=True)]
    return max(spent[7], 0) / sum(spent) if sum(spent) > 0 else 0.0


def _times(text: str | None) -> list[int] | None:
    """Return the times user, nice, system, idle, iowait, irq, softirq and steal of all cores. None if they are
    missing."""
    fields = (text or "").partition("\n")[0].split()
    if fields[:1] != ["cpu"] or len(fields) < 9 or not all(field.isdecimal() for field in fields[1:9]):
        return None
    return [int(field) for field in fields[1:9]]


def check_false_syncs(middle_ms: float, options: str | None, environ: Mapping[str, str]) -> Check:
    """Check whether syncs reach the disk. `middle_ms`: median duration; `options`: mount options of the file system."""
    if "eatmydata" in environ.get("LD_PRELOAD", ""):
        return failed(
            "true syncs", "LD_PRELOAD contains eatmydata: nothing is ever synced", "remove it from the environment"
        )
    unsafe = NO_BARRIERS.intersection((options or "").split(","))
    if unsafe:
        return failed(
            "true syncs",
            f"the disk is mounted with {', '.join(sorted(unsafe))}: a power failure may lose synced data",
            "mount it without these options",
        )
    if middle_ms < FALSE_SYNC_MS:
        return warning(
            "true syncs",
            f"one takes {middle_ms * 1000:.0f} us: no disk is that fast, so it may not have written the data",
            "make sure that node.data_dir is on a disk that keeps synced data when the power fails",
        )
    return ok("true syncs", "no sign of false syncs; whether the disk itself keeps the data cannot be checked")


def mount_options(point: str, mounts: str | None = None) -> str | None:
    """Return the options of the last file system that was mounted at `point`. None if there is none."""
    found = None
    for line in (mounts if mounts is not None else _read("/proc/self/mounts") or "").splitlines():
        fields = line.split(" ")
        if len(fields) > 3 and mount_point(fields[1]) == point:
            found = fields[3]
    return found


def mount_point(field: str) -> str:
    """Decode a path from the kernel's list of mounts, which has blanks and other special characters as octal
    numbers."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), field)
