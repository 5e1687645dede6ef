"""The file of gossip keys, read again when it has changed, so that keys are changed while nodes run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import structlog
import trio

from sandq.gossip.keyring import Keyring
from sandq.model.errors import SandqError
from sandq.storage.secret_file import read_private, version_of

CHECK_S = 5.0

log = structlog.get_logger("sandq.gossip")


def read_keys(path: Path) -> Keyring:
    """StartupError as `read_private`; ConfigError when a key is wrong."""
    return Keyring.parse(_text(path, "gossip.keys_file"), str(path))


def read_auth(path: Path) -> str:
    """With what the site's agent is spoken to. StartupError as `read_private`."""
    return _text(path, "serf.auth_file").strip()


def _text(path: Path, setting: str) -> str:
    return read_private(path, setting).decode("utf-8", "replace")


async def follow_keys(path: Path, use: Callable[[Keyring], None]) -> None:
    """Hand over the keys whenever the file is another one. One that cannot be used changes nothing, and is told."""
    seen = await trio.to_thread.run_sync(version_of, path)
    while True:
        await trio.sleep(CHECK_S)
        version = await trio.to_thread.run_sync(version_of, path)
        if version == seen:
            continue
        seen = version
        try:
            use(await trio.to_thread.run_sync(read_keys, path))
        except SandqError as error:
            log.error("the gossip keys are not changed: the file cannot be used", error=error.message)
        else:
            log.info("the gossip keys were read anew", file=str(path))
