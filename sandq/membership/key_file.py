"""The file of gossip keys, which is read again when it changes, so that keys can be changed while nodes run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import trio

from sandq.gossip.keyring import Keyring
from sandq.model.errors import SandqError
from sandq.model.logger import get_logger
from sandq.storage.secret_file import read_private, version_of

CHECK_S = 5.0

log = get_logger("sandq.gossip")


def read_keys(path: Path) -> Keyring:
    """Read the gossip keys. Raises StartupError as `read_private`; ConfigError for a wrong key."""
    return Keyring.parse(_text(path, "gossip.keys_file"), str(path))


def read_auth(path: Path) -> str:
    """Read the authentication key of the site's agent. Raises StartupError as `read_private`."""
    return _text(path, "serf.auth_file").strip()


def _text(path: Path, setting: str) -> str:
    return read_private(path, setting).decode("utf-8", "replace")


async def follow_keys(path: Path, use: Callable[[Keyring], None]) -> None:
    """Call `use` with the keys whenever the file changes. An unusable file changes nothing and is logged."""
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
            log.info("the gossip keys were read again", file=str(path))
