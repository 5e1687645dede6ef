"""Load a node's configuration from a YAML file and the environment, and report every mistake with its position.

`SANDQ_NODE__ID=node2` sets `node.id`: two underscores stand for the dot. Lists are written with commas, or as YAML
(`[a:1, b:2]`). An unknown variable that begins with `SANDQ_` is a mistake, too. Mistakes look like

    bad.yaml:7:5: cluster.peers.0.hostt: unknown key; did you mean 'host'?

This module's `read_text` is the only access to a file in the pure floors.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, get_origin

from pydantic import ValidationError

from sandq.model import schema, yaml_marks
from sandq.model.config_schema import Address, NodeConfig
from sandq.model.errors import ConfigError

__all__ = ["Address", "NodeConfig", "environment_names", "load_config"]

ENV_PREFIX = "SANDQ_"
OF_CLIENTS: Final = frozenset({f"{ENV_PREFIX}{name}" for name in ("TOKEN", "TOKEN_FILE", "TLS", "CA", "CERT", "KEY")})
"""Variables that `sandq.connect` reads. A node may share its environment with a client, so it ignores them."""

_Keys = tuple[str | int, ...]


def load_config(path: str | Path | None, environ: Mapping[str, str], *, is_node: bool = True) -> NodeConfig:
    """Return the configuration of a node: the file at `path`, overridden by `environ`.

    Without a file: one node, `node1`, that founds its own cluster, with its data in ./sandq-data. A file without the
    section `cluster` founds one as well. A gateway (not `is_node`) need not say which cluster it belongs to.

    Raise ConfigError with every mistake, one per line, and as a list in `details["mistakes"]`.
    """
    draft = _Draft(None if path is None else str(path))
    if path is not None:
        draft.read(_read(Path(path)))
    draft.override(environ)
    if path is None or not is_node or "cluster" not in draft.values:
        cluster = draft.section("cluster")
        if not cluster.keys() & {"seeds", "peers", "bootstrap"}:
            cluster["bootstrap"] = True
    draft.section("cluster")
    try:
        config = NodeConfig.model_validate(draft.values)
    except ValidationError as error:
        draft.found(schema.mistakes_of(error, NodeConfig))
    if draft.mistakes:
        lines = [line for _, line in sorted(draft.mistakes)]
        raise ConfigError("\n".join(lines), mistakes=lines)
    return config


def environment_names() -> list[str]:
    """Return every variable that `load_config` knows, sorted."""
    return sorted(_known_names())


def _read(path: Path) -> str:
    """Return the text of a file. Raise ConfigError."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        line = f"{path}: cannot be read: {error.strerror or error}"
    except UnicodeDecodeError as error:
        line = f"{path}: is not UTF-8: byte {error.start}"
    raise ConfigError(line, mistakes=[line])


def _known_names() -> dict[str, tuple[str, ...]]:
    """Return the path of keys that each variable sets, for every key that is not a section."""
    names: dict[str, tuple[str, ...]] = {}
    for section in schema.keys_of(NodeConfig):
        model = schema.model_at(NodeConfig, (section,))
        paths = [(section,)] if model is None else [(section, key) for key in schema.keys_of(model)]
        for path in paths:
            names[ENV_PREFIX + "__".join(path).upper()] = path
    return names


def _why_unknown(variable: str, known: Iterable[str]) -> str:
    """Say what is wrong with a variable that names no setting."""
    for section in schema.keys_of(NodeConfig):
        model = schema.model_at(NodeConfig, (section,))
        removed = model.removed if model is not None and issubclass(model, schema.Section) else {}
        for key, what in removed.items():
            if variable == ENV_PREFIX + f"{section}__{key}".upper():
                return what
    close = difflib.get_close_matches(variable, known, n=1)
    return "no such setting" + (f"; did you mean {close[0]}?" if close else "")


def _is_list(path: _Keys) -> bool:
    """Return whether a key holds a list. Only for such a key, a bracket begins a list. For other keys, it may begin an
    IPv6 address or a name."""
    section = schema.model_at(NodeConfig, path[:-1])
    return section is not None and get_origin(schema.keys_of(section).get(str(path[-1]))) is list


@dataclass
class _Draft:
    """A configuration in the making: values, the origin of each value, and mistakes as (position, text)."""

    file: str | None
    values: dict[str, Any] = field(default_factory=dict)
    marked: yaml_marks.Marked = field(default_factory=yaml_marks.Marked)
    variables: dict[_Keys, str] = field(default_factory=dict)
    lost: list[_Keys] = field(default_factory=list)
    mistakes: list[tuple[tuple[int, int], str]] = field(default_factory=list)

    def section(self, name: str) -> dict[str, Any]:
        """Return the mapping of a section. Create it if it is missing; return an empty one if its value is no
        mapping."""
        if self.values.get(name) is None:
            self.values[name] = {}
        section = self.values[name]
        return section if isinstance(section, dict) else {}

    def read(self, text: str) -> None:
        """Read the values of a YAML text."""
        self.marked = yaml_marks.load(text)
        value = self.marked.value
        if isinstance(value, dict):
            self.values = value
        elif value is not None:
            found = yaml_marks.Found(yaml_marks.TextPosition(1, 1), (), "a mapping of sections is expected")
            self.marked.mistakes.append(found)
        for position, path, what, lost in self.marked.mistakes:
            self._add(position, self._line(position, schema.Mistake(path, what)))
            self.lost += [path] if lost else []
        for name, section in list(self.values.items()):
            if section is None and schema.model_at(NodeConfig, (name,)) is not None:
                self.values[name] = {}  # a section whose keys are all commented out

    def override(self, environ: Mapping[str, str]) -> None:
        """Override the values with those of the variables."""
        known = _known_names()
        for variable in sorted(environ):
            if not variable.startswith(ENV_PREFIX) or variable in OF_CLIENTS:
                continue
            path = known.get(variable)
            if path is None:
                self._add((0, 0), f"environment {variable}: {_why_unknown(variable, known)}")
                continue
            self.variables[path] = variable
            value = self._variable(variable, path, environ[variable])
            if len(path) == 1:
                self.values[path[0]] = value
            else:
                self.section(path[0])[path[1]] = value

    def _variable(self, variable: str, path: _Keys, text: str) -> object:
        """Return the value of an environment variable: text, or the list that it contains if the setting is a list."""
        if not text.startswith("[") or not _is_list(path):
            return text
        marked = yaml_marks.load(text)
        for found in marked.mistakes:
            self._add((0, 0), f"environment {variable}: {'.'.join(map(str, path))}: {found.what}")
            self.lost.append(path)
        return marked.value

    def found(self, mistakes: Iterable[schema.Mistake]) -> None:
        """Record the mistakes that the validation found.

        Skip values that are missing because their text could not be parsed: that mistake is recorded already."""
        for mistake in mistakes:
            keys = mistake.where
            if any(keys[: len(path)] == path for path in self.lost):
                continue
            variable = self.variables.get(keys[:2]) or self.variables.get(keys[:1])
            if variable is not None:
                self._add((0, 0), f"environment {variable}: {mistake}")
            elif self.file is None:
                self._add((0, 0), str(mistake))
            else:
                position = self._position(mistake)
                self._add(position, self._line(position, mistake))

    def _position(self, mistake: schema.Mistake) -> yaml_marks.TextPosition:
        """Return the position of a mistake in the file. For a missing key, return the position of the mapping that
        lacks it."""
        if mistake.key_is_wrong and mistake.where in self.marked.keys:
            return self.marked.keys[mistake.where]
        for length in range(len(mistake.where), -1, -1):
            position = self.marked.values.get(mistake.where[:length])
            if position is not None:
                return position
        return yaml_marks.TextPosition(1, 1)

    def _line(self, position: yaml_marks.TextPosition, mistake: schema.Mistake) -> str:
        """Return a mistake as a line with its position in the file."""
        return f"{self.file}:{position.line}:{position.column}: {mistake}"

    def _add(self, position: tuple[int, int], line: str) -> None:
        """Add a mistake. `position`: where it is in the file, by which mistakes are sorted."""
        self.mistakes.append((position, line))
