"""Tests of backup stores: a file is stored completely or not at all, and secrets in a URL are never shown."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sandq.backup.errors import NoBackup
from sandq.backup.locations import Directory, _without_secrets, open_location
from sandq.model.errors import ConfigError, Conflict, StorageFailed


@pytest.mark.parametrize("kind", ["directory", "file", "memory"])
def test_files(tmp_path: Path, kind: str) -> None:
    url = {"directory": str(tmp_path), "file": f"file://{tmp_path}", "memory": f"memory://{tmp_path}"}[kind]
    location = open_location(url)
    assert location.folders() == [] and not location.exists("a/b")
    with pytest.raises(NoBackup):
        location.open("a/b")
    with location.create("a/data/b") as stream:
        stream.write(b"whole")
    with pytest.raises(KeyError), location.create("a/c") as stream:
        stream.write(b"half")
        raise KeyError
    if kind != "memory":
        assert not location.exists("a/c")
    with location.open("a/data/b") as stream:
        assert stream.read() == b"whole"
    assert location.folders() == ["a"]
    location.remove("a", "data/b")
    location.remove("a", "data/b")
    assert location.folders() == []


class _StoreError(Exception):
    """Names as stores behind fsspec have them."""


def test_store_errors_are_reported_as_store_errors() -> None:
    location = open_location("memory://errors/of")
    with pytest.raises(StorageFailed, match="_StoreError: no credentials"), location.create("a/b"):
        raise _StoreError("no credentials")


def test_store_without_permission_raises_storage_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def is_file(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", is_file)
    with pytest.raises(StorageFailed, match="Permission denied"):
        open_location(str(tmp_path)).exists("a/b")


@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_half_deleted_backup_has_no_manifest(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = open_location(str(tmp_path) if kind == "directory" else f"memory://{tmp_path}")
    for name in ("a/data/b", "a/manifest"):
        with location.create(name) as stream:
            stream.write(b"x")

    def stopped(*args: object, **options: object) -> None:
        raise OSError(5, "stopped here")

    if isinstance(location, Directory):
        monkeypatch.setattr(shutil, "rmtree", stopped)
    else:
        remove = location._files.rm  # type: ignore[attr-defined]
        monkeypatch.setattr(
            type(location._files),  # type: ignore[attr-defined]
            "rm",
            lambda files, path, recursive=False: stopped() if recursive else remove(path),
        )
    with pytest.raises(StorageFailed):
        location.remove("a", "manifest")
    assert not location.exists("a/manifest") and location.exists("a/data/b")


def test_two_do_not_write_or_delete_the_same_folder(tmp_path: Path) -> None:
    location, other = open_location(str(tmp_path)), open_location(str(tmp_path))
    with location.hold("a"):
        with pytest.raises(Conflict, match=r"a in .* is being made"), other.hold("a"):
            pass
        with pytest.raises(Conflict):
            other.remove("a", "manifest")
        with other.hold("b"):
            pass
    other.remove("a", "manifest")
    assert location.folders() == ["b"]


def test_partial_file_is_replaced_and_link_is_not_followed(tmp_path: Path) -> None:
    location, outside = open_location(str(tmp_path / "backups")), tmp_path / "outside"
    outside.write_bytes(b"mine")
    (tmp_path / "backups" / "a").mkdir(parents=True)
    (tmp_path / "backups" / "a" / "b.partial").symlink_to(outside)
    with location.create("a/b") as stream:
        stream.write(b"whole")
    assert outside.read_bytes() == b"mine" and not (tmp_path / "backups" / "a" / "b").is_symlink()
    with location.open("a/b") as stream:
        assert stream.read() == b"whole"


def test_written_files_are_private(tmp_path: Path) -> None:
    with open_location(str(tmp_path / "new")).create("a/b") as stream:
        stream.write(b"x")
    assert (tmp_path / "new" / "a" / "b").stat().st_mode & 0o077 == 0
    assert (tmp_path / "new" / "a").stat().st_mode & 0o077 == 0


def test_url_is_shown_without_credentials() -> None:
    assert _without_secrets("sftp://ada:secret@host/path?token=x") == "sftp://host/path"


def test_an_unknown_kind_of_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        open_location("nosuch://host/path")
