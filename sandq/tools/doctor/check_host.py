"""Checks of `sandq doctor` on what the machine does to a node: memory, swap, stolen time, its clock, false syncs."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandq.tools.doctor.check import Check, bytes_text, failed, ok, skipped, warning

SLOW_CLOCKS: Final = frozenset({"acpi_pm", "hpet", "jiffies", "pit"})
"""Each look at them is a call into the kernel, and often a wait for a device."""
SWAPPED_BYTES: Final = 64 << 20
"""So much of all processes may lie in swap without a word."""
MEMORY_BESIDE: Final = 256 << 20
"""What a node takes beside what its budget counts: Python, libraries, LevelDB's caches."""
STEAL_LOOK_S: Final = 0.5
STOLEN_SHARE: Final = 0.02
"""Of the time of the cores: more is felt as lateness."""
FALSE_SYNC_MS: Final = 0.01
"""No disk is so quick: what answers sooner has not written."""
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
NO_BARRIERS: Final = frozenset({"nobarrier", "barrier=0"})


def _read(path: str) -> str | None:
    try:
        # A mount point may have any name.
        return Path(path).read_text(encoding="utf-8", errors="surrogateescape").strip()
    except OSError:
        return None


def check_clock_source(source: str | None = None) -> Check:
    """By what the kernel tells the time."""
    found = source or _read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
    if found is None:
        return skipped("clock source", "which one the kernel has is not told here")
    if found in SLOW_CLOCKS:
        return warning(
            "clock source",
            f"{found}: each look at the clock takes microseconds, and a node looks often",
            "let the kernel take tsc, or the clock of the hypervisor (kvm-clock), if it has one",
        )
    return ok("clock source", found)


def _memory_limit() -> str | None:
    """Of the control group, as it is seen from inside: of version 2, or 1."""
    limits = (_read(path) for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"))
    return next((limit for limit in limits if limit is not None), None)


def check_memory(memory_bytes: int, meminfo: str | None = None, limit: str | None = None) -> Check:
    """Whether there is as much memory as the configuration lets the node take. `limit`: of its control group."""
    told = _meminfo(meminfo if meminfo is not None else _read("/proc/meminfo"))
    total = told.get("MemTotal")
    if total is None:
        return skipped("memory", "how much there is is not told here")
    where = "this machine has"
    group = limit if limit is not None else _memory_limit()
    if group is not None and group.isdecimal() and int(group) < total:
        total, where = int(group), "its control group allows"
    wanted = memory_bytes + MEMORY_BESIDE
    if total < wanted:
        return warning(
            "memory",
            f"{where} {bytes_text(total)}; limits.memory_bytes is {bytes_text(memory_bytes)}, and a node takes about "
            f"{bytes_text(MEMORY_BESIDE)} besides: the kernel may end it",
            f"set limits.memory_bytes to {max(total - MEMORY_BESIDE, total // 2) >> 20}MiB or less, or give it more",
        )
    return ok("memory", f"{where} {bytes_text(total)}; the node takes up to {bytes_text(memory_bytes)} for requests")


def check_swap(meminfo: str | None = None) -> Check:
    """Whether memory of this machine lies in swap."""
    told = _meminfo(meminfo if meminfo is not None else _read("/proc/meminfo"))
    total, free = told.get("SwapTotal"), told.get("SwapFree")
    if total is None or free is None:
        return skipped("swap", "whether there is any is not told here")
    if not total:
        return ok("swap", "there is none")
    used = total - free
    text = f"{bytes_text(used)} of {bytes_text(total)} are used"
    if used > SWAPPED_BYTES:
        return warning(
            "swap",
            f"{text}: a node whose memory is fetched from a disk stands still meanwhile, and is taken for dead",
            "keep its memory out of swap: MemorySwapMax=0 of systemd, or no swap on this machine",
        )
    return ok("swap", text)


def _meminfo(text: str | None) -> dict[str, int]:
    """Bytes by name."""
    found: dict[str, int] = {}
    for line in (text or "").splitlines():
        name, _, rest = line.partition(":")
        fields = rest.split()
        if fields and fields[0].isdecimal():
            found[name] = int(fields[0]) * (1024 if fields[1:] == ["kB"] else 1)
    return found


def check_stolen_time(look_s: float = STEAL_LOOK_S) -> Check:
    """Whether the machine gets the time that it thinks it has."""
    before = _read("/proc/stat")
    time.sleep(look_s)
    share = stolen_share(before, _read("/proc/stat"))
    if share is None:
        return skipped("stolen time", "it is not told here")
    text = f"{share:.1%} of its cores' time went to others"
    if share > STOLEN_SHARE:
        return warning(
            "stolen time",
            f"{text} within {look_s:g} s: messages come late by as much",
            "move it to a machine that is shared less, or with cores of its own",
        )
    return ok("stolen time", text)


def stolen_share(before: str | None, after: str | None) -> float | None:
    """Of all time between two looks at /proc/stat, that which the hypervisor gave to others."""
    first, second = _times(before), _times(after)
    if first is None or second is None:
        return None
    spent = [late - early for early, late in zip(first, second, strict=True)]
    return max(spent[7], 0) / sum(spent) if sum(spent) > 0 else 0.0


def _times(text: str | None) -> list[int] | None:
    """user, nice, system, idle, iowait, irq, softirq, steal of all cores."""
    fields = (text or "").partition("\n")[0].split()
    if fields[:1] != ["cpu"] or len(fields) < 9 or not all(field.isdecimal() for field in fields[1:9]):
        return None
    return [int(field) for field in fields[1:9]]


def check_false_syncs(middle_ms: float, options: str | None, environ: Mapping[str, str]) -> Check:
    """Whether a sync can be believed. `middle_ms`: how long one took; `options`: of the mounted file system."""
    if "eatmydata" in environ.get("LD_PRELOAD", ""):
        return failed(
            "true syncs", "LD_PRELOAD has eatmydata: nothing is ever synced", "take it out of the environment"
        )
    told = NO_BARRIERS.intersection((options or "").split(","))
    if told:
        return failed(
            "true syncs",
            f"the disk is mounted with {', '.join(sorted(told))}: what was synced may be lost with the power",
            "mount it without",
        )
    if middle_ms < FALSE_SYNC_MS:
        return warning(
            "true syncs",
            f"one takes {middle_ms * 1000:.0f} us: no disk is so quick, so it may not be one",
            "make sure that node.data_dir lies on a disk that keeps what was synced when the power fails",
        )
    return ok("true syncs", "nothing says that they are false; what the disk itself does with them cannot be seen")


def mount_options(point: str, mounts: str | None = None) -> str | None:
    """Of the file system that is mounted there last."""
    found = None
    for line in (mounts if mounts is not None else _read("/proc/self/mounts") or "").splitlines():
        fields = line.split(" ")
        if len(fields) > 3 and mount_point(fields[1]) == point:
            found = fields[3]
    return found


def mount_point(field: str) -> str:
    """A path as the kernel tells it among its mounts: blanks and the like are octal numbers."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), field)
