"""Secrets that nodes share with each other, and with gateways, from their files."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from sandq.model.errors import StartupError
from sandq.storage.secret_file import read_private

LEAST_BYTES: Final = 16
MOST_BYTES: Final = 4096


def read_secret(path: Path, setting: str = "cluster.secret_file") -> bytes:
    """What the file that a setting names holds, without the white space around it. StartupError when it is missing, too
    short or too long, or when others than its owner may read or write it."""
    content = read_private(path, setting)
    secret = content.strip()
    if len(secret) < LEAST_BYTES or len(content) > MOST_BYTES:
        raise StartupError(
            f"{setting} {path} must hold {LEAST_BYTES} to {MOST_BYTES} bytes, "
            f"for example those of: openssl rand -base64 32"
        )
    return secret
