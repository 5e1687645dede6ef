"""Tests of docs/topics.md and the help of sandctl: they show the default and the range of each setting."""

from __future__ import annotations

import re
from typing import Any

import pytest
from click import Command, Context

from sandctl.commands.groups import update as update_group
from sandctl.commands.topics import create, update
from sandctl.options.topic_settings import settings_of
from sandq.client.json_format import settings_json
from sandq.model.errors import InvalidSetting
from sandq.model.names import COMPACTED, FAIR, PRIORITY, TIMER
from sandq.model.schema import keys_of
from sandq.model.setting_texts import SETTINGS, UNITS
from sandq.model.settings import CLASSES, Backoff, parse_settings
from sandq.model.times import duration_ms, format_duration
from tests.support.documents import document

_ROW = r"^\| `([a-z_.]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$"
_TABLES = re.split(r"^\| Setting \| sandctl .*$", document("topics"), flags=re.MULTILINE)[1:]
Row = tuple[str, str, str]
NAMES_OF_HELP = ["-h", "--help"]
"""Names of the help option as in the program: click keeps the names of the first request."""
TOPICS: dict[str, dict[str, Row]] = {
    kind: {key: (option, default, limits) for key, option, default, limits in re.findall(_ROW, table, re.MULTILINE)}
    for kind, table in zip((TIMER, COMPACTED, FAIR), _TABLES, strict=True)
}
ROWS = [(kind, key, *row) for kind, rows in TOPICS.items() for key, row in rows.items()]


def text(value: Any) -> str:
    """Return the value as text for a document or a command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def defaults(kind: str) -> dict[str, str]:
    """Return setting -> default. Parts of the back-off have names like `backoff.kind`."""
    found: dict[str, Any] = settings_json(parse_settings({}, kind).record(), kind)
    backoff = found.pop("backoff")
    return {key: text(value) for key, value in (*found.items(), *((f"backoff.{k}", v) for k, v in backoff.items()))}


DEFAULTS = {**defaults(COMPACTED), **defaults(FAIR), **defaults(TIMER)}


def is_allowed(kind: str, key: str, value: str) -> bool:
    """Whether the field accepts the value. Conflicts with other keys do not count."""
    section, _, part = key.partition(".")
    if value.endswith("PiB"):  # users know the unit, but the field does not
        value = f"{int(value.removesuffix('PiB')) * 2**20}GiB"
    more = {} if section not in ("retain", "retain_bytes") else {"delete_on_ack": False}
    try:
        parse_settings({section: {part: value} if part else value, **more}, kind)
    except InvalidSetting as error:
        return not any(line.startswith(f"{key}:") and "longer than" not in line for line in error.details["mistakes"])
    return True


def test_every_setting_is_in_the_document_and_no_other() -> None:
    parts = {f"backoff.{part}" for part in keys_of(Backoff)}
    assert set(TOPICS[TIMER]) == {*keys_of(CLASSES[TIMER]), *parts} - {"backoff"}
    shared = {"lease", "max_attempts", "max_snoozes", "backoff", "group_ttl", "max_message_bytes", "max_lease",
              "max_request_rate", "max_request_burst", "dead_retention", "max_dead_letters"}  # fmt: skip
    own = {"ttl", *keys_of(CLASSES[COMPACTED])} - shared
    assert set(TOPICS[COMPACTED]) == own
    assert set(TOPICS[FAIR]) == {*keys_of(CLASSES[FAIR])} - {*keys_of(CLASSES[TIMER])}
    assert {*keys_of(CLASSES[FAIR])} - {*keys_of(CLASSES[PRIORITY])} == {"tenants"}
    assert {*keys_of(CLASSES[TIMER])} - {*keys_of(CLASSES[PRIORITY])} == {"ordering", "max_in_flight_per_key"}


@pytest.mark.parametrize(("kind", "key", "option", "default", "limits"), ROWS)
def test_documented_row_of_setting_matches_the_code(
    kind: str, key: str, option: str, default: str, limits: str
) -> None:
    assert default == defaults(kind)[key]
    words = limits.split(", ")
    for word in words:
        low, _, high = word.replace("JSON", "{}").partition(" to ")
        assert is_allowed(kind, key, low) and is_allowed(kind, key, high or low), word
        for end, step in ((low, -1), (high, 1)) if high else ():
            beyond = _beyond(end, step)
            assert beyond is None or not is_allowed(kind, key, beyond), beyond
    assert is_allowed(kind, key, "none") is ("none" in words)
    assert set(re.findall(r"`(--[a-z-]+)`", option)) <= set(_help_of(create)), option


def _beyond(end: str, step: int) -> str | None:
    """Return the next smaller or greater value as text. None: no such value exists (a negative duration)."""
    if re.fullmatch(r"\d+(ms|s|m|h|d)", end):
        ms = duration_ms(end) + step
        return format_duration(ms) if ms >= 0 else None
    size = re.fullmatch(r"(\d+)(KiB|MiB|PiB)", end)
    return str(int(size[1]) * {"K": 2**10, "M": 2**20, "P": 2**50}[size[2][0]] + step) if size else str(int(end) + step)


def _help_of(command: Command) -> dict[str, str]:
    """Return option -> help text."""
    found = {}
    for option in command.get_params(Context(command, help_option_names=NAMES_OF_HELP)):
        record = option.get_help_record(Context(command, help_option_names=NAMES_OF_HELP))
        for name in (*option.opts, *option.secondary_opts):
            found[name] = record[1] if record else ""
    return found


def _option_defaults(names: list[str], values: list[str]) -> dict[str, str]:
    """Return setting -> default from option values. The last value counts for all remaining options."""
    values += values[-1:] * (len(names) - len(values))
    found = {}
    for name, value in zip(names, values, strict=True):
        option = name.removeprefix("--").replace("-", "_")
        if name == "--delete-on-ack":
            found["delete_on_ack"] = {"delete-on-ack": "yes"}[value.removeprefix("--")]
            continue
        if name == "--push-targets":
            found["push_targets"] = {"no-push-targets": "no"}[value.removeprefix("--")]
            continue
        number = "1" if name == "--max-attempts" else value
        (setting, inner), *_ = settings_of({option: number}).items()
        key = f"backoff.{next(iter(inner))}" if setting == "backoff" else setting
        found[key] = value
    return found


def test_sandctl_help_has_the_defaults() -> None:
    told = {
        name: match[1] for name, words in _help_of(create).items() if (match := re.search(r"\[default: (.*)\]$", words))
    }
    own = {name: value for name, value in told.items() if name not in ("--kind", "--partitions", "--replicas")}
    for counterpart in ("--retain", "--no-push-targets"):
        own.pop(counterpart, None)
    assert _option_defaults(list(own), list(own.values())) == DEFAULTS
    for command in (update, update_group):
        assert not any("[default: " in words for words in _help_of(command).values()), (
            "settings that are not named stay unchanged"
        )


def test_a_default_or_a_range_that_is_wrong_is_found() -> None:
    assert defaults(TIMER)["lease"] != "31s" and defaults(TIMER)["backoff.factor"] == "2"
    assert not is_allowed(TIMER, "lease", "13h") and not is_allowed(TIMER, "backoff.cap", "8d")
    assert is_allowed(TIMER, "retain_bytes", "1MiB") and not is_allowed(TIMER, "retain_bytes", "1KiB")
    assert _option_defaults(["--backoff-cap", "--ttl"], ["10m", "none"]) == {"backoff.cap": "10m", "ttl": "none"}


def test_every_setting_has_a_text_in_a_known_unit_and_fits_its_field() -> None:
    assert SETTINGS.keys() == DEFAULTS.keys()
    for name, text in SETTINGS.items():
        assert text.says.endswith(".") and bool(text.choices) is (text.unit == ""), name
        assert not text.unit or text.unit in UNITS, name
        kinds = [kind for kind in TOPICS if name in defaults(kind)]
        assert all(is_allowed(kind, name, "none") is text.allows_none for kind in kinds if not text.choices), name
        assert all(is_allowed(kind, name, choice) for kind in kinds for choice in text.choices), name


def test_settings_that_cannot_be_changed_are_those_that_no_update_offers() -> None:
    options = {f"--{name.replace('_', '-')}" for name, text in SETTINGS.items() if text.is_fixed}
    assert options and options <= _help_of(create).keys() and not options & _help_of(update).keys()
