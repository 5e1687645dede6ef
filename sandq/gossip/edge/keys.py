"""The file of gossip keys, read again when it has changed, so that keys are changed while nodes run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import structlog
import trio

from sandq.gossip.keyring import Keyring
from sandq.model.errors import SandqError, StartupError

CHECK_S = 5.0
BYTES_MOST = 16 << 10
_OTHERS = 0o077

log = structlog.get_logger("sandq.gossip")


def read_keys(path: Path) -> Keyring:
    """StartupError as `read_text`; ConfigError when a key is wrong."""
    return Keyring.parse(read_text(path, "gossip.keys_file"), str(path))


def read_text(path: Path, setting: str) -> str:
    """What a file of secrets holds. StartupError when it is missing, too long, or open to others than its owner."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(BYTES_MOST + 1)
    except OSError as error:
        raise StartupError(f"{setting} {path} cannot be read: {error.strerror or error}") from None
    if mode & _OTHERS:
        raise StartupError(
            f"{setting} {path} is open to others than its owner (mode {mode & 0o777:o}): chmod 600 {path}"
        )
    if len(content) > BYTES_MOST:
        raise StartupError(f"{setting} {path} has more than {BYTES_MOST} bytes")
    return content.decode("utf-8", "replace")


async def follow_keys(path: Path, use: Callable[[Keyring], None]) -> None:
    """Hand over the keys whenever the file is another one. One that cannot be used changes nothing, and is told."""
    seen = await trio.to_thread.run_sync(_version, path)
    while True:
        await trio.sleep(CHECK_S)
        version = await trio.to_thread.run_sync(_version, path)
        if version == seen:
            continue
        seen = version
        try:
            use(await trio.to_thread.run_sync(read_keys, path))
        except SandqError as error:
            log.error("the gossip keys are not changed: the file cannot be used", error=error.message)
        else:
            log.info("the gossip keys were read anew", file=str(path))


def _version(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
