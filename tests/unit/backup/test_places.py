"""Tests of backup stores: a file is stored completely or not at all, and secrets in a URL are never shown."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sandq.backup.errors import NoBackup
from sandq.backup.places import Directory, _without_secrets, place_of
from sandq.model.errors import ConfigError, Conflict, StorageFailed


@pytest.mark.parametrize("kind", ["directory", "file", "memory"])
def test_files(tmp_path: Path, kind: str) -> None:
    url = {"directory": str(tmp_path), "file": f"file://{tmp_path}", "memory": f"memory://{tmp_path}"}[kind]
    place = place_of(url)
    assert place.folders() == [] and not place.exists("a/b")
    with pytest.raises(NoBackup):
        place.open("a/b")
    with place.create("a/data/b") as stream:
        stream.write(b"whole")
    with pytest.raises(KeyError), place.create("a/c") as stream:
        stream.write(b"half")
        raise KeyError
    if kind != "memory":
        assert not place.exists("a/c")
    with place.open("a/data/b") as stream:
        assert stream.read() == b"whole"
    assert place.folders() == ["a"]
    place.remove("a", "data/b")
    place.remove("a", "data/b")
    assert place.folders() == []


class _StoreError(Exception):
    """As stores have them that fsspec reaches."""


def test_store_errors_are_reported_as_store_errors() -> None:
    place = place_of("memory://errors/of")
    with pytest.raises(StorageFailed, match="_StoreError: no credentials"), place.create("a/b"):
        raise _StoreError("no credentials")


def test_store_without_permission_raises_storage_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def is_file(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_file", is_file)
    with pytest.raises(StorageFailed, match="Permission denied"):
        place_of(str(tmp_path)).exists("a/b")


@pytest.mark.parametrize("kind", ["directory", "memory"])
def test_half_deleted_backup_has_no_manifest(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = place_of(str(tmp_path) if kind == "directory" else f"memory://{tmp_path}")
    for name in ("a/data/b", "a/manifest"):
        with place.create(name) as stream:
            stream.write(b"x")

    def stopped(*args: object, **options: object) -> None:
        raise OSError(5, "stopped here")

    if isinstance(place, Directory):
        monkeypatch.setattr(shutil, "rmtree", stopped)
    else:
        remove = place._files.rm  # type: ignore[attr-defined]
        monkeypatch.setattr(
            type(place._files),  # type: ignore[attr-defined]
            "rm",
            lambda files, path, recursive=False: stopped() if recursive else remove(path),
        )
    with pytest.raises(StorageFailed):
        place.remove("a", "manifest")
    assert not place.exists("a/manifest") and place.exists("a/data/b")


def test_two_do_not_write_or_delete_the_same_folder(tmp_path: Path) -> None:
    place, other = place_of(str(tmp_path)), place_of(str(tmp_path))
    with place.hold("a"):
        with pytest.raises(Conflict, match=r"a in .* is being made"), other.hold("a"):
            pass
        with pytest.raises(Conflict):
            other.remove("a", "manifest")
        with other.hold("b"):
            pass
    other.remove("a", "manifest")
    assert place.folders() == ["b"]


def test_partial_file_is_replaced_and_link_is_not_followed(tmp_path: Path) -> None:
    place, outside = place_of(str(tmp_path / "place")), tmp_path / "outside"
    outside.write_bytes(b"mine")
    (tmp_path / "place" / "a").mkdir(parents=True)
    (tmp_path / "place" / "a" / "b.partial").symlink_to(outside)
    with place.create("a/b") as stream:
        stream.write(b"whole")
    assert outside.read_bytes() == b"mine" and not (tmp_path / "place" / "a" / "b").is_symlink()
    with place.open("a/b") as stream:
        assert stream.read() == b"whole"


def test_only_the_owner_may_read_what_is_written(tmp_path: Path) -> None:
    with place_of(str(tmp_path / "new")).create("a/b") as stream:
        stream.write(b"x")
    assert (tmp_path / "new" / "a" / "b").stat().st_mode & 0o077 == 0
    assert (tmp_path / "new" / "a").stat().st_mode & 0o077 == 0


def test_url_is_shown_without_credentials() -> None:
    assert _without_secrets("sftp://ada:secret@host/path?token=x") == "sftp://host/path"


def test_an_unknown_kind_of_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        place_of("nosuch://host/path")
