"""Checks of `sandq doctor` on the machine's software and settings: Python, packages, open files, the clock."""

from __future__ import annotations

import ctypes
import importlib
import importlib.metadata
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence

from sandq.model.limits import Limits
from sandq.tools.doctor.check import Check, failed, ok, warning

PYTHON_OLDEST = (3, 11)
PYTHON_NEWEST = (3, 14)
OTHER_FILES = 1100
"""Number of open files of a node in addition to connections: 1,000 of LevelDB, the rest for the log, sockets and
libraries."""
CLOCK_SAMPLE_S = 0.2
YEAR_2024_S = 1_704_067_200
NTP_ERROR = 5
"""Result of adjtimex for a clock that is not synchronised (TIME_ERROR)."""

_DISTRIBUTIONS = ("sandq", "sandq-client")
_MODULES = {"pyyaml": "yaml", "pyjwt": "jwt", "sandq-client": "sandq"}
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*\(?([^;)]*)\)?\s*(?:;(.*))?")
_PYTHON_MARKER = re.compile(r"""\s*python_version\s*(<|>=)\s*['"]([0-9.]+)['"]\s*""")
_CLAUSE = re.compile(r"(===|==|!=|>=|<=|~=|<|>)\s*([0-9A-Za-z.*+!_-]+)")


def check_python(version: tuple[int, ...] = sys.version_info[:3]) -> Check:
    """Check that sandq was tested on this version of Python."""
    found = f"{'.'.join(map(str, version[:3]))} ({sys.executable})"
    oldest, newest = (".".join(map(str, each)) for each in (PYTHON_OLDEST, PYTHON_NEWEST))
    to_do = f"run sandq with Python {oldest} to {newest}"
    if tuple(version[:2]) < PYTHON_OLDEST:
        return failed("python", f"{found}, {oldest} or newer is needed", to_do)
    if tuple(version[:2]) > PYTHON_NEWEST:
        return warning("python", f"{found}, newer than {newest}, the newest that sandq was tested on", to_do)
    return ok("python", found)


def check_packages(requires: Callable[[], Sequence[str] | None] | None = None) -> Iterator[Check]:
    """Check that the packages that sandq needs can be imported, in allowed versions."""
    try:
        requirements = (requires or _requirements)()
    except importlib.metadata.PackageNotFoundError:
        yield warning(
            "packages",
            "sandq is not installed as a package here, so the versions that it needs are not known",
            "install it: pip install .",
        )
        return
    fine = 0
    for requirement in requirements or ():
        match = _REQUIREMENT.fullmatch(requirement.strip())
        if match is None or not _applies(match[3]):
            continue
        name, wanted = match[1], match[2]
        problem = _problem_with(name, wanted)
        if problem is None:
            fine += 1
        else:
            yield failed(f"package {name}", problem, f"pip install '{name}{wanted}'")
    yield ok("packages", f"{fine} packages in versions that sandq allows")


def _applies(marker: str | None, version: tuple[int, ...] = sys.version_info[:3]) -> bool:
    """Return whether a requirement applies to this Python. A requirement of an extra does not."""
    if marker is None:
        return True
    match = _PYTHON_MARKER.fullmatch(marker)
    return match is not None and fits(".".join(map(str, version[:3])), f"{match[1]}{match[2]}")


def _requirements() -> list[str]:
    """Return the requirements of sandq and its client, each package once."""
    found = (one for name in _DISTRIBUTIONS for one in importlib.metadata.requires(name) or ())
    return list({one.partition(">")[0].strip(): one for one in found}.values())


def _problem_with(name: str, wanted: str) -> str | None:
    module = _MODULES.get(name.lower(), name.lower().replace("-", "_"))
    try:
        importlib.import_module(module)
    except Exception as error:
        return f"cannot be imported: {error}"
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "can be imported, but is not installed as a package"
    return None if fits(version, wanted) else f"version {version} is installed, but {wanted} is needed"


def fits(version: str, wanted: str) -> bool:
    """Return whether a version satisfies clauses like ">=1.2,<2". Letters in versions are ignored."""
    found = _numbers(version)
    for operator, text in _CLAUSE.findall(wanted):
        other = _numbers(text)
        width = max(len(found), len(other))
        left, right = found + (0,) * (width - len(found)), other + (0,) * (width - len(other))
        if operator in ("==", "==="):
            fine = found[: len(other)] == other if text.endswith(".*") else left == right
        elif operator == "~=":
            fine = left >= right and found[: len(other) - 1] == other[:-1]
        else:
            fine = {"!=": left != right, ">=": left >= right, "<=": left <= right, ">": left > right}.get(
                operator, left < right
            )
        if not fine:
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    parts = []
    for part in version.split("."):
        digits = re.match(r"\d+", part)
        if digits is None:
            break
        parts.append(int(digits[0]))
        if digits[0] != part:
            break
    return tuple(parts)


def check_open_files(limits: Limits, soft: int | None = None) -> Check:
    """Check that the process may open enough files for all connections that the configuration allows."""
    if soft is None:
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    wanted = limits.connections + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return ok("open files", f"{'unlimited' if soft == resource.RLIM_INFINITY else f'{soft:,}'} may be open")
    return warning(
        "open files",
        f"{soft:,} may be open: less than limits.connections ({limits.connections:,}) and the node's own need",
        f"ulimit -n {wanted} before sandq starts (LimitNOFILE= of systemd), or lower limits.connections",
    )


def check_clock(max_drift_ms: int, sample_s: float = CLOCK_SAMPLE_S) -> Check:
    """Check that the wall clock and the monotonic clock agree, and whether NTP synchronises the kernel's clock."""
    wall_s = time.time()
    if wall_s < YEAR_2024_S:
        return failed("clock", f"it says {time.strftime('%Y-%m-%d', time.gmtime(wall_s))}", "set the clock")
    monotonic_s = time.monotonic()
    time.sleep(sample_s)
    step_ms = ((time.time() - wall_s) - (time.monotonic() - monotonic_s)) * 1000
    if abs(step_ms) > max_drift_ms:
        return warning(
            "clock",
            f"the wall clock moved by {step_ms:+.0f} ms against the monotonic clock within {sample_s:g} s",
            "let one service (chrony, ntpd, systemd-timesyncd) adjust the clock, by slewing it",
        )
    synchronised = ntp_state()
    if synchronised is None:
        return ok("clock", "wall and monotonic clock agree; the kernel does not report whether NTP is in use")
    if not synchronised:
        return warning(
            "clock",
            "wall and monotonic clock agree, but the kernel's clock is not synchronised",
            "run chrony, ntpd or systemd-timesyncd",
        )
    return ok("clock", "wall and monotonic clock agree; synchronised by NTP")


def ntp_state() -> bool | None:
    """Return whether the kernel considers its clock synchronised. None if the kernel does not report this. Changes
    nothing."""
    if os.path.exists("/run/systemd/timesync/synchronized"):
        return True
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        timex = ctypes.create_string_buffer(512)  # struct timex; its first field, 0, means: only read
        state = int(libc.adjtimex(timex))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != NTP_ERROR
