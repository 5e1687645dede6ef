from __future__ import annotations

from pathlib import Path

import pytest

from sandq.broker.peers.secret import LEAST_BYTES, MOST_BYTES, read_secret
from sandq.model.errors import StartupError


def secret_file(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_the_secret_is_what_stands_between_white_space(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path / "secret", b"  0123456789 abcdef\r\n\n", mode)
    assert read_secret(path) == b"0123456789 abcdef"
    assert len(read_secret(secret_file(tmp_path / "bytes", b"\xff" * LEAST_BYTES))) == LEAST_BYTES


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644])
def test_nobody_else_may_read_it(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path / "secret", b"0123456789abcdef", mode)
    with pytest.raises(StartupError, match=rf"cluster.secret_file .*secret is open to others .*{mode:o}.*chmod 600"):
        read_secret(path)


@pytest.mark.parametrize("content", [b"", b"0123456789abcde\n\n\n\n", b" " * 100, b"x" * (MOST_BYTES + 1)])
def test_too_short_or_too_long(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(StartupError, match=r"must hold 16 to 4096 bytes") as caught:
        read_secret(secret_file(tmp_path / "secret", content))
    assert not content.strip() or content.strip().decode() not in caught.value.message


def test_missing_or_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(StartupError, match=r"cluster.secret_file .* cannot be read"):
            read_secret(path)
