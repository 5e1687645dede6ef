"""A file is there as a whole or not at all; what a URL has of secrets is told nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandq.backup.errors import NoBackup
from sandq.backup.places import _without_secrets, place_of
from sandq.model.errors import ConfigError


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
    place.remove("a")
    place.remove("a")
    assert place.folders() == []


def test_only_the_owner_may_read_what_is_written(tmp_path: Path) -> None:
    with place_of(str(tmp_path / "new")).create("a/b") as stream:
        stream.write(b"x")
    assert (tmp_path / "new" / "a" / "b").stat().st_mode & 0o077 == 0
    assert (tmp_path / "new" / "a").stat().st_mode & 0o077 == 0


def test_a_url_is_told_without_what_lets_anybody_in() -> None:
    assert _without_secrets("sftp://ada:secret@host/path?token=x") == "sftp://host/path"


def test_an_unknown_kind_of_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="nosuch"):
        place_of("nosuch://host/path")
