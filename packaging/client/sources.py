"""Which sources the wheel of sandq-client has: hatchling asks when it builds one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The wheel of sandq leaves out the same ones (pyproject.toml).
SOURCES = (
    "sandctl",
    "sandq/__init__.py",
    "sandq/backup",
    "sandq/client",
    "sandq/errors.py",
    "sandq/model",
    "sandq/protocol",
    "sandq/py.typed",
    "sandq/schedules",
    "sandq/sql",
    "sandq/sync",
)


class Sources(BuildHookInterface):
    """Include the sources from the tree, which also contains those of sandq."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the sources, but for an editable installation, which has a path to the tree instead."""
        if version != "editable":
            tree = Path(self.root).parents[1]
            build_data["force_include"] |= {str(tree / name): name for name in SOURCES}
