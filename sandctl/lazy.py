"""A command group that imports each command when it is called, so that `--help` stays fast."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any, NamedTuple

import click


class Later(NamedTuple):
    """Module, name and short help of a command. A test compares this short help with that of the command itself."""

    module: str
    name: str
    short_help: str


class _Commands(MutableMapping[str, click.Command]):
    """A group that lists command names without imports, and imports a command only when it is called."""

    def __init__(self, later: Mapping[str, Later]) -> None:
        self._later = later
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        found = self._loaded.get(name)
        if found is None:
            place = self._later[name]
            found = self._loaded[name] = getattr(importlib.import_module(place.module), place.name)
        return found

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._later, **self._loaded})

    def __len__(self) -> int:
        return len({**self._later, **self._loaded})


class LazyGroup(click.Group):
    """Use as `LazyGroup(later={"topic": Later("sandctl.commands.topics", "topic", "...")})`. Lists commands in this
    order."""

    def __init__(self, *args: Any, later: Mapping[str, Later], **more: Any) -> None:
        super().__init__(*args, **more)
        self.later = later
        self.commands = _Commands(later)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in their given order."""
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands as click does, without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, place.short_help) for name, place in self.later.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete names of commands and options without importing a command."""
        from click.shell_completion import CompletionItem

        found: list[Any] = [
            CompletionItem(name, help=place.short_help)
            for name, place in self.later.items()
            if name.startswith(incomplete)
        ]
        return found + click.Command.shell_complete(self, ctx, incomplete)
