"""Says in one line why this Python cannot install sandq; prints "supported" if it can.

`make setup` runs it before anything is downloaded. It runs on any Python 3, so it uses old syntax only.
"""

import os
import platform
import shutil
import subprocess
import sys
import sysconfig

OLDEST = (3, 11)
NEWEST = (3, 14)
WHEEL_MACHINES = ("x86_64", "aarch64", "amd64", "arm64")
"""Machines for which every package with C code has a wheel, as `platform.machine()` names them."""
LIBLEVELDB = "apt-get install g++ libleveldb-dev python3-dev"


def problem(version, implementation, has_gil, has_venv):
    """Return why sandq does not support an interpreter, or None."""
    oldest, newest, own = (f"{each[0]}.{each[1]}" for each in (OLDEST, NEWEST, version))
    found = f"{implementation} {'.'.join(map(str, version))}"
    wanted = f"sandq needs CPython {oldest} to {newest}; this is {found}"
    if implementation != "CPython":
        return wanted
    if version[:2] < OLDEST:
        return f"{wanted}, which is too old"
    if version[:2] > NEWEST:
        return f"{wanted}, which is too new: LevelDB has no wheel for it"
    if not has_gil:
        return f"{wanted} without the GIL: LevelDB has no wheel for it"
    if not has_venv:
        return f"{found} cannot create a virtual environment; on Debian and Ubuntu: apt-get install python{own}-venv"
    return None


def missing_for_leveldb(version, machine, is_glibc, can_compile):
    """Return why LevelDB cannot be installed for a supported interpreter, or None.

    `can_compile`: returns whether a C++ compiler with LevelDB's headers is installed. It is called only where there is
    no wheel.
    """
    if sys.platform != "linux":
        return None  # The client needs no LevelDB, and a node refuses to start with its own reason.
    machines = ("x86_64",) if version[:2] == OLDEST else WHEEL_MACHINES
    if (is_glibc and machine in machines) or can_compile():
        return None
    where = f"Python {version[0]}.{version[1]} on {machine}{'' if is_glibc else ' without glibc'}"
    better = "use Python 3.12 or newer, or " if version[:2] == OLDEST and is_glibc else ""
    return f"LevelDB has no wheel for {where}: {better}install a compiler and its headers ({LIBLEVELDB})"


def _can_compile():
    compiler = os.environ.get("CXX") or shutil.which("c++") or shutil.which("g++")
    if not compiler:
        return False
    include = "-I" + sysconfig.get_paths()["include"]
    command = [compiler, include, "-x", "c++", "-fsyntax-only", "-"]
    source = b"#include <leveldb/db.h>\n#include <Python.h>\n"
    try:
        process = subprocess.Popen(command, stdin=-1, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        process.communicate(source)
    except OSError:
        return False
    return process.returncode == 0


def _has_venv():
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        return False
    return True


def main():
    version = tuple(sys.version_info[:3])
    is_gil_enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    reason = problem(version, platform.python_implementation(), is_gil_enabled(), _has_venv())
    if reason is None:
        is_glibc = platform.libc_ver()[0] == "glibc"
        reason = missing_for_leveldb(version, platform.machine(), is_glibc, _can_compile)
    print(reason or "supported")
    return int(reason is not None)


if __name__ == "__main__":
    sys.exit(main())
