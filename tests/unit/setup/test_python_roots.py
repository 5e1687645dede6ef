"""Tests of tests/support/pythons/roots.py: the source of a Debian root, and the error if none is possible."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.pythons import roots
from tests.support.pythons.roots import RootFailed, debian_mirror, refuse_without_root, setup_key


@pytest.mark.parametrize(
    ("name", "text", "address"),
    [
        (
            "debian.sources",
            "Types: deb\n# a comment\nURIs: http://one.example/debian\nSuites: trixie\n",
            "http://one.example/debian",
        ),
        (
            "sources.list",
            "# deb http://old.example/debian x main\ndeb http://two.example/debian/ trixie main\n",
            "http://two.example/debian/",
        ),
        (
            "a.list",
            "deb [arch=amd64 signed-by=/k.gpg] http://three.example/debian sid main\n",
            "http://three.example/debian",
        ),
        (
            "b.list",
            "deb http://four.example/debian-security s main\ndeb http://five.example/debian s main\n",
            "http://five.example/debian",
        ),
    ],
)
def test_debian_mirror_is_read_from_apt_sources(tmp_path: Path, name: str, text: str, address: str) -> None:
    (tmp_path / name).write_text(text)
    assert debian_mirror([tmp_path / "missing", tmp_path / name]) == address


def test_without_a_debian_archive_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.list").write_text("deb http://archive.example/ubuntu noble main\n")
    with pytest.raises(RootFailed, match="no apt source of this machine names a Debian archive"):
        debian_mirror([tmp_path / "a.list"])


def test_a_root_needs_root_and_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(RootFailed, match="run this as root"):
        refuse_without_root()
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: None if name == "debootstrap" else f"/usr/sbin/{name}")
    with pytest.raises(RootFailed, match="missing: debootstrap; apt-get install debootstrap"):
        refuse_without_root()


def test_key_of_root_changes_with_the_setup_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packaging/client").mkdir(parents=True)
    for name in ("requirements.lock", "pyproject.toml", "packaging/client/pyproject.toml"):
        (tmp_path / name).write_text("a")
    monkeypatch.setattr(roots, "ROOT", tmp_path)
    keys = [setup_key()]
    for name in ("requirements.lock", "pyproject.toml", "packaging/client/pyproject.toml"):
        (tmp_path / name).write_text("b")
        keys.append(setup_key())
    assert len({*keys}) == 4
