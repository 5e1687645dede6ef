"""Format a configuration as YAML with every key.

A node publishes this text as its configuration. `sandq check-config --show` prints it with the origin of each value.
The text is itself a configuration file with the same meaning. It does not include the contents of files that it names
(secrets).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sandq.model import schema, yaml_marks
from sandq.model.config import NodeConfig, environment_names
from sandq.model.config_schema import Address
from sandq.model.push_targets import shown_url
from sandq.model.times import format_duration

_SIZE_UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


SAID_NONE = {("listen", "http")}
"""Keys that may have the value "none". Other keys without a value are commented out."""


def effective(config: NodeConfig, text: str | None, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the lines. A value that does not come from the file is followed by its origin."""
    in_file = _keys_of_file(text)
    variables = {name: tuple(name.removeprefix("SANDQ_").lower().split("__")) for name in environment_names()}
    set_by = {keys: name for name, keys in variables.items() if name in environ}
    return _lines(config, lambda *keys: _origin(keys, in_file, set_by))


def without_secrets(config: NodeConfig) -> Iterator[str]:
    """Yield the lines without secrets. URLs are shown without the values in their query, because a value may be a
    secret."""
    if config.jwt.jwks_url is not None:
        jwt = config.jwt.model_copy(update={"jwks_url": shown_url(config.jwt.jwks_url)})
        config = config.model_copy(update={"jwt": jwt})
    return _lines(config, lambda *keys: "")


def _lines(config: NodeConfig, origin: Callable[..., str]) -> Iterator[str]:
    """Yield the lines. `origin`: returns the text that follows the value of a key."""
    for section, keys in config_keys().items():
        found = section_values(config, section)
        if keys is None:
            yield f"{section}: {_yaml(found)}{origin(section)}"
            continue
        yield f"{section}:"
        for key in keys:
            mark = "# " if found[key] is None else ""  # no key means the same, and null is not accepted
            yield f"  {mark}{key}: {_yaml(found[key])}{origin(section, key)}"


def config_keys() -> dict[str, list[str] | None]:
    """Return the keys of each section; None for a top-level key that is no section."""
    found: dict[str, list[str] | None] = {}
    for section in schema.keys_of(NodeConfig):
        model = schema.model_at(NodeConfig, (section,))
        found[section] = None if model is None else list(schema.keys_of(model))
    return found


def section_values(config: NodeConfig, section: str) -> Any:
    """Return the values of a section by key, as users write them: text, numbers, true and false, lists, null."""
    attribute = section if hasattr(config, section) else f"{section}_ms"
    value = getattr(config, attribute)
    if attribute.endswith("_ms"):
        return format_duration(value)
    found = {}
    model = schema.model_at(NodeConfig, (section,))
    assert model is not None
    for key in schema.keys_of(model):
        name = key if hasattr(value, key) else f"{key}_ms"
        shown = _shown(name, getattr(value, name))
        # A missing key would mean the default, so "none" must be written: `http: none`.
        found[key] = "none" if shown is None and (section, key) in SAID_NONE else shown
    return found


def _shown(name: str, value: Any) -> Any:
    """Return a value as it is written in a configuration. The name of the setting determines its unit."""
    if isinstance(value, (Address, Path)):
        return str(value)
    if isinstance(value, list):
        return [_shown(name, part) for part in value]
    if isinstance(value, schema.Section):
        return {key: _shown(key, getattr(value, key)) for key in type(value).model_fields}
    if name.endswith("_ms") and value is not None:
        return format_duration(value)
    if ("bytes" in name or name.endswith("_rate")) and isinstance(value, int):
        return size_text(value)
    return value


def size_text(size: int) -> str | int:
    """Return a size as in a configuration: "64MiB". A size that is not a multiple of a unit is returned as an int."""
    for unit, name in _SIZE_UNITS:
        if size and size % unit == 0:
            return f"{size // unit}{name}"
    return size


def _yaml(value: Any) -> str:
    """Return a value as JSON, which is also YAML, but without quotes around text that needs none."""
    if isinstance(value, str) and value and all(c.isascii() and (c.isalnum() or c in "._/-:") for c in value):
        marked = yaml_marks.load(value)
        if marked.value == value and not marked.mistakes:
            return value
    if isinstance(value, list) and not any(isinstance(part, dict) for part in value):
        return "[" + ", ".join(json.dumps(part, ensure_ascii=False) for part in value) + "]"
    return "none" if value is None else json.dumps(value, ensure_ascii=False)


def _origin(keys: tuple[str, ...], in_file: set[tuple[str, ...]], set_by: Mapping[tuple[str, ...], str]) -> str:
    """Return a comment that says where a value comes from; empty if it is from the file."""
    if keys in set_by:
        return f"  # from {set_by[keys]}"
    return "" if keys in in_file else "  # default"


def _keys_of_file(text: str | None) -> set[tuple[str, ...]]:
    """Return the paths of the sections and settings in a configuration."""
    if text is None:
        return set()
    value = yaml_marks.load(text).value
    found: set[tuple[str, ...]] = set()
    for section, content in value.items() if isinstance(value, dict) else ():
        found.add((section,))
        found |= {(section, key) for key in content} if isinstance(content, dict) else set()
    return found
