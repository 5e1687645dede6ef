"""Convert YAML text to plain values, and record the position of each of them.

Only mappings, lists and scalars are accepted. Features with silent, surprising effects are mistakes here: a repeated
key, aliases, tags of other types, keys that are not text. All mistakes are found in one pass. Pure: takes text, not a
file.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml

Path = tuple[str | int, ...]


class TextPosition(NamedTuple):
    """A line and a column, both from 1."""

    line: int
    column: int


class Found(NamedTuple):
    """A mistake in the YAML itself. `lost`: there is no value because of the mistake, so the missing value must not be
    reported as a second mistake."""

    position: TextPosition
    path: Path
    what: str
    lost: bool = True


@dataclass
class Marked:
    """Plain values, the positions of keys and of values by their path, and the mistakes in the text."""

    value: Any = None
    keys: dict[Path, TextPosition] = field(default_factory=dict)
    values: dict[Path, TextPosition] = field(default_factory=dict)
    mistakes: list[Found] = field(default_factory=list)


def _position(mark: Any) -> TextPosition:
    """Return the line and column of a mark, counted from 1."""
    return TextPosition(1, 1) if mark is None else TextPosition(mark.line + 1, mark.column + 1)


def load(text: str) -> Marked:
    """Return the values of one YAML document (None if it is empty). Never raises: mistakes are in the result."""
    marked = Marked()
    loader = None
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
        if root is not None:
            marked.value = _Converter(loader, marked).walk(root, ())
    except yaml.MarkedYAMLError as error:
        what = " ".join(part for part in (error.context, error.problem) if part)
        marked.mistakes.append(Found(_position(error.problem_mark or error.context_mark), (), what))
    except yaml.YAMLError as error:
        marked.mistakes.append(Found(TextPosition(1, 1), (), " ".join(str(error).split())))
    except RecursionError:
        marked.mistakes.append(Found(TextPosition(1, 1), (), "nested too deeply"))
    finally:
        if loader is not None:
            loader.dispose()
    return marked


class _Converter:
    def __init__(self, loader: yaml.SafeLoader, marked: Marked) -> None:
        self._loader = loader
        self._marked = marked
        self._seen: set[int] = set()

    def _mistake(self, node: yaml.Node, path: Path, what: str) -> None:
        """Add a mistake at the position of a node."""
        self._marked.mistakes.append(Found(_position(node.start_mark), path, what))

    def walk(self, node: yaml.Node, path: Path) -> Any:
        """Return the value of a node, and note the positions of all values in it."""
        self._marked.values[path] = _position(node.start_mark)
        # An alias is a second reference to the same node: the result could contain itself, or grow without bound.
        if id(node) in self._seen:
            self._mistake(node, path, "an alias (*) is not allowed")
            return None
        self._seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.walk(item, (*path, position)) for position, item in enumerate(node.value)]
        try:
            return self._loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:  # a tag of another type, an invalid date
            problem = getattr(error, "problem", None) or str(error)
            self._mistake(node, path, f"{node.value[:60]!r}: {problem}")
            return None

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        """Return the value of a mapping. Keys must be text, each once."""
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != "tag:yaml.org,2002:str":
                self._mistake(key_node, path, "a key must be text; put quotes around it")
                continue
            key = key_node.value
            below = (*path, key)
            if key in mapping:
                first = self._marked.keys[below]
                what = f"the key is there twice, first in line {first.line}"
                self._marked.mistakes.append(Found(_position(key_node.start_mark), below, what, lost=False))
                continue
            self._marked.keys[below] = _position(key_node.start_mark)
            mapping[key] = self.walk(value_node, below)
        return mapping
