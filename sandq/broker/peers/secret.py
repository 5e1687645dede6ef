"""Secrets that nodes share with each other and with gateways, read from files.

A file contains one secret, or several secrets with a line `---` between them. The node makes its own proofs with the
first secret, and accepts proofs that were made with any of the secrets. So an operator can change the secret while the
cluster runs. First, on every node, add the new secret after the old secret. Then move the new secret to the front. Then
remove the old secret.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from sandq.model.errors import StartupError
from sandq.model.logger import get_logger
from sandq.storage.secret_file import read_private, version_of

LEAST_BYTES: Final = 16
MOST_BYTES: Final = 4096
SECRETS_MOST: Final = 4
"""Maximum number of secrets in a file."""
CHECK_S: Final = 5.0
"""Seconds between two checks whether a file has changed."""
CLUSTER_SETTING: Final = "cluster.secret_file"
_SEPARATOR: Final = re.compile(rb"(?m)^---[ \t]*\r?$")

log = get_logger("sandq.peers")


def read_secrets(path: Path, setting: str = CLUSTER_SETTING) -> tuple[bytes, ...]:
    """Return the secrets in the file at `path`, without surrounding white space. `setting`: the setting that names the
    file.

    Raise StartupError if the file is missing, or if users other than its owner may read or write it. Raise StartupError
    if a secret is too short or too long, or if there are too many secrets."""
    content = read_private(path, setting)
    secrets = [secret.strip() for secret in _SEPARATOR.split(content)]
    if len(secrets) > SECRETS_MOST:
        raise StartupError(f"{setting} {path} holds {len(secrets)} secrets: {SECRETS_MOST} at most")
    for number, secret in enumerate(secrets, 1):
        if not LEAST_BYTES <= len(secret) <= MOST_BYTES:
            which = f"secret {number} of {setting} {path}" if len(secrets) > 1 else f"{setting} {path}"
            raise StartupError(
                f"{which} must hold {LEAST_BYTES} to {MOST_BYTES} bytes, for example those of: openssl rand -base64 32"
            )
    return tuple(dict.fromkeys(secrets))


class Secrets:
    """The secrets of a file, as last read. This node makes its proofs with the first secret."""

    def __init__(self, path: Path, setting: str = CLUSTER_SETTING) -> None:
        """Read the file. Raise the errors of `read_secrets`."""
        self.path = path
        self.setting = setting
        self._version = version_of(path)
        self.current = read_secrets(path, setting)

    def check(self) -> bool:
        """Read the file again if it has changed. Return whether its secrets have changed.

        If the file cannot be used, raise StartupError. Then the old secrets stay valid until the file changes again."""
        version = version_of(self.path)
        if version == self._version:
            return False
        self._version = version
        before, self.current = self.current, read_secrets(self.path, self.setting)
        return before != self.current


async def follow_secrets(secrets: Secrets, on_change: Callable[[], None]) -> None:
    """Check the file repeatedly, and call `on_change` when the secrets have changed."""
    while True:
        await trio.sleep(CHECK_S)
        try:
            has_changed = await trio.to_thread.run_sync(secrets.check)
        except StartupError as error:
            log.error("the secrets stay unchanged: the file cannot be used", error=error.message)
            continue
        if has_changed:
            log.info("the secrets were read again", setting=secrets.setting, secrets=len(secrets.current))
            on_change()
