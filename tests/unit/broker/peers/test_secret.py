from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from sandq.broker.peers.secret import CHECK_S, LEAST_BYTES, MOST_BYTES, Secrets, follow_secrets, read_secrets
from sandq.model.errors import StartupError


def secret_file(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_white_space_around_secret_is_ignored(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path / "secret", b"  0123456789 abcdef\r\n\n", mode)
    assert read_secrets(path) == (b"0123456789 abcdef",)
    assert read_secrets(secret_file(tmp_path / "bytes", b"\xff" * LEAST_BYTES)) == (b"\xff" * LEAST_BYTES,)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o610, 0o644])
def test_secret_file_readable_by_others_is_refused(tmp_path: Path, mode: int) -> None:
    path = secret_file(tmp_path / "secret", b"0123456789abcdef", mode)
    with pytest.raises(StartupError, match=rf"cluster.secret_file .*secret is open to others .*{mode:o}.*chmod 600"):
        read_secrets(path)


@pytest.mark.parametrize("content", [b"", b"0123456789abcde\n\n\n\n", b" " * 100, b"x" * (MOST_BYTES + 1)])
def test_too_short_or_too_long(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(StartupError, match=r"must hold 16 to 4096 bytes") as caught:
        read_secrets(secret_file(tmp_path / "secret", content))
    assert not content.strip() or content.strip().decode() not in caught.value.message


def test_missing_or_no_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(StartupError, match=r"cluster.secret_file .* cannot be read"):
            read_secrets(path)


OLD, NEW = b"the old one, as long", b"the new one, as long"


def test_secrets_are_separated_by_dashes(tmp_path: Path) -> None:
    lines = b"two lines\nof one secret"
    path = secret_file(tmp_path / "secret", NEW + b"\n---\r\n\n" + OLD + b"\n--- \n" + lines + b"\n---\n" + NEW)
    assert read_secrets(path) == (NEW, OLD, lines)
    for content, why in (
        (b"\n---\n".join([OLD + bytes([65 + at]) for at in range(5)]), "holds 5 secrets: 4 at most"),
        (OLD + b"\n---\nshort", "secret 2 of cluster.secret_file .* must hold 16 to 4096 bytes"),
        (OLD + b"\n---\n", "secret 2 of"),
    ):
        with pytest.raises(StartupError, match=why):
            read_secrets(secret_file(path, content))


def test_replaced_file_is_read_again(tmp_path: Path) -> None:
    path = secret_file(tmp_path / "secret", OLD)
    secrets = Secrets(path)
    assert not secrets.check() and secrets.current == (OLD,)
    secret_file(path, OLD + b"\n---\n" + NEW)
    assert secrets.check() and secrets.current == (OLD, NEW)
    secret_file(path, OLD + b" \n---\n" + NEW + b"\n")
    assert not secrets.check(), "both secrets are the same"
    secret_file(path, b"short")
    with pytest.raises(StartupError, match="16 to 4096"):
        secrets.check()
    assert not secrets.check() and secrets.current == (OLD, NEW)
    path.unlink()
    with pytest.raises(StartupError, match="cannot be read"):
        secrets.check()
    secret_file(path, NEW)
    assert secrets.check() and secrets.current == (NEW,)


async def test_followers_of_the_secret_are_notified(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    path = secret_file(tmp_path / "secret", OLD)
    secrets, told, has_told = Secrets(path), list[tuple[bytes, ...]](), trio.Event()

    def on_change() -> None:
        told.append(secrets.current)
        has_told.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow_secrets, secrets, on_change)
        await trio.sleep(2.5 * CHECK_S)
        secret_file(path, b"short")
        await trio.sleep(2.5 * CHECK_S)
        assert not told, "the node keeps the previous secrets"
        secret_file(path, NEW)
        await has_told.wait()
        assert told == [(NEW,)]
        nursery.cancel_scope.cancel()
