"""The secret that all nodes of a cluster share, from its file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from sandq.model.errors import StartupError

LEAST_BYTES: Final = 16
MOST_BYTES: Final = 4096
_OTHERS = 0o077


def read_secret(path: Path) -> bytes:
    """What `cluster.secret_file` holds, without the white space around it. StartupError when it is missing, too short
    or too long, or when others than its owner may read or write it."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise StartupError(f"cluster.secret_file {path} cannot be read: {error.strerror or error}") from None
    if mode & _OTHERS:
        raise StartupError(
            f"cluster.secret_file {path} is open to others than its owner (mode {mode & 0o777:o}): chmod 600 {path}"
        )
    secret = content.strip()
    if len(secret) < LEAST_BYTES or len(content) > MOST_BYTES:
        raise StartupError(
            f"cluster.secret_file {path} must hold {LEAST_BYTES} to {MOST_BYTES} bytes, "
            f"for example those of: openssl rand -base64 32"
        )
    return secret
