"""Secrets that nodes share with each other, and with gateways, from their files.

A file holds one secret, or several with a line `---` between them: the first proves, and each is taken. So a secret is
changed while the cluster runs: add the new one behind the old one at every node, then put it first, then take the old
one out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
import trio

from sandq.model.errors import StartupError
from sandq.storage.secret_file import read_private, version_of

LEAST_BYTES: Final = 16
MOST_BYTES: Final = 4096
SECRETS_MOST: Final = 4
"""Of a file."""
CHECK_S: Final = 5.0
"""How often it is looked whether a file is another one."""
CLUSTER_SETTING: Final = "cluster.secret_file"
_SEPARATOR: Final = re.compile(rb"(?m)^---[ \t]*\r?$")

log = structlog.get_logger("sandq.peers")


def read_secrets(path: Path, setting: str = CLUSTER_SETTING) -> tuple[bytes, ...]:
    """What the file that a setting names holds, without the white space around it. StartupError when it is missing, one
    is too short or too long, or when others than its owner may read or write it."""
    content = read_private(path, setting)
    secrets = [secret.strip() for secret in _SEPARATOR.split(content)]
    if len(secrets) > SECRETS_MOST:
        raise StartupError(f"{setting} {path} holds {len(secrets)} secrets: {SECRETS_MOST} at most")
    for place, secret in enumerate(secrets, 1):
        if not LEAST_BYTES <= len(secret) <= MOST_BYTES:
            which = f"secret {place} of {setting} {path}" if len(secrets) > 1 else f"{setting} {path}"
            raise StartupError(
                f"{which} must hold {LEAST_BYTES} to {MOST_BYTES} bytes, for example those of: openssl rand -base64 32"
            )
    return tuple(dict.fromkeys(secrets))


class Secrets:
    """The secrets of a file, as they were read last; the first one proves."""

    def __init__(self, path: Path, setting: str = CLUSTER_SETTING) -> None:
        """Raises StartupError, as `read_secrets`."""
        self.path = path
        self.setting = setting
        self._version = version_of(path)
        self.current = read_secrets(path, setting)

    def look(self) -> bool:
        """Read the file again if it is another one than before; whether its secrets are others now. StartupError: it
        cannot be used; then nothing changes until it is another one again."""
        version = version_of(self.path)
        if version == self._version:
            return False
        self._version = version
        before, self.current = self.current, read_secrets(self.path, self.setting)
        return before != self.current


async def follow_secrets(secrets: Secrets, on_change: Callable[[], None]) -> None:
    """Look again and again, and tell when the secrets are others."""
    while True:
        await trio.sleep(CHECK_S)
        try:
            has_changed = await trio.to_thread.run_sync(secrets.look)
        except StartupError as error:
            log.error("the secrets are not changed: the file cannot be used", error=error.message)
            continue
        if has_changed:
            log.info("the secrets were read anew", setting=secrets.setting, secrets=len(secrets.current))
            on_change()
