"""The secret that all nodes of a cluster share, from its file."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sandq.model.errors import StartupError
from sandq.storage.secret_file import read_private

LEAST_BYTES: Final = 16
MOST_BYTES: Final = 4096


def read_secret(path: Path) -> bytes:
    """What `cluster.secret_file` holds, without the white space around it. StartupError when it is missing, too short
    or too long, or when others than its owner may read or write it."""
    content = read_private(path, "cluster.secret_file")
    secret = content.strip()
    if len(secret) < LEAST_BYTES or len(content) > MOST_BYTES:
        raise StartupError(
            f"cluster.secret_file {path} must hold {LEAST_BYTES} to {MOST_BYTES} bytes, "
            f"for example those of: openssl rand -base64 32"
        )
    return secret
