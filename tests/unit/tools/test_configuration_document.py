"""Tests of docs/configuration.md: it has every key with the default and the range of the schema."""

from __future__ import annotations

import re
from typing import Any

import pytest

from sandq.model.config import load_config
from sandq.model.errors import ConfigError
from sandq.model.show_config import config_keys, section_values, size_text
from sandq.model.times import duration_ms, format_duration
from tests.support.documents import document

DOCUMENT = document("configuration")
ROWS = {
    key: (meaning, limits, default)
    for key, meaning, limits, default in re.findall(
        r"^\| `([a-z0-9_.]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", DOCUMENT, re.MULTILINE
    )
}
KEYS = [
    key
    for section, keys in config_keys().items()
    for key in ([section] if keys is None else [f"{section}.{name}" for name in keys])
]


def variable(key: str) -> str:
    return "SANDQ_" + key.upper().replace(".", "__")


def default_of(key: str) -> Any:
    """Return the default on a node with a configuration file, which must set the start of its cluster."""
    config = load_config(None, {"SANDQ_CLUSTER__SEEDS": "127.0.0.1:1"} if key == "cluster.bootstrap" else {})
    section, _, name = key.partition(".")
    values = section_values(config, section)
    return values[name] if name else values


def is_allowed(key: str, value: str) -> bool:
    """Whether the schema accepts the value. Conflicts with other keys do not count."""
    files = [name for name in ("cert_file", "key_file", "ca_file") if key.startswith("tls.") and key != f"tls.{name}"]
    try:
        load_config(None, {**{variable(f"tls.{name}"): "x.pem" for name in files}, variable(key): value})
    except ConfigError as error:
        return not any(f"environment {variable(key)}:" in line for line in error.details["mistakes"])
    return True


def test_every_key_is_in_the_document_and_no_other() -> None:
    assert list(ROWS) and set(ROWS) == set(KEYS), set(ROWS) ^ set(KEYS)
    for key, (meaning, _, _) in ROWS.items():
        assert len(meaning) > 10 and meaning.endswith("."), key


@pytest.mark.parametrize("key", KEYS)
def test_documented_default_is_right(key: str) -> None:
    told = ROWS[key][2].strip()
    default = default_of(key)
    if default is None:
        assert not told.startswith("`"), key
        return
    text = str(default).lower() if isinstance(default, bool) else str(default)
    assert told.split("`")[1] == text, key


@pytest.mark.parametrize("key", [key for key in ROWS if " to " in ROWS[key][1]])
def test_documented_range_is_right(key: str) -> None:
    """Both ends of the range are accepted, and values just beyond are refused."""
    low, high = (end.strip("`") for end in ROWS[key][1].strip().split(" to "))
    if low.endswith("_bytes"):  # limited by another key
        low = str(default_of(f"limits.{low}"))
    assert is_allowed(key, low) and is_allowed(key, high)
    for end, step in ((low, -1), (high, 1)):
        beyond = _beyond(key, end, step)
        if beyond is not None:
            assert not is_allowed(key, beyond), (key, beyond)


def _beyond(key: str, end: str, step: int) -> str | None:
    """Return the next smaller or greater value as text. None: no such value exists (a negative duration)."""
    if re.fullmatch(r"\d+(ms|s|m|h|d)", end):
        ms = duration_ms(end) + step
        return format_duration(ms) if ms >= 0 else None
    if re.fullmatch(r"\d+(KiB|MiB|GiB)", end):
        factor = {"K": 2**10, "M": 2**20, "G": 2**30}[end[-3]]
        return str(int(end[:-3]) * factor + step)
    return str(int(end) + step)


@pytest.mark.parametrize("key", [key for key in ROWS if ", " in ROWS[key][1] and "`" in ROWS[key][1]])
def test_listed_values_of_a_key_are_correct(key: str) -> None:
    for word in re.findall(r"`([a-z]+)`", ROWS[key][1]):
        assert is_allowed(key, word), (key, word)


def test_a_range_that_is_wrong_is_found() -> None:
    assert is_allowed("cluster.reassign_after", "7d")
    assert not is_allowed("cluster.reassign_after", _beyond("cluster.reassign_after", "7d", 1) or "")
    assert not is_allowed("limits.connections", "0")
    assert size_text(3 * 2**20) == "3MiB" and size_text(5) == 5
