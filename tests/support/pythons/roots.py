"""Make Debian roots that hold one Python version each, and nothing else that sandq could depend on.

A root is a directory with a whole Debian system, made by `debootstrap`. Commands run in it by `chroot`, in mount and
process namespaces of their own, so nothing stays mounted or running when they end. The network is the machine's. Roots
stay in the user's cache directory. Their names contain the suite and a hash of the packages that `make setup` installs.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.support.paths import ROOT

SUITES: Final[Mapping[str, str]] = {"3.13": "trixie", "3.14": "sid"}
"""Debian suite that has each Python version. If `debootstrap` does not know a suite, use its script for sid."""
PACKAGES: Final = "python3,python3-venv,git,make,ca-certificates"
DEBOOTSTRAP_S: Final = 420.0
SOURCES: Final = "sandq"
"""Directory with a copy of this checkout and its virtual environment, relative to `/` of a root."""
_SETUP_FILES: Final = ("requirements.lock", "pyproject.toml", "packaging/client/pyproject.toml")
_ENTER: Final = """
set -e
root=$1; shift
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
certificates=/etc/ssl/certs/ca-certificates.crt
[ ! -e $certificates ] || mount --bind -o ro $certificates "$root$certificates"
exec chroot "$root" "$@"
"""


class RootFailed(Exception):
    """A root cannot be made here; the text says why and what to do."""


@dataclass(frozen=True, kw_only=True)
class PythonRoot:
    """A Debian root in `directory` whose `python3` is of `version`."""

    version: str
    directory: Path

    def command(self, *arguments: str | Path) -> list[str]:
        """Return the command that runs `arguments` in this root, as root, with the loopback network of the machine."""
        enter = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "bash", "-c", _ENTER, "enter"]
        return [*enter, str(self.directory), *map(str, arguments)]

    def shell(self, script: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Run a shell script in the copy of the checkout, with the environment of a new user."""
        command = self.command("bash", "-euo", "pipefail", "-c", f"cd /{SOURCES}\n{script}")
        return subprocess.run(command, env=_environment(), text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]

    def update_sources(self) -> None:
        """Replace the copy of the checkout by the current files; the virtual environment stays."""
        target = self.directory / SOURCES
        target.mkdir(exist_ok=True)
        for entry in target.iterdir():
            if entry.name != ".venv":
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        names = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
        present = b"\0".join(name for name in names if name and (ROOT / os.fsdecode(name)).exists())
        packed = subprocess.Popen(
            ["tar", "--create", "--null", "--files-from=-"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert packed.stdin is not None
        with subprocess.Popen(["tar", "--extract", "--directory", target], stdin=packed.stdout) as unpacked:
            packed.stdin.write(present)
            packed.stdin.close()
        if packed.wait() or unpacked.returncode:
            raise RootFailed(f"cannot copy {ROOT} to {target}")


@contextlib.contextmanager
def python_root(version: str, *, is_fresh: bool = False) -> Iterator[PythonRoot]:
    """Make or find the root of a Python version, and lock it against other processes.

    `is_fresh`: make the virtual environment again, too. Raises RootFailed."""
    suite = SUITES[version]
    refuse_without_root()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sandq" / "roots"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{suite}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        directory = cache / f"{suite}-{setup_key()}"
        if not directory.exists():
            for older in cache.glob(f"{suite}-*"):
                shutil.rmtree(older)
            _bootstrap(suite, directory)
        root = PythonRoot(version=version, directory=directory)
        _check_version(root, suite)
        for name in ("resolv.conf", "hosts", "pip.conf"):
            if (found := Path("/etc") / name).exists():
                shutil.copyfile(found, directory / "etc" / name)
        if is_fresh:
            shutil.rmtree(directory / SOURCES / ".venv", ignore_errors=True)
        root.update_sources()
        yield root


def refuse_without_root() -> None:
    """Raise RootFailed if this process may not make a root, or lacks a program for it."""
    if os.geteuid() != 0:
        raise RootFailed("a Debian root takes chroot and mounts: run this as root")
    missing = [program for program in ("debootstrap", "unshare", "chroot") if shutil.which(program) is None]
    if missing:
        raise RootFailed(f"missing: {', '.join(missing)}; apt-get install debootstrap util-linux")


def setup_key() -> str:
    """Return a hash of the files that decide what `make setup` installs: the lock file and both projects."""
    content = b"\0".join((ROOT / name).read_bytes() for name in _SETUP_FILES)
    return hashlib.sha256(content).hexdigest()[:16]


def debian_mirror(sources: Sequence[Path] | None = None) -> str:
    """Return the address of the Debian archive from which this machine installs. Raises RootFailed."""
    if sources is None:
        parts = Path("/etc/apt/sources.list.d")
        sources = [Path("/etc/apt/sources.list"), *sorted(parts.glob("*.list")), *sorted(parts.glob("*.sources"))]
    for path in sources:
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                words = [word for word in line.split() if not word.startswith(("[", "arch=", "signed-by=", "]"))]
                if words and words[0] in ("deb", "URIs:"):
                    for address in words[1:2]:
                        if address.rstrip("/").endswith("/debian"):
                            return address
    raise RootFailed("no apt source of this machine names a Debian archive (an address that ends in /debian)")


def _bootstrap(suite: str, directory: Path) -> None:
    scripts = Path("/usr/share/debootstrap/scripts")
    made = directory.with_name(f".{directory.name}")
    shutil.rmtree(made, ignore_errors=True)
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", suite, str(made), debian_mirror()]
    if not (scripts / suite).exists():
        command.append(str(scripts / "sid"))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DEBOOTSTRAP_S, check=False)
    except subprocess.TimeoutExpired:
        shutil.rmtree(made, ignore_errors=True)
        reason = f"debootstrap of {suite} took longer than {DEBOOTSTRAP_S:.0f} s: is the archive slow?"
        raise RootFailed(reason) from None
    if done.returncode:
        log = made / "debootstrap" / "debootstrap.log"
        why = [*done.stdout.splitlines()[-3:], *done.stderr.splitlines()[-3:]]
        why += log.read_text(errors="replace").splitlines()[-3:] if log.exists() else []
        shutil.rmtree(made, ignore_errors=True)
        raise RootFailed(f"debootstrap of {suite} failed (is the archive reachable?):\n" + "\n".join(why))
    for archive in (made / "var" / "cache" / "apt" / "archives").glob("*.deb"):
        archive.unlink()
    made.rename(directory)


def _check_version(root: PythonRoot, suite: str) -> None:
    done = subprocess.run(root.command("python3", "--version"), capture_output=True, text=True, check=False)
    found = done.stdout.strip() or done.stderr.strip()
    if not found.startswith(f"Python {root.version}."):
        shutil.rmtree(root.directory)
        raise RootFailed(f"Debian {suite} has {found}, not Python {root.version}: change SUITES in {__file__}")


def _environment() -> dict[str, str]:
    """Return the environment of a root: the variables of this process about packages and certificates."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if name.lower().endswith("_proxy")
        or name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "PIP_CERT")
        or name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_DEFAULT_TIMEOUT")
    }
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8", "PY_COLORS": "0", **passed}
