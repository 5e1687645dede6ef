"""Tests that zones come only from the installed package."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest

from sandq.model.errors import InvalidRequest
from sandq.schedules.zones import data_version, zone, zone_names
from tests.support.paths import ROOT


def test_a_zone_is_read_once() -> None:
    assert zone("Europe/Berlin") is zone("Europe/Berlin")
    assert zone("Europe/Berlin").key == "Europe/Berlin"
    assert zone("UTC").key == "UTC"


def test_zones_of_the_system_are_not_looked_at(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A directory that zoneinfo prefers has different zones. It must change nothing."""
    import zoneinfo

    (tmp_path / "Asia").mkdir()
    utc = zoneinfo.ZoneInfo.no_cache("UTC")
    assert utc.key == "UTC"
    (tmp_path / "Asia" / "Seoul").write_bytes(b"no zone data")
    zoneinfo.reset_tzpath([tmp_path])
    try:
        with pytest.raises(ValueError):
            zoneinfo.ZoneInfo.no_cache("Asia/Seoul")
        zone.cache_clear()
        assert zone("Asia/Seoul").key == "Asia/Seoul"
    finally:
        zoneinfo.reset_tzpath()


def test_every_zone_opens() -> None:
    names = zone_names()
    assert len(names) > 500
    for name in names:
        assert zone(name).key == name


@pytest.mark.parametrize(
    ("name", "close"),
    [
        ("europe/berlin", "Europe/Berlin"),
        ("Berlin", "Europe/Berlin"),
        ("Europe/Berln", "Europe/Berlin"),
        ("America/NewYork", "America/New_York"),
        ("new york", "America/New_York"),
        ("Europe/Tokyo", "Asia/Tokyo"),
        ("utc", "UTC"),
        ("Austalia/Lord_Howe", "Australia/Lord_Howe"),
    ],
)
def test_a_name_that_is_close_is_suggested(name: str, close: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        zone(name)
    assert refused.value.message == f'zone: "{name}" is not known; did you mean "{close}"?'


@pytest.mark.parametrize(
    "name", ["", "+02:00", "Mars/Olympus_Mons", "../../../etc/passwd", "/etc/localtime", "A" * 100_000]
)
def test_a_name_like_no_other_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        zone(name)
    assert 'an IANA name such as "Europe/Berlin" or "UTC" is expected' in refused.value.message
    assert len(refused.value.message) < 200


def test_zone_data_version_is_the_package_version() -> None:
    assert data_version() == metadata.version("tzdata")


def test_lock_files_agree_on_the_zone_data() -> None:
    """Data frames of Spark and schedules know the same zones."""
    pinned = {
        line.split()[0]
        for name in ("requirements.lock", "requirements-spark.lock")
        for line in (ROOT / name).read_text().splitlines()
        if line.startswith("tzdata==")
    }
    assert len(pinned) == 1
